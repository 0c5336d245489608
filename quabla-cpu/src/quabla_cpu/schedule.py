"""How a kernel becomes loops: the vector axis, how many vectors at a time, and the order of the loops.

One axis of the domain runs along the lanes of vectors. It is covered by tiles of `count` vectors; where its extent is
no multiple of a tile, the last tile starts earlier and does some elements twice. Doing them twice is harmless for
stores (a kernel reads nothing that it writes), and sums leave the repeated lanes out: no masked memory access, no code
for remainders, and a domain of three elements takes two vectors of two lanes.

Accumulators stay in registers: the loops along which a reduction runs are innermost. Reductions for which no order
serves all are done in several loop nests over the same domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quabla.lowering.loops import Apply, Kernel, Load, Reduce, Scalar, Store, restrict
from quabla_cpu.pointwise import MATH

__all__ = ["Schedule", "schedules"]

_MATH_COST = 12.0
_MATH = frozenset(MATH)
_UNROLLED = 4  # vectors of one axis that are written out without a loop


class Schedule(NamedTuple):
    """The loops of a kernel.

    Attributes:
        kernel: what to compute.
        axis: the axis along the lanes, or -1 where the domain is a single point.
        lanes: lanes of a vector.
        starts: where the vectors of a tile begin, relative to the tile.
        tiles: how many tiles cover the axis; where it is 1 there is no loop along it.
        order: the axes of the loops, outermost first; `axis` is among them where `tiles` > 1.
    """

    kernel: Kernel
    axis: int
    lanes: int
    starts: tuple[int, ...]
    tiles: int
    order: tuple[int, ...]


def schedules(kernel: Kernel, vector_bytes: int) -> Iterator[Schedule]:
    """The loop nests that together do a kernel."""
    weights = [_weight(e) for e in kernel.body]
    axis, lanes = _vector_axis(kernel, _lanes(kernel, vector_bytes), weights)
    if axis < 0:
        yield Schedule(kernel, -1, 1, (0,), 1, ())
        return
    extent = kernel.domain[axis]
    weight = sum(weights)
    vectors = -(-extent // lanes)
    if vectors == 1 or (vectors <= _UNROLLED and vectors * weight <= 400):
        starts = tuple([min(i * lanes, extent - lanes) for i in range(vectors)])
        tiles = 1
    else:
        count = min(vectors, 4 if weight <= 8 else 2 if weight <= 16 else 1)
        starts = tuple(range(0, count * lanes, lanes))
        tiles = -(-extent // (count * lanes))
    loops = [a for a in range(len(kernel.domain)) if a != axis] + [axis] * (tiles > 1)
    for part, sets in _parts(kernel, frozenset(loops)):
        # Stable: axes of more reductions further in, else outer axes first and the vectors last.
        order = sorted(loops, key=lambda a: sum([a in s for s in sets]))
        yield Schedule(part, axis, lanes, starts, tiles, tuple(order))


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


def _vector_axis(kernel: Kernel, widest: int, weights: list[float]) -> tuple[int, int]:
    """The axis along which the whole domain costs least, and the lanes to use; the last one if several do.

    Where a row is summed, the axis decides in which order. An axis along which nothing is summed then counts as if it
    were long: what a row sums up to does not depend on how many others there are.
    """
    if not kernel.domain:
        return -1, 1
    reductions = [e for e in kernel.body if isinstance(e, Reduce)]
    accesses = [e for e in kernel.body if isinstance(e, (Load, Store, Reduce))]
    arithmetic = sum(weights) - len(accesses)  # each weighs 1
    best: tuple[float, int, int] | None = None
    for a in range(len(kernel.domain) - 1, -1, -1):
        n = kernel.domain[a]
        kept = bool(reductions) and not any([a in e.axes for e in reductions])
        lanes = widest
        while lanes > n and not kept:
            lanes //= 2
        cost = arithmetic
        for e in accesses:
            if not isinstance(e, Reduce):
                step = e.strides[a]
                cost += 1.0 if step == 1 else 0.2 if step == 0 else 2.0 if step == -1 else 1.5 * lanes
            else:
                if a not in e.axes:
                    cost += 1.0 + (0 if e.strides[a] == 1 else 0.2 * lanes)
                elif len(e.axes) < len(kernel.domain):  # lanes are summed once per remaining point
                    cost += 1.0 + 12.0 * lanes / n
                else:
                    cost += 1.0
        cost *= 1.0 / lanes if kept else -(-n // lanes) / n
        while lanes > n:
            lanes //= 2
        if best is None or cost < best[0] - 1e-9:
            best = cost, a, lanes
    assert best is not None
    return best[1], best[2]


def _parts(kernel: Kernel, loops: frozenset[int]) -> list[tuple[Kernel, list[frozenset[int]]]]:
    """The kernel in parts such that of any two reductions of a part one runs along all loops of the other."""
    chains: list[tuple[list[int], list[frozenset[int]]]] = [([], [])]
    for i, e in enumerate(kernel.body):
        if isinstance(e, Reduce):
            along = e.axes & loops
            for roots, sets in chains:
                if all([along <= s or s <= along for s in sets]):
                    roots.append(i)
                    sets.append(along)
                    break
            else:
                chains.append(([i], [along]))
    if len(chains) == 1:
        return [(kernel, chains[0][1])]
    chains[0][0].extend([i for i, e in enumerate(kernel.body) if isinstance(e, Store)])
    return [(restrict(kernel, sorted(roots)), sets) for roots, sets in chains]
