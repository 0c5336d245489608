"""exp, exp2, expm1, sigmoid, softplus, sinh, cosh.

Argument reduction: x = n ln 2 + r with |r| <= ln 2 / 2, n ln 2 subtracted in two parts (W. J. Cody and W. Waite,
"Software Manual for the Elementary Functions", 1980); exp(x) = 2**n exp(r).

Polynomials: minimax for exp(r) = 1 + r + r**2 P(r), found by Remez' exchange algorithm in 60-digit arithmetic with
the error weighted relative to r, so that the same polynomial serves expm1.
"""

from __future__ import annotations

import math

from .lanes import Bits, Exponential, Lanes, bit_pattern, estrin, fma, scaled, where, where_bits

LOG2_E = 1.4426950408889634
LN2_HIGH = math.log(2.0)
LN2_LOW = 2.3190468138462996e-17  # ln 2 - LN2_HIGH

# Adding and subtracting this number rounds to an integer, which stays in the low bits of the sum.
ROUNDER = 1.5 * 2.0**52

# Largest error relative to r: 2**-61.7 for |r| <= 0.3467.
EXP = (
    0.5,
    0.16666666666666677,
    0.0416666666666667,
    0.00833333333332161,
    0.0013888888888867075,
    0.00019841269886195013,
    2.4801587360194135e-05,
    2.755724412773868e-06,
    2.755724300476789e-07,
    2.5109069054741482e-08,
    2.092438263786068e-09,
)

# (sinh(x)/x - 1) / x**2 in z = x**2 for |x| <= 1; error relative to 1: 2**-63.2.
SINH = (
    0.16666666666666669,
    0.008333333333333137,
    0.00019841269841438524,
    2.755731915506053e-06,
    2.5052123443954867e-08,
    1.6057236700660653e-10,
    7.759425627302715e-13,
)


def reduce_exponent(x: Lanes) -> tuple[Lanes, Lanes, Bits, Lanes]:
    """Split x = n ln 2 + r; returns n, r, the bits whose low end is n, and what r lost in rounding."""
    shifted = fma(x, LOG2_E, ROUNDER)
    n = shifted - ROUNDER
    exact = fma(n, -LN2_HIGH, x)  # no rounding: the leading bits cancel
    r = fma(n, -LN2_LOW, exact)
    lost = fma(n, -LN2_LOW, exact - r)
    return n, r, shifted.bits(), lost


FORM = Exponential(
    lambda x: reduce_exponent(x)[:3],
    EXP,
    shift=52,
    pattern=bit_pattern,
    least=-750.0,
    far=2.0**128,
    farthest=-900.0,
)


def scale(mantissa: Lanes, n: Lanes, n_bits: Bits) -> Lanes:
    """mantissa * 2**n for a mantissa around 1 and -1100 <= n <= 1024, rounded once where it is subnormal."""
    y = scaled(mantissa, n)
    if y is not None:
        return y
    # 2**n itself need not be a float64: the exponent is set 128 too high, or 1 too low, and put right at the end.
    small = n < 0.0
    one = where_bits(small, n_bits.of(bit_pattern(2.0**128)), n_bits.of(bit_pattern(0.5)))
    return mantissa * ((n_bits << 52) + one).lanes() * where(small, n.of(2.0**-128), 2.0)


def exp(x: Lanes, low: Lanes | None = None) -> Lanes:
    """exp(x), or exp(x + low) for a correction much smaller than x."""
    x = x.at_most(710.0).at_least(-746.0)  # beyond, the result is inf or 0 already
    n, r, n_bits, lost = reduce_exponent(x)
    if low is not None:
        total = r + low
        r, lost = total, lost + (low - (total - r))
    tail = fma(r * r, estrin(r, EXP), lost)
    return scale(1.0 + (r + tail), n, n_bits)


def exp2(x: Lanes) -> Lanes:
    x = x.at_most(1025.0).at_least(-1077.0)
    shifted = x + ROUNDER
    n = shifted - ROUNDER
    f = x - n
    r = f * LN2_HIGH
    lost = fma(f, LN2_LOW, fma(f, LN2_HIGH, -r))
    return scale(1.0 + (r + fma(r * r, estrin(r, EXP), lost)), n.at_most(1024.0), shifted.bits())


def _power_of_two(n_bits: Bits) -> Lanes:
    """2**n for -1022 <= n <= 1023."""
    return ((n_bits << 52) + bit_pattern(1.0)).lanes()


def expm1(x: Lanes) -> Lanes:
    """2**n (expm1(r) + 1) - 1, summed so that nothing cancels."""
    clipped = x.at_most(710.0).at_least(-40.0)
    _, r, n_bits, lost = reduce_exponent(clipped)
    tail = fma(r * r, estrin(r, EXP), lost)
    half = _power_of_two(n_bits - 1)  # 2**(n - 1), as 2**1024 does not exist
    # half (r + tail) + (half - 0.5); the rounding error of the first two terms goes into the third.
    whole = fma(half, r, half - 0.5)
    rest = fma(half, r, (half - 0.5) - whole)
    y = 2.0 * (whole + fma(half, tail, rest))
    return where(abs(x) < 2.0**-54, x, y)


def sigmoid(x: Lanes) -> Lanes:
    """1 / (1 + exp(-x)), without overflow: exp(x) / (1 + exp(x)) for x < 0. The quotient is corrected once."""
    e = exp(-abs(x))
    total = 1.0 + e
    lost = e - (total - 1.0)
    inverse = 1.0 / total
    numerator = where(x < 0.0, e, 1.0)
    y = numerator * inverse
    return fma(fma(-y, lost, fma(-y, total, numerator)), inverse, y)


def _half_exp(magnitude: Lanes) -> Lanes:
    """exp(|x|) / 2, which overflows only where sinh and cosh do."""
    _, r, n_bits, lost = reduce_exponent(magnitude.at_most(711.0))
    mantissa = 1.0 + (r + fma(r * r, estrin(r, EXP), lost))
    return mantissa * _power_of_two(n_bits - 2) * 2.0


def cosh(x: Lanes) -> Lanes:
    half = _half_exp(abs(x))
    return half + 0.25 / half


def sinh(x: Lanes) -> Lanes:
    """A polynomial up to 1, where the difference would cancel."""
    magnitude = abs(x)
    z = x * x
    small = fma(x * z, estrin(z, SINH), x)
    half = _half_exp(magnitude)
    return where(magnitude < 1.0, small, half - 0.25 / half).copysign(x)
