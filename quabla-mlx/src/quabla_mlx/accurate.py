"""Functions that MLX lacks, or whose last digits it gets wrong, written with those that it gets right.

On a CPU its `expm1`, `log1p`, `tan`, `power` and `tanh` are right to rounding in both dtypes, while `exp`, `sin`, `cos`
and what is made of them have 7 digits in float64, and `erf` has 6 in either. Every function here is right to a few
units in the last place, keeps signed zeros, infinities and NaN, and takes arrays of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from quabla_mlx.target import Array

__all__ = [
    "cbrt", "cos64", "erf", "erfc", "exp2", "exp64", "fmod", "logaddexp", "relu", "sigmoid", "sigmoid64", "sign",
    "sin64", "softplus",
]  # fmt: skip


# --- exponentials -----------------------------------------------------------------------------------------------------


def exp64(x: Array) -> Array:
    """exp(x), the square of exp(x / 2), so that results too small for a normal number are rounded once.

    expm1 + 1 loses nothing for positive arguments; negative ones take the reciprocal.
    """
    root = mx.expm1(mx.abs(x) * 0.5) + 1.0
    root = mx.where(x < 0.0, mx.reciprocal(root), root)
    return mx.square(root)


def exp2(x: Array) -> Array:
    """2 to the power x."""
    return mx.power(2.0, x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), in which nothing cancels, with MLX's own exp: for float32."""
    return mx.reciprocal(mx.exp(mx.negative(x)) + 1.0)


def sigmoid64(x: Array) -> Array:
    """The same with an exp that is right in float64."""
    return mx.reciprocal(exp64(mx.negative(x)) + 1.0)


def softplus(x: Array) -> Array:
    """log(1 + exp(x))."""
    return mx.maximum(x, 0.0) + mx.log1p(exp64(mx.negative(mx.abs(x))))


def logaddexp(x: Array, y: Array) -> Array:
    """log(exp(x) + exp(y))."""
    apart = mx.where(mx.equal(x, y), 0.0, mx.subtract(x, y))  # infinities that are equal are not apart
    return mx.maximum(x, y) + mx.log1p(exp64(mx.negative(mx.abs(apart))))


# --- circular functions -----------------------------------------------------------------------------------------------


def sin64(x: Array) -> Array:
    """2 t / (1 + t**2) with t = tan(x / 2), which is right at the zeros of the sine too."""
    t = mx.tan(x * 0.5)
    return mx.where(mx.equal(t, 0.0), x, (t + t) / (mx.square(t) + 1.0))


def cos64(x: Array) -> Array:
    """sin(x) / tan(x): the obvious (1 - t**2) / (1 + t**2) cancels where the cosine is small."""
    t = mx.tan(x * 0.5)
    sine = (t + t) / (mx.square(t) + 1.0)
    return mx.where(mx.equal(t, 0.0), 1.0, sine / mx.tan(x))


# --- roots, remainders, signs -----------------------------------------------------------------------------------------


def cbrt(x: Array) -> Array:
    """The real cube root: a power, and one step of Newton's method, since 1/3 is no binary fraction."""
    a = mx.abs(x)
    ordinary = mx.logical_and(a > 0.0, a < math.inf)
    a = mx.where(ordinary, a, 1.0)
    y = mx.power(a, 1.0 / 3.0)
    y = y - (y - a / mx.square(y)) / 3.0
    return mx.where(ordinary, mx.where(x < 0.0, mx.negative(y), y), x)


def fmod(x: Array, y: Array) -> Array:
    """The remainder with the sign of x. MLX's has that of y, so the magnitudes decide, and zeros keep the sign of x."""
    r = mx.remainder(mx.abs(x), mx.abs(y))
    return mx.where(mx.equal(r, 0.0), x * 0.0, mx.where(x < 0.0, mx.negative(r), r))


def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN for NaN, of which MLX says 0."""
    return mx.where(mx.equal(x, x), mx.sign(x), x)


def relu(x: Array) -> Array:
    """max(x, 0), and NaN for NaN."""
    return mx.maximum(x, 0.0)


# --- the error function -----------------------------------------------------------------------------------------------
#
# Below 1/2, a polynomial for erf. Beyond, erfc(x) = exp(-x**2) P(q) / (1 + 2 x) with q = (x - K) / (x + K), which maps
# the half line to an interval on which (1 + 2 x) exp(x**2) erfc(x) is smooth (M. M. Shepherd and J. G. Laframboise,
# Mathematics of Computation 36, 1981). Both polynomials are minimax, by Remez' exchange algorithm in 60 digits.

# erf(x)/x - 1 in x**2.
_ERF = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954871, -0.02686617064500042, 0.005223977622031307,
    -0.0008548326512382743, 0.00012055286314450416, -1.4923007814940504e-05, 1.6371329286849104e-06,
    -1.4621756755937647e-07,
)  # fmt: skip

# (1 + 2 x) exp(x**2) erfc(x) in q, for 1/2 <= x <= 27.6.
_K = 3.75
_ERFC = (
    1.2375126308378275, -0.14024059858554702, 0.0035854154854637376, 0.08227673849015035, -0.10880393014171172,
    0.0923043211602301, -0.05869339859040202, 0.02836227742082672, -0.009746579550133904, 0.0017556258406614884,
    0.00029371362005551943, -0.00029015403919549867, 5.1649248511365674e-05, 2.2384190890148084e-05,
    -1.1444391259077894e-05, -9.736997112064425e-07, 1.7516331268290525e-06, -5.656939368488852e-08,
    -2.5784608442593944e-07, 2.215532079653584e-08, 3.71121491035682e-08, -2.8211978588311695e-09,
    -3.8747405647246065e-09,
)  # fmt: skip


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    value = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        value = value * x + c
    return value


def _small(x: Array) -> Array:
    """erf(x) - x for |x| < 1/2."""
    return x * _polynomial(mx.square(x), _ERF)


def _erfc_beyond(a: Array) -> Array:
    """erfc(a) for a >= 1/2."""
    a = mx.minimum(a, 27.5)  # erfc(27.3) is 0 already
    p = _polynomial((a - _K) / (a + _K), _ERFC) / (a + a + 1.0)
    # The square of `near`, which has few digits, is exact; what is left of a**2 is small. The last product is the only
    # one whose result may be too small for a normal number.
    near = mx.round(a * 16.0) * 0.0625
    left = exp64((near - a) * (near + a))
    root = mx.reciprocal(mx.expm1(mx.square(near) * 0.5) + 1.0)
    return (p * left * root) * root


def erf(x: Array) -> Array:
    """The error function."""
    a = mx.abs(x)
    beyond = 1.0 - _erfc_beyond(a)
    return mx.where(a < 0.5, x + _small(x), mx.where(x < 0.0, mx.negative(beyond), beyond))


def erfc(x: Array) -> Array:
    """1 - erf(x), right where erf(x) is close to 1, too."""
    beyond = _erfc_beyond(mx.abs(x))
    rest = 1.0 - x
    near_zero = rest + ((1.0 - rest - x) - _small(x))
    return mx.where(mx.abs(x) < 0.5, near_zero, mx.where(x < 0.0, 2.0 - beyond, beyond))
