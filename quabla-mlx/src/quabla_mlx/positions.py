"""Gathering and scattering by positions, sorting and searching."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx

from quabla.ir.program import Node
from quabla_mlx.rules import RULES, Call, rule
from quabla_mlx.target import Array, Target

__all__: list[str] = []


def _inside(i: Array, extent: int) -> Array:
    """Positions counted from the end where negative, and then moved to the nearest that exists.

    They are checked here since MLX follows any position it is given, to memory that is not the array's.
    """
    return mx.clip(mx.where(mx.less(i, 0), mx.add(i, extent), i), 0, extent - 1)


@rule("gather")
def _gather(node: Node, target: Target) -> Call:
    axis, batch = node.params["axis"], node.params["batch"]
    x, i = (v.shape for v in node.inputs)
    extent, out = x[axis], node.outputs[0].shape
    if batch == 0:
        return Call(lambda x, i: mx.take(x, _inside(i, extent), axis))
    # Rows, what lies between them and the axis, the axis, and the rest: positions are the same along two of the four.
    rows, others, rest = math.prod(x[:batch]), math.prod(x[batch:axis]), math.prod(x[axis + 1 :])
    count = math.prod(i[batch:])

    def gather(x: Array, i: Array) -> Array:
        at = mx.reshape(_inside(i, extent), (rows, 1, count, 1))
        at = mx.broadcast_to(at, (rows, others, count, rest))
        parts = mx.reshape(x, (rows, others, extent, rest))
        return mx.reshape(mx.take_along_axis(parts, at, 2), out)

    return Call(gather)


@rule("scatter_add")
def _scatter_add(node: Node, target: Target) -> Call:
    axis, batch, extent = node.params["axis"], node.params["batch"], node.params["extent"]
    u, i = (v.shape for v in node.inputs)
    rows, others = math.prod(u[:batch]), math.prod(u[batch:axis])
    count, rest = math.prod(i[batch:]), math.prod(u[axis + len(i) - batch :])
    out = node.outputs[0].shape
    every = mx.reshape(mx.arange(rows, dtype=mx.int64), (rows, 1))
    mx.eval(every)

    def scatter(u: Array, i: Array) -> Array:
        # One position per sum: those of a row begin at a multiple of the extent.
        at = mx.reshape(mx.reshape(_inside(i, extent), (rows, count)) + every * extent, (rows * count,))
        moved = mx.transpose(mx.reshape(u, (rows, others, count, rest)), (0, 2, 1, 3))
        terms = mx.reshape(moved, (rows * count, others * rest))
        sums = mx.zeros((rows * extent, others * rest), dtype=u.dtype).at[at].add(terms)
        back = mx.transpose(mx.reshape(sums, (rows, extent, others, rest)), (0, 2, 1, 3))
        return mx.reshape(back, out)

    return Call(scatter)


# --- order ------------------------------------------------------------------------------------------------------------


@rule("argsort")
def _argsort(node: Node, target: Target) -> Call:
    if node.inputs[0].aval.dtype.kind == "b":
        return Call(lambda x: mx.astype(mx.argsort(mx.astype(x, mx.int32), -1), mx.int64))
    return Call(lambda x: mx.astype(mx.argsort(x, -1), mx.int64))


def _position(function: Callable[..., Array]) -> Callable[[Node, Target], Call]:
    def each(node: Node, target: Target) -> Call:
        axis = node.params["axis"]
        return Call(lambda x: mx.astype(function(x, axis), mx.int64))

    return each


RULES["argmax"] = _position(mx.argmax)
RULES["argmin"] = _position(mx.argmin)


@rule("searchsorted")
def _searchsorted(node: Node, target: Target) -> Call:
    """Bisection, for all values at once: the steps that define the op for arrays that are not sorted, too."""
    left = node.params["side"] == "left"
    a = node.inputs[0].shape
    rows, n = math.prod(a[:-1]), a[-1]
    steps = n.bit_length()

    def search(a: Array, v: Array) -> Array:
        lines, values = mx.reshape(a, (rows, n)), mx.reshape(v, (rows, -1))
        low = mx.zeros(values.shape, dtype=mx.int64)
        high = mx.full(values.shape, n, dtype=mx.int64)
        for _ in range(steps):
            searching = mx.less(low, high)
            middle = mx.right_shift(mx.add(low, high), 1)
            x = mx.take_along_axis(lines, mx.minimum(middle, n - 1), 1)
            behind = _before(x, values) if left else mx.logical_not(_before(values, x))
            low = mx.where(mx.logical_and(searching, behind), mx.add(middle, 1), low)
            high = mx.where(mx.logical_and(searching, mx.logical_not(behind)), middle, high)
        return mx.reshape(low, v.shape)

    return Call(search)


def _before(x: Array, y: Array) -> Array:
    """Whether x comes before y in ascending order, in which NaN is last."""
    if x.dtype not in (mx.float32, mx.float64):
        return mx.less(x, y)
    return mx.logical_or(mx.less(x, y), mx.logical_and(mx.not_equal(y, y), mx.equal(x, x)))
