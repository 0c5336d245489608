"""arcsin, arccos, arctan, arctan2, cbrt.

arcsin uses arcsin(a) = pi/2 - 2 arcsin(sqrt((1 - a) / 2)) beyond 1/2; arctan of a quotient is brought to |t| <=
tan(pi/8) by arctan(a / b) = pi/4 + arctan((a - b) / (a + b)) and arctan(a / b) = pi/2 - arctan(b / a) (W. J. Cody and
W. Waite, "Software Manual for the Elementary Functions", 1980). Quotients are corrected by one fused multiply-add
step.

Polynomials: minimax in the square of the argument, by Remez' exchange algorithm in 60-digit arithmetic, error relative.
"""

from __future__ import annotations

import math

from .lanes import Lanes, bit_pattern, estrin, fma, where
from .logarithm import split

# (arcsin(x)/x - 1) / x**2 in z = x**2 for |x| <= 1/2; error relative to 1: 2**-59.8.
ARCSIN = (
    0.16666666666666763,
    0.07499999999970089,
    0.04464285717529608,
    0.0303819426747996,
    0.022372215918916055,
    0.017351595279429463,
    0.013981021011382674,
    0.011397274141689395,
    0.010789420126791653,
    0.003671835024606297,
    0.021791447339587794,
    -0.021117787053063403,
    0.03270279394184192,
)

# (arctan(x)/x - 1) / x**2 in z = x**2 for |x| <= tan(pi/8); error relative to 1: 2**-59.5.
ARCTAN = (
    -0.333333333333332,
    0.19999999999954043,
    -0.14285714280244097,
    0.11111110785899939,
    -0.09090897829241538,
    0.07692061503789506,
    -0.0666311882019668,
    0.058479972366536195,
    -0.050397916798589903,
    0.0380769255267809,
    -0.017920723188772143,
)

# x**(-1/3) for 1 <= x < 2; error 2**-17.4.
INVERSE_CBRT = (
    1.781057880953611,
    -1.5660293049735812,
    1.243786197152078,
    -0.5978730880933664,
    0.1560715925094963,
    -0.01701902726302507,
)

QUARTER_PI, QUARTER_PI_LOW = 0.7853981633974483, 3.061616997868383e-17
HALF_PI, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
PI, PI_LOW = 3.141592653589793, 1.2246467991473532e-16
TAN_EIGHTH_PI = math.sqrt(2.0) - 1.0


def _arcsin_parts(a: Lanes) -> tuple[Lanes, Lanes]:
    """arcsin(s) = s + rest for s = a up to 1/2, and s = sqrt((1 - a) / 2) beyond."""
    large = a > 0.5
    z = where(large, 0.5 * (1.0 - a), a * a)
    s = where(large, z.sqrt(), a)
    return s, s * z * estrin(z, ARCSIN)


def arcsin(x: Lanes) -> Lanes:
    a = abs(x)
    s, rest = _arcsin_parts(a)
    twice = s + s
    part = HALF_PI - twice
    beyond = part + (((HALF_PI - part) - twice) + (HALF_PI_LOW - 2.0 * rest))
    return where(a > 0.5, beyond, s + rest).copysign(x)


def arccos(x: Lanes) -> Lanes:
    a = abs(x)
    s, rest = _arcsin_parts(a)
    near_one = 2.0 * (s + rest)
    near_minus_one = PI - (near_one - PI_LOW)
    middle = HALF_PI - (s.copysign(x) - (HALF_PI_LOW - rest.copysign(x)))
    return where(a > 0.5, where(x < 0.0, near_minus_one, near_one), middle)


def _angle(a: Lanes, b: Lanes, left: Lanes | None = None) -> Lanes:
    """The angle arctan(a / b) for a, b >= 0, not both 0 or infinite; pi minus that where `left` is negative."""
    steep = a > b
    low, high = where(steep, b, a), where(steep, a, b)
    middle = low > TAN_EIGHTH_PI * high
    top = where(middle, low - high, low)
    below = where(middle, low + high, high)
    below_low = where(middle, low - (below - high), 0.0)
    inverse = 1.0 / below
    t = top * inverse
    t_low = fma(-t, below_low, fma(-t, below, top)) * inverse
    z = t * t
    rest = fma(t * z, estrin(z, ARCTAN), t_low)
    # The angle is a multiple q of pi/4 plus or minus t + rest.
    q = where(middle, t.of(1.0), 0.0)
    q = where(steep, 2.0 - q, q)
    turned = where(steep, -t, t), where(steep, -rest, rest)
    if left is not None:
        negative = (left.bits() >> 63).equals(1)
        q = where(negative, 4.0 - q, q)
        turned = where(negative, -turned[0], turned[0]), where(negative, -turned[1], turned[1])
    base = q * QUARTER_PI
    base_low = fma(q, QUARTER_PI_LOW, fma(q, QUARTER_PI, -base))
    total = base + turned[0]
    return total + ((turned[0] - (total - base)) + (turned[1] + base_low))


def arctan(x: Lanes) -> Lanes:
    return _angle(abs(x).at_most(2.0**60), x.of(1.0)).copysign(x)


def arctan2(y: Lanes, x: Lanes) -> Lanes:
    """The angle of the point (x, y), with C's results for zeros and infinities."""
    a, b = abs(y), abs(x)
    # Powers of two bring both to where neither sums nor quotients overflow or lose digits.
    high = where(a > b, a, b)
    factor = where(high > 2.0**900, high.of(2.0**-200), where(high < 2.0**-800, high.of(2.0**200), 1.0))
    a, b = a * factor, b * factor
    origin = high.equals(0.0)
    b = where(origin, 1.0, b)
    infinite = high.equals(math.inf)
    a = where(infinite, where(a.equals(math.inf), a.of(1.0), where(a < math.inf, a.of(0.0), a)), a)
    b = where(infinite, where(b.equals(math.inf), b.of(1.0), where(b < math.inf, b.of(0.0), b)), b)
    return _angle(a, b, x).copysign(y)


def cbrt(x: Lanes) -> Lanes:
    """A polynomial for m**(-1/3), one Newton step for it, and one in twice the precision for the root itself."""
    a = abs(x)
    k, m, _ = split(a)
    # split gives sqrt(1/2) <= m < sqrt(2): move to 1 <= m < 2.
    below = m < 1.0
    m = where(below, m + m, m)
    k = where(below, k - 1.0, k)
    third = Lanes(x.b, x.b.floor((k * (1.0 / 3.0) + 1.0 / 6.0).value))  # k = 3 third + e with e = 0, 1, 2
    e = k - 3.0 * third
    one, two = e.equals(1.0), e.equals(2.0)
    r = estrin(m, INVERSE_CBRT) * where(
        two, e.of(4.0 ** (-1.0 / 3.0)), where(one, e.of(2.0 ** (-1.0 / 3.0)), 1.0)
    )
    m = m * where(two, e.of(4.0), where(one, e.of(2.0), 1.0))
    r = fma(r * fma(-(r * r), r * m, 1.0), 1.0 / 3.0, r)
    square = r * r
    c = m * square
    power = c * c
    missing = fma(-power, c, m) - fma(c, c, -power) * c
    c = fma(missing * square, 1.0 / 3.0, c)
    shifted = (third + (1.5 * 2.0**52)).bits()
    y = c * ((shifted << 52) + bit_pattern(1.0)).lanes()
    return where((a > 0.0) & (a < math.inf), y.copysign(x), x)
