"""The intrinsics that may be called, with their operands.

LLVM aborts the process on some malformed intrinsic calls and takes misspelt names for external functions: hence the
list.
"""

from __future__ import annotations

from functools import cache

from .values import element, is_float, is_integer, lanes, mangled

# Name -> (kinds of the operands, kind of the result). F: any float type; I: any integer type; S: the type of the first
# operand; E: its element; B: i1.
_F1, _F2, _F3 = ("F", "S"), ("FS", "S"), ("FSS", "S")
_I1, _I2, _I3 = ("I", "S"), ("IS", "S"), ("ISS", "S")
INTRINSICS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("sqrt", "fabs", "floor", "ceil", "trunc", "rint", "nearbyint", "roundeven", "round"), _F1),
    **dict.fromkeys(("copysign", "minnum", "maxnum", "minimum", "maximum"), _F2),
    **dict.fromkeys(("fma", "fmuladd"), _F3),
    **dict.fromkeys(("ctpop", "bswap", "bitreverse"), _I1),
    **dict.fromkeys(("smin", "smax", "umin", "umax", "sadd.sat", "uadd.sat", "ssub.sat", "usub.sat"), _I2),
    **dict.fromkeys(("fshl", "fshr"), _I3),
    **dict.fromkeys(("abs", "ctlz", "cttz"), ("IB", "S")),
    **dict.fromkeys(("vector.reduce.add", "vector.reduce.mul", "vector.reduce.and", "vector.reduce.or",
                     "vector.reduce.xor", "vector.reduce.smax", "vector.reduce.smin", "vector.reduce.umax",
                     "vector.reduce.umin"), ("I", "E")),
    **dict.fromkeys(("vector.reduce.fmax", "vector.reduce.fmin", "vector.reduce.fmaximum",
                     "vector.reduce.fminimum"), ("F", "E")),
}  # fmt: skip


@cache
def overload(name: str, types: tuple[str, ...]) -> tuple[str, str]:
    """The symbol of an intrinsic for operands of these types, and what it returns.

    No symbol where the lanes of a scalar are to be reduced: that is the operand.

    Raises:
        ValueError: The name is not in the list, or the number of operands is wrong.
        TypeError: An operand has the wrong type.
    """
    entry = INTRINSICS.get(name)
    if entry is None:
        raise ValueError(f"intrinsic {name!r} is not in the allow-list of quabla_cpu.text")
    kinds, result = entry
    if len(kinds) != len(types):
        raise ValueError(f"intrinsic {name!r} takes {len(kinds)} operands, got {len(types)}")
    first = types[0]
    if not all([_matches(kind, type, first) for kind, type in zip(kinds, types, strict=True)]):
        raise TypeError(f"intrinsic {name!r}: operand types {list(types)}")
    symbol = f"llvm.{name}.{mangled(first)}"
    if result == "S":
        return symbol, first
    return "" if lanes(first) == 1 else symbol, element(first)


def _matches(kind: str, type: str, first: str) -> bool:
    if kind == "F":
        return is_float(type)
    if kind == "I":
        return is_integer(type)
    if kind == "S":
        return type == first
    return type == "i1"  # kind B
