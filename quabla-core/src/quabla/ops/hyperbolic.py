"""Hyperbolic functions beyond `tanh`, and their inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.ops.angles import hypot
from quabla.ops.apply import unary
from quabla.ops.compare import equal
from quabla.ops.elementwise import div, elementwise, sqrt, where

__all__ = ["arccosh", "arcsinh", "arctanh", "cosh", "sinh"]

sinh_op = elementwise("sinh", lambda x, out: cosh(x), evaluate=np.sinh)
cosh_op = elementwise("cosh", lambda x, out: sinh(x), evaluate=np.cosh)
# The roots are taken of numbers that do not overflow: sqrt(1 + x * x) would be inf from 1e154 on.
arcsinh_op = elementwise(
    "arcsinh", lambda x, out: div(1.0, hypot(x, 1.0)), evaluate=np.arcsinh,
    extra=(("far", ([-1e8, -0.0, 1e30, -np.inf, np.nan],)),),
)  # fmt: skip


def _arccosh_slope(x: Any) -> Any:
    far = equal(x, math.inf)  # its limit there is 0, and the formula would multiply that by infinity
    near = where(far, 2.0, x)
    return where(far, 0.0, div(1.0, sqrt(near - 1.0) * sqrt(near + 1.0)))


arccosh_op = elementwise(
    "arccosh", lambda x, out: _arccosh_slope(x), evaluate=np.arccosh, domain=(1.5, 5.0),
    extra=(("far", ([1e30, np.inf, 0.5, np.nan],)),),
)  # fmt: skip
arctanh_op = elementwise(
    "arctanh", lambda x, out: div(1.0, (1.0 - x) * (1.0 + x)), evaluate=np.arctanh, domain=(-0.9, 0.9)
)


def sinh(x: Any) -> Any:
    """The hyperbolic sine of `x`, elementwise, for a floating `x` of any shape; overflow gives an infinity.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.sinh(qb.array([0.0, -1000.0])).tolist()
        [0.0, -inf]
    """
    return unary(sinh_op, x)


def cosh(x: Any) -> Any:
    """The hyperbolic cosine of `x`, elementwise, for a floating `x` of any shape; overflow gives inf.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.cosh(qb.array([0.0, -1000.0])).tolist()
        [1.0, inf]
    """
    return unary(cosh_op, x)


def arcsinh(x: Any) -> Any:
    """The inverse hyperbolic sine of `x`, elementwise, exact for large `x` of either sign.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> f"{qb.arcsinh(-1e8).item():.6f}", qb.grad(qb.arcsinh)(0.0).item()
        ('-19.113828', 1.0)
    """
    return unary(arcsinh_op, x)


def arccosh(x: Any) -> Any:
    """The inverse hyperbolic cosine of `x`, elementwise; NaN where x < 1. Its derivative at 1 is inf.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.arccosh(qb.array([1.0, 0.5])).tolist()
        [0.0, nan]
    """
    return unary(arccosh_op, x)


def arctanh(x: Any) -> Any:
    """The inverse hyperbolic tangent of `x`, elementwise; infinite at -1 and 1, NaN where abs(x) > 1.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.arctanh(qb.array([0.0, 1.0, 2.0])).tolist()
        [0.0, inf, nan]
    """
    return unary(arctanh_op, x)
