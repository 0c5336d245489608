"""`gather`, `scatter_add` and `searchsorted`: loops whose addresses are computed from data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from quabla.dtypes import dtype
from quabla.lowering.loops import Call
from quabla_cpu import text
from quabla_cpu.rounds import divided, vectors
from quabla_cpu.routines import address, routine
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import Code, load, memory_type, store

__all__ = ["elements", "rows"]

_UNROLLED = 4  # vectors of a row that are written out without a loop


@contextmanager
def rows(b: Builder, *extents: int) -> Iterator[list[Value]]:
    """Nested loops over these extents; those of 1 have the constant index 0."""
    with ExitStack() as loops:
        yield [loops.enter_context(b.loop(0, n)) if n != 1 else text.number(0) for n in extents]


def elements(b: Builder, extent: int, widest: int, write: Callable[[Value, int], None]) -> None:
    """All elements of a row, each once: `write(first, lanes)` for vectors, and then for what is left of them."""
    lanes = widest
    while lanes > extent:
        lanes //= 2
    full = extent // lanes
    at = 0
    if full > _UNROLLED:
        with b.loop(0, full * lanes, lanes) as j:
            write(j, lanes)
        at = full * lanes
    while at < extent:
        while lanes > extent - at:
            lanes //= 2
        write(text.number(at), lanes)
        at += lanes


def at(b: Builder, *terms: tuple[Value, int]) -> Value:
    """index * extent + index * extent + ..., Horner's way: each term's extent multiplies what stands before it."""
    total: Value | None = None
    for index, extent in terms:
        total = index if total is None else b.add(b.mul(total, text.number(extent), "nsw"), index, "nsw")
    assert total is not None
    return total


def _inside(b: Builder, i: Value, extent: int) -> Value:
    """A position as the op defines it: from the end if it is negative, then the nearest one inside."""

    def number(n: int) -> Value:
        return text.constant(i.type, n)

    place = b.select(b.icmp("slt", i, number(0)), b.add(i, number(extent)), i)
    return b.intrinsic("smax", b.intrinsic("smin", place, number(extent - 1)), number(0))


def _extents(
    params: dict[str, Any], shape: Sequence[int], positions: Sequence[int]
) -> tuple[int, int, int, int]:
    """How many sets of positions, others before the axis, positions of a set, and elements at each."""
    axis, batch = params["axis"], params["batch"]
    count = math.prod(positions[batch:])
    return math.prod(shape[:batch]), math.prod(shape[batch:axis]), count, math.prod(shape[axis:])


def _row(b: Builder, d: dtype, base: Value, index: Value, count: int) -> Value:
    """The address of a row of `count` elements."""
    return b.gep(memory_type(d), base, b.mul(index, text.number(count), "nsw") if count != 1 else index)


@routine("gather")
def _gather(code: Code, step: Call) -> None:
    b, (x, i) = code.b, step.node.inputs
    extent = x.shape[step.node.params["axis"]]
    sets, others, count, size = _extents(step.node.params, x.shape, i.shape)
    size //= extent
    source, positions = (address(code, buffer, offset) for buffer, offset in step.inputs)
    kind, out = memory_type(x.dtype), address(code, step.outputs[0])
    itemsize = x.dtype.itemsize
    widest = code.vector_bytes // itemsize
    with rows(b, sets, others) as (s, o):
        line = _row(b, x.dtype, source, at(b, (s, sets), (o, others)), extent * size)
        wanted = _row(b, i.dtype, positions, s, count)
        to = _row(b, x.dtype, out, at(b, (s, sets), (o, others)), count * size)

        def row(inner: Code, pointers: Sequence[Value], k: Value) -> None:
            b, (line, wanted, to) = inner.b, pointers
            start = _row(b, x.dtype, line, _inside(b, b.load("i64", b.gep("i64", wanted, k)), extent), size)
            end = _row(b, x.dtype, to, k, size)

            def copy(j: Value, lanes: int) -> None:
                elements = b.load(text.vector(kind, lanes), b.gep(kind, start, j), itemsize)
                b.store(elements, b.gep(kind, end, j), itemsize)

            elements(b, size, widest, copy)

        def single(inner: Code, pointers: Sequence[Value], k: Value, lanes: int) -> None:
            b, (line, wanted, to) = inner.b, pointers
            places = _inside(b, b.load(text.vector("i64", lanes), b.gep("i64", wanted, k), 8), extent)
            b.store(_pick(b, kind, line, places), b.gep(kind, to, k), itemsize)

        if size == 1:
            vectors(code, (line, wanted, to), count, 1 if itemsize == 1 else 8, 1.0, single)
        else:
            divided(code, (line, wanted, to), count, 4.0 + size * itemsize / 16.0, row)


def _pick(b: Builder, kind: str, line: Value, places: Value) -> Value:
    """The elements of a line at one or several places."""
    lanes = text.lanes(places.type)
    addresses = b.gep(kind, line, places)
    return b.load(kind, addresses) if lanes == 1 else b.gather(text.vector(kind, lanes), addresses)


@routine("scatter_add")
def _scatter_add(code: Code, step: Call) -> None:
    b, (u, i) = code.b, step.node.inputs
    extent = step.node.params["extent"]
    sets, others, count, size = _extents(step.node.params, u.shape, i.shape)
    size //= count
    source, positions = (address(code, buffer, offset) for buffer, offset in step.inputs)
    kind, out = memory_type(u.dtype), address(code, step.outputs[0])
    b.memset(out, text.constant("i8", 0), text.number(step.node.outputs[0].aval.nbytes))
    with rows(b, sets, others, count) as (s, o, k):
        p = _inside(b, b.load("i64", b.gep("i64", positions, at(b, (s, sets), (k, count)))), extent)
        start = _row(b, u.dtype, source, at(b, (s, sets), (o, others), (k, count)), size)
        to = _row(b, u.dtype, out, at(b, (s, sets), (o, others), (p, extent)), size)

        def add(j: Value, lanes: int) -> None:
            there = b.gep(kind, to, j)
            old, new = load(b, u.dtype, there, lanes), load(b, u.dtype, b.gep(kind, start, j), lanes)
            store(b, u.dtype, b.fadd(old, new) if text.is_float(kind) else b.add(old, new), there)

        elements(b, size, code.vector_bytes // u.dtype.itemsize, add)


@routine("searchsorted")
def _searchsorted(code: Code, step: Call) -> None:
    b, (a, v) = code.b, step.node.inputs
    n, sets = a.shape[-1], math.prod(a.shape[:-1])
    count = v.size // sets
    line, values = (address(code, buffer, offset) for buffer, offset in step.inputs)
    kind, out = memory_type(a.dtype), address(code, step.outputs[0])
    right = step.node.params["side"] == "right"

    def search(inner: Code, pointers: Sequence[Value], k: Value, lanes: int) -> None:
        b, (start, wanted, to) = inner.b, pointers
        x = load(b, a.dtype, b.gep(kind, wanted, k), lanes)
        b.store(_search(b, a.dtype, start, n, x, right), b.gep("i64", to, k), 8)

    with rows(b, sets) as (s,):
        pointers = [
            _row(b, a.dtype, line, s, n),
            _row(b, a.dtype, values, s, count),
            b.gep("i64", out, b.mul(s, text.number(count), "nsw")),
        ]
        vectors(code, pointers, count, 1 if a.dtype.itemsize == 1 else 8, 0.5 * n.bit_length(), search)


def _search(b: Builder, d: dtype, line: Value, n: int, wanted: Value, right: bool) -> Value:
    """How many of the `n` elements of a line belong before each lane of `wanted`.

    Halves of the line are left out, the same number for all lanes, so nothing branches. What lies before `low` belongs
    before `wanted`, what lies `length` behind it does not.
    """
    lanes = text.lanes(wanted.type)
    low = text.constant(text.vector("i64", lanes), 0)

    def passed(low: Value, ahead: int) -> Value:
        """`low`, moved by `ahead` where the last element of those moved over belongs before `wanted`."""
        there = b.add(low, text.constant(low.type, ahead - 1))
        x = _pick(b, memory_type(d), line, there)
        if d.name == "bool":
            x = b.icmp("ne", x, text.constant(x.type, 0))
        behind = b.not_(_before(b, wanted, x)) if right else _before(b, x, wanted)
        return b.select(behind, b.add(low, text.constant(low.type, ahead)), low)

    length = n
    while length > 1:
        low = passed(low, length // 2)
        length -= length // 2
    return passed(low, 1) if n else low


def _before(b: Builder, x: Value, y: Value) -> Value:
    """Whether x comes before y in ascending order, in which NaN is last."""
    if not text.is_float(x.type):
        return b.icmp("ult" if text.element(x.type) == "i1" else "slt", x, y)
    return b.or_(b.fcmp("olt", x, y), b.and_(b.fcmp("uno", y, y), b.fcmp("ord", x, x)))
