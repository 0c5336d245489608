"""Which steps are worth a thread of their own: about what calls take, and how much of it is divided among threads.

The numbers are of one core and good to a factor of two or three: they say whether a thread is worth waking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quabla.ir.program import Node, Program
from quabla.lowering import branches
from quabla.lowering.loops import Branches, Call, Kernel, Panel, Step, singly
from quabla.lowering.work import WORTH, cost, points
from quabla_cpu.costs import CALL
from quabla_cpu.lower import plan_of

__all__ = ["side_by_side"]

# Steps of a loop that nobody knows the number of: few enough that one over scalars, such as Newton's iteration, is
# not worth a thread. It often ends after ten.
_UNKNOWN = 250
_VECTOR = 8  # points that a kernel takes as long for as for one


def side_by_side(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, with those side by side that need nothing of each other and are each worth a thread."""
    return branches.side_by_side(steps, _alone)


def _alone(step: Step) -> float:
    """What a step takes, or 0 where it is better left to threads that share it."""
    if isinstance(step, Call):
        found = _call(step.node)
        return found.total if found.divided <= 0.5 * found.total else 0.0
    return cost(step)


class _Work(NamedTuple):
    """Nanoseconds on one core, and how many of them several threads share."""

    total: float = 0.0
    divided: float = 0.0

    def plus(self, other: _Work, times: float = 1.0) -> _Work:
        return _Work(self.total + times * other.total, self.divided + times * other.divided)


def _of_program(program: Program) -> _Work:
    """The work of a region, remembered with it."""
    found = program.memo.get(_of_program)
    if found is None:
        found = _Work(CALL)
        for step in plan_of(program).steps:
            found = found.plus(_of_step(step))
        program.memo[_of_program] = found
    assert isinstance(found, _Work)
    return found


def _of_step(step: Step) -> _Work:
    if isinstance(step, Branches):
        total = sum(_of_step(each).total for each in singly([step]))
        return _Work(total, total)
    if isinstance(step, Panel):
        total = sum(cost(each) for each, _ in step.steps) * step.rows / step.chunk
        return _Work(total, total)
    if isinstance(step, Call):
        return _call(step.node)
    # One element of a row of dependent operations takes as long as a vector of them.
    least = max(1.0, _VECTOR / points(step)) if isinstance(step, Kernel) else 1.0
    return _Work(cost(step) * least)


def _call(node: Node) -> _Work:
    op, p = node.op.name, node.params
    if op == "scan":
        steps = min(p["length"], _UNKNOWN) if p["counted"] else p["length"]
        return _Work().plus(_of_program(p["body"]), steps)
    if op == "while":
        steps = _UNKNOWN if p["length"] is None else min(p["length"], _UNKNOWN)
        return _Work().plus(_of_program(p["body"]), steps).plus(_of_program(p["cond"]), steps)
    regions = [_of_program(value) for value in p.values() if isinstance(value, Program)]
    if regions:  # of several, one is run
        return max(regions)
    found = _ROUTINES[op](node) if op in _ROUTINES else 0.0
    return _Work(found, found if _divided(node, found) else 0.0)


def _divided(node: Node, work: float) -> bool:
    """Whether a routine shares its work among threads itself: ours as in `rounds.py`, OpenBLAS from a size on.

    Its threads are its own, beside those of the pool, and it serves one call at a time with them.
    """
    op = node.op.name
    if op in ("lu_solve", "triangular_solve"):
        return node.inputs[-1].shape[-1] > 1
    if op in _OPENBLAS:
        return node.inputs[0].shape[-1] >= _OPENBLAS[op]
    return op in ("gather", "searchsorted") and work >= 2.0 * WORTH


def _matrix(speed: float) -> Callable[[Node], float]:
    """Cubes of the size of the matrices, so many in a nanosecond."""
    return lambda node: math.prod(node.inputs[0].shape) * node.inputs[0].shape[-1] / speed


def _system(node: Node) -> float:
    right = node.inputs[-1]
    return right.size * right.shape[-2] / 8.0


_ROUTINES: dict[str, Callable[[Node], float]] = {
    "cholesky": _matrix(30.0),
    "lu": _matrix(24.0),
    "eigh": _matrix(1.0),
    "eliminate": _matrix(1.0),
    "lu_solve": _system,
    "triangular_solve": _system,
    "argsort": lambda node: 3.0 * node.inputs[0].size * node.inputs[0].shape[-1].bit_length(),
    "cumsum": lambda node: float(node.outputs[0].size),
    "cumprod": lambda node: float(node.outputs[0].size),
    "recurrence": lambda node: float(node.outputs[0].size),
    "scatter_add": lambda node: float(node.inputs[0].size + 2 * node.inputs[1].size),
    "gather": lambda node: float(node.outputs[0].size),
    "searchsorted": lambda node: 0.5 * node.inputs[1].size * node.inputs[0].shape[-1].bit_length(),
}
# Rows from which OpenBLAS uses its own threads: calls side by side then took as long as one after another.
_OPENBLAS = {"cholesky": 129, "lu": 129, "eigh": 65}
