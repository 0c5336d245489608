"""From a program to one of ops that MLX has: express the others by them, simplify, region by region."""

from __future__ import annotations

from collections.abc import Iterator

from quabla.backends.support import ops_in
from quabla.decompose import lowered_to
from quabla.ir.program import Node, Program
from quabla.lowering.passes import simplify
from quabla_mlx.rules import RULES

__all__ = ["had", "regions_of", "simple"]

_SOURCES = ("full", "constant")  # resident arrays, and no calls


def had() -> frozenset[str]:
    """The names of the ops that there are rules for."""
    return frozenset((*RULES, *_SOURCES))


def simple(program: Program, device: str) -> Program:
    """The program as it will run, remembered with it.

    All of it has been looked at, branches that may never be taken and the bodies of loops included.

    Raises:
        UnsupportedOperationError: for an op that has no rule and cannot be expressed by those that have one, naming it,
            its operands and the device.
    """
    found = program.memo.get(simple)
    if found is None:
        ops = had()
        whole = program if ops_in(program) <= ops else lowered_to(program, ops, device)
        found = program.memo[simple] = simplify(whole, ops.__contains__)
        for node in found.nodes:
            for region in regions_of(node):
                simple(region, device)
    return found


def regions_of(node: Node) -> Iterator[Program]:
    """The programs that a node holds."""
    for value in node.params.values():
        if isinstance(value, Program):
            yield value
