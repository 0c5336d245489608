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

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

from quabla.dtypes import bool_, dtype, float64
from quabla.lowering.buffers import aligned, assign, touched
from quabla.lowering.grouping import Group, Limits, Work, candidates, grouped
from quabla.lowering.loops import (
    Buffer,
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
from quabla.lowering.rows import accesses, rows_of, take
from quabla.lowering.work import cost

__all__ = ["in_panels"]

_SUMMED = 8192  # rows that are summed in one go: their sum is added to that of others, so that errors do not pile up
_TILE = 32  # columns of a tile of a product, or a multiple of them

_LIMITS = Limits()

Temporary = Callable[[dtype, int], Buffer]


def in_panels(steps: Sequence[Step], temporary: Temporary, limits: Limits = _LIMITS) -> tuple[Step, ...]:
    """The steps with those put together that can be.

    Args:
        steps: kernels, products and calls in order; every buffer is written before it is read.
        temporary: makes a buffer of a dtype and a number of elements.
        limits: what is worth dividing.
    """
    total = sum(cost(s) for s in steps)
    if total < limits.worth:
        return tuple(steps)
    readers: dict[Buffer, int] = {}
    for step in steps:
        for buffer in touched(step):
            readers[buffer] = readers.get(buffer, 0) + 1
    return tuple(_divided(list(steps), temporary, readers, limits))


def _divided(
    steps: list[Step], temporary: Temporary, readers: dict[Buffer, int], limits: Limits, same: int = 0
) -> list[Step]:
    """The steps with panels among them; where there is work for it, the next one has `same` rows."""
    counts = candidates(steps, limits)
    best = _largest(steps, [same], limits) if same in counts else None
    if best is None:
        best = _largest(steps, counts, limits)
    if best is None:
        return [_alone(step, temporary, limits) for step in steps]
    before = _divided(best.before, temporary, readers, limits)
    panel = _panel(best, temporary, readers)
    # One that was full has the rest of its work before it.
    after = _divided(best.after, temporary, readers, limits, best.count if best.full else 0)
    return [*before, *panel, *after]


def _largest(steps: list[Step], counts: Sequence[int], limits: Limits) -> Group | None:
    """The group that has the most work, if it is worth it."""
    best: Group | None = None
    for count in counts:
        group = grouped(steps, count, limits)
        # A product on its own is divided along the axis that suits it best, but for one with a large copy.
        lonely = len(group.members) == 1 and isinstance(group.members[0][0], Product) and not group.sums
        lonely = lonely and sum(group.kept.values()) <= limits.kept
        if group.cost >= limits.worth and not lonely and (best is None or group.cost > best.cost):
            best = group
    return best


# --- the panel --------------------------------------------------------------------------------------------------------


def _panel(group: Group, temporary: Temporary, readers: dict[Buffer, int]) -> list[Step]:
    """The panel of a group, and the kernels that add up the sums of its spans."""
    count, limits = group.count, group.limits
    private = _private(group, readers)
    # Laid out for a single row first: what is alive at once, in bytes per row.
    sizes = {b: b.size // count * b.dtype.itemsize for b in private}
    per_row = assign([step for step, _ in group.members], sizes, 1)
    if not any(isinstance(step, Product) for step, _ in group.members):
        per_row += _read_again(group, sizes)  # products need many rows more than they need these nearby
    # A power of two, so that two, four or eight threads have the same to do.
    spans = _power_of_two(min(limits.summed if group.sums else limits.spans, count // limits.span))
    most = -(-count // spans)
    if group.sums:
        most = min(most, _SUMMED)
    if per_row:
        most = min(most, max(limits.cache // per_row, limits.chunk if group.sums else 1))
    copies: list[Kernel] = []
    members = group.members
    if count >= limits.copied * most:
        copies, members = _with_copies(members, temporary)
    made = _made(members, count, spans, most, temporary, private)
    return [*[_alone(kernel, temporary, limits) for kernel in copies], *made]


def _read_again(group: Group, private: Container[Buffer]) -> int:
    """The bytes per row that several steps read or write, other than of private memory."""
    steps: dict[Buffer, set[int]] = {}
    paces: dict[Buffer, int] = {}
    for i, (step, rows) in enumerate(group.members):
        for access in accesses(step, rows, group.count):
            if access.pace and access.buffer not in private:
                steps.setdefault(access.buffer, set()).add(i)
                paces[access.buffer] = abs(access.pace)
    return sum(paces[b] * b.dtype.itemsize for b, users in steps.items() if len(users) > 1)


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


def _alone(step: Step, temporary: Temporary, limits: Limits) -> Step:
    """A large step that no others go with, divided along the longest axis of its results."""
    if not isinstance(step, (Kernel, Product)) or cost(step) < limits.worth:
        return step
    best: tuple[int, Rows] | None = None
    for rows in _own_axes(step):
        n = step.domain[rows.axis] if isinstance(step, Kernel) else getattr(step, rows.of)[rows.axis].extent
        found = list(accesses(step, rows, n))
        if any(a.sums or (a.written and not a.pace) for a in found):
            continue
        if best is None or n >= best[0]:  # of two as long, the last: vectors run along it
            best = n, rows
    if best is None:
        return step
    count, rows = best
    least = limits.alone
    if isinstance(step, Kernel):  # few rows may be long ones
        least = max(2, min(least, math.ceil(0.5 * limits.worth * count / cost(step))))
    if count < 2 * least:
        return step
    spans = _power_of_two(min(limits.summed, count // least))
    if isinstance(step, Product) and count >= 2 * _TILE:
        spans = -(-count // _balanced(count, limits.spans))
    return _made([(step, rows)], count, spans, count, temporary, [])[0]


def _balanced(count: int, most: int) -> int:
    """Rows of a span, whole tiles of them: with which two, four and eight threads wait least for each other.

    Spans are taken one after another, so a thread has one more than another at the most, and the last span is smaller.
    """

    def waiting(chunk: int) -> tuple[float, int]:
        spans = -(-count // chunk)
        longest = [-(-spans // threads) * chunk for threads in (2, 4, 8)]
        return sum([n * threads for n, threads in zip(longest, (2, 4, 8), strict=True)]), -chunk

    least = -(-count // (most * _TILE)) * _TILE
    return min(range(least, max(least, count // 2) + 1, _TILE), key=waiting)


def _own_axes(step: Work) -> list[Rows]:
    if isinstance(step, Kernel):
        return [rows for n in set(step.domain) for rows in rows_of(step, n) if rows.per == 1]
    return [Rows(of, a, 1) for of in ("batch", "m", "n") for a in range(len(getattr(step, of)))]


def _private(group: Group, readers: dict[Buffer, int]) -> list[Buffer]:
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
    whole = _TILE if chunk >= (_TILE if len(members) == 1 else 128) else 8 if chunk >= 16 else 1
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
