"""Typed operands, types and exact constants of LLVM IR."""

from __future__ import annotations

import math
import struct
from functools import cache, lru_cache


class Value:
    """A typed operand: `name` is what is written where it is used (`%7`, `@table`, `splat (double 0x3FF...)`)."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type

    def __repr__(self) -> str:
        return f"{self.type} {self.name}"


# Types


def vector(element_type: str, count: int) -> str:
    """The type of `count` lanes of `element_type`; the element itself for one lane.

    Example:
        >>> vector("double", 8), vector("i64", 1)
        ('<8 x double>', 'i64')
    """
    return element_type if count == 1 else f"<{count} x {element_type}>"


@cache
def split_type(type: str) -> tuple[str, int]:
    """The element type and the lane count of a type."""
    if type.startswith("<"):
        count, element_type = type[1:-1].split(" x ")
        return element_type, int(count)
    return type, 1


@cache
def element(type: str) -> str:
    """The element type of a vector type; a scalar type is its own element."""
    return split_type(type)[0]


@cache
def lanes(type: str) -> int:
    """The number of lanes of a type, 1 for scalars."""
    return split_type(type)[1]


@cache
def is_float(type: str) -> bool:
    """Whether the elements of `type` are floating-point numbers."""
    return split_type(type)[0] in ("double", "float", "half", "bfloat")


@cache
def is_integer(type: str) -> bool:
    """Whether the elements of `type` are integers."""
    return split_type(type)[0] in INTEGERS


@cache
def mangled(type: str) -> str:
    """The mangled name of a type in overloaded intrinsics: `v8f64`, `i32`, `p0`."""
    base, count = split_type(type)
    name = {"double": "f64", "float": "f32", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(base, base)
    return name if count == 1 else f"v{count}{name}"


# Constants


def _float_text(base: str, number: float) -> str:
    if base == "float":
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    elif base != "double":
        raise TypeError(f"constants of type {base} are not supported; convert from float or double instead")
    if number != number:
        return "0x7FF8000000000000"
    # The exact bits: decimal text that is not exact is refused by LLVM for `float`.
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


INTEGERS = {f"i{bits}": bits for bits in (1, 8, 16, 32, 64, 128)}


@lru_cache(maxsize=8192)
def _constant_text(base: str, number: float, negative_zero: bool) -> str:
    del negative_zero  # only tells -0.0 from 0.0 (and 0) in the cache
    if base in INTEGERS:
        bits = INTEGERS[base]
        whole = int(number)
        if whole != number or not -(1 << max(bits - 1, 0)) <= whole < 1 << bits:
            raise ValueError(f"{number!r} is not a value of type {base}")
        if bits == 1:
            return "true" if whole else "false"
        return str(whole - (1 << bits) if whole >= 1 << (bits - 1) else whole)
    if base == "ptr":
        if number:
            raise ValueError("the only pointer constant is 0 (null); use inttoptr for an address")
        return "null"
    return _float_text(base, float(number))


def constant(type: str, number: float) -> Value:
    """A constant of a scalar or vector type (every lane the same), exact to the bit.

    Args:
        type: An LLVM type such as `"double"`, `"<8 x double>"` or `"i64"`.
        number: A Python number or bool; floats keep -0.0, inf and NaN, and are rounded once for `float`.

    Raises:
        ValueError: The number does not fit an integer type.

    Example:
        >>> constant("<4 x double>", 1.0)
        <4 x double> splat (double 0x3FF0000000000000)
    """
    base, count = split_type(type)
    # repr-free test for -0.0: NaN and inf go through unharmed.
    text = _constant_text(base, number, number == 0 and math.copysign(1.0, number) < 0)
    return Value(text if count == 1 else f"splat ({base} {text})", type)


@lru_cache(maxsize=1024)
def number(n: int) -> Value:
    """A constant of type `i64`: what indices, strides and counts are."""
    return constant("i64", n)


def splat(value: Value, count: int) -> Value:
    """A constant repeated over `count` lanes. For values that are not constants use `Builder.splat`."""
    if count == 1:
        return value
    return Value(f"splat ({value.type} {value.name})", vector(value.type, count))


SIZES = {
    "double": 8,
    "float": 4,
    "half": 2,
    "bfloat": 2,
    "ptr": 8,
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
}


@cache
def size_of(type: str) -> int:
    """The bytes of one element of a type."""
    return SIZES[split_type(type)[0]]
