"""A tour of Quabla's core: the whole idea in one file that runs, with the names of the real one.

    python docs/tour.py

A Python function is traced into a Program, transforms turn Programs into Programs, and an executor runs them. Read from
top to bottom; each section says where the real thing is and what it has besides. Left out throughout: dtypes other than
float64, ops with several results, the weak type of Python numbers, pytrees, threads, error messages, most annotations,
and speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# --- 1. Types. Real: quabla/shapes.py, dtypes.py. There: float32, bool, int64, and checks with messages ---------------


@dataclass(frozen=True, eq=False)
class ShapeDtype:
    """The type of a value. Equal types are one object, so `is` compares them and dictionaries find them fast."""

    shape: tuple[int, ...]
    dtype: str = "float64"

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


_INTERNED: dict[Any, ShapeDtype] = {}


def aval_of(shape):
    """The one type of that shape."""
    return _INTERNED.setdefault(tuple(shape), ShapeDtype(tuple(shape)))


# --- 2. An op is a record of all that the framework must know. Real: quabla/ir/op.py. There a rule may also be refused
# with a reason, an op may bring its own `vjp`, and every op has samples that the conformance suite runs ---------------


@dataclass(frozen=True)
class Jointly:
    """Linear in all operands together, like a sum."""


@dataclass(frozen=True)
class Each:
    """Linear in each of these operands alone, like a product."""

    operands: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Op:
    """A primitive: what it means, how types, tangents, cotangents and batches go through it."""

    name: str
    infer: Callable[..., ShapeDtype]  # types -> type
    evaluate: Callable[..., Any]  # NumPy arrays -> NumPy array: the definition
    jvp: Callable[..., Any] | None = None  # primals, tangents, out -> tangent, written with ops
    linear: Jointly | Each | None = None  # says the same where the op is linear
    transpose: Callable[..., Any] | None = None  # ct, operands, wanted -> a cotangent per operand
    batch: Callable[..., Any] | None = None  # operands, mapped, size -> out, the mapped axis leading


OPS: dict[str, Op] = {}


def define(op):
    """Register a record that is complete; fail at import for one that is not."""
    source = not op.batch and not op.jvp and not op.linear  # a constant has no operands to derive or batch
    assert source or (op.batch and (op.jvp or op.linear) and (op.transpose or not op.linear)), op.name
    OPS[op.name] = op
    return op


# --- 3. Programs: frozen graphs in which every value is made once. Real: quabla/ir/program.py -------------------------


class Value:
    """An input (`node` is None) or the result of a node. Identity is equality."""

    aval: ShapeDtype
    node: Node | None

    @property
    def shape(self):
        return self.aval.shape


@dataclass(eq=False)
class Node:
    """One application of an op."""

    op: Op
    inputs: tuple[Value, ...]
    params: dict[str, Any]
    outputs: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """Inputs, nodes in order, outputs."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    def __str__(self):  # real: quabla/ir/text.py, with names of inputs and regions
        names = {v: f"x{i}" for i, v in enumerate(self.inputs)}
        lines = [f"input {names[v]}: {v.aval}" for v in self.inputs]
        for i, node in enumerate(self.nodes):
            names[node.outputs[0]] = f"%{i}"
            shown = [names[v] for v in node.inputs] + [f"{k}={p}" for k, p in node.params.items()]
            lines.append(f"%{i}: {node.outputs[0].aval} = {node.op.name}({', '.join(shown)})")
        return "\n".join([*lines, "return " + ", ".join(names[v] for v in self.outputs)])


def prune(nodes, outputs):
    """The nodes that `outputs` need, in their order."""
    live, kept = {v.node for v in outputs}, []
    for node in reversed(nodes):
        if node in live:
            kept.append(node)
            live.update(v.node for v in node.inputs)
    return tuple(reversed(kept))


# --- 4. Arrays and traces. Real: quabla/arrays/tensor.py (memory, NumPy in and out) and tracer.py; the operators are in
# quabla/ops/methods.py, also defined once for both kinds of array -----------------------------------------------------


