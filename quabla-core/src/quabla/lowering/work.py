"""What steps cost, about, and from which cost on work is divided (`panels.py`)."""

from __future__ import annotations

import math

from quabla.lowering.loops import Apply, Kernel, Product, Step

__all__ = ["WORTH", "cost"]

WORTH = 40_000.0
"""Nanoseconds of one core from which work is divided."""

_SLOW = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sech2", "sinh", "cosh",
    "sigmoid", "softplus", "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh", "erf", "erfc",
    "power", "cbrt",
))  # fmt: skip


def cost(step: Step) -> float:
    """About how many nanoseconds a step takes on one core; calls are not divided."""
    if isinstance(step, Product):
        return points(step) / 25.0
    if isinstance(step, Kernel):
        slow = [True for e in step.body if type(e) is Apply and e.op in _SLOW]
        return points(step) * (len(step.body) + 5.0 * len(slow)) / 8.0
    return 0.0


def points(step: Kernel | Product) -> int:
    """How many points a step visits."""
    if isinstance(step, Kernel):
        return math.prod(step.domain)
    return math.prod([axis.extent for axes in (step.batch, step.m, step.n, step.k) for axis in axes])
