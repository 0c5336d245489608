"""sin, cos, and both at once.

Argument reduction: x = n pi/2 + r with |r| <= pi/4, n pi/2 subtracted in three parts with fused multiply-adds, which
make the first subtraction exact (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980; with
fma: S. Boldo, M. Daumas and R.-C. Li, "Formally Verified Argument Reduction with a Fused Multiply-Add", 2009). Beyond
`LIMIT` the C library's scalar functions take over, lane by lane.

Polynomials: minimax by Remez' exchange algorithm in 60-digit arithmetic, error relative to sin(r) and absolute in cos(r).
"""

from __future__ import annotations

from .. import text
from .lanes import Bits, Lanes, Mask, estrin, fma, where

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


def reduce_quadrant(x: Lanes) -> tuple[Lanes, Bits]:
    """x = n pi/2 + r: r, and bits whose low end is n."""
    shifted = fma(x, TWO_OVER_PI, ROUNDER)
    n = shifted - ROUNDER
    r = fma(n, -HALF_PI[0], x)
    r = fma(n, -HALF_PI[1], r)
    r = fma(n, -HALF_PI[2], r)
    return r, shifted.bits()


def sine_and_cosine_of(r: Lanes) -> tuple[Lanes, Lanes]:
    """sin(r) and cos(r) for |r| <= pi/4."""
    z = r * r
    sine = fma(r * z, estrin(z, SIN), r).copysign(r)  # -0.0
    half = 0.5 * z
    whole = 1.0 - half
    cosine = whole + fma(z * z, estrin(z, COS), (1.0 - whole) - half)
    return sine, cosine


def fast_sincos(x: Lanes) -> tuple[Lanes, Lanes]:
    """sin(x) and cos(x) for |x| <= LIMIT."""
    r, n = reduce_quadrant(x)
    sine, cosine = sine_and_cosine_of(r)
    swapped = ~(n & 1).equals(0)
    sine, cosine = where(swapped, cosine, sine), where(swapped, sine, cosine)
    sine_sign = (n & 2) << 62
    cosine_sign = ((n + 1) & 2) << 62
    return (sine.bits() ^ sine_sign).lanes(), (cosine.bits() ^ cosine_sign).lanes()


def beyond(x: Lanes) -> Mask:
    """Lanes whose argument is too large for the fast path. NaN is not."""
    return abs(x) > LIMIT


def by_library(b: text.Builder, name: str, x: text.Value) -> text.Value:
    """The C library's function of every lane."""
    count = text.lanes(x.type)
    attributes = "nounwind willreturn memory(none)"
    if count == 1:
        return b.call(name, "double", x, attributes=attributes)
    out = text.constant(x.type, 0.0)
    with b.carry(0, count, [out]) as (i, loop):
        lane = b.call(name, "double", b.extract(x, i), attributes=attributes)
        loop.update(b.insert(loop.values[0], lane, i))
    return loop.results[0]