class Methods:
    """The operators of arrays, concrete or traced."""

    def __add__(self, y):
        return apply(add_op, (self, y))

    def __mul__(self, y):
        return apply(mul_op, (self, y))

    def __neg__(self):
        return bind(neg_op, (self,), {})

    def __sub__(self, y):
        return self + -asarray(y)

    def __rsub__(self, y):
        return asarray(y) - self

    __radd__, __rmul__ = __add__, __mul__


class Tensor(Methods):
    """A concrete array, never changed."""

    def __init__(self, array):
        self.array = np.array(array, np.float64)
        self.aval, self.shape = aval_of(self.array.shape), self.array.shape


def asarray(obj):
    """`obj` as an array, unless it is one."""
    return obj if isinstance(obj, Methods) else Tensor(obj)


class TraceTensor(Methods, Value):
    """A value of a trace in progress: a type, the node that makes it, and no elements yet."""

    def __init__(self, aval, node, frame):
        self.aval, self.node, self.frame = aval, node, frame


class Frame:
    """A trace in progress. Equal applications are recorded once, so whoever records may repeat itself freely."""

    def __init__(self, depth):
        self.depth, self.nodes = depth, []
        self.seen = {}  # application -> its result
        self.captures = {}  # value of an outer frame -> the input that stands for it

    def placeholder(self, aval):
        """A value without a node: an input, or a tangent that will be transposed away."""
        return TraceTensor(aval, None, self)

    def emit(self, op, inputs, params):
        """Record an op on values of this frame."""
        key = (op, inputs, *params.values())
        if key not in self.seen:
            node = Node(op, inputs, params)
            self.nodes.append(node)
            self.seen[key] = out = TraceTensor(op.infer(*[v.aval for v in inputs], **params), node, self)
            node.outputs = (out,)
        return self.seen[key]

    def full(self, value, aval):
        """An array with all elements equal."""
        return self.emit(full_op, (), {"value": value, "aval": aval})

    def lift(self, x):
        """`x` as a value of this frame: a Tensor becomes a constant, a value of an outer frame a captured input."""
        if isinstance(x, Tensor) and x.array.size == 1:
            return self.full(x.array.item(), x.aval)
        if isinstance(x, Tensor):
            return self.emit(constant_op, (), {"value": x})
        if x.frame is self:
            return x
        if x not in self.captures:
            self.captures[x] = self.placeholder(x.aval)
        return self.captures[x]


_stack = []  # the traces in progress, outermost first; the real one is per thread


def innermost(values):
    """The innermost frame among those of the traced `values`. The real one also reports values that escaped."""
    found = [x.frame for x in values if isinstance(x, TraceTensor)]
    return max(found, key=lambda frame: frame.depth) if found else None


def bind(op, operands, params):
    """Apply an op: record it where an operand is traced, else compute it now. All arithmetic goes through here."""
    frame = innermost(operands)
    if frame is None:
        return Tensor(op.evaluate(*[x.array for x in operands], **params))
    return frame.emit(op, tuple(frame.lift(x) for x in operands), params)


def trace(fun, in_avals):
    """Run `fun` on traced values; the program of what it did, and the outer values it used, which are inputs too."""
    frame = Frame(len(_stack))
    _stack.append(frame)
    try:
        inputs = [frame.placeholder(a) for a in in_avals]
        outputs = tuple(frame.lift(x) for x in fun(*inputs))
    finally:
        _stack.pop()
    program = Program((*inputs, *frame.captures.values()), prune(frame.nodes, outputs), outputs)
    return program, tuple(frame.captures)


# --- 5. Ten ops. Real: quabla/ops/ (docs/ops.md lists them). Broadcasting is an op of its own, put in by `apply`, so
# that no derivative rule ever has to undo it --------------------------------------------------------------------------

full_op = define(Op("full", lambda value, aval: aval, lambda value, aval: np.full(aval.shape, value)))
constant_op = define(Op("constant", lambda value: value.aval, lambda value: value.array))


