"""How a reduction combines values."""

from __future__ import annotations

import math
from collections.abc import Callable

from quabla.dtypes import dtype
from quabla_cpu import text
from quabla_cpu.pointwise import maximum, minimum, register_type
from quabla_cpu.text import Builder, Value

__all__ = ["Folding"]


class Folding:
    """How a reduction combines values: neutral element, combination, and the type of the accumulator."""

    def __init__(self, op: str, d: dtype) -> None:
        self.op = op
        # float32 sums are accumulated in float64, like their definition.
        self.type = "double" if op == "sum" and d.name == "float32" else register_type(d)
        floating = text.is_float(self.type)
        self.ordered = op == "sum" and floating  # the order of terms shows in the result
        if op == "sum":
            self.neutral: float = -0.0 if floating else 0  # -0.0 + x is x, even for x = -0.0
        elif op in ("max", "any"):
            self.neutral = -math.inf if floating else 0 if self.type == "i1" else -(2**63)
        else:
            self.neutral = math.inf if floating else 1 if self.type == "i1" else 2**63 - 1

    def combine(self, b: Builder) -> Callable[[Value, Value], Value]:
        if self.op == "sum":
            return b.fadd if text.is_float(self.type) else b.add
        pick = maximum if self.op in ("max", "any") else minimum
        return lambda x, y: pick(b, x, y)

    def across(self, b: Builder, x: Value) -> Value:
        """All lanes combined."""
        if self.type == "i1":
            return b.any(x) if self.op in ("max", "any") else b.all(x)
        return b.reduce(x, self.combine(b))
