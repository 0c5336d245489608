"""erf and erfc.

Below 1/2, a polynomial for erf. Beyond, erfc(x) = exp(-x**2) P(q) / (1 + 2 x) with q = (x - K) / (x + K), which maps
the half line to an interval on which (1 + 2 x) exp(x**2) erfc(x) is smooth (M. M. Shepherd and J. G. Laframboise,
"Chebyshev Approximation of (1 + 2x) exp(x**2) erfc x in 0 <= x < infinity", Mathematics of Computation 36, 1981).

Polynomials: minimax by Remez' exchange algorithm in 60-digit arithmetic.
"""

from __future__ import annotations

from .exponential import EXP, reduce_exponent, scale
from .lanes import Lanes, estrin, fma, where

# erf(x)/x - 1 in z = x**2 for |x| <= 1/2; error 2**-65.2.
ERF = (
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954871,
    -0.02686617064500042,
    0.005223977622031307,
    -0.0008548326512382743,
    0.00012055286314450416,
    -1.4923007814940504e-05,
    1.6371329286849104e-06,
    -1.4621756755937647e-07,
)

# (1 + 2 x) exp(x**2) erfc(x) in q = (x - K) / (x + K) for 1/2 <= x <= 27.6; error 2**-61.8.
K = 3.75
ERFC = (
    1.2375126308378275,
    -0.14024059858554702,
    0.0035854154854637376,
    0.08227673849015035,
    -0.10880393014171172,
    0.0923043211602301,
    -0.05869339859040202,
    0.02836227742082672,
    -0.009746579550133904,
    0.0017556258406614884,
    0.00029371362005551943,
    -0.00029015403919549867,
    5.1649248511365674e-05,
    2.2384190890148084e-05,
    -1.1444391259077894e-05,
    -9.736997112064425e-07,
    1.7516331268290525e-06,
    -5.656939368488852e-08,
    -2.5784608442593944e-07,
    2.215532079653584e-08,
    3.71121491035682e-08,
    -2.8211978588311695e-09,
    -3.8747405647246065e-09,
)

ERFC_LOW = 1.0527714239102318e-16  # what ERFC[0] lost in rounding, which would show in the last digit


def _erfc_beyond(a: Lanes) -> Lanes:
    """erfc(a) for a >= 1/2. The three factors keep their rounding errors, and the quotient is corrected once."""
    a = a.at_most(27.5)  # erfc(27.3) is 0 already
    q = (a - K) / (a + K)
    rest = q * estrin(q, ERFC[1:])
    p = rest + ERFC[0]
    p_low = (rest - (p - ERFC[0])) + ERFC_LOW

    square = a * a
    n, r, n_bits, lost = reduce_exponent(-square)
    lost = lost - fma(a, a, -square)
    total = r + lost
    r, lost = total, lost - (total - r)
    tail = r + fma(r * r, estrin(r, EXP), lost)
    e = 1.0 + tail
    e_low = tail - (e - 1.0)

    product = e * p
    product_low = fma(e, p, -product) + fma(e, p_low, e_low * p)
    below = fma(a, 2.0, 1.0)
    below_low = fma(a, 2.0, 1.0 - below)
    inverse = 1.0 / below
    y = product * inverse
    y = fma(fma(-y, below_low, fma(-y, below, product) + product_low), inverse, y)
    return scale(y, n, n_bits)


def erfc(x: Lanes) -> Lanes:
    a = abs(x)
    z = x * x
    part = 1.0 - x
    small = part + (((1.0 - part) - x) - x * estrin(z, ERF))
    large = _erfc_beyond(a)
    return where(a < 0.5, small, where(x < 0.0, 2.0 - large, large))


def erf(x: Lanes) -> Lanes:
    a = abs(x)
    z = x * x
    small = fma(x, estrin(z, ERF), x)
    return where(a < 0.5, small, (1.0 - _erfc_beyond(a)).copysign(x))