def broadcast(x, shape, dims=None):
    """`x` repeated to `shape`, its axis i as axis `dims[i]`, by default the last ones."""
    if x.shape == shape:
        return x
    dims = tuple(range(len(shape) - len(x.shape), len(shape))) if dims is None else dims
    return bind(broadcast_op, (x,), {"shape": shape, "dims": dims})


def sum_over(x, axes):
    """The sum over some axes."""
    return bind(reduce_sum_op, (x,), {"axes": axes}) if axes else x


def others(ndim, axes):
    """All axes but these."""
    return tuple(a for a in range(ndim) if a not in axes)


broadcast_op = define(
    Op(
        name="broadcast",
        infer=lambda x, shape, dims: aval_of(shape),
        evaluate=lambda x, shape, dims: np.broadcast_to(np.expand_dims(x, others(len(shape), dims)), shape),
        linear=Jointly(),
        transpose=lambda ct, operands, wanted, shape, dims: (sum_over(ct, others(len(shape), dims)),),
        batch=lambda operands, mapped, size, shape, dims: broadcast(
            operands[0], (size, *shape), (0, *(d + 1 for d in dims))
        ),
    )
)
reduce_sum_op = define(
    Op(
        name="reduce_sum",
        infer=lambda x, axes: aval_of([x.shape[a] for a in others(len(x.shape), axes)]),
        evaluate=lambda x, axes: np.sum(x, axes),
        linear=Jointly(),
        transpose=lambda ct, operands, wanted, axes: (
            broadcast(ct, operands[0].shape, others(len(operands[0].shape), axes)),
        ),
        batch=lambda operands, mapped, size, axes: sum_over(operands[0], tuple(a + 1 for a in axes)),
    )
)


def lead(x, mapped, size):
    """`x` with the batch axis in front."""
    return x if mapped else broadcast(x, (size, *x.shape), tuple(range(1, len(x.shape) + 1)))


def elementwise(name, partial=None, **rules):
    """A family: one line per op. The real one takes a partial per operand and makes a `vjp` of them as well."""

    def jvp(primals, tangents, out):
        return tangents[0] * partial(*primals, out)

    def batch(operands, mapped, size):
        return bind(op, [lead(x, m, size) for x, m in zip(operands, mapped, strict=True)], {})

    op = define(Op(name, lambda *avals: avals[0], jvp=jvp if partial else None, batch=batch, **rules))
    return op


def mul_transpose(ct, operands, wanted):
    x, y = operands
    return (ct * y if wanted[0] else None, ct * x if wanted[1] else None)


add_op = elementwise("add", evaluate=np.add, linear=Jointly(), transpose=lambda ct, *_: (ct, ct))
neg_op = elementwise("neg", evaluate=np.negative, linear=Jointly(), transpose=lambda ct, *_: (-ct,))
mul_op = elementwise("mul", evaluate=np.multiply, linear=Each((0, 1)), transpose=mul_transpose)
sin_op = elementwise("sin", lambda x, out: cos(x), evaluate=np.sin)
cos_op = elementwise("cos", lambda x, out: -sin(x), evaluate=np.cos)
tanh_op = elementwise("tanh", lambda x, out: 1.0 - out * out, evaluate=np.tanh)


def apply(op, operands):
    """Make numbers arrays, broadcast, apply. Real: quabla/ops/apply.py, which also settles the dtype."""
    xs = [asarray(x) for x in operands]
    shape = np.broadcast_shapes(*[x.shape for x in xs])
    return bind(op, [broadcast(x, shape) for x in xs], {})


sin, cos, tanh = [lambda x, op=op: apply(op, (x,)) for op in (sin_op, cos_op, tanh_op)]


def sum(x):
    """The sum of all elements."""
    return sum_over(x, tuple(range(len(x.shape))))


# --- 6. Forward mode: record each node and its tangent. Real: quabla/transforms/forward.py. A tangent that is None is
# zero and records nothing: what does not depend on the input costs nothing --------------------------------------------


