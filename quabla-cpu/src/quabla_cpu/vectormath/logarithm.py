"""log, log1p, log2, log10, softplus, power, arcsinh, arccosh, arctanh.

Argument reduction: x = 2**k m with sqrt(1/2) <= m < sqrt(2), and log(m) = 2 atanh(s) with s = (m - 1) / (m + 1), whose
series has odd powers only (J.-M. Muller, "Elementary Functions: Algorithms and Implementation", 3rd ed., 2016, chapter
11). Where the last bit counts, 2 s is not used as it stands: with f = m - 1 exact, 2 s = f - s f exactly, so that

    log(1 + f) = f - (f**2 / 2 - s (f**2 / 2 + R(s**2)))

has its leading term without error (the arrangement of K. C. Ng's fdlibm, 1993).

Polynomials: minimax in z = s**2 by Remez' exchange algorithm in 60-digit arithmetic, error relative to the result.
"""

from __future__ import annotations

import math

from . import exponential
from .lanes import Bits, Lanes, bit_pattern, estrin, fma, where, where_bits

LN2_HIGH = 0.6931471803691238  # 32 bits: k LN2_HIGH is exact
LN2_LOW = 1.9082149292705877e-10

# (2 atanh(s) / s - 2) / s**2 for 0 <= s**2 <= 0.02945; error relative to 2: 2**-59.5.
LOG = (
    0.6666666666666734,
    0.3999999999941401,
    0.2857142874255375,
    0.22222198554588324,
    0.1818356536535836,
    0.15314022232130736,
    0.1479624944373805,
)

# ((atanh(s) / s - 1) / s**2 - 1/3) / s**2; error relative to 1: 2**-80.
POWER_TAIL = (
    0.2,
    0.14285714285714188,
    0.11111111111145332,
    0.09090909084619911,
    0.0769230837720399,
    0.06666620185284364,
    0.05884337954546505,
    0.052114334083660833,
    0.05506794176739749,
)

_SQRT_HALF_BITS = bit_pattern(math.sqrt(0.5))
_ONE_BITS = bit_pattern(1.0)
_MANTISSA = (1 << 52) - 1
_TWO_52 = 2.0**52


def split(x: Lanes, subnormals: bool = True) -> tuple[Lanes, Lanes, Bits]:
    """Positive x = 2**k m with sqrt(1/2) <= m < sqrt(2): k, m, and k + 1023 as an integer."""
    bias = x.of(_TWO_52 + 1023.0)
    if subnormals:
        tiny = x < 2.0**-1022
        x = where(tiny, x * 2.0**54, x)
        bias = where(tiny, bias.of(_TWO_52 + 1023.0 + 54.0), bias)
    moved = x.bits() + (_ONE_BITS - _SQRT_HALF_BITS)
    exponent = moved >> 52
    m = ((moved & _MANTISSA) + _SQRT_HALF_BITS).lanes()
    k = (
        exponent | bit_pattern(_TWO_52)
    ).lanes() - bias  # an integer below 2**52 to float64, without a conversion
    return k, m, exponent


def _inverse_power(exponent: Bits) -> Lanes:
    """2**(1 - k) for the exponent that `split` returns; 0 for the largest."""
    return (exponent.of(2047 << 52) - (exponent << 52)).lanes()


def log_of_parts(k: Lanes, f: Lanes) -> Lanes:
    """k ln 2 + log(1 + f)."""
    s = f / (2.0 + f)
    z = s * s
    half_square = 0.5 * f * f
    r = z * estrin(z, LOG)
    small = fma(s, half_square + r, k * LN2_LOW)
    return fma(k, LN2_HIGH, f - (half_square - small))


def specials(x: Lanes, y: Lanes) -> Lanes:
    """The logarithm `y` of `x`, corrected for x = 0 (-inf), x < 0 (NaN), inf and NaN."""
    y = where(x < math.inf, y, x)
    return where(x > 0.0, y, where(x.equals(0.0), y.of(-math.inf), where(x < 0.0, math.nan, x)))


def log(x: Lanes) -> Lanes:
    k, m, _ = split(x)
    return specials(x, log_of_parts(k, m - 1.0))


def log_of_one_plus(u: Lanes, low: Lanes | None = None, doubled: Lanes | None = None) -> Lanes:
    """log(1 + u + low) for |low| far below u; or log(2 d) in the lanes where `doubled` = d exceeds 2**30.

    What 1 + u loses in rounding is added to f.
    """
    total = 1.0 + u
    part = total - 1.0
    lost = (1.0 - (total - part)) + (u - part)
    if low is not None:
        lost = lost + low
    extra = None
    if doubled is not None:
        large = doubled > 2.0**30
        total = where(large, doubled, total)
        lost = where(large, 0.0, lost)
        extra = where(large, u.of(1.0), 0.0)
    k, m, exponent = split(total, subnormals=False)
    f = fma(0.5 * lost, _inverse_power(exponent), m - 1.0)
    return log_of_parts(k if extra is None else k + extra, f)


def log1p(x: Lanes) -> Lanes:
    y = log_of_one_plus(x)
    y = where(abs(x) < 2.0**-54, x, y)  # half of a subnormal number may not be one
    y = where(x < math.inf, y, x)
    y = where(x > -1.0, y, where(x.equals(-1.0), y.of(-math.inf), where(x < -1.0, math.nan, x)))
    return y.copysign(x)  # -0.0


