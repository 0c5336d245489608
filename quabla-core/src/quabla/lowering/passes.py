"""Rewriting a Program before it is fused: one sweep in which every node meets the rules of its op.

A rule is a function of the rewritten operands that returns the value to use instead, or None. `RULES` is the whole
list, in the order in which the rules are tried. Rules keep every result to the last bit (infinities, NaN and -0.0
included), with four exceptions. Two only change an order of summation: a reduction of a transposed array follows the
order in memory, and products with a thin matrix become sums. A product with a constant identity matrix leaves out what
would be multiplied by zero (both in `products.py`). Powers with the exponents -1 and 2 become a quotient and a product,
which are rounded as well as can be. Equal nodes are merged, constants folded, and nodes that no output needs are
dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap_as
from quabla.arrays.tracer import constant_op, full_op, trace
from quabla.ir.op import OPS, Op
from quabla.ir.program import Node, Program, Value, prune
from quabla.shapes import ShapeDtype, aval_of

__all__ = ["RULES", "Rewriter", "rewrite", "rule", "simplify"]

Rule = Callable[["Rewriter", Any, dict[str, Any]], Value | None]
PointwiseRule = Callable[["Rewriter", Op, tuple[Value, ...], dict[str, Any]], Value | None]
RULES: dict[str, list[Rule]] = {}

_FOLDED = 1024  # elements of a constant that is still worth computing now
_COMMUTATIVE = frozenset(("add", "mul"))
_SINKING = frozenset(("broadcast", "reshape", "transpose"))
_POINTWISE = frozenset(("elementwise", "compare"))


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the ops of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES.setdefault(name, []).append(function)
        return function

    return register


class Rewriter:
    """The program being written: nodes so far, and those already seen."""

    def __init__(
        self, known: Callable[[str], bool] | None = None, pointwise: Sequence[PointwiseRule] = ()
    ) -> None:
        self.nodes: list[Node] = []
        self.seen: dict[Any, Any] = {}
        self.known = known
        self.pointwise = (_sink, *pointwise)

    def emit(
        self, op: Op, inputs: tuple[Value, ...], params: dict[str, Any], node: Node | None = None
    ) -> Any:
        """The value of an op on values of the new program, after all rules; `node` is reused if it is that very one."""
        name = op.name
        for each in RULES.get(name, ()):
            out = each(self, inputs, params)
            if out is not None:
                return out
        if op.family in _POINTWISE:
            for every in self.pointwise:
                out = every(self, op, inputs, params)
                if out is not None:
                    return out
        if inputs and all([v.node is not None and v.node.op.family == "source" for v in inputs]):
            out = _fold(self, op, inputs, params)
            if out is not None:
                return out
        if self.known is not None and op.decompose is not None and not self.known(name):
            return self.inline(op, inputs, params)
        if name in _COMMUTATIVE and id(inputs[0]) > id(inputs[1]):
            key: Any = (op, inputs[1], inputs[0])
        elif params:
            key = (
                (op, inputs, *params.values())
                if name != "full"
                else (op, repr(params["value"]), params["aval"])
            )
        else:
            key = (op, *inputs)
        found = self.seen.get(key)
        if found is None:
            if node is None or node.inputs != inputs:
                node = _node(op, inputs, params)
            self.nodes.append(node)
            found = node.outputs if op.multiple else node.outputs[0]
            self.seen[key] = found
        return found

    def apply(self, name: str, *inputs: Value, **params: Any) -> Any:
        """`emit` by the name of the op."""
        return self.emit(OPS[name], inputs, params)

    def full(self, value: Any, aval: ShapeDtype) -> Value:
        """A constant array of equal elements."""
        return self.emit(full_op, (), {"value": value, "aval": aval})  # type: ignore[no-any-return]

    def inline(self, op: Op, inputs: tuple[Value, ...], params: dict[str, Any]) -> Any:
        """The op in terms of simpler ones."""
        decompose = op.decompose
        assert decompose is not None

        def simpler(*xs: Any) -> Any:
            out = decompose(*xs, **params)
            return out if op.multiple else (out,)

        program, _ = trace(simpler, [v.aval for v in inputs])
        outs = self.replay(program, inputs)
        return outs if op.multiple else outs[0]

    def replay(self, program: Program, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """The nodes of `program` on values of the new program."""
        env: dict[Value, Value] = dict(zip(program.inputs, inputs, strict=True))
        for node in program.nodes:
            out = self.emit(node.op, tuple([env[v] for v in node.inputs]), node.params, node)
            if node.op.multiple:
                env.update(zip(node.outputs, out, strict=True))
            else:
                env[node.outputs[0]] = out
        return tuple([env[v] for v in program.outputs])


def _node(op: Op, inputs: tuple[Value, ...], params: dict[str, Any]) -> Node:
    node = Node(op, inputs, params)
    aval = op.out_type(tuple([v.aval for v in inputs]), params)
    if not op.multiple:
        out = Value()
        out.aval, out.node, out.index = aval, node, 0
        node.outputs = (out,)
        return node
    outs = []
    for index, each in enumerate(aval):
        value = Value()
        value.aval, value.node, value.index = each, node, index
        outs.append(value)
    node.outputs = tuple(outs)
    return node


def simplify(
    program: Program,
    known: Callable[[str], bool] | None = None,
    pointwise: Sequence[PointwiseRule] = (),
) -> Program:
    """The program after all rules.

    Args:
        program: what to rewrite.
        known: whether the backend has an op of that name; others are decomposed where they can be.
        pointwise: further rules for every elementwise op, such as `stacks.by_parts` for a backend that fuses.

    Returns:
        A program with the same inputs, the same number of outputs, and outputs of the same shapes and dtypes.
    """
    from quabla.lowering import products, stacks, systems  # register their rules

    del products, stacks, systems
    rewriter = Rewriter(known, pointwise)
    outputs = rewriter.replay(program, program.inputs)
    return Program(program.inputs, prune(rewriter.nodes, outputs), outputs, program.input_names)


rewrite = simplify


# --- what rules ask about values --------------------------------------------------------------------------------------


def number(v: Value) -> Any:
    """The element of a constant array of equal elements, else None."""
    node = v.node
    return node.params["value"] if node is not None and node.op is full_op else None


def made_by(v: Value, name: str) -> Node | None:
    """The node that made `v`, if its op is called `name`."""
    node = v.node
    return node if node is not None and node.op.name == name else None


def _is(v: Value, wanted: float) -> bool:
    # By its bits: 0.0 is not -0.0.
    n = number(v)
    return n is not None and n == wanted and math.copysign(1.0, n) == math.copysign(1.0, wanted)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@rule("add")
def _add(r: Rewriter, xs: Any, params: Any) -> Value | None:
    x, y = xs
    if _is(y, -0.0) and x.dtype.kind == "f":
        return x  # type: ignore[no-any-return]
    if _is(x, -0.0) and x.dtype.kind == "f":
        return y  # type: ignore[no-any-return]
    minus = made_by(y, "neg")
    if minus:
        return r.apply("sub", x, minus.inputs[0])  # type: ignore[no-any-return]
    minus = made_by(x, "neg")
    if minus:
        return r.apply("sub", y, minus.inputs[0])  # type: ignore[no-any-return]
    return None


@rule("sub")
def _sub(r: Rewriter, xs: Any, params: Any) -> Value | None:
    x, y = xs
    if _is(y, 0.0):
        return x  # type: ignore[no-any-return]
    minus = made_by(y, "neg")
    return r.apply("add", x, minus.inputs[0]) if minus else None


@rule("mul")
def _mul(r: Rewriter, xs: Any, params: Any) -> Value | None:
    for x, y in (xs, xs[::-1]):
        n = number(y)
        if n is not None:
            if n == 1:
                return x  # type: ignore[no-any-return]
            if n == -1:
                return r.apply("neg", x)  # type: ignore[no-any-return]
            minus = made_by(x, "neg")
            if minus:
                return r.apply("mul", minus.inputs[0], r.full(-n, y.aval))  # type: ignore[no-any-return]
    first, second = made_by(xs[0], "neg"), made_by(xs[1], "neg")
    if first and second:
        return r.apply("mul", first.inputs[0], second.inputs[0])  # type: ignore[no-any-return]
    return None


@rule("div")
def _div(r: Rewriter, xs: Any, params: Any) -> Value | None:
    x, y = xs
    n = number(y)
    if n is None:
        return None
    if n == 1:
        return x  # type: ignore[no-any-return]
    # The reciprocal of a power of two is exact; far from the ends of the range the product is the quotient.
    if n and math.isfinite(n) and abs(math.frexp(n)[0]) == 0.5 and 1e-30 < abs(n) < 1e30:
        return r.apply("mul", x, r.full(1.0 / n, y.aval))  # type: ignore[no-any-return]
    return None


@rule("neg")
def _neg(r: Rewriter, xs: Any, params: Any) -> Value | None:
    inner = made_by(xs[0], "neg")
    if inner:
        return inner.inputs[0]
    return None


@rule("integer_power")
def _integer_power(r: Rewriter, xs: Any, params: Any) -> Value | None:
    exponent, x = params["exponent"], xs[0]
    if exponent == 0:
        return r.full(1.0, x.aval)
    if exponent == 1:
        return x  # type: ignore[no-any-return]
    return r.apply("mul", x, x) if exponent == 2 else None


@rule("power")
def _power(r: Rewriter, xs: Any, params: Any) -> Value | None:
    x, y = xs
    if number(y) == 0.0:
        return r.full(1.0, x.aval)  # also of NaN
    if _is(y, 1.0):
        return x  # type: ignore[no-any-return]
    if _is(y, 2.0):
        return r.apply("mul", x, x)  # type: ignore[no-any-return]
    return r.apply("div", r.full(1.0, y.aval), x) if _is(y, -1.0) else None


@rule("stop_gradient")
def _stop_gradient(r: Rewriter, xs: Any, params: Any) -> Value | None:
    return xs[0]  # type: ignore[no-any-return]


@rule("where")
def _where(r: Rewriter, xs: Any, params: Any) -> Value | None:
    c, x, y = xs
    if x is y:
        return x  # type: ignore[no-any-return]
    n = number(c)
    return None if n is None else (x if n else y)


@rule("logical_not")
def _logical_not(r: Rewriter, xs: Any, params: Any) -> Value | None:
    inner = made_by(xs[0], "logical_not")
    return inner.inputs[0] if inner else None


@rule("astype")
def _astype(r: Rewriter, xs: Any, params: Any) -> Value | None:
    return xs[0] if xs[0].dtype is params["to"] else None


@rule("constant")
def _constant(r: Rewriter, xs: Any, params: Any) -> Value | None:
    x = params["value"]
    if x.size > _FOLDED:
        return None
    array = x.numpy()
    element = array.item(0)
    if array.tobytes() != np.full(array.shape, element, array.dtype).tobytes():  # by their bits: NaN, -0.0
        return None
    return r.full(element, x.aval)


# --- shapes -----------------------------------------------------------------------------------------------------------


@rule("broadcast", "reshape", "transpose", "slice")
def _shape_of_full(r: Rewriter, xs: Any, params: Any) -> Value | None:
    n = number(xs[0])
    if n is None:
        return None
    x = xs[0].aval
    if "shape" in params:
        shape = params["shape"]
    elif "perm" in params:
        shape = tuple([x.shape[p] for p in params["perm"]])
    else:
        shape = tuple(
            [len(range(*each)) for each in zip(params["start"], params["stop"], params["step"], strict=True)]
        )
    return r.full(n, aval_of(shape, x.dtype))


@rule("broadcast")
def _broadcast(r: Rewriter, xs: Any, params: Any) -> Value | None:
    (x,), shape, dims = xs, params["shape"], params["dims"]
    if x.shape == shape:
        return x  # type: ignore[no-any-return]
    inner = made_by(x, "broadcast")
    if inner:
        joined = tuple([dims[d] for d in inner.params["dims"]])
        return r.apply("broadcast", inner.inputs[0], shape=shape, dims=joined)  # type: ignore[no-any-return]
    if x.size == math.prod(shape):
        return r.apply("reshape", x, shape=shape)  # type: ignore[no-any-return]
    return None


@rule("reshape")
def _reshape(r: Rewriter, xs: Any, params: Any) -> Value | None:
    (x,), shape = xs, params["shape"]
    if x.shape == shape:
        return x  # type: ignore[no-any-return]
    inner = made_by(x, "reshape")
    return r.apply("reshape", inner.inputs[0], shape=shape) if inner else None


@rule("transpose")
def _transpose(r: Rewriter, xs: Any, params: Any) -> Value | None:
    (x,), perm = xs, params["perm"]
    if perm == tuple(range(len(perm))):
        return x  # type: ignore[no-any-return]
    inner = made_by(x, "transpose")
    if inner:
        joined = tuple([inner.params["perm"][p] for p in perm])
        return r.apply("transpose", inner.inputs[0], perm=joined)  # type: ignore[no-any-return]
    wide = [p for p in perm if x.shape[p] != 1]
    if wide == sorted(wide):  # only axes of extent 1 move
        return r.apply("reshape", x, shape=tuple([x.shape[p] for p in perm]))  # type: ignore[no-any-return]
    return None


@rule("slice")
def _slice(r: Rewriter, xs: Any, params: Any) -> Value | None:
    (x,) = xs
    whole = params["start"] == (0,) * x.ndim and params["stop"] == x.shape and params["step"] == (1,) * x.ndim
    return x if whole else None


@rule("pad")
def _pad(r: Rewriter, xs: Any, params: Any) -> Value | None:
    return None if any(params["low"]) or any(params["high"]) or any(params["inner"]) else xs[0]


@rule("concat")
def _concat(r: Rewriter, xs: Any, params: Any) -> Value | None:
    return xs[0] if len(xs) == 1 else None


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_any", "reduce_all")
def _reduce_nothing(r: Rewriter, xs: Any, params: Any) -> Value | None:
    (x,), axes = xs, params["axes"]
    if all([x.shape[a] == 1 for a in axes]):
        shape = tuple([n for a, n in enumerate(x.shape) if a not in axes])
        return r.apply("reshape", x, shape=shape)  # type: ignore[no-any-return]
    return None


def _reduce_transposed(name: str) -> Rule:
    def each(r: Rewriter, xs: Any, params: Any) -> Value | None:
        inner = made_by(xs[0], "transpose")
        if not inner:
            return None
        perm, axes = inner.params["perm"], params["axes"]
        reduced = {perm[a] for a in axes}
        out = r.apply(name, inner.inputs[0], axes=tuple(sorted(reduced)))
        kept = [p for p in range(len(perm)) if p not in reduced]
        wanted = [perm[a] for a in range(len(perm)) if a not in axes]
        return r.apply("transpose", out, perm=tuple([kept.index(p) for p in wanted]))  # type: ignore[no-any-return]

    return each


for _name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_any", "reduce_all"):
    rule(_name)(_reduce_transposed(_name))


# --- for every elementwise op -----------------------------------------------------------------------------------------


def _sink(r: Rewriter, op: Op, xs: tuple[Value, ...], params: dict[str, Any]) -> Value | None:
    """f(shape_op(x), shape_op(y)) becomes shape_op(f(x, y)): on fewer elements, and fused with what made x and y.

    Inputs and constants are left alone: they are read through any view for nothing.
    """
    first: Node | None = None
    for v in xs:
        node = v.node
        if node is None or node.op.name not in _SINKING:
            if node is not None and node.op is full_op:
                continue
            return None
        if first is None:
            first = node
            if node.op.name != "broadcast" and (
                node.inputs[0].node is None or node.inputs[0].node.op is constant_op
            ):
                return None
        elif (
            node.op is not first.op
            or node.params != first.params
            or node.inputs[0].shape != first.inputs[0].shape
        ):
            return None
    if first is None:
        return None
    shape = first.inputs[0].shape
    small = []
    for v in xs:
        assert v.node is not None
        n = number(v)
        small.append(v.node.inputs[0] if n is None else r.full(n, aval_of(shape, v.dtype)))
    return r.emit(first.op, (r.emit(op, tuple(small), params),), first.params)  # type: ignore[no-any-return]


def _fold(r: Rewriter, op: Op, xs: tuple[Value, ...], params: dict[str, Any]) -> Value | None:
    """Compute an op on constants now."""
    if op.multiple or op.family not in ("elementwise", "compare", "structural", "reduce"):
        return None
    pointwise = op.family in _POINTWISE and all([number(v) is not None for v in xs])
    avals = tuple([v.aval for v in xs])
    aval = op.out_type(avals, params)
    if not pointwise and max(aval.size, *[v.size for v in xs]) > _FOLDED:
        return None
    operands = []
    for v in xs:
        n = number(v)
        if n is None:
            assert v.node is not None
            operands.append(v.node.params["value"].numpy())
        else:
            operands.append(np.full(() if pointwise else v.shape, n, v.dtype.numpy))
    if op.name == "reduce_sum" and not _exact(operands[0]):
        return None  # the backend has an order of its own
    with np.errstate(all="ignore"):
        out = np.asarray(op.evaluate(*operands, **params), aval.dtype.numpy)
    if pointwise:
        return r.full(out.item(), aval)
    return r.emit(constant_op, (), {"value": wrap_as(out.copy(), aval)})  # type: ignore[no-any-return]


def _exact(x: np.ndarray) -> bool:
    """Whether a sum over elements of `x` is the same in every order, since none of its parts is ever rounded.

    So it is if all are whole multiples of a power of two, and their sum has no more digits than one of them can have.
    """
    if x.dtype.kind != "f":
        return True
    if not np.isfinite(x).all():
        return False
    terms = np.abs(x[x != 0.0])
    if not terms.size:
        return True
    digits = np.finfo(x.dtype).nmant + 1
    fractions, exponents = np.frexp(terms.astype(np.float64))
    whole = np.ldexp(fractions, 53).astype(np.int64)
    units = exponents - 53 + np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return bool(np.log2(terms.astype(np.float64).sum()) - units.min() < digits - 1e-9)
