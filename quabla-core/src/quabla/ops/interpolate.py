"""Interpolation between sample points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind
from quabla.errors import ShapeError
from quabla.ops.apply import floating_operand, promote
from quabla.ops.compare import equal, greater, greater_equal, isnan, less, less_equal, logical_and, logical_or
from quabla.ops.elementwise import add, div, maximum, minimum, mul, sub, where
from quabla.ops.positions import gather
from quabla.ops.rounding import mod
from quabla.ops.sort import argsort_op, find
from quabla.ops.structure import broadcast, concatenate

__all__ = ["interp"]


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None) -> Any:
    """The piecewise linear function through the points (xp, fp), at `x`.

    Derivatives in `x`, `xp` and `fp` pass through. At a sample point the derivative in `x` is the slope to the right of
    it, at the last point that to the left, and outside of the points it is 0; it is 0 also at a point where that slope
    is infinite.

    Args:
        x: array or number: where to evaluate.
        xp: vector: the abscissae of the points, in ascending order.
        fp: vector of the same length: their ordinates.
        left: the value below the first point; `fp[0]` if None.
        right: the value beyond the last point; `fp[-1]` if None.
        period: a positive number: the function repeats itself with this period, `xp` may be in any order, and `left`
            and `right` are not used. None for a function on a line.

    Returns:
        An array of the shape of `x`; NaN where `x` is NaN.

    Raises:
        ShapeError: `xp` or `fp` is no vector, their lengths differ, `left` or `right` is no scalar, or `period` is no
            positive number.
        DtypeError: the dtypes differ.

    Example:
        >>> import quabla as qb
        >>> xp, fp = qb.array([0.0, 1.0, 3.0]), qb.array([1.0, 2.0, 8.0])
        >>> qb.interp(qb.array([-1.0, 0.5, 2.0]), xp, fp).tolist()
        [1.0, 1.5, 5.0]
        >>> qb.grad(lambda t: qb.interp(t, xp, fp))(2.0).item()
        3.0
    """
    x, xp, fp = (floating_operand(v, "interp") for v in promote((x, xp, fp), "interp"))
    if xp.ndim != 1 or xp.shape != fp.shape:
        raise ShapeError(f"interp: xp and fp must be vectors of one length, got {xp.aval} and {fp.aval}")
    if period is not None:
        x, xp, fp = _wrapped(x, xp, fp, period)
        left = right = None
    low, high = (_edge(fp, at, value, name) for at, value, name in ((0, left, "left"), (-1, right, "right")))
    n = xp.shape[0]
    first, last = _at(xp, 0), _at(xp, n - 1)
    if n == 1:
        inner = broadcast(_at(fp, 0), x.shape)
    else:
        # The interval [xp[i], xp[i + 1]) that holds x; both ends of the line have one, too.
        i = maximum(minimum(sub(find(xp, x, "right"), _number(1)), _number(n - 2)), _number(0))
        j = add(i, _number(1))
        x0, y0, x1, y1 = gather(xp, i, 0), gather(fp, i, 0), gather(xp, j, 0), gather(fp, j, 0)
        width, rise = sub(x1, x0), sub(y1, y0)
        # Points that coincide have an interval of no width, which holds no x but perhaps the last point.
        empty = equal(width, 0.0)
        slope = where(empty, 0.0, div(rise, where(empty, 1.0, width)))
        # What is outside, infinite or NaN takes no part, so that nothing of it reaches a derivative.
        near = where(logical_and(greater_equal(x, first), less_equal(x, last)), x, first)
        inner = add(y0, mul(slope, sub(near, x0)))
        # From the right end where that is the last point, and where the left one is infinite: there x - x0 or the sum
        # above has no value. A point itself and a level line have theirs whatever the slope is.
        at_end = equal(x, last)
        inner = where(logical_or(at_end, isnan(inner)), add(y1, mul(slope, sub(near, x1))), inner)
        level = logical_or(equal(near, x0), equal(y0, y1))
        inner = where(isnan(inner), where(at_end, y1, where(level, y0, inner)), inner)
    inner = where(greater(x, last), high, where(less(x, first), low, inner))
    return where(equal(x, x), inner, x)  # NaN compares with nothing


def _wrapped(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """The points of one period in ascending order, with a neighbour from either side, and `x` within it."""
    if not isinstance(period, int | float) or isinstance(period, bool) or not 0.0 < period < math.inf:
        raise ShapeError(f"interp: period must be a positive number, got {period!r}")
    xp = mod(xp, float(period))
    order = bind(argsort_op, (xp,), {})
    xp, fp = gather(xp, order, 0), gather(fp, order, 0)
    before, after = xp[-1:] - float(period), xp[:1] + float(period)
    return mod(x, float(period)), concatenate([before, xp, after], 0), concatenate([fp[-1:], fp, fp[:1]], 0)


def _number(n: int) -> Any:
    return wrap(np.array(n, np.int64))


def _at(x: Any, i: int) -> Any:
    return gather(x, _number(i), 0)


def _edge(fp: Any, at: int, value: Any, name: str) -> Any:
    """The value beyond an end of the line."""
    if value is None:
        return _at(fp, at)
    (value, _) = promote((value, fp), "interp")
    if value.ndim:
        raise ShapeError(f"interp: {name} must be a scalar, got {value.aval}")
    return value
