"""Elementwise ops and comparisons: mostly one function of MLX each; `accurate.py` has what it lacks or gets wrong."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from quabla.dtypes import float64
from quabla.ir.program import Node
from quabla_mlx import accurate
from quabla_mlx.rules import RULES, Call, rule
from quabla_mlx.target import Array, Target

__all__: list[str] = []

SAME = {
    "abs": mx.abs, "add": mx.add, "arccos": mx.arccos, "arccosh": mx.arccosh, "arcsin": mx.arcsin,
    "arcsinh": mx.arcsinh, "arctan": mx.arctan, "arctan2": mx.arctan2, "arctanh": mx.arctanh, "ceil": mx.ceil,
    "cos": mx.cos, "cosh": mx.cosh, "div": mx.divide, "exp": mx.exp, "expm1": mx.expm1, "floor": mx.floor,
    "log": mx.log, "log10": mx.log10, "log1p": mx.log1p, "log2": mx.log2, "maximum": mx.maximum,
    "minimum": mx.minimum, "mul": mx.multiply, "neg": mx.negative, "power": mx.power, "round": mx.round,
    "sin": mx.sin, "sinh": mx.sinh, "sqrt": mx.sqrt, "sub": mx.subtract, "tan": mx.tan, "tanh": mx.tanh,
    "trunc": mx.trunc, "where": mx.where,
    "equal": mx.equal, "greater": mx.greater, "greater_equal": mx.greater_equal, "isfinite": mx.isfinite,
    "isinf": mx.isinf, "isnan": mx.isnan, "less": mx.less, "less_equal": mx.less_equal,
    "logical_and": mx.logical_and, "logical_not": mx.logical_not, "logical_or": mx.logical_or,
    "not_equal": mx.not_equal,
}  # fmt: skip
"""Functions that are right to a few units in the last place in every dtype but float64 on a CPU."""

BOTH = {
    "cbrt": accurate.cbrt, "erf": accurate.erf, "erfc": accurate.erfc, "exp2": accurate.exp2, "fmod": accurate.fmod,
    "logaddexp": accurate.logaddexp, "relu": accurate.relu, "sigmoid": accurate.sigmoid, "softplus": accurate.softplus,
}  # fmt: skip
"""What MLX has in no dtype, or not well in any."""

DOUBLE = {
    "cos": accurate.cos64, "exp": accurate.exp64, "sigmoid": accurate.sigmoid64, "sin": accurate.sin64,
}  # fmt: skip
"""What replaces them in float64, where MLX's own have 7 digits."""


def _named(name: str) -> Callable[[Node, Target], Call]:
    plain = BOTH.get(name) or SAME.get(name)
    double = DOUBLE.get(name, plain)

    def each(node: Node, target: Target) -> Call:
        return Call(double if target.computed(node.outputs[0].aval.dtype) is float64 else plain)  # type: ignore[arg-type]

    return each


for _name in {**SAME, **BOTH}:
    RULES[_name] = _named(_name)


def _itself(x: Array) -> Array:
    return x


@rule("stop_gradient")
def _stop_gradient(node: Node, target: Target) -> Call:
    return Call(_itself)


@rule("sign")
def _sign(node: Node, target: Target) -> Call:
    return Call(accurate.sign if node.inputs[0].aval.dtype.kind == "f" else mx.sign)


@rule("astype")
def _astype(node: Node, target: Target) -> Call:
    return Call(mx.astype, (target.kind(node.params["to"]),))


@rule("integer_power")
def _integer_power(node: Node, target: Target) -> Call:
    exponent: int = node.params["exponent"]

    def power(x: Array) -> Array:
        # By repeated squaring, in the order of products that defines the op.
        result, square, left = None, x, exponent
        while left:
            if left & 1:
                result = square if result is None else mx.multiply(result, square)
            left >>= 1
            if left:
                square = mx.multiply(square, square)
        return mx.ones_like(x) if result is None else result

    return Call(power)
