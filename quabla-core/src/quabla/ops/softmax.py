"""Sums of exponentials that neither overflow nor lose what is small: `logsumexp`, `softmax`, `log_softmax`.

Each shifts its operand by the maximum, which is held constant: a shift that cancels has no derivative.
"""

from __future__ import annotations

import math
from typing import Any

from quabla.ops.apply import operand
from quabla.ops.compare import equal, isfinite
from quabla.ops.elementwise import div, exp, log, stand_in, stop_gradient, sub, where
from quabla.ops.reduce import floating, kept, max, spread
from quabla.ops.structure import cast, sum_over

__all__ = ["log_softmax", "logsumexp", "softmax"]

Axes = int | tuple[int, ...] | None


def _shifted(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """`x` less its maximum over `axes`, and that maximum, without the axes.

    Where the maximum is inf, elements that attain it become 0 and others -inf, with the derivatives of `x` as
    elsewhere; where it is -inf, nothing is subtracted.
    """
    top = stop_gradient(max(x, axes))
    finite = isfinite(top)
    shift = spread(where(finite, top, 0.0), x.shape, axes)
    endless = spread(equal(top, math.inf), x.shape, axes)
    limit = where(equal(x, math.inf), 0.0, -math.inf)
    limit = stand_in(cast(limit, x.dtype, x.aval.weak), x)
    return where(endless, limit, sub(x, shift)), where(finite, top, where(equal(top, -math.inf), 0.0, top))


def logsumexp(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) over all axes or some, without overflow.

    Its derivative is `softmax`: 1 for a single element that is inf, and the same share for each of several. Where all
    elements are -inf so is the result, and the derivative is 0. Arguments and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> f"{qb.logsumexp(qb.array([1000.0, 1000.0])).item():.6f}"
        '1000.693147'
        >>> nothing = qb.array([-float("inf")] * 2)
        >>> qb.logsumexp(nothing).item(), qb.grad(qb.logsumexp)(nothing).tolist()
        (-inf, [0.0, 0.0])
    """
    x, axes = floating(x, axis, "logsumexp")
    below, top = _shifted(x, axes)
    total = sum_over(exp(below), axes)
    nothing = equal(total, 0.0)
    out = where(nothing, -math.inf, log(where(nothing, 1.0, total)) + top)
    return kept("logsumexp", out, x.shape, axes, keepdims)


def softmax(x: Any, axis: Axes = -1) -> Any:
    """exp(x) / sum(exp(x)) along an axis, without overflow.

    Args:
        x: floating array.
        axis: the axis or axes along which the results add up to 1; all of them if None.

    Returns:
        An array of the shape and dtype of `x`. An element of -inf gives 0; elements of inf share 1 evenly; where all
        are -inf the result is NaN.

    Raises:
        DtypeError: `x` is bool.
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import quabla as qb
        >>> qb.softmax(qb.array([0.0, 0.0, -float("inf")])).tolist()
        [0.5, 0.5, 0.0]
    """
    x, axes = floating(x, _axis_of(x, axis, "softmax"), "softmax")
    e = exp(_shifted(x, axes)[0])
    return div(e, spread(sum_over(e, axes), x.shape, axes))


def log_softmax(x: Any, axis: Axes = -1) -> Any:
    """log(softmax(x)) along an axis, without overflow or underflow. Arguments and errors as for `softmax`.

    Example:
        >>> import quabla as qb
        >>> qb.log_softmax(qb.array([-431.0, 279.0, 427.0])).tolist()
        [-858.0, -148.0, 0.0]
    """
    x, axes = floating(x, _axis_of(x, axis, "log_softmax"), "log_softmax")
    below = _shifted(x, axes)[0]
    return sub(below, spread(log(sum_over(exp(below), axes)), x.shape, axes))


def _axis_of(x: Any, axis: Axes, where: str) -> Axes:
    """The axis; None for a scalar, which has none and is its own sum."""
    return None if operand(x, where).ndim == 0 and axis == -1 else axis
