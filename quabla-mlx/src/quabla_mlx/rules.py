"""The table of rules: for every op, how a node of it becomes a call on arrays of MLX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quabla.ir.program import Node
from quabla_mlx.target import Target

__all__ = ["RULES", "Call", "Rule", "rule"]


@dataclass(frozen=True)
class Call:
    """`function(*operands, *after)`: what a node does when it runs.

    It makes lazy arrays: nothing is computed before the arrays that a program returns are evaluated together.
    """

    function: Callable[..., Any]
    after: tuple[Any, ...] = ()


Rule = Callable[[Node, Target], Call]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of the ops of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}; please report this"
            RULES[name] = function
        return function

    return register
