"""Logarithms and exponentials to other bases and near their fixed points, the cube root, and simple powers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.ops.apply import binary, floating_operand, promote, unary
from quabla.ops.compare import equal, isinf, less, logical_and, logical_or
from quabla.ops.elementwise import abs, div, elementwise, exp, maximum, neg, sigmoid, sub, where
from quabla.ops.powers import integer_power

__all__ = ["cbrt", "exp2", "expm1", "log1p", "log2", "log10", "logaddexp", "reciprocal", "square"]

_LN2, _LN10 = math.log(2.0), math.log(10.0)
_EDGES = (("edges", ([0.0, -0.0, -1.0, np.inf, np.nan],)),)

expm1_op = elementwise(
    "expm1",
    lambda x, out: exp(x),  # not out + 1, which is 0 from -37 on
    evaluate=np.expm1,
    extra=(("far", ([-800.0, -40.0, 1e-20, -0.0, 800.0],)),),
)
exp2_op = elementwise("exp2", lambda x, out: _LN2 * out, evaluate=np.exp2)
log1p_op = elementwise(
    "log1p", lambda x, out: div(1.0, 1.0 + x), evaluate=np.log1p, domain=(-0.7, 3.0),
    extra=(("edges", ([1e-20, -0.0, -1.0, -2.0, np.inf],)),),
)  # fmt: skip
# Divided by x before the constant: x * log(2) would overflow where the slope is an ordinary number.
log2_op = elementwise(
    "log2", lambda x, out: div(1.0 / _LN2, x), evaluate=np.log2, domain=(0.2, 4.0), extra=_EDGES
)
log10_op = elementwise(
    "log10", lambda x, out: div(1.0 / _LN10, x), evaluate=np.log10, domain=(0.2, 4.0), extra=_EDGES
)


def _cbrt_slope(x: Any, out: Any) -> Any:
    # 0 at 0, where the tangent is vertical: the convention of `sqrt`. And 0 at infinity, where it is the limit.
    flat = logical_or(equal(out, 0.0), isinf(out))
    safe = where(flat, 1.0, out)
    return where(flat, 0.0, div(1.0 / 3.0, safe * safe))


cbrt_op = elementwise(
    "cbrt", _cbrt_slope, evaluate=np.cbrt, domain=(0.2, 4.0), extra=(("edges", ([-27.0, np.inf, -np.inf, np.nan],)),)
)  # fmt: skip


# --- log(exp(x) + exp(y)) ---------------------------------------------------------------------------------------------


def _logaddexp_slope(x: Any, y: Any) -> Any:
    # exp(x) / (exp(x) + exp(y)). Equal infinities leave no difference: 1/2 each for inf, and 0 for -inf, as if masked.
    alike = logical_and(equal(x, y), isinf(x))
    slope = sigmoid(where(alike, 0.0, sub(x, y)))
    return where(alike, where(less(x, 0.0), 0.0, 0.5), slope)


def _logaddexp_of_simpler(x: Any, y: Any) -> Any:
    alike = equal(x, y)
    apart = log1p(exp(neg(abs(where(alike, 0.0, sub(x, y))))))
    return where(alike, x + _LN2, maximum(x, y) + apart)


logaddexp_op = elementwise(
    "logaddexp",
    lambda x, y, out: _logaddexp_slope(x, y),
    lambda x, y, out: _logaddexp_slope(y, x),
    evaluate=np.logaddexp,
    decompose=_logaddexp_of_simpler,
    extra=(
        ("far", ([1000.0, -1000.0, 1000.0, 0.0], [0.0, 0.0, 1000.0, -40.0])),
        ("infinite", ([np.inf, -np.inf, np.inf, -np.inf, np.nan], [np.inf, -np.inf, 0.0, 0.0, 0.0])),
    ),
)


def expm1(x: Any) -> Any:
    """exp(x) - 1, elementwise, without loss of digits near 0.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.expm1(qb.array([0.0, 1e-20])).tolist()
        [0.0, 1e-20]
    """
    return unary(expm1_op, x)


def exp2(x: Any) -> Any:
    """2**x, elementwise, for a floating `x` of any shape.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.exp2(qb.array([0.0, 10.0])).tolist()
        [1.0, 1024.0]
    """
    return unary(exp2_op, x)


def log1p(x: Any) -> Any:
    """log(1 + x), elementwise, without loss of digits near 0: -inf at -1 and NaN below.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.log1p(qb.array([0.0, 1e-20, -1.0])).tolist()
        [0.0, 1e-20, -inf]
    """
    return unary(log1p_op, x)


def log2(x: Any) -> Any:
    """The logarithm of `x` to base 2, elementwise: -inf at 0 and NaN below, never an error.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.log2(qb.array([8.0, 0.0])).tolist()
        [3.0, -inf]
    """
    return unary(log2_op, x)


def log10(x: Any) -> Any:
    """The logarithm of `x` to base 10, elementwise: -inf at 0 and NaN below, never an error.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.log10(qb.array([1000.0, 0.0])).tolist()
        [3.0, -inf]
    """
    return unary(log10_op, x)


def cbrt(x: Any) -> Any:
    """The real cube root of `x`, elementwise, negative for negative `x`. Its derivative at 0 is 0, as that of `sqrt`.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.cbrt(qb.array([8.0, -27.0])).tolist(), qb.grad(qb.cbrt)(0.0).item()
        ([2.0, -3.0], 0.0)
    """
    return unary(cbrt_op, x)


def logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)), elementwise with broadcasting, without overflow.

    Where both are -inf so is the result, and the derivatives are 0. Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.logaddexp(qb.array([1000.0, -float("inf")]), -1000.0).tolist()
        [1000.0, -1000.0]
    """
    return binary(logaddexp_op, x, y)


def square(x: Any) -> Any:
    """x * x, elementwise, for a floating `x` of any shape.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.square(qb.array([3.0, -4.0])).tolist()
        [9.0, 16.0]
    """
    return integer_power(promote((x,), "square")[0], 2)


def reciprocal(x: Any) -> Any:
    """1 / x, elementwise, by IEEE rules: an infinity at 0, never an error.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.reciprocal(qb.array([4.0, 0.0])).tolist()
        [0.25, inf]
    """
    return div(1.0, floating_operand(x, "reciprocal"))
