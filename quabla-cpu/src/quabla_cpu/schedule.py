"""How a kernel becomes loops: the vector axis, how many vectors at a time, and the order of the loops.

One axis of the domain runs along the lanes of vectors. It is covered by tiles of `count` vectors; where its extent is
no multiple of a tile, the last tile starts earlier and does some elements twice. Doing them twice is harmless for
stores (a kernel reads nothing that it writes), and sums leave the repeated lanes out: no masked memory access, no code
for remainders, and a domain of three elements takes two vectors of two lanes.

The loops along which a reduction runs are innermost, so that its accumulators stay close. Reductions for which no
order serves all are done in several loop nests over the same domain.

The terms of a sum are added in an order that depends on the sum alone: on its extents, the axes that it runs along, how
the terms lie in memory, and the lanes of a vector, which the widest dtype of a kernel sets. What else a kernel computes
only decides how many vectors a round does, whether partial sums are in registers, and whether vectors cross the axis
along which a short sum has its order. One kind of kernel is an exception: sums for which different axes are best share
the axis that is best for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from quabla.lowering.loops import Apply, Kernel, Load, Reduce, Scalar, Store, restrict
from quabla_cpu.pointwise import MATH

__all__ = ["PARTIAL", "Schedule", "schedules"]

_MATH_COST = 12.0
_MATH = frozenset(MATH)
_UNROLLED = 4  # vectors of one axis that are written out without a loop
PARTIAL = 4  # vectors of partial sums of a long sum
_LONG = 16  # vectors that are added one after another: meanwhile the next row begins
_LIGHT = 16.0  # instructions up to which all of these are added to in each round of a loop
_ARITHMETIC = 4.0  # instructions that compute what is summed, taken as if all sums were alike


class Schedule(NamedTuple):
    """The loops of a kernel.

    Attributes:
        kernel: what to compute.
        axis: the axis along the lanes, or -1 where the domain is a single point.
        lanes: lanes of a vector.
        starts: where the vectors of a tile begin, relative to the tile.
        tiles: how many tiles cover the axis, but for the rest of it.
        order: the axes of the loops, outermost first; `axis` is not among them where its vectors are written out.
        rest: where the vectors begin that come after the tiles, relative to the first of them.
        partial: vectors of partial sums that a sum along the axis has; each vector along the axis goes to the next one.
        other: the axis, and the lanes along it, that give sums their order, where these vectors cross it.
    """

    kernel: Kernel
    axis: int
    lanes: int
    starts: tuple[int, ...]
    tiles: int
    order: tuple[int, ...]
    rest: tuple[int, ...] = ()
    partial: int = 1
    other: tuple[int, int] | None = None


def schedules(kernel: Kernel, vector_bytes: int) -> Iterator[Schedule]:
    """The loop nests that together do a kernel."""
    widest = _lanes(kernel, vector_bytes)
    axis, lanes = _axis(kernel, widest)
    crossing = _crossing(kernel, axis, lanes, widest)
    if crossing is None:
        yield from _schedules(kernel, axis, lanes)
    else:
        for s in _schedules(kernel, *crossing):
            yield s._replace(other=(axis, lanes))


def _schedules(kernel: Kernel, axis: int, lanes: int) -> Iterator[Schedule]:
    if axis < 0:
        yield Schedule(kernel, -1, 1, (0,), 1, ())
        return
    extent = kernel.domain[axis]
    weight = sum([_weight(e) for e in kernel.body])
    vectors = -(-extent // lanes)
    loops = [a for a in range(len(kernel.domain)) if a != axis]
    written_out = vectors == 1 or (vectors <= _UNROLLED and vectors * weight <= 400)
    if not written_out:
        loops.append(axis)
    for part, sets in _parts(kernel, loops):
        # Stable: axes of more reductions further in, else outer axes first and the vectors last.
        order = tuple(sorted(loops, key=lambda a: sum([a in s for s in sets])))
        if written_out:
            starts = tuple([min(i * lanes, extent - lanes) for i in range(vectors)])
            yield Schedule(part, axis, lanes, starts, 1, order)
        elif any([axis in e.axes for e in _sums(part)]):
            yield _summing(part, axis, lanes, order, weight)
        else:
            count = min(vectors, 4 if weight <= 8 else 2 if weight <= 16 else 1)
            starts = tuple(range(0, count * lanes, lanes))
            yield Schedule(part, axis, lanes, starts, -(-extent // (count * lanes)), order)


def _summing(kernel: Kernel, axis: int, lanes: int, order: tuple[int, ...], weight: float) -> Schedule:
    """The loops of a sum along the vectors.

    A term is added to the same lane of the same partial sum whatever else the kernel computes, which only decides how
    many vectors a round does. The last vector begins earlier where lanes are left over.
    """
    extent = kernel.domain[axis]
    vectors = -(-extent // lanes)
    partial = PARTIAL if vectors > _LONG else 1
    if weight > _LIGHT or vectors < PARTIAL:
        return Schedule(kernel, axis, lanes, (0,), vectors, order, (), partial)
    rounds, left = divmod(vectors, PARTIAL)
    if not left and extent % lanes:
        rounds, left = rounds - 1, PARTIAL
    starts = tuple([i * lanes for i in range(PARTIAL)])
    last = extent - lanes - PARTIAL * rounds * lanes
    rest = tuple([min(i * lanes, last) for i in range(left)])
    return Schedule(kernel, axis, lanes, starts, rounds, order, rest, partial)


def _crossing(kernel: Kernel, axis: int, lanes: int, widest: int) -> tuple[int, int] | None:
    """The axis of the vectors, and their lanes, where they cross the axis that gives short sums their order.

    So much arithmetic is cheaper that way, if the rows that are summed fill no whole vectors.
    """
    if not _sums(kernel) or -(-kernel.domain[axis] // lanes) > _UNROLLED:
        return None
    if any([type(e) is Reduce and e.axes != {axis} for e in kernel.body]):
        return None
    found = _vector_axis(kernel, widest)
    return None if found[0] == axis else found


def _axis(kernel: Kernel, widest: int) -> tuple[int, int]:
    """The axis that gives sums their order, or along which a kernel without sums costs least, and the lanes.

    What else a kernel computes has no say in it, unless its sums want different axes.
    """
    found = {_summing_axis(kernel, i, widest) for i, e in enumerate(kernel.body) if _is_sum(e)}
    return found.pop() if len(found) == 1 else _vector_axis(kernel, widest)


def _is_sum(e: object) -> bool:
    """Whether an entry is a reduction whose order of terms shows in the result."""
    return type(e) is Reduce and e.op == "sum" and e.buffer.dtype.kind == "f"


def _sums(kernel: Kernel) -> list[Reduce]:
    return [e for e in kernel.body if _is_sum(e)]  # type: ignore[misc]


def _lanes(kernel: Kernel, vector_bytes: int) -> int:
    size = 0
    for e in kernel.body:
        if isinstance(e, (Apply, Scalar)):
            size = max(size, e.dtype.itemsize)
        else:
            size = max(size, e.buffer.dtype.itemsize)
    return vector_bytes // max(size, 4)


def _weight(e: object) -> float:
    """About how many instructions an entry is."""
    if isinstance(e, Apply):
        return _MATH_COST if e.op in _MATH else 1.0
    return 0.0 if isinstance(e, Scalar) else 1.0


def _vector_axis(kernel: Kernel, widest: int) -> tuple[int, int]:
    """The axis along which the whole domain costs least, and the lanes to use; the last one if several do.

    Where it orders sums, an axis along which nothing is summed counts as if it were long, as for one sum.
    """
    accesses = [e for e in kernel.body if isinstance(e, (Load, Store, Reduce))]
    arithmetic = sum([_weight(e) for e in kernel.body]) - len(accesses)  # each weighs 1
    summed = bool(_sums(kernel))

    def cost(a: int) -> float:
        n = kernel.domain[a]
        kept = summed and not any([type(e) is Reduce and a in e.axes for e in accesses])
        lanes = widest if kept else _fitting(widest, n)
        total = arithmetic
        for e in accesses:
            if not isinstance(e, Reduce):
                step = e.strides[a]
                total += 1.0 if step == 1 else 0.2 if step == 0 else 2.0 if step == -1 else 1.5 * lanes
            else:
                total += _reducing(e.axes, e.strides[a], a, kernel.domain, lanes)
        return total * (1.0 / lanes if kept else -(-n // lanes) / n)

    return _cheapest(kernel.domain, widest, cost)


def _summing_axis(kernel: Kernel, i: int, widest: int) -> tuple[int, int]:
    """The same for a sum, which the axis gives its order: a function of the extents, and of how the terms lie.

    An axis along which nothing is summed counts as if it were long: what a row sums up to does not depend on how many
    others there are.
    """
    e = kernel.body[i]
    assert type(e) is Reduce
    domain = kernel.domain
    near = _nearest(restrict(kernel, [i]))

    def cost(a: int) -> float:
        n = domain[a]
        kept = a not in e.axes
        lanes = widest if kept else _fitting(widest, n)
        total = _ARITHMETIC + (1.0 if a == near else 1.5 * lanes)
        total += _reducing(e.axes, e.strides[a], a, domain, lanes)
        return total * (1.0 / lanes if kept else -(-n // lanes) / n)

    return _cheapest(domain, widest, cost)


def _reducing(axes: frozenset[int], stride: int, a: int, domain: tuple[int, ...], lanes: int) -> float:
    """About how many instructions a reduction takes for each vector along an axis."""
    if a not in axes:
        return 1.0 + (0 if stride == 1 else 0.2 * lanes)
    if len(axes) < len(domain):  # lanes are summed once per remaining point
        return 1.0 + 12.0 * lanes / domain[a]
    return 1.0


def _nearest(kernel: Kernel) -> int:
    """The axis along which neighbours in memory lie; the last one unless all large arrays say otherwise.

    Constants have no say: whether one is repeated or stored as often as there are rows depends on their number.
    """
    last = len(kernel.domain) - 1
    units = {
        e.strides.index(1) if 1 in e.strides else last
        for e in kernel.body
        if type(e) is Load and e.buffer.kind != "constant" and all(e.strides)
    }
    return units.pop() if len(units) == 1 else last


def _cheapest(domain: tuple[int, ...], widest: int, cost: Callable[[int], float]) -> tuple[int, int]:
    if not domain:
        return -1, 1
    best = len(domain) - 1
    least = cost(best)
    for a in range(best - 1, -1, -1):
        found = cost(a)
        if found < least - 1e-9:
            best, least = a, found
    return best, _fitting(widest, domain[best])


def _fitting(widest: int, extent: int) -> int:
    """The lanes of a vector that is not longer than an axis."""
    while widest > extent:
        widest //= 2
    return widest


def _parts(kernel: Kernel, loops: list[int]) -> list[tuple[Kernel, list[frozenset[int]]]]:
    """The kernel in parts such that of any two reductions of a part one runs along all loops of the other.

    Sums keep the order of their own loops: those that only one of two runs along are outside of the others.
    """
    chains: list[tuple[list[int], list[frozenset[int]]]] = [([], [])]

    def fits(along: frozenset[int], other: frozenset[int]) -> bool:
        few, many = sorted((along, other), key=len)
        inner = [a for a in loops if a in many][len(many) - len(few) :]
        return few <= many and few.issuperset(inner)

    for i, e in enumerate(kernel.body):
        if isinstance(e, Reduce):
            along = e.axes.intersection(loops)
            for roots, sets in chains:
                if all([fits(along, s) for s in sets]):
                    roots.append(i)
                    sets.append(along)
                    break
            else:
                chains.append(([i], [along]))
    if len(chains) == 1:
        return [(kernel, chains[0][1])]
    chains[0][0].extend([i for i, e in enumerate(kernel.body) if isinstance(e, Store)])
    return [(restrict(kernel, sorted(roots)), sets) for roots, sets in chains]
