"""The functions that float32 code calls most, in float32 arithmetic: twice as many lanes per instruction.

Methods and sources are those of the float64 functions; the polynomials are minimax fits whose coefficients were
rounded to float32 one after the other, the remaining ones fitted again each time. Errors are below 2 units in the
last place.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from . import hugeangle
from .lanes import Bits, Exponential, Lanes, estrin, fma, scaled, where, where_bits
from .trigonometric import from_quadrant

LOG2_E = 1.4426950216293335
LN2_HIGH, LN2_LOW = 0.6931471824645996, -1.9046542121259336e-09
ROUNDER = 1.5 * 2.0**23
TWO_OVER_PI = 0.6366197466850281
# pi/2 as a sum of float32, all positive, so that -0.0 goes through the reduction unharmed.
HALF_PI = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15)
LIMIT = 2.0**17

# (exp(r) - 1 - r) / r**2 for |r| <= ln 2 / 2; error 2**-28.2.
EXP = (
    0.5,
    0.16666515171527863,
    0.041666578501462936,
    0.008369287475943565,
    0.0013923251535743475,
)

# (log(1 + f) - f + f**2/2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2); relative error 2**-27.2.
LOG = (
    0.33333316445350647,
    -0.25000813603401184,
    0.2000231295824051,
    -0.1662444770336151,
    0.14180508255958557,
    -0.13129064440727234,
    0.12885940074920654,
    -0.0786358192563057,
)

# (sin(r)/r - 1) / r**2 and (cos(r) - 1 + r**2/2) / r**4 in r**2 for |r| <= pi/4; errors 2**-28.0, 2**-33.1.
SIN = (
    -0.16666655242443085,
    0.008332190103828907,
    -0.00019518405315466225,
)
COS = (
    0.04166664555668831,
    -0.00138873013202101,
    2.4430681150988676e-05,
)


def pattern(number: float) -> int:
    """The bits of a float32 as an integer."""
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


def reduce_exponent(x: Lanes) -> tuple[Lanes, Lanes, Bits]:
    """x = n ln 2 + r: n, r, and bits whose low end is n."""
    shifted = fma(x, LOG2_E, ROUNDER)
    n = shifted - ROUNDER
    return n, fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x)), shifted.bits()


FORM = Exponential(
    reduce_exponent, EXP, shift=23, pattern=pattern, least=-107.0, far=2.0**64, farthest=-100.0
)


def exp(x: Lanes) -> Lanes:
    n, r, n_bits = reduce_exponent(x.at_most(89.0).at_least(-104.0))
    p = 1.0 + fma(r * r, estrin(r, EXP), r)
    y = scaled(p, n)
    if y is not None:
        return y
    # 2**n in two factors, as it need not be a float32 itself.
    small = n < 0.0
    one = where_bits(small, n_bits.of(pattern(2.0**64)), n_bits.of(pattern(0.5)))
    return p * ((n_bits << 23) + one).lanes() * where(small, n.of(2.0**-64), 2.0)


def sigmoid(x: Lanes) -> Lanes:
    """exp(x) / (1 + exp(x)) for x < 0, 1 / (1 + exp(-x)) beyond."""
    e = exp(-abs(x))
    total = 1.0 + e
    inverse = 1.0 / total
    numerator = where(x < 0.0, e, 1.0)
    y = numerator * inverse
    return fma(fma(-y, e - (total - 1.0), fma(-y, total, numerator)), inverse, y)


def log(x: Lanes) -> Lanes:
    tiny = x < 2.0**-126
    scaled = where(tiny, x * 2.0**24, x)
    bias = where(tiny, x.of(2.0**23 + 127.0 + 24.0), 2.0**23 + 127.0)
    half = pattern(math.sqrt(0.5))
    moved = scaled.bits() + (pattern(1.0) - half)
    f = ((moved & ((1 << 23) - 1)) + half).lanes() - 1.0
    k = ((moved >> 23) | pattern(2.0**23)).lanes() - bias
    square = f * f
    rest = fma(square * f, estrin(f, LOG), k * LN2_LOW)
    y = fma(k, LN2_HIGH, f - fma(square, 0.5, -rest))
    y = where(x < math.inf, y, x)
    return where(x > 0.0, y, where(x.equals(0.0), y.of(-math.inf), where(x < 0.0, math.nan, x)))


def sincos(x: Lanes) -> tuple[Lanes, Lanes]:
    shifted = fma(x, TWO_OVER_PI, ROUNDER)
    n = shifted - ROUNDER
    r = fma(n, -HALF_PI[2], fma(n, -HALF_PI[1], fma(n, -HALF_PI[0], x)))
    r, bits = _with_huge(x, r, shifted.bits())
    z = r * r
    sine = fma(r * z, estrin(z, SIN), r).copysign(r)
    cosine = fma(z * z, estrin(z, COS), fma(z, -0.5, 1.0))
    return from_quadrant(sine, cosine, bits)


def _with_huge(x: Lanes, r: Lanes, n: Bits) -> tuple[Lanes, Bits]:
    """The reduced angle; in the lanes beyond `LIMIT` computed by `hugeangle`."""
    b = x.b
    beyond = (abs(x) > LIMIT) & (abs(x) < math.inf)
    branch = b.branch(b.any(beyond.value), likely=False)
    with branch.then():
        angle = b.fpext(where(beyond, x, LIMIT).value, "double")
        slow_r, slow_n, _ = hugeangle.reduce_by_call(b, angle)
        whole = b.trunc(slow_n.value, "i32")
        branch.give(
            b.select(beyond.value, b.fptrunc(slow_r.value, "float"), r.value),
            b.select(beyond.value, whole, n.value),
        )
    with branch.otherwise():
        branch.give(r.value, n.value)
    joined_r, joined_n = branch.results()
    return Lanes(b, joined_r), Bits(b, joined_n)


def sin(x: Lanes) -> Lanes:
    return sincos(x)[0]


def cos(x: Lanes) -> Lanes:
    return sincos(x)[1]


FUNCTIONS: dict[str, Callable[..., Lanes | tuple[Lanes, Lanes]]] = {
    "exp": exp,
    "sigmoid": sigmoid,
    "log": log,
    "sin": sin,
    "cos": cos,
    "sincos": sincos,
}
"""The functions of this module, from and to float32 lanes."""
