"""Products, variances, and sums that pass over missing numbers."""

from __future__ import annotations

import math
from typing import Any

from quabla.errors import DtypeError
from quabla.ops.compare import isnan, logical_not
from quabla.ops.elementwise import div, mul, sqrt, stop_gradient, sub, where
from quabla.ops.reduce import arithmetic, divided, floating, kept, mean, spread, sum
from quabla.ops.structure import cast, permute, reshape_to, strided_slice, sum_over, without
from quabla.shapes import number
from quabla.typed_repr import typed

__all__ = ["nanmean", "nansum", "prod", "std", "var"]

Axes = int | tuple[int, ...] | None


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The product of the elements of `x`, or the products along some axes.

    Elements are multiplied in pairs, the products in pairs, and so on. Its derivatives are products too, so zeros among
    the elements do no harm to them. Arguments and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> qb.prod(qb.array([2.0, 3.0, 4.0])).item()
        24.0
        >>> qb.grad(qb.prod)(qb.array([0.0, 3.0, 4.0])).tolist()
        [12.0, 0.0, 0.0]
    """
    x, axes = arithmetic(x, axis, "prod")
    shape, rest = x.shape, without(x.shape, axes)
    n = math.prod(shape[a] for a in axes)
    y = permute(x, tuple(a for a in range(len(shape)) if a not in axes) + axes)
    y = reshape_to(y, (*rest, n))
    odd: Any = None  # the product of elements that had no partner
    while n > 1:
        if n % 2:
            last = _part(y, n - 1, n)
            odd = last if odd is None else mul(odd, last)
        n //= 2
        y = mul(_part(y, 0, n), _part(y, n, 2 * n))
    return kept("prod", reshape_to(y if odd is None else mul(y, odd), rest), shape, axes, keepdims)


def _part(x: Any, start: int, stop: int) -> Any:
    """Elements `start` to `stop` of the last axis."""
    return strided_slice(x, (*[0] * (x.ndim - 1), start), (*x.shape[:-1], stop), (1,) * x.ndim)


def var(x: Any, axis: Axes = None, keepdims: bool = False, ddof: float = 0) -> Any:
    """The mean squared distance of the elements of `x` from their mean, of all or along some axes.

    Args:
        x: floating array or number.
        axis: the axis or axes; all of them if None.
        keepdims: whether the reduced axes stay, with extent 1.
        ddof: what is subtracted from the number of elements before it divides the sum of squares.

    Returns:
        An array without the reduced axes, of the dtype of `x`; NaN where ddof leaves nothing to divide 0 by.

    Raises:
        DtypeError: `x` is bool, or `ddof` is not a number.
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([1.0, 2.0, 3.0, 4.0])
        >>> qb.var(x).item(), f"{qb.var(x, ddof=1).item():.6f}"
        (1.25, '1.666667')
    """
    x, axes = floating(x, axis, "var")
    return kept("var", _variance(x, axes, ddof, "var"), x.shape, axes, keepdims)


def std(x: Any, axis: Axes = None, keepdims: bool = False, ddof: float = 0) -> Any:
    """The square root of `var`. The derivative where all elements are equal is 0, as that of `norm` at 0.

    Nothing is scaled, which would take twice as long: where squares of distances overflow (beyond 1e154, in float32
    1e19) the result is inf, as in NumPy, and the derivative 0; where they underflow both are 0.
    `norm(x - mean(x)) / sqrt(n)` is right there. Arguments and errors as for `var`.

    Example:
        >>> import quabla as qb
        >>> qb.std(qb.array([1.0, 3.0])).item(), qb.grad(qb.std)(qb.array([0.1, 0.1, 0.1])).tolist()
        (1.0, [0.0, 0.0, 0.0])
        >>> x = qb.array([1e200, 3e200])
        >>> qb.std(x).item(), f"{(qb.norm(x - qb.mean(x)) / qb.sqrt(2.0)).item():.1e}"
        (inf, '1.0e+200')
    """
    x, axes = floating(x, axis, "std")
    return kept("std", sqrt(_variance(x, axes, ddof, "std")), x.shape, axes, keepdims)


def _variance(x: Any, axes: tuple[int, ...], ddof: float, where: str) -> Any:
    try:
        ddof = number(ddof)
    except TypeError:
        raise DtypeError(f"{where}: ddof is a number, got {typed(ddof)}") from None
    shape = x.shape
    # Distances from the first element: the variance is the same, and equal elements have one of exactly 0. Their mean
    # may be rounded, and a standard deviation of 1e-17 instead of 0 would have a slope of 1.
    start = (0,) * len(shape)
    first = strided_slice(
        x, start, tuple(1 if a in axes else n for a, n in enumerate(shape)), (1,) * len(shape)
    )
    y = sub(x, stop_gradient(first))
    y = sub(y, spread(mean(y, axes), shape, axes))
    count = math.prod(shape[a] for a in axes)
    left = count - ddof
    return divided(sum_over(mul(y, y), axes), left if left > 0 else 0)


def nansum(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The sum of those elements of `x` that are not NaN, of all or along some axes; the others have derivative 0.

    Arguments and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> qb.nansum(qb.array([1.0, float("nan"), 2.0])).item()
        3.0
    """
    x, axes = floating(x, axis, "nansum")
    return _nansum(x, axes, keepdims)


def _nansum(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return sum(where(isnan(x), 0.0, x), axes, keepdims)


def nanmean(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The mean of those elements of `x` that are not NaN, of all or along some axes; NaN where all of them are.

    Elements that are NaN have derivative 0. Arguments and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([1.0, float("nan"), 2.0])
        >>> qb.nanmean(x).item(), qb.grad(qb.nanmean)(x).tolist()
        (1.5, [0.5, 0.0, 0.5])
    """
    x, axes = floating(x, axis, "nanmean")
    count = sum(cast(logical_not(isnan(x)), x.dtype), axes, keepdims)
    return div(_nansum(x, axes, keepdims), count)
