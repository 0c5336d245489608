"""The elementwise ops as LLVM instructions: one table from the name of an op to the code for it.

A writer takes the builder, the operands (scalars or vectors; truth values are `i1`), and the params of the op.
Results are those of the op's definition in NumPy: IEEE arithmetic, NaN where either operand of a maximum is NaN,
sign(-0.0) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quabla.dtypes import dtype
from quabla_cpu import text, vectormath
from quabla_cpu.text import Builder, Value

__all__ = ["MATH", "POINTWISE", "maximum", "minimum", "register_type"]

Writer = Callable[[Builder, list[Value], dict[str, Any]], Value]

_TYPES = {"float64": "double", "float32": "float", "int64": "i64", "bool": "i1"}


def register_type(d: dtype, lanes: int = 1) -> str:
    """The LLVM type of `lanes` elements in registers."""
    return text.vector(_TYPES[d.name], lanes)


def _constant(like: Value, number: float) -> Value:
    return text.constant(like.type, number)


def _is_float(x: Value) -> bool:
    return text.is_float(x.type)


def _arithmetic(floating: str, integer: str) -> Writer:
    def write(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
        return getattr(b, floating if _is_float(xs[0]) else integer)(*xs)  # type: ignore[no-any-return]

    return write


def _neg(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
    return b.fneg(xs[0]) if _is_float(xs[0]) else b.sub(_constant(xs[0], 0), xs[0])


def maximum(b: Builder, x: Value, y: Value) -> Value:
    """The larger, NaN where either is."""
    if _is_float(x):
        larger = b.select(b.fcmp("ogt", x, y), x, y)  # y where either is NaN
        return b.select(b.fcmp("uno", x, x), x, larger)
    return b.or_(x, y) if text.element(x.type) == "i1" else b.intrinsic("smax", x, y)


def minimum(b: Builder, x: Value, y: Value) -> Value:
    """The smaller, NaN where either is."""
    if _is_float(x):
        smaller = b.select(b.fcmp("olt", x, y), x, y)
        return b.select(b.fcmp("uno", x, x), x, smaller)
    return b.and_(x, y) if text.element(x.type) == "i1" else b.intrinsic("smin", x, y)


def _relu(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
    (x,) = xs
    zero = _constant(x, 0)
    if not _is_float(x):
        return b.intrinsic("smax", x, zero)
    return b.select(b.fcmp("ole", x, zero), zero, x)  # NaN fails the test and stays


def _sign(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
    (x,) = xs
    zero, one = _constant(x, 0), _constant(x, 1)
    if not _is_float(x):
        return b.intrinsic("smax", b.intrinsic("smin", x, one), _constant(x, -1))
    below = b.select(b.fcmp("olt", x, zero), _constant(x, -1), b.select(b.fcmp("uno", x, x), x, zero))
    return b.select(b.fcmp("ogt", x, zero), one, below)


def _abs(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
    (x,) = xs
    return b.fabs(x) if _is_float(x) else b.intrinsic("abs", x, text.constant("i1", 0))


def _integer_power(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
    # The order of products of the op's definition.
    result, square, exponent = None, xs[0], params["exponent"]
    while exponent:
        if exponent & 1:
            result = square if result is None else b.fmul(result, square)
        exponent >>= 1
        if exponent:
            square = b.fmul(square, square)
    return _constant(xs[0], 1) if result is None else result


def _compare(floating: str, integer: str) -> Writer:
    def write(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
        if _is_float(xs[0]):
            return b.fcmp(floating, *xs)
        # As numbers of one bit, true would be -1 to the signed comparisons.
        predicate = integer.replace("s", "u") if text.element(xs[0].type) == "i1" else integer
        return b.icmp(predicate, *xs)

    return write


def _infinite(predicate: str) -> Writer:
    def write(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
        return b.fcmp(predicate, b.fabs(xs[0]), _constant(xs[0], math.inf))

    return write


def _astype(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
    (x,), to = xs, params["to"]
    source, target = text.element(x.type), _TYPES[to.name]
    if source == target:
        return x
    if target == "i1":
        zero = _constant(x, 0)
        return b.fcmp("une", x, zero) if _is_float(x) else b.icmp("ne", x, zero)
    if source == "i1":
        return b.zext(x, target) if target == "i64" else b.uitofp(x, target)
    if source == "i64":
        return b.sitofp(x, target)
    if target == "i64":
        return b.fptosi(x, target)
    return b.fpext(x, target) if target == "double" else b.fptrunc(x, target)


def _math(name: str) -> Writer:
    def write(b: Builder, xs: list[Value], params: dict[str, Any]) -> Value:
        return vectormath.call(b, name, *xs)

    return write


MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "cbrt", "sin", "cos", "tan", "arcsin", "arccos",
    "arctan", "arctan2", "sinh", "cosh", "tanh", "sech2", "arcsinh", "arccosh", "arctanh", "sigmoid", "softplus", "erf",
    "erfc",
)  # fmt: skip
"""Ops that are calls of functions in `vectormath`."""

POINTWISE: dict[str, Writer] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _arithmetic("fdiv", "sdiv"),
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "relu": _relu,
    "maximum": lambda b, xs, params: maximum(b, *xs),
    "minimum": lambda b, xs, params: minimum(b, *xs),
    "sqrt": lambda b, xs, params: b.sqrt(xs[0]),
    "integer_power": _integer_power,
    "floor": lambda b, xs, params: b.intrinsic("floor", *xs),
    "ceil": lambda b, xs, params: b.intrinsic("ceil", *xs),
    "trunc": lambda b, xs, params: b.intrinsic("trunc", *xs),
    "round": lambda b, xs, params: b.intrinsic("rint", *xs),
    "fmod": lambda b, xs, params: b.frem(*xs),
    "where": lambda b, xs, params: b.select(*xs),
    "stop_gradient": lambda b, xs, params: xs[0],
    "astype": _astype,
    "equal": _compare("oeq", "eq"),
    "not_equal": _compare("une", "ne"),
    "less": _compare("olt", "slt"),
    "less_equal": _compare("ole", "sle"),
    "greater": _compare("ogt", "sgt"),
    "greater_equal": _compare("oge", "sge"),
    "logical_and": lambda b, xs, params: b.and_(*xs),
    "logical_or": lambda b, xs, params: b.or_(*xs),
    "logical_not": lambda b, xs, params: b.not_(xs[0]),
    "isnan": lambda b, xs, params: b.fcmp("uno", xs[0], xs[0]),
    "isinf": _infinite("oeq"),
    "isfinite": _infinite("olt"),
    **{name: _math(name) for name in MATH},
}
"""Name of an op -> what writes it."""
