"""Traces in progress: `Frame` records nodes, `TraceTensor` is a value of one.

Frames of a thread form a stack, outermost first. An op whose operands belong to several frames is recorded in the
innermost of them; the others become inputs of that frame, its *captures*, and stay constants there. A value computed
from outer values alone stays in the outer frame, unless the trace is that of a *region*: what the branch of a `cond` or
the step of a loop computes belongs to it, whatever from, since it may never run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from quabla.arrays.refusals import endless_recursion, name_line, user_line
from quabla.arrays.tensor import Tensor, wrap_as
from quabla.errors import DtypeError, QuablaError, TracerError
from quabla.ir.op import Op, Refused, define
from quabla.ir.program import Node, Program, Value, prune
from quabla.shapes import ShapeDtype, aval_of

__all__ = [
    "LIVE",
    "WATCHES",
    "Frame",
    "TraceTensor",
    "bind",
    "constant_op",
    "frames",
    "full_op",
    "full_value",
    "innermost",
    "recording_in",
    "trace",
    "watched",
]


class TraceTensor(Value):
    """A value of a trace in progress. It has a shape and a dtype but no elements yet.

    It takes part in arithmetic, indexing and every function of Quabla as a `Tensor` does. What needs concrete elements
    (`if`, `float()`, NumPy functions) raises `TracerError`.

    Example:
        >>> import quabla as qb
        >>> def f(x):
        ...     print(type(x).__name__, x.shape)
        ...     return x * 2.0
        >>> qb.jit(f)(qb.array([1.0, 2.0])).tolist()
        TraceTensor (2,)
        [2.0, 4.0]
    """

    __slots__ = {"frame": "The trace that it belongs to. For Quabla itself."}
    frame: Frame


_new = object.__new__


class Frame:
    """A trace in progress: the nodes recorded so far.

    Equal applications of an op are recorded once (a table of those seen), so transforms may recompute freely.
    """

    __slots__ = ("captures", "depth", "inputs", "live", "names", "nodes", "open", "seen", "sources")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.live = True
        self.open = True  # whether an op on values of this frame is recorded here: live, and no region is traced within
        self.inputs: list[TraceTensor] = []
        self.names: list[str] = []
        self.nodes: list[Node] = _stack.new_nodes()
        self.seen: dict[Any, Any] = {}
        self.captures: dict[
            TraceTensor, TraceTensor
        ] = {}  # a value of an outer frame -> the input that is it here
        self.sources: list[Any] = []  # keeps the tensors in `seen` alive, since they are known by id there

    def input(self, aval: ShapeDtype, name: str) -> TraceTensor:
        """A new input."""
        v = self.placeholder(aval)
        self.inputs.append(v)
        self.names.append(name)
        return v

    def placeholder(self, aval: ShapeDtype) -> TraceTensor:
        """A value without a node that is not an input: the tangent of a derivation that will be transposed away."""
        v: TraceTensor = _new(TraceTensor)
        v.aval, v.node, v.index, v.frame = aval, None, 0, self
        return v

    def emit(self, op: Op, inputs: tuple[TraceTensor, ...], params: dict[str, Any]) -> Any:
        """Record an op on values of this frame and return its result (a tuple of them where the op has several)."""
        key = (op, inputs, *params.values()) if params else (op, inputs)
        seen = self.seen
        out = seen.get(key)
        if out is not None:
            return out
        aval = op.out_type(tuple([v.aval for v in inputs]), params)
        node = Node(op, inputs, params)
        self.nodes.append(node)
        if op.multiple:
            outs = []
            for i, a in enumerate(aval):
                v: TraceTensor = _new(TraceTensor)
                v.aval, v.node, v.index, v.frame = a, node, i, self
                outs.append(v)
            out = node.outputs = tuple(outs)
        else:
            out = _new(TraceTensor)
            out.aval, out.node, out.index, out.frame = aval, node, 0, self
            node.outputs = (out,)
        seen[key] = out
        return out

    def full(self, value: Any, aval: ShapeDtype) -> TraceTensor:
        """The constant array of type `aval` with all elements equal to a Python number."""
        kind = aval.dtype.kind
        try:
            exact = float(value) if kind == "f" else bool(value) if kind == "b" else int(value)
        except OverflowError:
            bits = value.bit_length()
            raise DtypeError(
                f"an integer of {bits} bits is beyond the range of float64{user_line()}"
            ) from None
        key = (repr(exact), aval)  # repr tells 0.0 from -0.0, and NaN equals itself
        out: TraceTensor | None = self.seen.get(key)
        if out is None:
            node = Node(full_op, (), {"value": exact, "aval": aval})
            self.nodes.append(node)
            out = _new(TraceTensor)
            out.aval, out.node, out.index, out.frame = aval, node, 0, self
            node.outputs = (out,)
            self.seen[key] = out
        return out

    def constant(self, tensor: Tensor) -> TraceTensor:
        """A concrete array as a constant of this frame."""
        key = id(tensor)
        out: TraceTensor | None = self.seen.get(key)
        if out is None:
            self.sources.append(tensor)
            if tensor.aval.size == 1:
                out = self.full(tensor.numpy().item(), tensor.aval)
            else:
                node = Node(constant_op, (), {"value": tensor})
                self.nodes.append(node)
                out = _new(TraceTensor)
                out.aval, out.node, out.index, out.frame = tensor.aval, node, 0, self
                node.outputs = (out,)
            self.seen[key] = out
        return out

    def lift(self, x: Any) -> TraceTensor:
        """`x`, a Tensor or a value of this or an enclosing frame, as a value of this frame."""
        if type(x) is TraceTensor:
            if x.frame is self:
                return x
            found = self.captures.get(x)
            if found is None:
                check_live(x)
                found = self.placeholder(aval_of(x.aval.shape, x.aval.dtype))
                self.captures[x] = found
            return found
        if type(x) is Tensor:
            return self.constant(x)
        raise TypeError(f"cannot record {type(x).__name__}; please report this")


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.regions: list[Frame] = []
        self.new_nodes: Callable[[], list[Node]] = list


_stack = _Stack()


@contextlib.contextmanager
def recording_in(new_nodes: Callable[[], list[Node]]) -> Iterator[None]:
    """Record the traces that this thread begins meanwhile in lists of another kind, such as one that takes notes."""
    before, _stack.new_nodes = _stack.new_nodes, new_nodes
    try:
        yield
    finally:
        _stack.new_nodes = before


def full_value(x: Any) -> Any:
    """The element of a traced constant whose elements are all equal; None for any other value."""
    if type(x) is TraceTensor and x.node is not None and x.node.op is full_op:
        return x.node.params["value"]
    return None


def frames() -> list[Frame]:
    """The traces in progress in this thread, outermost first."""
    return _stack.frames


# What looks at each op that is computed now, outside of all traces; empty unless somebody debugs.
WATCHES: list[Callable[[Op, Sequence[np.ndarray], dict[str, Any], Sequence[Any]], None]] = []


def watched(op: Op, operands: Sequence[np.ndarray], params: dict[str, Any], results: Sequence[Any]) -> None:
    """Show an op that was computed now to those who watch, unless it belongs to a trace of this thread."""
    if not _stack.frames:
        for watch in WATCHES:
            watch(op, operands, params, results)


LIVE: list[Frame] = []  # the traces in progress in all threads; empty most of the time


def check_live(x: TraceTensor) -> None:
    """Raise `TracerError` unless the trace of `x` is in progress in this thread."""
    if not x.frame.live:
        raise TracerError(
            f"a traced value ({x.aval}) escaped its trace: it was kept in a global, an attribute or a container while "
            "its function was traced, and is used after that function returned. Return it from the function, "
            "or pass it "
            f"as an argument{user_line()}"
        )
    if x.frame not in _stack.frames:
        raise TracerError(
            f"a traced value ({x.aval}) is used by another thread than the one that traces its function; let the other "
            f"thread begin when the function has returned a concrete array{user_line()}"
        )


def innermost(values: Sequence[Any]) -> Frame | None:
    """The frame for an op on `values`: the innermost of those that are traced, or a region within; None if none is."""
    frame = None
    for x in values:
        if type(x) is TraceTensor:
            f = x.frame
            if not f.live:
                check_live(x)
            if frame is None or f.depth > frame.depth:
                frame = f
    if frame is not None and not frame.open:
        return _stack.regions[-1]
    return frame


def bind(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """Apply an op to arrays that its `infer` accepts: record it if any of them is traced, else compute it now."""
    frame = innermost(operands)
    if frame is not None:
        return frame.emit(op, tuple([frame.lift(x) for x in operands]), params)
    aval = op.out_type(tuple([x.aval for x in operands]), params)
    arrays = [x.numpy() for x in operands]
    with np.errstate(all="ignore"):
        out = op.evaluate(*arrays, **params)
    if WATCHES:
        watched(op, arrays, params, out if op.multiple else (out,))
    if op.multiple:
        return tuple(_tensor(o, a) for o, a in zip(out, aval, strict=True))
    return _tensor(out, aval)


def _tensor(array: Any, aval: ShapeDtype) -> Tensor:
    # Ops like reshape may return a view of their operand: Tensors are immutable, so sharing is sound.
    return wrap_as(np.asarray(array, aval.dtype.numpy), aval)


def replay(frame: Frame, node: Node, inputs: tuple[TraceTensor, ...]) -> Any:
    """Record `node` of another program in `frame`, with other operands."""
    if inputs:
        return frame.emit(node.op, inputs, node.params)
    if node.op.name == "full":
        return frame.full(**node.params)
    if node.op.name == "constant":
        return frame.constant(node.params["value"])
    return frame.emit(node.op, (), node.params)


def trace(
    fun: Callable[..., Sequence[Any]],
    in_avals: Sequence[ShapeDtype],
    names: Sequence[str] = (),
    region: bool = False,
) -> tuple[Program, tuple[TraceTensor, ...]]:
    """Run `fun` on traced values of the given types and return what it did.

    Args:
        fun: takes one traced value per type and returns a sequence of Tensors and traced values.
        in_avals: the types of the inputs.
        names: a name per input.
        region: whether everything that `fun` computes from traced values belongs to it, even from outer ones alone.

    Returns:
        The program, whose inputs are those of `in_avals` and then one per capture, and the captures: the values of
        enclosing frames that `fun` used.
    """
    stack = _stack.frames
    frame = Frame(len(stack))
    closed = [f for f in stack if f.open] if region else []
    for f in closed:
        f.open = False
    if region:
        _stack.regions.append(frame)
    stack.append(frame)
    LIVE.append(frame)
    try:
        args = [frame.input(a, names[i] if names else f"x{i}") for i, a in enumerate(in_avals)]
        outputs = tuple([frame.lift(x) for x in fun(*args)])
    except QuablaError as error:
        name_line(error)
        raise
    except RecursionError as error:
        plain = endless_recursion(error) if frame.depth == 0 else None
        if plain is None:
            raise
        raise plain from None
    finally:
        frame.live = frame.open = False
        stack.pop()
        if region:
            _stack.regions.pop()
        for f in closed:
            f.open = True
        LIVE.remove(frame)
    captures = tuple(frame.captures)
    inputs = (*frame.inputs, *frame.captures.values())
    input_names = (*frame.names, *(f"capture/{i}" for i in range(len(captures))))
    program = Program(inputs, prune(frame.nodes, outputs), outputs, input_names)
    frame.seen, frame.captures, frame.nodes, frame.sources = (
        {},
        {},
        [],
        [],
    )  # the values outlive the trace: let go
    return program, captures


# The two sources of constants. They have no operands, so only a frame can record them (`full`, `constant` above).

full_op = define(
    Op(
        name="full",
        infer=lambda *, value, aval: aval,
        evaluate=lambda *, value, aval: np.full(aval.shape, value, aval.dtype.numpy),
        jvp=Refused("a constant has no operands"),
        batch=Refused("a constant has no operands"),
        family="source",
    )
)

constant_op = define(
    Op(
        name="constant",
        infer=lambda *, value: value.aval,
        evaluate=lambda *, value: value.numpy(),
        jvp=Refused("a constant has no operands"),
        batch=Refused("a constant has no operands"),
        family="source",
    )
)
