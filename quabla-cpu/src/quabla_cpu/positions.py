"""`gather`, `scatter_add` and `searchsorted`: loops whose addresses are computed from data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from quabla.dtypes import dtype
from quabla.lowering.loops import Call
from quabla_cpu import text
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
    i = b.select(b.icmp("slt", i, text.number(0)), b.add(i, text.number(extent)), i)
    return b.intrinsic("smax", b.intrinsic("smin", i, text.number(extent - 1)), text.number(0))


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
    with rows(b, sets, others, count) as (s, o, k):
        p = _inside(b, b.load("i64", b.gep("i64", positions, at(b, (s, sets), (k, count)))), extent)
        start = _row(b, x.dtype, source, at(b, (s, sets), (o, others), (p, extent)), size)
        to = _row(b, x.dtype, out, at(b, (s, sets), (o, others), (k, count)), size)

        def copy(j: Value, lanes: int) -> None:
            b.store(
                b.load(text.vector(kind, lanes), b.gep(kind, start, j), x.dtype.itemsize),
                b.gep(kind, to, j),
                x.dtype.itemsize,
            )

        elements(b, size, code.vector_bytes // x.dtype.itemsize, copy)


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
    with rows(b, sets, count) as (s, k):
        here = at(b, (s, sets), (k, count))
        wanted = load(b, a.dtype, b.gep(kind, values, here))
        start = _row(b, a.dtype, line, s, n)
        with b.while_([text.number(0), text.number(n)]) as loop:
            low, high = loop.values
            loop.proceed(b.icmp("slt", low, high))
            middle = b.lshr(b.add(low, high), text.number(1))
            x = load(b, a.dtype, b.gep(kind, start, middle))
            behind = b.not_(_before(b, wanted, x)) if right else _before(b, x, wanted)
            loop.update(b.select(behind, b.add(middle, text.number(1)), low), b.select(behind, high, middle))
        b.store(loop.results[0], b.gep("i64", out, here))


def _before(b: Builder, x: Value, y: Value) -> Value:
    """Whether x comes before y in ascending order, in which NaN is last."""
    if not text.is_float(x.type):
        return b.icmp("ult" if x.type == "i1" else "slt", x, y)
    return b.or_(b.fcmp("olt", x, y), b.and_(b.fcmp("uno", y, y), b.fcmp("ord", x, x)))
