"""Elementwise and compare ops by a few of them, right to a few units in the last place, special values included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quabla.ops.angles import arctan2
from quabla.ops.compare import equal, less, less_equal, logical_and, logical_not, logical_or
from quabla.ops.elementwise import abs as absolute
from quabla.ops.elementwise import add, cos, div, exp, log, maximum, mul, neg, sin, sqrt, sub, where
from quabla.ops.logarithms import expm1, log1p
from quabla.ops.powers import power
from quabla.ops.rounding import floor

__all__ = ["DEFINITIONS"]

# Beyond it the 1 in x * x + 1 is lost, in float64 as in float32.
_LARGE = 1e9


def _signed_like(x: Any, magnitude: Any) -> Any:
    """A magnitude with the sign of `x`; where `x` is zero, `x`."""
    return where(equal(x, 0.0), x, where(less(x, 0.0), neg(magnitude), magnitude))


def _like(x: Any, value: int) -> Any:
    """A number in the type of `x`, which may be an integer."""
    return x.frame.full(float(value) if x.dtype.kind == "f" else value, x.aval)


def _abs(x: Any) -> Any:
    zero = _like(x, 0)
    return where(less(x, zero), neg(x), add(x, zero))  # -0.0 + 0.0 is 0.0


def _larger(x: Any, y: Any) -> Any:
    return where(logical_or(less(y, x), logical_not(equal(x, x))), x, y)


def _smaller(x: Any, y: Any) -> Any:
    return where(logical_or(less(x, y), logical_not(equal(x, x))), x, y)


def _sign(x: Any) -> Any:
    zero = _like(x, 0)
    below = where(less(x, zero), _like(x, -1), where(equal(x, zero), zero, x))
    return where(less(zero, x), _like(x, 1), below)


def _round(x: Any) -> Any:
    """To the nearest whole number, halves to the even one; a zero keeps the sign of `x`."""
    below = floor(x)
    part = sub(x, below)
    odd = less(mul(2.0, floor(mul(below, 0.5))), below)
    up = logical_or(less(0.5, part), logical_and(equal(part, 0.5), odd))
    near = where(up, add(below, 1.0), below)
    return where(equal(near, 0.0), mul(x, 0.0), near)


def _trunc(x: Any) -> Any:
    return where(less(x, 0.0), neg(floor(neg(x))), floor(x))


# --- exponentials and logarithms --------------------------------------------------------------------------------------
# W. Kahan's: the error of rounding 1 + x, or exp(x), cancels, since the same rounded number stands above and below.


def _log1p(x: Any) -> Any:
    u = add(1.0, x)
    exact = logical_or(equal(u, 1.0), equal(u, math.inf))
    return where(exact, x, div(mul(log(u), x), sub(u, 1.0)))


def _expm1(x: Any) -> Any:
    u = exp(x)
    less_one = sub(u, 1.0)
    inner = div(mul(less_one, x), log(u))
    ends = logical_or(equal(less_one, -1.0), equal(u, math.inf))
    return where(equal(u, 1.0), x, where(ends, less_one, inner))


def _sigmoid(x: Any) -> Any:
    e = exp(neg(absolute(x)))
    return div(where(less(x, 0.0), e, 1.0), add(1.0, e))


def _softplus(x: Any) -> Any:
    return add(maximum(x, 0.0), log1p(exp(neg(absolute(x)))))


def _cbrt(x: Any) -> Any:
    """A root by `power`, and one step of Newton's, since 1/3 is no number."""
    a = absolute(x)
    y = power(a, 1.0 / 3.0)
    better = sub(y, div(sub(y, div(a, mul(y, y))), 3.0))
    return _signed_like(x, where(equal(a, math.inf), a, better))


def _integer_power(x: Any, *, exponent: int) -> Any:
    return power(x, float(exponent))


# --- hyperbolic functions ---------------------------------------------------------------------------------------------


def _tanh(x: Any) -> Any:
    e = expm1(mul(absolute(x), -2.0))
    return _signed_like(x, div(neg(e), add(2.0, e)))


def _half_exponentials(x: Any) -> tuple[Any, Any]:
    """Half of exp(|x|), which does not overflow before it must, and half of exp(-|x|)."""
    root = exp(mul(absolute(x), 0.5))
    return mul(mul(root, 0.5), root), div(0.5, mul(root, root))


def _sinh(x: Any) -> Any:
    large, small = _half_exponentials(x)
    e = expm1(absolute(x))
    near = mul(add(e, div(e, add(e, 1.0))), 0.5)
    return _signed_like(x, where(less(absolute(x), 1.0), near, sub(large, small)))


def _cosh(x: Any) -> Any:
    return add(*_half_exponentials(x))


def _arcsinh(x: Any) -> Any:
    a = absolute(x)
    square = mul(a, a)
    near = log1p(add(a, div(square, add(1.0, sqrt(add(square, 1.0))))))
    return _signed_like(x, where(less(_LARGE, a), add(log(a), math.log(2.0)), near))


def _arccosh(x: Any) -> Any:
    t = sub(x, 1.0)
    near = log1p(add(t, sqrt(mul(t, add(t, 2.0)))))
    return where(less(x, 1.0), math.nan, where(less(_LARGE, x), add(log(x), math.log(2.0)), near))


def _arctanh(x: Any) -> Any:
    a = absolute(x)
    return _signed_like(x, mul(log1p(div(add(a, a), sub(1.0, a))), 0.5))


def _leg(x: Any) -> Any:
    """The other leg of a right triangle of hypotenuse 1."""
    return sqrt(mul(sub(1.0, x), add(1.0, x)))


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "neg": lambda x: mul(x, _like(x, -1)),
    "sub": lambda x, y: add(x, neg(y)),
    "abs": _abs,
    "maximum": _larger,
    "minimum": _smaller,
    "relu": lambda x: maximum(x, 0.0),
    "sign": _sign,
    "ceil": lambda x: neg(floor(neg(x))),
    "trunc": _trunc,
    "round": _round,
    "exp2": lambda x: power(2.0, x),
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": lambda x: div(log(x), math.log(2.0)),
    "log10": lambda x: div(log(x), math.log(10.0)),
    "cbrt": _cbrt,
    "integer_power": _integer_power,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "tan": lambda x: div(sin(x), cos(x)),
    "arcsin": lambda x: arctan2(x, _leg(x)),
    "arccos": lambda x: arctan2(_leg(x), x),
    "arctan": lambda x: arctan2(x, 1.0),
    "tanh": _tanh,
    "sinh": _sinh,
    "cosh": _cosh,
    "arcsinh": _arcsinh,
    "arccosh": _arccosh,
    "arctanh": _arctanh,
    "greater": lambda x, y: less(y, x),
    "greater_equal": lambda x, y: less_equal(y, x),
    "less_equal": lambda x, y: logical_or(less(x, y), equal(x, y)),
    "not_equal": lambda x, y: logical_not(equal(x, y)),
    "logical_or": lambda x, y: logical_not(logical_and(logical_not(x), logical_not(y))),
    "isnan": lambda x: logical_not(equal(x, x)),
    "isinf": lambda x: equal(absolute(x), math.inf),
    "isfinite": lambda x: less(absolute(x), math.inf),
}