def apply_jvp(op, primals, tangents, out, params):
    """The tangent of `out = op(*primals)`, from the op's rule or from its linearity."""
    if op.jvp is not None:
        return op.jvp(primals, tangents, out, **params)
    if isinstance(op.linear, Jointly):
        zeros = [p.frame.full(0.0, p.aval) for p in primals]
        return bind(op, [z if t is None else t for z, t in zip(zeros, tangents, strict=True)], params)
    total = None
    for i in op.linear.operands:
        if tangents[i] is not None:
            term = bind(op, [*primals[:i], tangents[i], *primals[i + 1 :]], params)
            total = term if total is None else total + term
    return total


def jvp_values(frame, program, primals, tangents):
    """Record a program and its tangents in `frame`: the outputs, and the tangent of each."""
    value = dict(zip(program.inputs, primals, strict=True))
    tangent = dict(zip(program.inputs, tangents, strict=True))
    for node in program.nodes:
        operands = tuple(value[v] for v in node.inputs)
        value[node.outputs[0]] = out = frame.emit(node.op, operands, node.params)
        moving = [tangent.get(v) for v in node.inputs]
        if any(t is not None for t in moving):
            tangent[node.outputs[0]] = apply_jvp(node.op, operands, moving, out, node.params)
    return [value[v] for v in program.outputs], [tangent.get(v) for v in program.outputs]


# --- 7. Reverse mode: record the nodes forwards, then their pullbacks backwards. Real: quabla/transforms/reverse.py.
# No op here says how it is differentiated backwards: that follows from its jvp ----------------------------------------


def accumulate(frame, cts, v, ct):
    """Add a cotangent of `v` to those collected: a value used twice gets the sum."""
    cts[v] = frame.emit(add_op, (cts[v], ct), {}) if v in cts else ct


def pullback(frame, op, operands, out, cts, wanted, params):
    """The cotangents of the operands. A linear op is transposed. For another, its jvp run on placeholders records a
    computation that is linear in them, and that is transposed; `prune` drops what hangs on the placeholders."""
    if op.linear is not None:
        return op.transpose(cts, operands, wanted, **params)
    tangents = [frame.placeholder(x.aval) if w else None for x, w in zip(operands, wanted, strict=True)]
    mark = len(frame.nodes)
    t_out = apply_jvp(op, operands, tangents, out, params)
    return transpose_nodes(frame, frame.nodes[mark:], tangents, {t_out: cts})


def transpose_nodes(frame, nodes, tangents, seeds):
    """Run the nodes that are linear in `tangents` backwards: the cotangent of each of `tangents`."""
    moving, cts = {t for t in tangents if t is not None}, dict(seeds)
    linear = []
    for node in nodes:
        if any(v in moving for v in node.inputs):
            linear.append(node)
            moving.update(node.outputs)
    for node in reversed(linear):
        wanted = [v in moving for v in node.inputs]
        back = node.op.transpose(cts[node.outputs[0]], node.inputs, wanted, **node.params)
        for v, w, ct in zip(node.inputs, wanted, back, strict=True):
            if w:
                accumulate(frame, cts, v, ct)
    return [cts.get(t) for t in tangents]


def vjp_values(frame, program, primals, wanted):
    """Record a program in `frame`: its outputs, and a function that records the backward pass."""
    value = dict(zip(program.inputs, primals, strict=True))
    active = {v for v, w in zip(program.inputs, wanted, strict=True) if w}
    steps = []
    for node in program.nodes:
        operands = tuple(value[v] for v in node.inputs)
        value[node.outputs[0]] = out = frame.emit(node.op, operands, node.params)
        needs = [v in active for v in node.inputs]
        if any(needs):
            active.update(node.outputs)
            steps.append((node, operands, out, needs))

    def backward(cts_out):
        cts = {}
        for v, ct in zip(program.outputs, cts_out, strict=True):
            accumulate(frame, cts, v, ct)
        for node, operands, out, needs in reversed(steps):
            given = cts.get(node.outputs[0])
            if given is not None:
                back = pullback(frame, node.op, operands, out, given, needs, node.params)
                for v, need, ct in zip(node.inputs, needs, back, strict=True):
                    if need:
                        accumulate(frame, cts, v, ct)
        return [cts.get(v) if w else None for v, w in zip(program.inputs, wanted, strict=True)]

    return [value[v] for v in program.outputs], backward


