"""A function for all large products of a dtype: extents and strides are its arguments.

    product(vectors, splats, out, rows, columns, terms,
            term_apart, column_apart, row_apart, splat_term_apart, out_row_apart, more, block)

    out[row, column] = sum over terms of splats[row, term] * vectors[term, column]

in elements; columns of the result are contiguous. Where `more` is not 0 the sums are added to what is in `out`. There
is at least one whole tile. It is compiled once, and then serves every program; there is one for wide results and one
for narrow ones.

Terms are summed `block` at a time, at most `BLOCK`: so many stay in a cache. The packed form copies a column of tiles
first; the other reads vectors where they are. As everywhere, the last tile of an axis starts earlier; when sums are
added to, what another tile has done is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from quabla.dtypes import dtype
from quabla_cpu import text
from quabla_cpu.executable import PRODUCT
from quabla_cpu.pointwise import register_type
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import load, memory_type, store, transposed

__all__ = ["BLOCK", "Shape", "shapes", "write"]

BLOCK = 512
"""Terms that are summed in one go, in every product: the order of a sum depends on its length alone."""


class Shape(NamedTuple):
    """The tile of the function: rows, vectors, and lanes of a vector."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """The columns of a tile."""
        return self.vectors * self.lanes


def shapes(vector_bytes: int, itemsize: int) -> tuple[Shape, ...]:
    """The tile that fills the registers of a machine, and one for results of few columns."""
    lanes = vector_bytes // itemsize
    return Shape(*((6, 4) if vector_bytes == 64 else (4, 3)), lanes), Shape(8, 1, lanes)


@lru_cache(maxsize=64)
def write(attributes: str, d: dtype, tile: Shape, packed: bool, fma: bool) -> str:
    """The module of the function."""
    module = text.Module(attributes)
    pointers = [("ptr", "noalias readonly"), ("ptr", "noalias readonly"), ("ptr", "noalias")]
    b = module.function(PRODUCT, "void", [*pointers, *["i64"] * 10])
    _Writer(b, d, tile, packed, fma).write()
    b.ret()
    return module.text()


class _Writer:
    def __init__(self, b: Builder, d: dtype, tile: Shape, packed: bool, fma: bool) -> None:
        self.b, self.d, self.t, self.packed, self.fma = b, d, tile, packed, fma
        self.element = memory_type(d)
        self.vectors, self.splats, self.out = b.arguments[:3]
        self.rows, self.columns, self.terms = b.arguments[3:6]
        self.term, self.column, self.row, self.splat_term, self.out_row, self.more, self.block = b.arguments[
            6:
        ]

    def at(self, base: Value, i: Value, apart: Value | int) -> Value:
        """The address of element `i` of those that are `apart`."""
        step = text.number(apart) if isinstance(apart, int) else apart
        return self.b.gep(self.element, base, self.b.mul(i, step, "nsw"))

    def write(self) -> None:
        b, t = self.b, self.t
        panel = b.alloca(self.element, BLOCK * t.columns, 64) if self.packed else None
        with b.loop(0, self.terms, self.block) as first:
            terms = b.intrinsic("smin", b.sub(self.terms, first), self.block)
            more = b.or_(self.more, first)  # the sums of the terms so far are in `out`
            vectors, splats = (
                self.at(self.vectors, first, self.term),
                self.at(self.splats, first, self.splat_term),
            )
            with self.tiles(self.columns, t.columns) as (column, done):
                here = self.at(vectors, column, self.column)
                if panel is None:
                    self.column_of_tiles(here, self.term, splats, terms, more, column, done)
                else:
                    self.pack(here, terms, panel)
                    self.column_of_tiles(panel, t.columns, splats, terms, more, column, done)

    @contextmanager
    def tiles(self, extent: Value, size: int) -> Iterator[tuple[Value, Value]]:
        """A loop over tiles of an axis: where a tile begins, and how much of its beginning is done already."""
        with self.b.loop(0, extent, size) as index:
            at = self.b.intrinsic("smin", index, self.b.sub(extent, text.number(size)))
            yield at, self.b.sub(index, at)

    def pack(self, source: Value, terms: Value, panel: Value) -> None:
        b, t = self.b, self.t
        contiguous = b.branch(b.icmp("eq", self.column, text.number(1)))
        with contiguous.then():
            with b.loop(0, terms) as k:
                there, to = self.at(source, k, self.term), self.at(panel, k, t.columns)
                for g in range(0, t.columns, t.lanes):
                    x = load(b, self.d, b.gep(self.element, there, g), t.lanes)
                    store(b, self.d, x, b.gep(self.element, to, g))
        with contiguous.otherwise():
            turned = b.branch(b.icmp("eq", self.term, text.number(1)))
            with turned.then():
                self.pack_turned(source, terms, panel)
            with turned.otherwise():
                with b.loop(0, text.number(t.columns)) as i:
                    there, to = self.at(source, i, self.column), b.gep(self.element, panel, i)
                    self.copy(there, self.term, text.number(0), terms, to)
            turned.results()
        contiguous.results()

    def copy(self, there: Value, apart: Value | int, first: Value, end: Value, to: Value) -> None:
        """Copy elements that are `apart` into a column of the panel, one by one."""
        with self.b.loop(first, end) as k:
            x = load(self.b, self.d, self.at(there, k, apart))
            store(self.b, self.d, x, self.at(to, k, self.t.columns))

    def pack_turned(self, source: Value, terms: Value, panel: Value) -> None:
        """The terms of a column are contiguous: squares of them are transposed in registers."""
        b, t = self.b, self.t
        whole = b.and_(terms, text.number(-t.lanes))
        with b.loop(0, text.number(t.columns), t.lanes) as column:
            starts = [self.at(source, b.add(column, text.number(i)), self.column) for i in range(t.lanes)]
            to = b.gep(self.element, panel, column)
            with b.loop(0, whole, t.lanes) as k:
                square = [load(b, self.d, b.gep(self.element, start, k), t.lanes) for start in starts]
                end = self.at(to, k, t.columns)
                for i, x in enumerate(transposed(b, square)):
                    store(b, self.d, x, b.gep(self.element, end, i * t.columns))
            for i, start in enumerate(starts):
                self.copy(start, 1, whole, terms, b.gep(self.element, to, i) if i else to)

    def column_of_tiles(
        self,
        vectors: Value,
        apart: Value | int,
        splats: Value,
        terms: Value,
        more: Value,
        column: Value,
        columns_done: Value,
    ) -> None:
        b, t = self.b, self.t
        with self.tiles(self.rows, t.rows) as (row, rows_done):
            rows = [self.at(splats, b.add(row, text.number(i)), self.row) for i in range(t.rows)]
            zero = text.constant(register_type(self.d, t.lanes), 0)
            with b.carry(0, terms, [zero] * (t.rows * t.vectors)) as (k, loop):
                here = self.at(vectors, k, apart)
                xs = [
                    load(b, self.d, b.gep(self.element, here, g), t.lanes)
                    for g in range(0, t.columns, t.lanes)
                ]
                sums = []
                for i, start in enumerate(rows):
                    y = b.splat(load(b, self.d, self.at(start, k, self.splat_term)), t.lanes)
                    for g, x in enumerate(xs):
                        z = loop.values[i * t.vectors + g]
                        sums.append(b.fma(x, y, z) if self.fma else b.fadd(b.fmul(x, y), z))
                loop.update(*sums)
            out = b.gep(self.element, self.out, column)
            places = [self.at(out, b.add(row, text.number(i)), self.out_row) for i in range(t.rows)]
            adding = b.branch(b.icmp("ne", more, text.number(0)))
            with adding.then():
                self.add(loop.results, places, rows_done, columns_done)
            with adding.otherwise():
                for i, place in enumerate(places):
                    for g in range(t.vectors):
                        to = b.gep(self.element, place, g * t.lanes)
                        store(b, self.d, loop.results[i * t.vectors + g], to)
            adding.results()

    def add(self, sums: list[Value], places: list[Value], rows_done: Value, columns_done: Value) -> None:
        b, t = self.b, self.t
        kind = text.vector("i64", t.lanes)
        done = [
            b.icmp("slt", b.iota(kind, text.number(g * t.lanes)), b.splat(columns_done, t.lanes))
            for g in range(t.vectors)
        ]
        for i, place in enumerate(places):
            with b.if_(b.icmp("sge", text.number(i), rows_done)):
                for g in range(t.vectors):
                    to = b.gep(self.element, place, g * t.lanes)
                    before = load(b, self.d, to, t.lanes)
                    x = b.select(done[g], before, b.fadd(before, sums[i * t.vectors + g]))
                    store(b, self.d, x, to)
