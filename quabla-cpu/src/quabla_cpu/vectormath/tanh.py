"""tanh, its slope sech2 = 1 / cosh**2, and both at once, in float64 and float32.

With e = exp(-2 |x|) and m = expm1(-2 |x|):

    tanh |x| = -m / (2 + m)          sech2 x = z (2 - z)  for  z = 1 - tanh |x| = 2 e / (2 + m)

m is small where x is, so nothing cancels in the first form; z is small where |x| is large, so nothing cancels in the
second. One exponential and one division serve both. The quotients are corrected by their residues, in which what the
numerators and 2 + m lost in rounding counts, too. The exponential is that of `exponential.py` and `float32.py`.
"""

from __future__ import annotations

from .lanes import Exponential, Lanes, estrin, fma, where, where_bits

__all__ = ["sech2", "tanh", "tanhsech2"]


class _Parts:
    """What tanh and its slope share."""

    def __init__(self, x: Lanes, form: Exponential) -> None:
        t = (-2.0 * abs(x)).at_least(form.least)
        n, r, n_bits = form.reduce(t)
        p = fma(r * r, estrin(r, form.polynomial), r)  # expm1(r)
        self.small = n < form.farthest
        self.far = form.far
        one = where_bits(self.small, n_bits.of(form.pattern(form.far)), n_bits.of(form.pattern(1.0)))
        power = ((n_bits << form.shift) + one).lanes()  # 2**n
        self.power, self.p = power, p
        self.m, self.m_lost = self.scaled_sum(power - 1.0)
        self.sum = 2.0 + self.m
        self.sum_lost = self.m - (self.sum - 2.0)
        self.inverse = 1.0 / self.sum

    def scaled_sum(self, start: Lanes) -> tuple[Lanes, Lanes]:
        """start + 2**n p, and what rounding lost of it."""
        y = fma(self.power, self.p, start)
        return y, fma(self.power, self.p, start - y)

    def quotient(self, x: Lanes, lost: Lanes) -> Lanes:
        """(x + lost) / (2 + m)."""
        y = x * self.inverse
        residue = fma(-y, self.sum_lost, fma(-y, self.sum, x) + lost)
        return fma(residue, self.inverse, y)

    def tanh(self, x: Lanes) -> Lanes:
        return self.quotient(self.m, self.m_lost).copysign(x)  # also for -0.0

    def slope(self) -> Lanes:
        e, lost = self.scaled_sum(self.power)
        half = self.quotient(e, lost)
        z = half + half
        twice = z + z
        # Where e was scaled, 2 - z is 2 to the last bit.
        return where(self.small, twice * (1.0 / self.far), fma(-z, z, twice))


def tanh(form: Exponential, x: Lanes) -> Lanes:
    """The hyperbolic tangent."""
    return _Parts(x, form).tanh(x)


def sech2(form: Exponential, x: Lanes) -> Lanes:
    """1 / cosh(x)**2."""
    return _Parts(x, form).slope()


def tanhsech2(form: Exponential, x: Lanes) -> tuple[Lanes, Lanes]:
    """Both; the same bits as by the functions for one."""
    parts = _Parts(x, form)
    return parts.tanh(x), parts.slope()
