"""From a program to a plan for this backend: rewrite, check that there is code for every op, fuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quabla.dtypes import dtype
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import OPS
from quabla.ir.program import Node, Program
from quabla.lowering import fuse
from quabla.lowering.loops import Buffer, Call, Step
from quabla.lowering.passes import simplify
from quabla.lowering.stacks import by_parts
from quabla.lowering.work import WORTH, cost
from quabla_cpu import engine
from quabla_cpu.pointwise import POINTWISE
from quabla_cpu.routines import MODULES, routine_of

__all__ = ["knows", "nodes_of", "plan_of"]


def knows(name: str) -> bool:
    """Whether the CPU has code for the op of this name."""
    op = OPS[name]
    if name in MODULES:
        return True
    return fuse.handles(op) and (op.family not in ("elementwise", "compare") or name in POINTWISE)


def plan_of(program: Program, device: str = "cpu") -> fuse.Plan:
    """The plan of a program, remembered with it: regions are asked for theirs several times.

    Raises:
        UnsupportedOperationError: for an op without code, naming op, operand types and device.
    """
    found = program.memo.get(plan_of)
    if found is None:
        simple = simplify(program, knows, (by_parts,))
        for node in simple.nodes:
            if not knows(node.op.name):
                operands = " and ".join([repr(v.aval) for v in node.inputs]) or "no operands"
                raise UnsupportedOperationError(
                    f"{node.op.name}: device {device!r} has no code for this operation on {operands}; "
                    "run it on another device (quabla.devices() lists them)",
                    op=node.op.name,
                    device=device,
                )
        program.memo[nodes_of] = len(simple.nodes)
        found = program.memo[plan_of] = fuse.fuse(simple, _scratch, arranged)
    return found


def nodes_of(program: Program) -> int:
    """The number of nodes of a program when it was fused."""
    plan_of(program)
    return program.memo[nodes_of]  # type: ignore[no-any-return]


def arranged(steps: Sequence[Step], temporary: Callable[[dtype, int], Buffer]) -> tuple[Step, ...]:
    """The steps in panels, and beside others where they need nothing of each other, if they are worth it."""
    steps = in_panels(steps, temporary)
    # Few programs have two steps that panels leave and that may be worth a thread: the others import nothing for it.
    if sum(isinstance(step, Call) or cost(step) >= WORTH for step in steps) < 2:
        return tuple(steps)
    with engine.no_fork():
        from quabla_cpu import worth
    return worth.side_by_side(steps)


def in_panels(steps: Sequence[Step], temporary: Callable[[dtype, int], Buffer]) -> tuple[Step, ...]:
    """The steps with those put together that can be, if they are worth it."""
    if sum(map(cost, steps)) < WORTH:
        return tuple(steps)
    with engine.no_fork():
        from quabla.lowering import panels  # not for small programs
    return panels.in_panels(steps, temporary)


def _scratch(node: Node) -> int | None:
    found = routine_of(node.op.name)
    return None if found is None else found.scratch(node)
