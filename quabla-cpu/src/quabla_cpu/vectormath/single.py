"""Functions of float32 in float64 arithmetic with polynomials just long enough.

Float64 holds every intermediate result so much better than float32 needs that no corrections are left to make: the
results are the exact ones rounded once, but for about one in a hundred that lies next to the middle of two floats.
Subnormal float32 numbers are ordinary float64 numbers. Methods and sources are those of the float64 functions.
"""

from __future__ import annotations

from collections.abc import Callable

from .exponential import LN2_HIGH, LOG2_E, ROUNDER
from .lanes import Lanes, bit_pattern, estrin, fma, where
from .logarithm import log_of_parts, power_cases, specials, split

# (exp(r) - 1) / r for |r| <= ln 2 / 2; relative error 2**-32.0.
EXPM1 = (
    0.9999999999909316,
    0.5000000047266843,
    0.16666666854792045,
    0.04166635223731758,
    0.008333268372579814,
    0.001394116286790402,
    0.00019915976156001624,
)

# log(1 + f) / f for sqrt(1/2) <= 1 + f <= sqrt(2); relative error 2**-33.2.
LOG = (
    1.0000000000350453,
    -0.5000000033071925,
    0.3333333150981787,
    -0.24999933433832122,
    0.20000113680096557,
    -0.1667048152708485,
    0.1428549827635077,
    -0.12410541689011612,
    0.11021159444446871,
    -0.10881497493604758,
    0.10734082162570531,
    -0.05984690027415728,
)

# 2 atanh(s) / s in s**2 for 0 <= s <= 1/3; relative error 2**-33.2.
ATANH = (
    1.9999999997987281,
    0.666666794911977,
    0.39998677618734585,
    0.286210585213169,
    0.21389772420308523,
    0.24425656132077106,
)

# erf(x) / x in x**2 for |x| <= 1/2; relative error 2**-36.2.
ERF = (
    1.128379167082607,
    -0.3761263852963772,
    0.11283774140727516,
    -0.026863157314784378,
    0.005200479015326095,
    -0.000769557903326453,
)

# (1 + 2 x) exp(x**2) erfc(x) in q = (x - K) / (x + K) for 1/2 <= x <= 10.3; error 2**-36.0.
K = 2.5
ERFC = (
    1.264838184356995,
    -0.12235676330244531,
    -0.0990245375918743,
    0.15762993403522751,
    -0.1029671194080723,
    0.03276059438727858,
    0.0009326218058032692,
    -0.004379471419829063,
    0.00048814101627514815,
    0.0006207881473517282,
    -7.998574447127117e-05,
    -8.894966453366238e-05,
)


def _reduce(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """x = n ln 2 + r: r, exp(r) - 1, and 2**n, which must be a normal float64."""
    shifted = fma(x, LOG2_E, ROUNDER)
    r = fma(shifted - ROUNDER, -LN2_HIGH, x)
    return r, r * estrin(r, EXPM1), ((shifted.bits() << 52) + bit_pattern(1.0)).lanes()


def _exp(x: Lanes) -> Lanes:
    """exp(x) for -700 <= x <= 700."""
    _, p, power = _reduce(x)
    return fma(p, power, power)


def expm1(x: Lanes) -> Lanes:
    _, p, power = _reduce(x.at_most(100.0).at_least(-40.0))
    return fma(p, power, power - 1.0).copysign(x)  # -0.0


def softplus(x: Lanes) -> Lanes:
    """max(x, 0) + log(1 + e) with e = exp(-|x|) and log(1 + e) = 2 atanh(e / (2 + e))."""
    e = _exp((-abs(x)).at_least(-120.0))
    s = e / (2.0 + e)
    return fma(s, estrin(s * s, ATANH), where(x > 0.0, x, where(x <= 0.0, x.of(0.0), x)))


def log1p(x: Lanes) -> Lanes:
    total = 1.0 + x
    k, m, _ = split(total, subnormals=False)
    f = where(k.equals(0.0), x, m - 1.0)
    return specials(total, fma(k, LN2_HIGH, f * estrin(f, LOG))).copysign(x)


def power(x: Lanes, y: Lanes) -> Lanes:
    """exp(y log|x|) with the logarithm of the float64 function, but for its second half."""
    magnitude = abs(x)
    k, m, _ = split(magnitude, subnormals=False)
    logarithm = specials(magnitude, log_of_parts(k, m - 1.0))
    product = where(logarithm.equals(0.0), 0.0, y * logarithm)  # |x| = 1, also for infinite y
    return power_cases(x, y, _exp(product.at_most(120.0).at_least(-120.0)))


def _erfc_beyond(a: Lanes) -> Lanes:
    a = a.at_most(10.3)
    return _exp(-(a * a)) * estrin((a - K) / (a + K), ERFC) / (1.0 + (a + a))


def erf(x: Lanes) -> Lanes:
    a = abs(x)
    return where(a < 0.5, x * estrin(x * x, ERF), (1.0 - _erfc_beyond(a)).copysign(x))


def erfc(x: Lanes) -> Lanes:
    a = abs(x)
    beyond = _erfc_beyond(a)
    return where(a < 0.5, 1.0 - x * estrin(x * x, ERF), where(x < 0.0, 2.0 - beyond, beyond))


FUNCTIONS: dict[str, Callable[..., Lanes | tuple[Lanes, Lanes]]] = {
    "expm1": expm1,
    "softplus": softplus,
    "log1p": log1p,
    "power": power,
    "erf": erf,
    "erfc": erfc,
}
"""The functions of this module, from and to float64 lanes that hold float32 numbers."""
