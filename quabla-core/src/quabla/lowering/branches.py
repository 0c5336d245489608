"""Steps that do not depend on each other, put side by side: two loops, four factorisations, two sorts.

Rows of large kernels and products are divided (`panels.py`). A loop cannot be: each of its steps needs the one before.
But two loops can run at once, each on a thread of its own. `side_by_side` collects steps that are each worth a thread
and have no path between them, and moves what they need before them. As with panels, sizes decide and never a number of
threads, and every step computes what it would compute alone: results are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quabla.lowering.buffers import assign, touched, writes
from quabla.lowering.loops import Branches, Buffer, Panel, Step
from quabla.lowering.work import WORTH

__all__ = ["side_by_side"]

_KEPT = 64 << 20  # bytes that steps side by side may write to the workspace, beside the one that writes most
_MORE = 128 << 20  # bytes by which the workspace may grow in all
_LEAST = 0.05  # what must be gained, as a part of the time of the longest


def side_by_side(
    steps: Sequence[Step], cost: Callable[[Step], float], worth: float = WORTH
) -> tuple[Step, ...]:
    """The steps in an order that respects what they need of each other, with those put side by side that can be.

    Args:
        steps: what runs, in order; `Branches` are not among them.
        cost: about how many nanoseconds a step takes on one core; 0 for one that is divided already.
        worth: nanoseconds from which a step is worth a thread.
    """
    parts = {buffer for step in steps if isinstance(step, Panel) for buffer in step.parts}
    costs = {}
    for i, step in enumerate(steps):
        # What panels have summed up apart is added by code that knows them.
        if not isinstance(step, Panel) and (not parts or parts.isdisjoint(touched(step))):
            found = cost(step)
            if found >= worth:
                costs[i] = found
    if len(costs) < 2:
        return tuple(steps)
    needed = _needed(steps)
    out: list[Step] = []
    done = 0
    for i, step in enumerate(steps):
        if done >> i & 1:
            continue
        group = _group(i, steps, costs, needed, done) if i in costs else []
        if len(group) < 2:
            out.append(step)
            done |= 1 << i
            continue
        before = 0
        for j in group:
            before |= needed[j] & ~done
            done |= needed[j] | 1 << j
        out += [steps[j] for j in range(i, group[-1]) if before >> j & 1]
        # Whoever shares the work takes it from the end: what takes longest begins first.
        group.sort(key=lambda j: (costs[j], -j))
        out.append(
            Branches(tuple([each for j in group if not isinstance(each := steps[j], (Panel, Branches))]))
        )
    # What is computed earlier, to be beside something, is kept for longer.
    return tuple(out if assign(out) <= assign(steps) + _MORE else steps)


def _needed(steps: Sequence[Step]) -> list[int]:
    """For each step the set of those that must run before it, as bits of a number."""
    written: dict[Buffer, list[int]] = {}
    read: dict[Buffer, list[int]] = {}
    needed: list[int] = []
    for i, step in enumerate(steps):
        changed = writes(step)
        direct: set[int] = set()
        for buffer in touched(step):
            direct.update(written.get(buffer, ()))
            if buffer in changed:
                direct.update(read.get(buffer, ()))
            (written if buffer in changed else read).setdefault(buffer, []).append(i)
        bits = 0
        for j in direct:
            bits |= needed[j] | 1 << j
        needed.append(bits)
    return needed


def _group(
    first: int, steps: Sequence[Step], costs: dict[int, float], needed: Sequence[int], done: int
) -> list[int]:
    """The steps that run beside the first, by number, in order; it alone where that gains too little."""
    group, members, kept = [first], 1 << first, [_nbytes(steps[first])]
    for j in costs:
        if j <= first or done >> j & 1 or needed[j] & members:
            continue
        nbytes = _nbytes(steps[j])
        if sum(kept) + nbytes - max(*kept, nbytes) <= _KEPT:
            group.append(j)
            members |= 1 << j
            kept.append(nbytes)
    longest = max(costs[j] for j in group)
    return group if sum(costs[j] for j in group) - longest >= _LEAST * longest else [first]


def _nbytes(step: Step) -> int:
    """The bytes of workspace that a step writes: results, and what a routine has for itself."""
    return sum(b.size * b.dtype.itemsize for b in writes(step) if b.kind == "temporary")