# --- 8. Batching: record each node for all examples at once. Real: quabla/transforms/batch.py -------------------------


def batch_values(frame, program, args, mapped, size):
    """Record a program of one example for `size` of them, the mapped axis leading; what is not mapped stays single."""
    value = dict(zip(program.inputs, args, strict=True))
    many = {v for v, m in zip(program.inputs, mapped, strict=True) if m}
    for node in program.nodes:
        operands, over = tuple(value[v] for v in node.inputs), [v in many for v in node.inputs]
        if any(over):
            value[node.outputs[0]] = node.op.batch(operands, over, size, **node.params)
            many.update(node.outputs)
        else:
            value[node.outputs[0]] = frame.emit(node.op, operands, node.params)
    return [value[v] for v in program.outputs], [v in many for v in program.outputs]


# --- 9. From functions to programs and back. Real: quabla/transforms/staging.py, where `Call` and `Result` hold what
# pytrees, keyword arguments and static arguments were taken apart into ------------------------------------------------


def stage(fun, avals):
    """Trace a function of one result: its program, and the values of enclosing traces that it closes over."""
    return trace(lambda *xs: [asarray(fun(*xs))], avals)


def target(arrays, captures):
    """The frame in which a transform records: the innermost of its arguments and captures."""
    return innermost((*arrays, *captures)) or _stack[-1]


def inline(program, bindings):
    """Record a program in the innermost trace of its bindings."""
    frame = target(bindings, ())
    return jvp_values(frame, program, [frame.lift(x) for x in bindings], [None] * len(bindings))[0]


# --- 10. An executor. Real: quabla/backends/reference.py is this loop over numbered slots; quabla_cpu makes native code


def execute(program, arrays):
    """Run a program node by node."""
    value = dict(zip(program.inputs, [x.array for x in arrays], strict=True))
    for node in program.nodes:
        value[node.outputs[0]] = node.op.evaluate(*[value[v] for v in node.inputs], **node.params)
    return [Tensor(value[v]) for v in program.outputs]


# --- 11. What users call. Real: quabla/transforms/transform.py, derivatives.py, vmap.py, jit.py. A transform called on
# traced values records itself in their trace; called on arrays it is traced, compiled and cached (real: dispatch.py,
# which generates a guard for the signature). So transforms nest without knowing of each other -------------------------


@dataclass
class Transform:
    """A transformed function; `apply` records it in the innermost trace."""

    apply: Callable[..., Any]
    programs: dict[Any, Program] = field(default_factory=dict)

    def __call__(self, *args):
        arrays = [asarray(x) for x in args]
        if innermost(arrays) is not None:
            return self.apply(*arrays)
        key = tuple(x.aval for x in arrays)
        if _stack or key not in self.programs:  # within a trace it may close over other values than last time
            program, captures = stage(self.apply, key)
            if captures:  # of an enclosing trace, so this call is part of that
                return inline(program, (*arrays, *captures))[0]
            self.programs[key] = program
        return execute(self.programs[key], arrays)[0]


def begin(fun, args, avals):
    """What every transform does first: trace the function, then find the frame to record in."""
    program, captures = stage(fun, avals)
    frame = target(args, captures)
    return frame, program, [frame.lift(x) for x in (*args, *captures)]


def jit(fun):
    """The function itself, traced once per signature."""
    return Transform(fun)


def grad(fun, argnums=0):
    """The gradient of a scalar function."""

    def apply(*args):
        frame, program, primals = begin(fun, args, [x.aval for x in args])
        (out,), backward = vjp_values(frame, program, primals, [i == argnums for i in range(len(primals))])
        ct = backward([frame.full(1.0, out.aval)])[argnums]
        return frame.full(0.0, args[argnums].aval) if ct is None else ct

    return Transform(apply)


