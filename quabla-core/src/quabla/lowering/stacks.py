"""What is put together from few parts and taken apart again: the state of a system of equations, for example.

A step of such a system stacks its components, computes with the stack, and slices it. Between the two everything is
elementwise, so it can be computed part by part. Then a slice is a part that is in a register already, and nothing but
the last stack is put together in memory.
"""

from __future__ import annotations

from typing import Any

from quabla.arrays.tracer import full_op
from quabla.ir.op import Op
from quabla.ir.program import Node, Value
from quabla.lowering.passes import Rewriter, made_by, number, rule
from quabla.shapes import aval_of

__all__ = ["by_parts"]

_PARTS = 8  # each op is written as often
_EXTENT = 64  # of the axis along which they lie: longer ones may be the rows of panels
_ELEMENTS = 8  # of a part, at least: fewer fill no vector
_VIEWS = frozenset(("broadcast", "reshape", "slice", "transpose"))


@rule("slice")
def _slice_of_concat(r: Rewriter, xs: Any, params: Any) -> Value | None:
    """A slice of one of the parts."""
    node = made_by(xs[0], "concat")
    if not node:
        return None
    axis = node.params["axis"]
    start, stop, step = (params[name][axis] for name in ("start", "stop", "step"))
    taken = range(start, stop, step)
    low, high = min(taken[0], taken[-1]), max(taken[0], taken[-1])
    at = 0
    for part in node.inputs:
        end = at + part.shape[axis]
        if at <= low and high < end:
            if step < 0:
                return None  # where it stops may be before the part
            moved = {
                name: (*params[name][:axis], bound - at, *params[name][axis + 1 :])
                for name, bound in (("start", start), ("stop", min(stop, end)))
            }
            return r.apply("slice", part, **{**params, **moved})  # type: ignore[no-any-return]
        at = end
    return None


def by_parts(r: Rewriter, op: Op, xs: tuple[Value, ...], params: dict[str, Any]) -> Value | None:
    """f(concat(a, b), y) becomes concat(f(a, y's first part), f(b, y's second part)), where a part of y is for free.

    It is for parts of what lies in memory anyway, of other stacks of such parts, and of constants.
    """
    first = next((node for v in xs if (node := made_by(v, "concat"))), None)
    if first is None:
        return None
    axis = first.params["axis"]
    extents = _extents(first)
    count = len(extents)
    if count > _PARTS or sum(extents) > _EXTENT or min([v.size for v in first.inputs]) < _ELEMENTS:
        return None
    for v in xs:
        node = made_by(v, "concat")
        if node and (node.params["axis"] != axis or _extents(node) != extents):
            return None
        if not node and not _in_memory(v):
            return None
    parts = []
    at = 0
    for i, extent in enumerate(extents):
        operands = tuple([_part(r, v, axis, i, at, extent) for v in xs])
        parts.append(r.emit(op, operands, params))
        at += extent
    return r.apply("concat", *parts, axis=axis)  # type: ignore[no-any-return]


def _extents(node: Node) -> list[int]:
    return [v.shape[node.params["axis"]] for v in node.inputs]


def _in_memory(v: Value) -> bool:
    """Whether a value is read from memory in any case, so that a part of it costs no more than all of it."""
    while v.node is not None and v.node.op.name in _VIEWS:
        v = v.node.inputs[0]
    if v.node is None or v.node.op is full_op:
        return True
    return v.node.op.family not in ("elementwise", "compare") and v.node.op.name not in ("concat", "pad")


def _part(r: Rewriter, v: Value, axis: int, i: int, at: int, extent: int) -> Value:
    """The elements of an operand that belong to a part."""
    node = made_by(v, "concat")
    if node:
        return node.inputs[i]
    shape = (*v.shape[:axis], extent, *v.shape[axis + 1 :])
    n = number(v)
    if n is not None:
        return r.full(n, aval_of(shape, v.dtype))
    start = (*(0,) * axis, at, *(0,) * (v.ndim - axis - 1))
    stop = tuple([a + b for a, b in zip(start, shape, strict=True)])
    return r.apply("slice", v, start=start, stop=stop, step=(1,) * v.ndim)  # type: ignore[no-any-return]
