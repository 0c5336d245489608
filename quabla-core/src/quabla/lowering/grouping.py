"""Which steps share rows, and a group of those that can go through a panel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from quabla.lowering.buffers import touched, writes
from quabla.lowering.loops import Buffer, Kernel, Product, Rows, Step
from quabla.lowering.packing import copied
from quabla.lowering.rows import accesses, rows_of
from quabla.lowering.work import WORTH, cost

__all__ = ["Group", "Limits", "Work", "candidates", "grouped"]

Work = Kernel | Product

_TRIES = 4


class Limits(NamedTuple):
    """From which sizes on work is divided, and into what.

    Attributes:
        worth: nanoseconds of one core from which work is divided.
        rows: rows from which several steps are put together.
        span: rows that a span has at least.
        spans: how many spans there are at the most.
        summed: how many there are where sums are kept for each.
        alone: rows of a span of a single step, at least.
        cache: bytes of private memory: what a core has close at hand.
        close: bytes of sums that stay close at hand from pass to pass.
        chunk: rows of a pass that has sums to add to, at least.
        copied: passes from which products have their matrices copied into a better order.
        kept: bytes that a panel may keep beside its rows: copies of matrices, and what it hands on.
    """

    worth: float = WORTH
    rows: int = 128
    span: int = 64
    spans: int = 16
    summed: int = 8
    alone: int = 16
    cache: int = 768 << 10
    close: int = 256 << 10
    chunk: int = 64
    copied: int = 4
    kept: int = 16 << 20


def candidates(steps: Sequence[Step], limits: Limits) -> list[int]:
    """Numbers of rows worth trying: the extents that most of the work has."""
    costs: dict[int, float] = {}
    for step in steps:
        if isinstance(step, Kernel):
            extents = set(step.domain)
        elif isinstance(step, Product):
            extents = {axis.extent for axes in (step.batch, step.m, step.n, step.k) for axis in axes}
        else:
            continue
        work = cost(step)
        for n in extents:
            if n >= limits.rows:
                costs[n] = costs.get(n, 0.0) + work
    # Of two that the same work has, one that is much finer: 4,096 rows, and not 256 of 16 where a weight is 256 wide.
    finer = {n: [m for m in costs if m % n == 0 and m >= 4 * n and costs[m] == costs[n]] for n in costs}
    ranked = sorted(costs, key=lambda n: (-costs[n], max(finer[n], default=n), -n))
    return [n for n in ranked[:6] if costs[n] >= limits.worth / 4]


class Group:
    """The steps of one panel while they are collected, and those that come before and after it."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count = count
        self.limits = limits
        self.members: list[tuple[Work, Rows]] = []
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.cost = 0.0
        self.paces: dict[Buffer, int] = {}  # of what is written by rows
        self.within: dict[Buffer, bool] = {}
        self.writers: dict[Buffer, int] = {}  # members, by number
        self.sums: set[Buffer] = set()
        self.later_reads: set[Buffer] = set()
        self.later_writes: set[Buffer] = set()
        self.blamed: dict[int, float] = {}  # by member: the cost of what it kept out
        self.kept: dict[Any, int] = {}  # bytes beside the rows: copies, and what is handed on

    @property
    def full(self) -> bool:
        """Whether the panel would keep so much at once that another one should begin.

        What it keeps is not given back before its end, and two panels use the same memory for that. But what one
        leaves for the next is written to memory, so an array of rows larger than all that is kept would cost more;
        and a single copy is never too large: a product alone would do without.
        """
        kept = sum(self.kept.values())
        if kept <= self.limits.kept:
            return False
        largest = max([b.size * b.dtype.itemsize for b in self.paces], default=0)
        return kept > max(largest, *self.kept.values())

    def place(self, step: Work) -> Rows | None:
        """Where the rows of a step are, if it can join."""
        if self.later_writes and not self.later_writes.isdisjoint(touched(step)):
            return None
        for rows in rows_of(step, self.count):
            if self._fits(step, rows):
                return rows
        return None

    def _fits(self, step: Work, rows: Rows) -> bool:
        summed = 0
        for access in accesses(step, rows, self.count):
            buffer = access.buffer
            pace = self.paces.get(buffer)
            if buffer in self.sums or (access.written and buffer in self.later_reads):
                return False
            if access.sums:
                if not access.outermost:  # the sum of an example of a batch: see `transforms/chunks.py`
                    return False
                nbytes = buffer.size * buffer.dtype.itemsize
                if nbytes > 4 * self.limits.close:  # one for each span would be much memory
                    return False
                summed += buffer.size * (1 if nbytes <= self.limits.close else 4)
                if pace is not None:
                    return False
            elif access.written and not access.pace:
                return False
            elif pace is not None and not (access.within and self.within[buffer] and access.pace == pace):
                writer = self.writers[buffer]
                self.blamed[writer] = self.blamed.get(writer, 0.0) + cost(step)
                return False
        # A sum of its own for each span, and the sum of these, must be little beside the work.
        spans = min(self.limits.summed, self.count // self.limits.span)
        return not summed or (spans > 1 and 4.0 * summed * spans <= max(cost(step), 20_000.0))

    def join(self, step: Work, rows: Rows) -> None:
        self.members.append((step, rows))
        self.cost += cost(step)
        if isinstance(step, Product) and (shared := copied(step, rows)) is not None:
            self.kept[shared, step.k] = shared.size * shared.dtype.itemsize
        for access in accesses(step, rows, self.count):
            if access.sums:
                self.sums.add(access.buffer)
            elif access.written:
                self.within[access.buffer] = access.within and self.within.get(access.buffer, True)
                self.paces[access.buffer] = access.pace
                self.writers[access.buffer] = len(self.members) - 1

    def leave(self, step: Step) -> None:
        """Put a step that does not join before the panel, or after it where it must be."""
        used, written = touched(step), writes(step)
        before = (self.paces.keys(), self.sums, self.later_writes)
        if not all(map(used.isdisjoint, before)) or not written.isdisjoint(self.later_reads):
            self.after.append(step)
            if isinstance(step, Product):  # such as the gradient of a wide weight
                handed = {b: b.size * b.dtype.itemsize for b in (step.left, step.right) if b in self.paces}
                # Beside so much work it does not matter that the next panel reads its rows from memory.
                if cost(step) > 4.0 * sum(handed.values()):
                    self.kept.update(handed)
            self.later_reads |= used
            self.later_writes |= written
        else:
            self.before.append(step)


def grouped(steps: Sequence[Step], count: int, limits: Limits) -> Group:
    """The group of the steps with `count` rows.

    A weight may have as many rows as there are points. A cheap step on weights that joins would keep out the products
    that need all of them at once; then it is left out, and the search begins again.
    """
    barred: set[int] = set()
    best: Group | None = None
    for _ in range(_TRIES):
        group = Group(count, limits)
        numbers: list[int] = []
        for i, step in enumerate(steps):
            rows = None
            if isinstance(step, (Kernel, Product)) and i not in barred and not group.full:
                rows = group.place(step)
            if rows is None:
                group.leave(step)
            else:
                assert isinstance(step, (Kernel, Product))
                group.join(step, rows)
                numbers.append(i)
        if best is None or group.cost > best.cost:
            best = group
        guilty = {numbers[m] for m, kept_out in group.blamed.items() if cost(group.members[m][0]) < kept_out}
        if not guilty - barred:
            break
        barred |= guilty
    assert best is not None
    return best
