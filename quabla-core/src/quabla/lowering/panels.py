"""Steps that treat rows alike, put together: a few rows go through all of them before the next ones do.

A network on 2,048 points is a long row of products and kernels, each over arrays of 2,048 rows. One after another they
stream megabytes through the caches. Taken 64 rows at a time, what one step leaves for the next stays in the cache of
the core that computes it, and spans of rows are independent work for several threads. What is summed over rows, such as
the gradient of a weight, is summed for each span apart and then over the spans.

`in_panels` finds the number of rows that most of the work has in common, collects the steps that have it, and leaves
the others before or after them as their operands demand. What remains is searched again with other numbers, and at last
every large step on its own. Sizes decide, never a clock or the number of threads, so a program has one result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quabla.dtypes import bool_, dtype, float64
from quabla.lowering.buffers import aligned, assign, touched
from quabla.lowering.loops import (
    Apply,
    Buffer,
    Call,
    Kernel,
    Load,
    Panel,
    Product,
    Reduce,
    Rows,
    Scalar,
    Step,
    Store,
    collapse,
)
from quabla.lowering.packing import packed
from quabla.lowering.rows import accesses, points, rows_of, take

__all__ = ["in_panels"]

Work = Kernel | Product

_WORTH = 40_000.0  # nanoseconds of one core from which work is divided
_ROWS = 128  # from here on several steps are put together
_SPAN = 64  # rows that a span has at least
_SPANS = 16
_SUMMED = 8  # spans where sums are kept for each
_CACHE = 768 << 10  # bytes of private memory: what a core has close at hand
_CLOSE = 256 << 10  # bytes of sums that stay close at hand from pass to pass
_CHUNK = 64  # rows of a pass that has sums to add to
_COPIED = 4  # passes from which products have their matrices copied into a better order
_TRIES = 4
_ALONE = 16  # rows of a span of a single step, at least

Temporary = Callable[[dtype, int], Buffer]


def in_panels(steps: Sequence[Step], temporary: Temporary) -> tuple[Step, ...]:
    """The steps with those put together that can be.

    Args:
        steps: kernels, products and calls in order; every buffer is written before it is read.
        temporary: makes a buffer of a dtype and a number of elements.
    """
    total = sum(_cost(s) for s in steps)
    if total < _WORTH:
        return tuple(steps)
    readers: dict[Buffer, int] = {}
    for step in steps:
        for buffer in touched(step):
            readers[buffer] = readers.get(buffer, 0) + 1
    return tuple(_divided(list(steps), temporary, readers))


def _divided(steps: list[Step], temporary: Temporary, readers: dict[Buffer, int]) -> list[Step]:
    best: _Group | None = None
    for count in _candidates(steps):
        group = _grouped(steps, count)
        # A product on its own is divided along the axis that suits it best.
        lonely = len(group.members) == 1 and isinstance(group.members[0][0], Product) and not group.sums
        if group.cost >= _WORTH and not lonely and (best is None or group.cost > best.cost):
            best = group
    if best is None:
        return [_alone(step, temporary) for step in steps]
    before = _divided(best.before, temporary, readers)
    return [*before, *_panel(best, temporary, readers), *_divided(best.after, temporary, readers)]


# --- what it costs ----------------------------------------------------------------------------------------------------

_SLOW = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sinh", "cosh", "sigmoid",
    "softplus", "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh", "erf", "erfc", "power",
    "cbrt",
))  # fmt: skip


def _cost(step: Step) -> float:
    """About how many nanoseconds a step takes on one core; calls are not divided."""
    if isinstance(step, Product):
        return points(step) / 25.0
    if isinstance(step, Kernel):
        weight = sum(6.0 if isinstance(e, Apply) and e.op in _SLOW else 1.0 for e in step.body)
        return points(step) * weight / 8.0
    return 0.0


def _candidates(steps: Sequence[Step]) -> list[int]:
    """Numbers of rows worth trying: the extents that most of the work has."""
    costs: dict[int, float] = {}
    for step in steps:
        if isinstance(step, Kernel):
            extents = set(step.domain)
        elif isinstance(step, Product):
            extents = {axis.extent for axes in (step.batch, step.m, step.n, step.k) for axis in axes}
        else:
            continue
        for n in extents:
            if n >= _ROWS:
                costs[n] = costs.get(n, 0.0) + _cost(step)
    ranked = sorted(costs, key=lambda n: (-costs[n], n))
    return [n for n in ranked[:6] if costs[n] >= _WORTH / 4]


# --- which steps ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Group:
    """The steps of one panel while they are collected, and those that come before and after it."""

    count: int
    members: list[tuple[Work, Rows]] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)
    cost: float = 0.0
    paces: dict[Buffer, int] = field(default_factory=dict)  # of what is written by rows
    within: dict[Buffer, bool] = field(default_factory=dict)
    writers: dict[Buffer, int] = field(default_factory=dict)  # members, by number
    sums: set[Buffer] = field(default_factory=set)
    later_reads: set[Buffer] = field(default_factory=set)
    later_writes: set[Buffer] = field(default_factory=set)
    blamed: dict[int, float] = field(default_factory=dict)  # by member: the cost of what it kept out

    def place(self, step: Work) -> Rows | None:
        """Where the rows of a step are, if it can join."""
        if any(buffer in self.later_writes for buffer in touched(step)):
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
                summed += buffer.size * (1 if buffer.size * buffer.dtype.itemsize <= _CLOSE else 4)
                if pace is not None:
                    return False
            elif access.written and not access.pace:
                return False
            elif pace is not None and not (access.within and self.within[buffer] and access.pace == pace):
                writer = self.writers[buffer]
                self.blamed[writer] = self.blamed.get(writer, 0.0) + _cost(step)
                return False
        # A sum of its own for each span, and the sum of these, must be little beside the work.
        spans = min(_SUMMED, self.count // _SPAN)
        return not summed or (spans > 1 and 4.0 * summed * spans <= max(_cost(step), 20_000.0))

    def join(self, step: Work, rows: Rows) -> None:
        self.members.append((step, rows))
        self.cost += _cost(step)
        for access in accesses(step, rows, self.count):
            if access.sums:
                self.sums.add(access.buffer)
            elif access.written:
                self.within[access.buffer] = access.within and self.within.get(access.buffer, True)
                self.paces[access.buffer] = access.pace
                self.writers[access.buffer] = len(self.members) - 1

    def leave(self, step: Step) -> None:
        """Put a step that does not join before the panel, or after it where it must be."""
        follows = any(
            buffer in self.paces or buffer in self.sums or buffer in self.later_writes
            for buffer in touched(step)
        ) or any(buffer in self.later_reads for buffer in _written(step))
        if follows:
            self.after.append(step)
            self.later_reads |= touched(step)
            self.later_writes |= _written(step)
        else:
            self.before.append(step)


def _written(step: Step) -> set[Buffer]:
    """The buffers that a step writes."""
    if isinstance(step, Kernel):
        return {e.buffer for e in step.body if isinstance(e, (Store, Reduce))}
    if isinstance(step, Product):
        return {step.out}
    assert isinstance(step, Call)
    return set(step.outputs) | ({step.scratch} if step.scratch is not None else set())


def _grouped(steps: Sequence[Step], count: int) -> _Group:
    """The group of the steps with `count` rows.

    A weight may have as many rows as there are points. A cheap step on weights that joins would keep out the products
    that need all of them at once; then it is left out, and the search begins again.
    """
    barred: set[int] = set()
    best: _Group | None = None
    for _ in range(_TRIES):
        group = _Group(count)
        numbers: list[int] = []
        for i, step in enumerate(steps):
            rows = None
            if isinstance(step, (Kernel, Product)) and i not in barred:
                rows = group.place(step)
            if rows is None:
                group.leave(step)
            else:
                assert isinstance(step, (Kernel, Product))
                group.join(step, rows)
                numbers.append(i)
        if best is None or group.cost > best.cost:
            best = group
        guilty = {numbers[m] for m, kept_out in group.blamed.items() if _cost(group.members[m][0]) < kept_out}
        if not guilty - barred:
            break
        barred |= guilty
    assert best is not None
    return best


# --- the panel --------------------------------------------------------------------------------------------------------


def _panel(group: _Group, temporary: Temporary, readers: dict[Buffer, int]) -> list[Step]:
    """The panel of a group, and the kernels that add up the sums of its spans."""
    count = group.count
    private = _private(group, readers)
    # Laid out for a single row first: what is alive at once, in bytes per row.
    sizes = {b: b.size // count * b.dtype.itemsize for b in private}
    per_row = assign([step for step, _ in group.members], sizes, 1)
    # A power of two, so that two, four or eight threads have the same to do.
    spans = _power_of_two(min(_SUMMED if group.sums else _SPANS, count // _SPAN))
    most = -(-count // spans)
    if per_row:
        most = min(most, max(_CACHE // per_row, _CHUNK if group.sums else 1))
    copies: list[Kernel] = []
    members = group.members
    if count >= _COPIED * most:
        copies, members = _with_copies(members, temporary)
    made = _made(members, count, spans, most, temporary, private)
    return [*[_alone(kernel, temporary) for kernel in copies], *made]


def _power_of_two(n: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (n.bit_length() - 1)


def _with_copies(
    members: Sequence[tuple[Work, Rows]], temporary: Temporary
) -> tuple[list[Kernel], list[tuple[Work, Rows]]]:
    """Products with large matrices read copies of them in a better order."""
    copies: list[Kernel] = []
    out: list[tuple[Work, Rows]] = []
    known: dict[Any, Buffer] = {}
    for step, rows in members:
        if not isinstance(step, Product):
            out.append((step, rows))
            continue
        kernel, products = packed(step, rows, temporary, known)
        copies += [kernel] if kernel is not None else []
        out += [(product, rows) for product in products]
    return copies, out


def _alone(step: Step, temporary: Temporary) -> Step:
    """A large step that no others go with, divided along the longest axis of its results."""
    if not isinstance(step, (Kernel, Product)) or _cost(step) < _WORTH:
        return step
    best: tuple[int, Rows] | None = None
    for rows in _own_axes(step):
        n = step.domain[rows.axis] if isinstance(step, Kernel) else getattr(step, rows.of)[rows.axis].extent
        found = list(accesses(step, rows, n))
        if any(a.sums or (a.written and not a.pace) for a in found):
            continue
        if best is None or n >= best[0]:  # of two as long, the last: vectors run along it
            best = n, rows
    if best is None or best[0] < 2 * _ALONE:
        return step
    count, rows = best
    spans = _power_of_two(min(_SUMMED, count // _ALONE))
    return _made([(step, rows)], count, spans, count, temporary, [])[0]


def _own_axes(step: Work) -> list[Rows]:
    if isinstance(step, Kernel):
        return [rows for n in set(step.domain) for rows in rows_of(step, n) if rows.per == 1]
    return [Rows(of, a, 1) for of in ("batch", "m", "n") for a in range(len(getattr(step, of)))]


def _private(group: _Group, readers: dict[Buffer, int]) -> list[Buffer]:
    """What only the steps of a group touch, each row its own part: no other thread needs it, and no later pass."""
    uses: dict[Buffer, int] = {}
    plain: dict[Buffer, bool] = {}
    for step, rows in group.members:
        for buffer in touched(step):
            uses[buffer] = uses.get(buffer, 0) + 1
        for access in accesses(step, rows, group.count):
            plain[access.buffer] = access.within and plain.get(access.buffer, True)
    return [
        b
        for b in group.paces
        if b.kind == "temporary" and plain[b] and uses[b] == readers[b] and b not in group.sums
    ]


def _made(
    members: Sequence[tuple[Work, Rows]],
    count: int,
    spans: int,
    most: int,
    temporary: Temporary,
    private: Sequence[Buffer],
) -> list[Step]:
    """A panel of about `spans` spans, each of passes of about `most` rows, and the kernels that add up its sums."""
    span = -(-count // spans)
    passes = -(-span // most)
    chunk = -(-span // passes)
    whole = 32 if chunk >= 128 else 8 if chunk >= 16 else 1
    chunk = -(-chunk // whole) * whole
    while chunk < 2 or count % chunk == 1:  # kernels know no axis of extent 1
        chunk += whole
    spans = -(-count // (chunk * passes))
    left = count % chunk
    if spans < 2:
        return [step for step, _ in members]
    sums = _sums(members)
    parts = {b: temporary(d, spans * b.size) for b, (_, d) in sums.items()}
    for b in private:
        b.kind = "private"
    sizes = {b: b.size // count * chunk * b.dtype.itemsize for b in private}
    nbytes = aligned(assign([step for step, _ in members], sizes))
    panel = Panel(
        count,
        chunk,
        spans,
        passes,
        tuple([_filled(parts[b], b.size, op) for b, (op, _) in sums.items()]),
        tuple([(take(step, rows, chunk, parts), rows) for step, rows in members]),
        tuple([(take(step, rows, left, parts), rows) for step, rows in members]) if left else (),
        {parts[b]: b.size for b in sums},
        temporary(bool_, nbytes * spans) if nbytes else None,
        nbytes,
    )
    return [panel, *[_combined(parts[b], b, spans, op) for b, (op, _) in sums.items()]]


def _sums(members: Sequence[tuple[Work, Rows]]) -> dict[Buffer, tuple[str, dtype]]:
    """The buffers that hold sums over all rows, how they are combined, and the dtype of the parts."""
    found: dict[Buffer, tuple[str, dtype]] = {}
    for step, rows in members:
        if isinstance(step, Product):
            if rows.of == "k":
                found[step.out] = "sum", step.dtype
            continue
        for e in step.body:
            if isinstance(e, Reduce) and rows.axis in e.axes:
                # As within a kernel: sums of float32 are kept in float64 until they are complete.
                wide = e.op == "sum" and e.buffer.dtype.name == "float32"
                found[e.buffer] = e.op, float64 if wide else e.buffer.dtype
    return found


def _filled(part: Buffer, size: int, op: str) -> Kernel:
    kind = part.dtype.kind
    neutral: float | bool
    if op == "sum":
        neutral = -0.0 if kind == "f" else 0
    elif kind == "b":
        neutral = op not in ("max", "any")
    elif kind == "f":
        neutral = float("-inf") if op == "max" else float("inf")
    else:
        neutral = -(2**63) if op == "max" else 2**63 - 1
    domain, strides = ((size,), (1,)) if size > 1 else ((), ())
    return Kernel(domain, (Scalar(neutral, part.dtype), Store(0, part, 0, strides)))


def _combined(part: Buffer, out: Buffer, spans: int, op: str) -> Kernel:
    """The sums of all spans, added up in their order."""
    if out.size == 1:
        return Kernel((spans,), (Load(part, 0, (1,)), Reduce(op, 0, frozenset((0,)), out, 0, (0,))))
    body = (Load(part, 0, (out.size, 1)), Reduce(op, 0, frozenset((0,)), out, 0, (0, 1)))
    return collapse(Kernel((spans, out.size), body))