def softplus(x: Lanes) -> Lanes:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)): neither term can overflow, both are positive."""
    small = log_of_one_plus(exponential.exp(-abs(x)))
    return where(x > 0.0, x, where(x <= 0.0, x.of(0.0), x)) + small


def arcsinh(x: Lanes) -> Lanes:
    """log1p(a + a**2 / (1 + sqrt(1 + a**2))) for a = |x|; odd."""
    a = abs(x)
    square = a * a
    small = square / (1.0 + (1.0 + square).sqrt())
    u = a + small
    y = log_of_one_plus(u, small - (u - a), doubled=a)
    y = where(a < 2.0**-28, a, y)  # half of a subnormal number may not be one
    return where(a < math.inf, y, a).copysign(x)


def arccosh(x: Lanes) -> Lanes:
    """log1p(t + sqrt(t (2 + t))) for t = x - 1, with the rounding errors of the root carried along."""
    t = x - 1.0
    twice = t + t
    q = fma(t, t, twice)
    q_low = fma(t, t, -(q - twice))
    s = q.sqrt()
    s_low = (fma(-s, s, q) + q_low) * 0.5 / s
    u = t + s
    y = log_of_one_plus(u, (t - (u - s)) + s_low, doubled=x)
    y = where(x < math.inf, y, x)
    return where(x > 1.0, y, where(x.equals(1.0), 0.0, where(x < 1.0, math.nan, x)))


def arctanh(x: Lanes) -> Lanes:
    """log1p(2 a / (1 - a)) / 2 for a = |x|, with a corrected quotient; odd."""
    a = abs(x)
    below = 1.0 - a
    lost = (1.0 - below) - a
    inverse = 1.0 / below
    u = (a + a) * inverse
    low = fma(-u, lost, fma(-u, below, a + a)) * inverse
    y = 0.5 * log_of_one_plus(u, low)
    y = where(a < 1.0, y, where(a.equals(1.0), y.of(math.inf), where(a > 1.0, math.nan, a)))
    return y.copysign(x)


def log_extended(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) of positive finite x as a sum of two float64, with a relative error of about 2**-65."""
    k, m, _ = split(x)
    f = m - 1.0
    d = 2.0 + f
    d_low = f - (d - 2.0)
    inverse = 1.0 / d
    s = f * inverse
    s_low = fma(-s, d_low, fma(-s, d, f)) * inverse
    z = s * s
    z_low = fma(s, s, -z) + 2.0 * s * s_low
    # log(m) = 2 s (1 + z/3 + z**2 T(z)); c + c_low = z/3 + z**2 T(z).
    third, third_low = 1.0 / 3.0, 1.850371707708594e-17
    c = z * third
    c_low = fma(z, third, -c) + fma(z, third_low, z_low * third)
    tail = z * z * estrin(z, POWER_TAIL)
    # product = 2 s (c + tail), first order in what is small
    twice, twice_low = s + s, s_low + s_low
    p = twice * c
    p_low = fma(twice, c, -p) + fma(twice, c_low + tail, twice_low * c)
    # k ln 2 + 2 s + p, largest first; each sum keeps its rounding error.
    base = k * LN2_HIGH
    high = base + twice
    low = twice - (high - base)
    low = where(k.equals(0.0), 0.0, low)
    more = high + p
    low = low + (p - (more - high)) + (fma(k, LN2_LOW, twice_low) + p_low)
    total = more + low
    return total, low - (total - more)


def power_cases(x: Lanes, y: Lanes, out: Lanes) -> Lanes:
    """x**y from `out` = |x|**y: the sign, and what is defined otherwise."""
    whole = y.rint().equals(y)  # also for infinite y
    half = 0.5 * y
    odd = whole & half.rint().differs(half)
    sign = where_bits(odd, x.bits() & (-1 << 63), x.bits().of(0))
    out = (out.bits() | sign).lanes()
    undefined = (x < 0.0) & (x > -math.inf) & ~whole
    out = where(undefined, math.nan, out)
    return where(y.equals(0.0) | x.equals(1.0), 1.0, out)


def power(x: Lanes, y: Lanes) -> Lanes:
    """x**y with the special cases of C's pow: exp(y log|x|), log and product in twice the precision."""
    magnitude = abs(x)
    log_high, log_low = log_extended(magnitude)
    finite = (magnitude > 0.0) & (magnitude < math.inf)
    log_high = where(finite, log_high, where(magnitude.equals(0.0), log_high.of(-math.inf), magnitude))
    product = y * log_high
    low = fma(y, log_high, -product) + y * log_low
    low = where(abs(product) < 800.0, low, 0.0)
    product = where(log_high.equals(0.0), 0.0, product)  # |x| = 1, also for infinite y
    out = exponential.exp(product, low)

    return power_cases(x, y, out)


def _scaled_log(x: Lanes, factor: float, factor_low: float) -> Lanes:
    high, low = log_extended(x)
    y = high * factor
    return specials(x, y + (fma(high, factor, -y) + fma(high, factor_low, low * factor)))


def log2(x: Lanes) -> Lanes:
    """log(x) / ln 2 in twice the precision, so that powers of two give integers."""
    return _scaled_log(x, 1.4426950408889634, 2.0355273740931033e-17)


def log10(x: Lanes) -> Lanes:
    """log(x) / ln 10 in twice the precision, so that powers of ten give integers."""
    return _scaled_log(x, 0.4342944819032518, 1.098319650216765e-17)
