"""sin, cos, both at once, and tan.

Argument reduction: x = n pi/2 + r with |r| <= pi/4, n pi/2 subtracted in three parts with fused multiply-adds, which
make the first subtraction exact (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980; with
fma: S. Boldo, M. Daumas and R.-C. Li, "Formally Verified Argument Reduction with a Fused Multiply-Add", 2009). Beyond
`LIMIT` integer arithmetic takes over, lane by lane: see `hugeangle`.

Polynomials: minimax by Remez' exchange algorithm in 60-digit arithmetic, error relative to sin(r) and absolute in
cos(r).
"""

from __future__ import annotations

import math

from .. import text
from . import hugeangle
from .lanes import Bits, Lanes, estrin, fma, where

TWO_OVER_PI = 0.6366197723675814
# pi/2 as a sum of float64, all positive, so that -0.0 goes through the reduction unharmed.
HALF_PI = (1.5707963267948966, 6.123233995736765e-17, 1.082856673921914e-32)
LIMIT = 2.0**28
ROUNDER = 1.5 * 2.0**52

# (sin(r)/r - 1) / r**2 in z = r**2; error relative to 1: 2**-58.
SIN = (
    -0.16666666666666632,
    0.008333333333322415,
    -0.00019841269829808266,
    2.7557313692065917e-06,
    -2.5050758136943803e-08,
    1.5896796829843832e-10,
)

# (cos(r) - 1 + r**2/2) / r**4 in z = r**2; error relative to 1: 2**-64.
COS = (
    0.0416666666666666,
    -0.0013888888888874125,
    2.480158728948247e-05,
    -2.7557314352414356e-07,
    2.087572328411018e-09,
    -1.1359648352955575e-11,
)


def _reduce(x: Lanes) -> tuple[Lanes, Bits]:
    """x = n pi/2 + r: r, and bits whose low end is n."""
    shifted = fma(x, TWO_OVER_PI, ROUNDER)
    n = shifted - ROUNDER
    r = fma(n, -HALF_PI[2], fma(n, -HALF_PI[1], fma(n, -HALF_PI[0], x)))
    return r, shifted.bits()


def _reduce_extended(x: Lanes) -> tuple[Lanes, Bits, Lanes]:
    """The same with a third part: what r lost in rounding."""
    shifted = fma(x, TWO_OVER_PI, ROUNDER)
    n = shifted - ROUNDER
    exact = fma(n, -HALF_PI[0], x)
    second = n * HALF_PI[1]
    second_low = fma(n, HALF_PI[1], -second)
    r = exact - second
    lost = fma(n, -HALF_PI[2], ((exact - r) - second) - second_low)
    total = r + lost
    return total, shifted.bits(), lost - (total - r)


def with_huge(x: Lanes, fast: tuple[Lanes, Bits] | tuple[Lanes, Bits, Lanes]) -> list[text.Value]:
    """The parts of a reduction, in the lanes beyond `LIMIT` computed by `hugeangle`."""
    b = x.b
    beyond = (abs(x) > LIMIT) & (abs(x) < math.inf)  # inf gives NaN as it is
    branch = b.branch(b.any(beyond.value), likely=False)
    with branch.then():
        slow = hugeangle.reduce_by_call(b, where(beyond, x, LIMIT).value)
        pairs: list[tuple[Lanes | Bits, Lanes | Bits]] = list(zip(slow, fast, strict=False))
        branch.give(*(b.select(beyond.value, part.value, other.value) for part, other in pairs))
    with branch.otherwise():
        branch.give(*(part.value for part in fast))
    return branch.results()


def sine_and_cosine_of(r: Lanes) -> tuple[Lanes, Lanes]:
    """sin(r) and cos(r) for |r| <= pi/4."""
    z = r * r
    sine = fma(r * z, estrin(z, SIN), r).copysign(r)  # -0.0
    half = 0.5 * z
    whole = 1.0 - half
    cosine = whole + fma(z * z, estrin(z, COS), (1.0 - whole) - half)
    return sine, cosine


def from_quadrant(sine: Lanes, cosine: Lanes, n: Bits) -> tuple[Lanes, Lanes]:
    """sin(x) and cos(x) from those of r for x = n pi/2 + r."""
    swapped = ~(n & 1).equals(0)
    sine, cosine = where(swapped, cosine, sine), where(swapped, sine, cosine)
    top = 62 if text.element(n.value.type) == "i64" else 30
    sine_sign = (n & 2) << top
    cosine_sign = ((n + 1) & 2) << top
    return (sine.bits() ^ sine_sign).lanes(), (cosine.bits() ^ cosine_sign).lanes()


def sincos(x: Lanes) -> tuple[Lanes, Lanes]:
    """sin(x) and cos(x)."""
    value, bits = with_huge(x, _reduce(x))
    r, n = Lanes(x.b, value), Bits(x.b, bits)
    sine, cosine = sine_and_cosine_of(r)
    return from_quadrant(sine, cosine, n)


def sin(x: Lanes) -> Lanes:
    return sincos(x)[0]


def cos(x: Lanes) -> Lanes:
    return sincos(x)[1]


def tan(x: Lanes) -> Lanes:
    """sin / cos with every rounding error carried to the quotient, which is corrected once."""
    value, bits, value_low = with_huge(x, _reduce_extended(x))
    r, n, lost = Lanes(x.b, value), Bits(x.b, bits), Lanes(x.b, value_low)
    z = r * r
    half = 0.5 * z
    whole = 1.0 - half
    rest = fma(z * z, estrin(z, COS), (1.0 - whole) - half)
    rest = fma(-r, lost, rest) - 0.5 * fma(r, r, -z)
    cosine = whole + rest
    cosine_low = rest - (cosine - whole)
    rest = fma(r * z, estrin(z, SIN), lost * cosine)
    sine = r + rest
    sine_low = rest - (sine - r)

    odd = ~(n & 1).equals(0)
    top, top_low = where(odd, -cosine, sine), where(odd, -cosine_low, sine_low)
    below, below_low = where(odd, sine, cosine), where(odd, sine_low, cosine_low)
    inverse = 1.0 / below
    y = top * inverse
    y = fma(fma(-y, below_low, fma(-y, below, top) + top_low), inverse, y)
    return where(abs(x) < 2.0**-27, x, y)
