"""The intrinsics that may be called, with their operands.

LLVM aborts the process on some malformed intrinsic calls and takes misspelt names for external functions: hence the
list.
"""

from __future__ import annotations

from .values import INTEGERS, Value, element, is_float

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


def kind_matches(kind: str, operand: Value, first: Value) -> bool:
    if kind == "F":
        return is_float(operand.type)
    if kind == "I":
        return element(operand.type) in INTEGERS
    if kind == "S":
        return operand.type == first.type
    return operand.type == "i1"  # kind B
