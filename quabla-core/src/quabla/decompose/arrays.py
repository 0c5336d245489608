"""Reductions, products and rearrangements by simpler ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind
from quabla.dtypes import float64, int64
from quabla.ops.compare import equal, less, logical_and, logical_not, logical_or
from quabla.ops.elementwise import mul, neg, where
from quabla.ops.matmul import free_axes
from quabla.ops.reduce import reduce_all_op, reduce_max_op
from quabla.ops.structure import broadcast, cast, pad, permute, sum_over, zeros_like
from quabla.transforms.staging import inline

__all__ = ["DEFINITIONS"]


def _least(x: Any, *, axes: Any) -> Any:
    return neg(bind(reduce_max_op, (neg(x),), {"axes": axes}))


def _any(x: Any, *, axes: Any) -> Any:
    return logical_not(bind(reduce_all_op, (logical_not(x),), {"axes": axes}))


def _dot_general(x: Any, y: Any, *, contract: Any, batch: Any) -> Any:
    """Both operands spread over all axes, multiplied and summed: batch, left axes, right axes, contracted ones."""
    left, right = free_axes(x.ndim, contract[0], batch[0]), free_axes(y.ndim, contract[1], batch[1])
    order = [
        *((0, a) for a in batch[0]),
        *((0, a) for a in left),
        *((1, a) for a in right),
        *((0, a) for a in contract[0]),
    ]
    shape = tuple((x, y)[side].shape[axis] for side, axis in order)
    last = len(order) - len(contract[0])
    x_at = {axis: place for place, (side, axis) in enumerate(order) if side == 0}
    y_at = {axis: place for place, axis in enumerate(batch[1])}
    y_at |= {axis: len(batch[0]) + len(left) + i for i, axis in enumerate(right)}
    y_at |= {axis: last + i for i, axis in enumerate(contract[1])}
    wide = [_spread(v, shape, at) for v, at in ((x, x_at), (y, y_at))]
    return sum_over(mul(*wide), tuple(range(last, len(order))))


def _spread(x: Any, shape: tuple[int, ...], at: dict[int, int]) -> Any:
    """`x` with its axes at some places of a larger shape."""
    axes = sorted(range(x.ndim), key=lambda axis: at[axis])
    return broadcast(permute(x, tuple(axes)), shape, tuple(at[axis] for axis in axes))


def _concat(*xs: Any, axis: int) -> Any:
    """Each operand padded to the whole and chosen where it belongs."""
    whole, before = sum([x.shape[axis] for x in xs]), 0
    out = None
    for x in xs:
        n, ends = x.shape[axis], [0] * x.ndim
        low, high = list(ends), list(ends)
        low[axis], high[axis] = before, whole - before - n
        here = pad(x, tuple(low), tuple(high), tuple(ends))
        if out is None:
            out = here
        else:
            chosen = np.zeros(whole, bool)
            chosen[before : before + n] = True
            out = where(broadcast(x.frame.lift(wrap(chosen)), here.shape, (axis,)), here, out)
        before += n
    return out


def _argsort(x: Any) -> Any:
    """The rank of each element is the number of those that come before it; its position goes there. NaN comes last."""
    n = x.shape[-1]
    shape, last = (*x.shape, n), x.ndim
    lines = tuple(range(last - 1))
    mine, other = broadcast(x, shape, (*lines, last - 1)), broadcast(x, shape, (*lines, last))
    here, there = (
        broadcast(x.frame.lift(wrap(np.arange(float(n)))), shape, (axis,)) for axis in (last - 1, last)
    )
    earlier, same = less(other, mine), equal(other, mine)
    if x.dtype.kind == "f":
        numbers = [equal(v, v) for v in (other, mine)]
        earlier = logical_or(earlier, logical_and(numbers[0], logical_not(numbers[1])))
        same = logical_or(same, logical_not(logical_or(*numbers)))
    first = logical_or(earlier, logical_and(same, less(there, here)))
    rank = sum_over(cast(first, float64), (last,))
    # The element of rank `there` stands at position `here`.
    found = equal(broadcast(rank, shape, (*lines, last - 1)), there)
    return cast(sum_over(where(found, here, zeros_like(here)), (last - 1,)), int64)


def _checkpoint(*xs: Any, fun: Any) -> Any:
    return tuple(inline(fun, xs))


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "reduce_min": _least,
    "reduce_any": _any,
    "dot_general": _dot_general,
    "concat": _concat,
    "argsort": _argsort,
    "checkpoint": _checkpoint,
}