def derivative(fun):
    """The derivative of a function of one argument along a direction, in forward mode: `jvp` with fewer words."""

    def apply(x, t):
        frame, program, primals = begin(fun, (x,), [x.aval])
        return jvp_values(frame, program, primals, [frame.lift(t), *[None] * (len(primals) - 1)])[1][0]

    return Transform(apply)


def vmap(fun, in_axes):
    """The function of many examples; an axis is 0 or None here, any axis of any leaf in the real one."""

    def apply(*args):
        mapped = [axis is not None for axis in in_axes]
        size = args[mapped.index(True)].shape[0]
        avals = [aval_of(x.shape[1:]) if m else x.aval for x, m in zip(args, mapped, strict=True)]
        frame, program, values = begin(fun, args, avals)
        mapped += [False] * (len(values) - len(args))
        (out,), (over,) = batch_values(frame, program, values, mapped, size)
        return lead(out, over, size)

    return Transform(apply)


# --- 12. It works -----------------------------------------------------------------------------------------------------


def check_derivatives():
    """Derivatives of tanh up to the third, backwards and forwards, against the formulas."""
    backwards = forwards = tanh
    t = np.tanh(0.7)
    for wanted in (1 - t**2, -2 * t * (1 - t**2), (6 * t**2 - 2) * (1 - t**2)):
        backwards, forwards = grad(backwards), lambda x, f=forwards: derivative(f)(x, 1.0)
        np.testing.assert_allclose([backwards(0.7).array, forwards(0.7).array], wanted, rtol=1e-13)


def check_batching():
    """vmap against a Python loop, one argument mapped and one shared."""
    f = grad(lambda x, w: sum(sin(x * w) * x))
    xs, w = np.random.default_rng(0).normal(size=(5, 3)), np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(vmap(f, (0, None))(xs, w).array, [f(x, w).array for x in xs], rtol=1e-14)


def u(x, w, b, v):
    """A network of one hidden layer, from a number to a number."""
    return sum(v * tanh(x * w + b))


def loss(w, b, v, xs):
    """A physics-informed loss: how far `u` is from solving u'' = -x."""
    r = vmap(grad(grad(u)), (0, None, None, None))(xs, w, b, v) + xs
    return sum(r * r)


def check_physics():
    """u'' against the formula, and the gradient of a loss that holds it against central differences."""
    w, b, v = np.random.default_rng(1).normal(size=(3, 4))
    xs, h = np.linspace(-1.0, 1.0, 7), 1e-6
    t = np.tanh(xs[:, None] * w + b)
    u_xx = vmap(grad(grad(u)), (0, None, None, None))(xs, w, b, v)
    np.testing.assert_allclose(u_xx.array, (v * -2 * t * (1 - t**2) * w**2).sum(1), rtol=1e-12)
    f = jit(lambda w: loss(w, b, v, xs))
    slopes = [(f(w + e).array - f(w - e).array) / (2 * h) for e in h * np.eye(4)]
    np.testing.assert_allclose(grad(f)(w).array, slopes, rtol=1e-6)


def check_closures():
    """A transform closes over values of an enclosing one: d/dx of x * d/dy (x y^2) at y = x is 6 x^2."""
    f = grad(lambda x: x * grad(lambda y: x * y * y)(x))
    np.testing.assert_allclose(f(3.0).array, 6 * 3.0**2, rtol=1e-15)


def check_sharing():
    """Equal work is recorded once, and what no output needs is dropped."""
    program, _ = stage(grad(lambda x: tanh(x) + tanh(x) * x), [aval_of(())])
    assert [node.op.name for node in program.nodes].count("tanh") == 1
    print(program)


CHECKS = (check_derivatives, check_batching, check_physics, check_closures, check_sharing)

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(f"{check.__name__}: {check.__doc__}")
