"""From a program to one of ops that MLX has: rewrite, and check every node, those of regions included."""

from __future__ import annotations

from collections.abc import Iterator

from quabla.errors import UnsupportedOperationError
from quabla.ir.op import OPS
from quabla.ir.program import Node, Program
from quabla.lowering.passes import simplify
from quabla_mlx.rules import RULES

__all__ = ["knows", "regions_of", "simple"]

_SOURCES = ("full", "constant")  # resident arrays, and no calls


def knows(name: str) -> bool:
    """Whether there is a rule for the op of this name."""
    return name in RULES or name in _SOURCES


def decomposable(name: str) -> bool:
    """Whether there is a rule for the op, or it can be taken apart."""
    return knows(name) or OPS[name].decompose is not None


def simple(program: Program, device: str) -> Program:
    """The program as it will run, remembered with it; its regions have been checked, whether or not they will run.

    Raises:
        UnsupportedOperationError: for an op without a rule, naming op, operand types and device.
    """
    found = program.memo.get(simple)
    if found is None:
        found = simplify(program, knows)
        for node in found.nodes:
            if not knows(node.op.name):
                operands = " and ".join([repr(v.aval) for v in node.inputs]) or "no operands"
                raise UnsupportedOperationError(
                    f"{node.op.name}: device {device!r} has no rule for this operation on {operands}; "
                    "run it on another device (quabla.devices() lists them)",
                    op=node.op.name,
                    device=device,
                )
            for region in regions_of(node):
                simple(region, device)
        program.memo[simple] = found
    return found


def regions_of(node: Node) -> Iterator[Program]:
    """The programs that a node holds."""
    for value in node.params.values():
        if isinstance(value, Program):
            yield value
