"""Accumulation along an axis as a loop, and the search in a sorted array as a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import trace
from quabla.control.derive import Parts, index_aval
from quabla.control.scan import bind_scan
from quabla.dtypes import float32, float64, int64
from quabla.ops.compare import equal, less, logical_and, logical_not, logical_or
from quabla.ops.elementwise import add, mul, where
from quabla.ops.structure import broadcast, cast, inverse_permutation, permute, sum_over
from quabla.shapes import aval_of

__all__ = ["DEFINITIONS"]


def _running(start: float, step: Callable[..., Any]) -> Callable[..., Any]:
    """Accumulation from element to element along an axis, in float64, as a loop."""

    def run(*xs: Any, axis: int, reverse: bool) -> Any:
        perm = (axis, *(a for a in range(xs[0].ndim) if a != axis))
        rows = [permute(cast(x, float64) if x.dtype is float32 else x, perm) for x in xs]
        state = aval_of(rows[0].shape[1:], rows[0].dtype)
        first = rows[0].shape[0] - 1 if reverse else 0

        def body(i: Any, total: Any, *row: Any) -> list[Any]:
            at_start = broadcast(equal(i, wrap(np.array(first))), state.shape, ())
            new = step(at_start, total, *row)
            return [new, new]

        program, _ = trace(body, [index_aval, state, *(state for _ in rows)])
        initial = wrap(np.full(state.shape, start, state.dtype.numpy))
        _, (out,) = bind_scan(program, rows[0].shape[0], Parts([], [initial], rows), reverse)
        return cast(permute(out, inverse_permutation(perm)), xs[0].dtype)

    return run


def _searchsorted(a: Any, v: Any, *, side: str, batch: int) -> Any:
    """The number of elements before each value: what bisection finds where the array is sorted, NaN last."""
    rows, n = a.shape[:-1], a.shape[-1]
    inner = v.shape[batch:]
    shape = (*rows, *inner, n)
    x = broadcast(a, shape, (*range(batch), len(shape) - 1))
    y = broadcast(v, shape, tuple(range(len(shape) - 1)))
    if side == "left":
        hit = logical_or(less(x, y), logical_and(logical_not(equal(y, y)), equal(x, x)))
    else:
        hit = logical_not(logical_or(less(y, x), logical_and(logical_not(equal(x, x)), equal(y, y))))
    return cast(sum_over(cast(hit, float64), (len(shape) - 1,)), int64)


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "cumsum": _running(0.0, lambda first, total, x: add(total, x)),
    "cumprod": _running(1.0, lambda first, total, x: mul(total, x)),
    # The first factor is never read.
    "recurrence": _running(0.0, lambda first, total, a, b: where(first, b, add(b, mul(a, total)))),
    "searchsorted": _searchsorted,
}
