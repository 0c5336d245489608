"""LU factorisation and what follows from it in terms of elementary ops.

The steps are those of `ops/factor.py`, with a mask in place of every index that is known only at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind, trace
from quabla.control.derive import Parts, index_aval
from quabla.control.scan import bind_scan
from quabla.dtypes import float64, int64
from quabla.ops.compare import equal, greater, less, logical_and, not_equal
from quabla.ops.diagonals import diagonal
from quabla.ops.elementwise import abs as absolute
from quabla.ops.elementwise import div, mul, sign, sub, where
from quabla.ops.index import getitem
from quabla.ops.linalg import triangular_solve_op
from quabla.ops.reduce import any as any_of
from quabla.ops.reduce import sum as sum_of
from quabla.ops.rounding import mod
from quabla.ops.shape import swapaxes
from quabla.ops.sort import argmax
from quabla.ops.statistics import prod
from quabla.ops.structure import cast

__all__ = ["DEFINITIONS"]

# `x` is (..., n, k); masks of rows are (n, 1) or (..., n, 1), masks of columns (k,) or (..., 1, k).
_COLUMN = (..., slice(None), None)
_ROW = (..., None, slice(None))
_LAST = (..., None)


def _picked(mask: Any, x: Any, axis: int) -> Any:
    """`x` where the mask holds, which is at one position along `axis`."""
    return sum_of(where(mask, x, 0.0), axis=axis)


def _swapped(x: Any, here: Any, there: Any) -> Any:
    """`x` with two rows interchanged."""
    one, other = _picked(here, x, -2), _picked(there, x, -2)
    return where(here, getitem(other, _ROW), where(there, getitem(one, _ROW), x))


def _lu(a: Any) -> tuple[Any, Any]:
    """The factors, stored by columns, and the interchanges."""
    positions = wrap(np.arange(float(a.shape[-1])))

    def step(i: Any, x: Any, pivots: Any) -> list[Any]:
        now = cast(i, float64)
        here, after = equal(positions, now), greater(positions, now)
        candidates = where(less(positions, now), -1.0, absolute(_picked(here, x, -1)))
        at = getitem(cast(argmax(candidates, axis=-1), float64), _LAST)
        x = _swapped(x, getitem(here, _COLUMN), getitem(equal(positions, at), _COLUMN))
        row, column = _picked(getitem(here, _COLUMN), x, -2), _picked(here, x, -1)
        pivot = getitem(_picked(here, row, -1), _LAST)
        factor = getitem(div(column, where(equal(pivot, 0.0), 1.0, pivot)), _COLUMN)
        below, rest = getitem(after, _COLUMN), sub(x, mul(factor, getitem(row, _ROW)))
        x = where(logical_and(below, here), factor, where(logical_and(below, after), rest, x))
        return [x, where(here, at, pivots)]

    start = wrap(np.zeros(a.shape[:-1]))
    body, _ = trace(step, [index_aval, a.aval, start.aval])
    (x, pivots), _ = bind_scan(body, a.shape[-1], Parts([], [a, start], []))
    return swapaxes(x, -1, -2), cast(pivots, int64)


def _lu_solve(factors: Any, pivots: Any, b: Any, *, transposed: bool) -> Any:
    """The solution of a system, given what `lu` returned."""
    positions = wrap(np.arange(float(b.shape[-2])))

    def step(i: Any, p: Any, x: Any) -> list[Any]:
        here = equal(positions, cast(i, float64))
        at = getitem(_picked(here, p, -1), _LAST)
        inside = logical_and(greater(at, -0.5), less(at, float(b.shape[-2])))
        there = equal(positions, where(inside, at, cast(i, float64)))
        return [_swapped(x, getitem(here, _COLUMN), getitem(there, _COLUMN))]

    def permuted(x: Any) -> Any:
        p = cast(pivots, float64)
        body, _ = trace(step, [index_aval, p.aval, x.aval])
        (out,), _ = bind_scan(body, x.shape[-2], Parts([p], [x], []), reverse=transposed)
        return out

    def solved(a: Any, x: Any, lower: bool, unit: bool) -> Any:
        return bind(triangular_solve_op, (a, x), {"lower": lower, "transposed": False, "unit": unit})

    if transposed:
        x = permuted(solved(factors, solved(factors, b, True, False), False, True))
    else:
        a = swapaxes(factors, -1, -2)
        x = solved(a, solved(a, permuted(b), True, True), False, False)
    singular = any_of(equal(diagonal(factors, axis1=-2, axis2=-1), 0.0), axis=-1)
    return where(getitem(singular, (..., None, None)), float("nan"), x)


def _lu_det(factors: Any, pivots: Any, *, signs: bool) -> Any:
    """The determinant, or its sign, given what `lu` returned."""
    d = diagonal(factors, axis1=-2, axis2=-1)
    swapped = not_equal(cast(pivots, float64), wrap(np.arange(float(d.shape[-1]))))
    odd = equal(mod(sum_of(cast(swapped, d.dtype), axis=-1), 2.0), 1.0)
    product = prod(sign(d) if signs else d, axis=-1)
    return where(odd, mul(product, -1.0), product)


DEFINITIONS: dict[str, Callable[..., Any]] = {"lu": _lu, "lu_solve": _lu_solve, "lu_det": _lu_det}
