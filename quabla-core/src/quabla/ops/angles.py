"""Circular functions beyond sine and cosine, their inverses, and the distance and the angle of a point in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.ops.apply import binary, floating_operand, promote, unary
from quabla.ops.compare import equal, isinf, logical_and, logical_or
from quabla.ops.elementwise import (
    abs,
    add,
    at_ends,
    div,
    maximum,
    mul,
    neg,
    sign,
    sqrt,
    stand_in,
    stop_gradient,
    where,
)
from quabla.ops.family import elementwise
from quabla.ops.norms import scale_for
from quabla.shapes import broadcast_shapes

__all__ = ["arccos", "arcsin", "arctan", "arctan2", "atan2", "hypot", "tan"]


def _arcsin_slope(x: Any, out: Any) -> Any:
    return div(1.0, sqrt((1.0 - x) * (1.0 + x)))  # not 1 - x * x, which cancels near 1


tan_op = elementwise("tan", lambda x, out: 1.0 + out * out, evaluate=np.tan, domain=(-1.4, 1.4))
arcsin_op = elementwise("arcsin", _arcsin_slope, evaluate=np.arcsin, domain=(-0.9, 0.9))
arccos_op = elementwise(
    "arccos", lambda x, out: neg(_arcsin_slope(x, out)), evaluate=np.arccos, domain=(-0.9, 0.9)
)
# 1 / (1 + x**2), of which x**2 overflows sooner than the quotient underflows. Powers of two round nothing.
_UNIT = 2.0**-25


def _arctan_slope(x: Any) -> Any:
    v = _UNIT * x
    return div(_UNIT**2, _UNIT**2 + v * v)


arctan_op = elementwise("arctan", lambda x, out: at_ends(x, _arctan_slope), evaluate=np.arctan)


# --- the point (x, y) -------------------------------------------------------------------------------------------------


def _turn(u: Any, y: Any, x: Any) -> Any:
    """u / (x**2 + y**2) for u = x or y, and 0 at the origin. Its limit at infinity is 0, too.

    Two divisions by the distance stay in range where its square does not.
    """
    distance = hypot(x, y)
    flat = logical_or(equal(distance, 0.0), isinf(distance))
    safe = where(flat, 1.0, distance)
    return where(flat, 0.0, div(div(u, safe), safe))


arctan2_op = elementwise(
    "arctan2",
    lambda y, x, out: _turn(x, y, x),
    lambda y, x, out: _turn(neg(y), y, x),
    evaluate=np.arctan2,
    domain=(0.3, 3.0),
    extra=(
        ("origin", ([0.0, -0.0, 0.0, -0.0], [0.0, 0.0, -0.0, -0.0])),
        ("axes", ([0.0, 1.0, -1.0, -0.0], [2.0, 0.0, 0.0, 3.0])),
        ("infinite", ([np.inf, np.inf, 1.0, np.nan], [1.0, -np.inf, -np.inf, 1.0])),
    ),
)


def tan(x: Any) -> Any:
    """The tangent of `x` (radians), elementwise, for a floating `x` of any shape.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> f"{qb.tan(1.0).item():.6f}", qb.grad(qb.tan)(0.0).item()
        ('1.557408', 1.0)
    """
    return unary(tan_op, x)


def arcsin(x: Any) -> Any:
    """The angle in [-pi/2, pi/2] whose sine is `x`, elementwise; NaN where abs(x) > 1. Its slope at -1 and 1 is inf.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.arcsin(qb.array([0.0, 2.0])).tolist()
        [0.0, nan]
    """
    return unary(arcsin_op, x)


def arccos(x: Any) -> Any:
    """The angle in [0, pi] whose cosine is `x`, elementwise; NaN where abs(x) > 1. Its derivative at -1 and 1 is -inf.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.arccos(qb.array([1.0, 2.0])).tolist()
        [0.0, nan]
    """
    return unary(arccos_op, x)


def arctan(x: Any) -> Any:
    """The angle in [-pi/2, pi/2] whose tangent is `x`, elementwise, for a floating `x` of any shape.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.arctan(0.0).item(), qb.grad(qb.arctan)(1.0).item()
        (0.0, 0.5)
    """
    return unary(arctan_op, x)


def arctan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), in [-pi, pi], elementwise with broadcasting.

    Signed zeros and infinities as in NumPy. At the origin all derivatives are 0, a convention of convenience. `atan2`
    is the same function. Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> f"{qb.arctan2(1.0, -1.0).item():.6f}"
        '2.356194'
        >>> [g.item() for g in qb.grad(qb.arctan2, argnums=(0, 1))(0.0, 0.0)]
        [0.0, 0.0]
    """
    return binary(arctan2_op, y, x)


def atan2(y: Any, x: Any) -> Any:
    """The same as `arctan2(y, x)`.

    Shapes, dtypes and errors as for `arctan2`.

    Example:
        >>> import quabla as qb
        >>> qb.atan2(0.0, 1.0).item()
        0.0
    """
    return binary(arctan2_op, y, x)


def hypot(x: Any, y: Any) -> Any:
    """The distance sqrt(x**2 + y**2), elementwise with broadcasting, without overflow or underflow of the squares.

    At the origin all derivatives are 0, a subgradient; where one operand is infinite they are those of its absolute
    value, and NaN where both are. Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.hypot(3.0, 4.0).item(), qb.grad(qb.hypot)(0.0, 0.0).item()
        (5.0, 0.0)
    """
    x, y = (floating_operand(v, "hypot") for v in promote((x, y), "hypot"))
    broadcast_shapes("hypot", x.shape, y.shape)
    largest = maximum(abs(stop_gradient(x)), abs(stop_gradient(y)))
    scale = scale_for(largest)
    a, b = div(x, scale), div(y, scale)
    distance = mul(scale, sqrt(add(mul(a, a), mul(b, b))))
    # One infinity counts alone, as the absolute value that it is there. Two have no limit of their slopes.
    end = where(isinf(x), mul(x, stop_gradient(sign(x))), mul(y, stop_gradient(sign(y))))
    far = where(logical_and(isinf(x), isinf(y)), stand_in(end, distance), end)
    return where(logical_or(isinf(x), isinf(y)), far, distance)
