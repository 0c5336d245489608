"""Vectors of floating-point lanes with operators, so that the functions of this package read as mathematics.

A `Lanes` is the value of a vector (or scalar) being computed by code that is being written: `x * y + 1.0` writes a
multiplication and an addition. Comparisons give a `Mask`; integer work on the bits goes through `Bits`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import engine, text

__all__ = ["Bits", "Exponential", "Lanes", "Mask", "estrin", "fma", "scaled", "where"]


class Mask:
    """One truth value per lane."""

    __slots__ = ("b", "value")

    def __init__(self, b: text.Builder, value: text.Value) -> None:
        self.b = b
        self.value = value

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.b, self.b.and_(self.value, other.value))

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.b, self.b.or_(self.value, other.value))

    def __invert__(self) -> Mask:
        return Mask(self.b, self.b.not_(self.value))


class Bits:
    """The bits of a `Lanes`, or any integer of their size per lane."""

    __slots__ = ("b", "value")

    def __init__(self, b: text.Builder, value: text.Value) -> None:
        self.b = b
        self.value = value

    def of(self, number: int) -> Bits:
        """The same integer in every lane."""
        return Bits(self.b, text.constant(self.value.type, number))

    def _with(self, write: Callable[[text.Value, text.Value], text.Value], other: Bits | int) -> Bits:
        second = self.of(other) if isinstance(other, int) else other
        return Bits(self.b, write(self.value, second.value))

    def __add__(self, other: Bits | int) -> Bits:
        return self._with(self.b.add, other)

    def __sub__(self, other: Bits | int) -> Bits:
        return self._with(self.b.sub, other)

    def __and__(self, other: Bits | int) -> Bits:
        return self._with(self.b.and_, other)

    def __or__(self, other: Bits | int) -> Bits:
        return self._with(self.b.or_, other)

    def __xor__(self, other: Bits | int) -> Bits:
        return self._with(self.b.xor, other)

    def __lshift__(self, count: int) -> Bits:
        return self._with(self.b.shl, count)

    def __rshift__(self, count: int) -> Bits:
        """A shift that brings in zeros."""
        return self._with(self.b.lshr, count)

    def equals(self, other: Bits | int) -> Mask:
        second = self.of(other) if isinstance(other, int) else other
        return Mask(self.b, self.b.icmp("eq", self.value, second.value))

    def lanes(self) -> Lanes:
        """The same bits as floating-point numbers."""
        wide = text.element(self.value.type) == "i64"
        return Lanes(self.b, self.b.bitcast(self.value, "double" if wide else "float"))


class Lanes:
    """One number per lane. Python numbers mix in as constants; no operation is ever fused or reordered."""

    __slots__ = ("b", "value")

    def __init__(self, b: text.Builder, value: text.Value) -> None:
        self.b = b
        self.value = value

    def of(self, number: float) -> Lanes:
        """The same number in every lane."""
        return Lanes(self.b, text.constant(self.value.type, number))

    def lift(self, other: Lanes | float) -> Lanes:
        return other if isinstance(other, Lanes) else self.of(other)

    def __add__(self, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.fadd(self.value, self.lift(other).value))

    def __sub__(self, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.fsub(self.value, self.lift(other).value))

    def __mul__(self, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.fmul(self.value, self.lift(other).value))

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.fdiv(self.value, self.lift(other).value))

    def __radd__(self, other: float) -> Lanes:
        return self.of(other) + self

    def __rsub__(self, other: float) -> Lanes:
        return self.of(other) - self

    def __rmul__(self, other: float) -> Lanes:
        return self.of(other) * self

    def __rtruediv__(self, other: float) -> Lanes:
        return self.of(other) / self

    def __neg__(self) -> Lanes:
        return Lanes(self.b, self.b.fneg(self.value))

    def __abs__(self) -> Lanes:
        return Lanes(self.b, self.b.fabs(self.value))

    def _compare(self, predicate: str, other: Lanes | float) -> Mask:
        return Mask(self.b, self.b.fcmp(predicate, self.value, self.lift(other).value))

    # Comparisons are false for NaN, but `!=` and the `not_` forms, which are true.

    def __lt__(self, other: Lanes | float) -> Mask:
        return self._compare("olt", other)

    def __le__(self, other: Lanes | float) -> Mask:
        return self._compare("ole", other)

    def __gt__(self, other: Lanes | float) -> Mask:
        return self._compare("ogt", other)

    def __ge__(self, other: Lanes | float) -> Mask:
        return self._compare("oge", other)

    def equals(self, other: Lanes | float) -> Mask:
        return self._compare("oeq", other)

    def differs(self, other: Lanes | float) -> Mask:
        return self._compare("une", other)

    def sqrt(self) -> Lanes:
        return Lanes(self.b, self.b.sqrt(self.value))

    def rint(self) -> Lanes:
        """The nearest integer, ties to even."""
        return Lanes(self.b, self.b.rint(self.value))

    def copysign(self, sign: Lanes) -> Lanes:
        return Lanes(self.b, self.b.copysign(self.value, sign.value))

    def is_double(self) -> bool:
        """Whether the lanes are float64."""
        return text.element(self.value.type) == "double"

    def bits(self) -> Bits:
        return Bits(self.b, self.b.bitcast(self.value, "i64" if self.is_double() else "i32"))

    def at_most(self, limit: float) -> Lanes:
        """The smaller of the two; NaN stays NaN. One instruction on x86."""
        top = self.of(limit)
        return where(top < self, top, self)

    def at_least(self, limit: float) -> Lanes:
        """The larger of the two; NaN stays NaN."""
        bottom = self.of(limit)
        return where(bottom > self, bottom, self)


def where(condition: Mask, x: Lanes | float, y: Lanes | float) -> Lanes:
    """`x` in the lanes where the condition holds, else `y`; at least one of them is a `Lanes`."""
    if isinstance(x, Lanes):
        first, second = x, x.lift(y)
    else:
        assert isinstance(y, Lanes), "where() needs one operand that is not a constant"
        first, second = y.lift(x), y
    return Lanes(condition.b, condition.b.select(condition.value, first.value, second.value))


def where_bits(condition: Mask, x: Bits, y: Bits) -> Bits:
    """`where` for integers."""
    return Bits(condition.b, condition.b.select(condition.value, x.value, y.value))


def fma(x: Lanes, y: Lanes | float, z: Lanes | float) -> Lanes:
    """`x * y + z` rounded once."""
    return Lanes(x.b, x.b.fma(x.value, x.lift(y).value, x.lift(z).value))


def scaled(x: Lanes, n: Lanes) -> Lanes | None:
    """`x * 2**n` for whole n, rounded once, by the instruction that AVX-512 has for it; None where there is none."""
    kind = {"<8 x double>": ("pd", "i8"), "<16 x float>": ("ps", "i16")}.get(x.value.type)
    if kind is None or "+avx512f" not in engine.host().features.split(","):
        return None
    name, mask = kind
    every, rounding = text.constant(mask, -1), text.constant("i32", 4)  # to nearest
    operands = x.value, n.value, x.value, every, rounding
    return Lanes(x.b, x.b.call(f"llvm.x86.avx512.mask.scalef.{name}.512", x.value.type, *operands))


def estrin(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """The polynomial `c0 + c1 x + c2 x**2 + ...`, by Estrin's scheme: about log2(degree) steps deep, not degree."""
    terms: list[Lanes] = []
    for index in range(0, len(coefficients) - 1, 2):
        terms.append(fma(x, coefficients[index + 1], coefficients[index]))
    if len(coefficients) % 2:
        terms.append(x.of(coefficients[-1]))
    power = x
    while len(terms) > 1:
        power = power * power
        joined = [fma(terms[i + 1], power, terms[i]) for i in range(0, len(terms) - 1, 2)]
        if len(terms) % 2:
            joined.append(terms[-1])
        terms = joined
    return terms[0]


class Exponential(NamedTuple):
    """How exp(x) is computed in one precision: as 2**n exp(r) with x = n ln 2 + r.

    Attributes:
        reduce: from x to n, r, and bits whose low end is n.
        polynomial: (exp(r) - 1 - r) / r**2.
        shift: the bits of a mantissa.
        pattern: the bits of a number as an integer.
        least: 4 exp(x) is 0 where x is below it.
        far: a power of two, by which a result is multiplied that might be subnormal; then it is still tiny beside 1.
        farthest: it is for n below this.
    """

    reduce: Callable[[Lanes], tuple[Lanes, Lanes, Bits]]
    polynomial: tuple[float, ...]
    shift: int
    pattern: Callable[[float], int]
    least: float
    far: float
    farthest: float


def bit_pattern(number: float) -> int:
    """The bits of a float64 as an integer."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])
