"""Matrix products: register-tiled loops.

The loops of a product are a function of their own, `product(left, right, out)`, in a module of its own: products of one
form are compiled once, however many programs use them. Only a handful of multiplications is written in place.

A tile of the result is `rows` x `vectors` accumulators that stay in registers while k runs. One operand is read as
vectors, the other one element at a time, spread over the lanes; either operand may be the one that is read as vectors,
and any strides are allowed. As in `schedule.py` the last tile of an axis starts earlier where the extent is no
multiple, so there is no code for remainders: results that are computed twice are stored twice.

Sums are added up in blocks of k, so that what is read stays in a cache; vectors whose elements lie apart are packed
first. This is as fast as one thread of a good BLAS; several threads get parts of the product (`panels.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from quabla.lowering.loops import Axis, Product, Rows
from quabla_cpu import product, text
from quabla_cpu.executable import PRODUCT
from quabla_cpu.pointwise import register_type
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import Code, load, memory_type, store

__all__ = ["write_product"]

_IN_PLACE = 64  # multiplications that are written into the program itself

_UNIT = Axis(1, 0, 0, 0)
_UNROLLED = 96  # multiply-adds of a tile that are written out without a loop over k
_LARGE = 1 << 15  # multiplications from which one function serves all products
_LONG = 32  # elements of an axis that fill a tile
_FAR = 1024  # bytes between vectors from which they are packed where they are used often


class _Side(NamedTuple):
    """An axis of the result that belongs to one operand: extent, stride in the operand, stride in the result."""

    extent: int
    stride: int
    out: int


class _Tiling(NamedTuple):
    """The operand read as vectors, the other one, and the tile.

    Attributes:
        flipped: whether the left operand is the one read as vectors.
        lanes: lanes of a vector.
        vectors: vectors of a tile.
        rows: rows of a tile.
        packed: whether the vectors of a column of tiles are first copied, one after another.
        terms: how many terms of the sum are done at a time.
        gathered: whether vectors are read one element at a time.
        cost: instructions, about.
    """

    flipped: bool
    lanes: int
    vectors: int
    rows: int
    packed: bool
    terms: int
    gathered: bool
    cost: float


def write_product(code: Code, p: Product, start: tuple[Rows, Value] | None = None) -> None:
    """Write a product, or a call of its function.

    Args:
        code: the function being written.
        p: the product.
        start: an axis, and the index along it at which the product begins. Private buffers begin there, too.
    """
    b = code.b
    element = memory_type(p.dtype)
    pointers = []
    for i, (buffer, offset) in enumerate(
        ((p.left, p.left_offset), (p.right, p.right_offset), (p.out, p.out_offset))
    ):
        at = b.gep(element, code.pointers[buffer], offset) if offset else code.pointers[buffer]
        if start is not None and buffer.kind != "private":
            rows, index = start
            at = _advance(b, element, at, index, getattr(p, rows.of)[rows.axis][i + 1])
        pointers.append(at)
    common = _common(code, p)
    if common is not None:
        _call_common(code, p, common, pointers)
        return
    tiling = _best(code, _main(p.m)[0], _main(p.n)[0], p)
    if math.prod([a.extent for a in (*p.batch, *p.m, *p.n, *p.k)]) <= _IN_PLACE:
        _write_tiles(code, p, tiling, pointers)
    else:
        b.call(code.function(_function(code, p, tiling)), "void", *pointers, attributes="nounwind")


class _Common(NamedTuple):
    """How the function for all large products does one: its tile, and which operand is read as vectors."""

    tile: product.Shape
    flipped: bool
    packed: bool


def _common(code: Code, p: Product) -> _Common | None:
    """Whether and how a function for all large products does this one; its rows are contiguous."""
    m, n = _main(p.m)[0], _main(p.n)[0]
    if len(p.k) != 1 or m.extent * n.extent * p.k[0].extent < _LARGE or 1 not in (m.out, n.out):
        return None
    flipped = n.out != 1
    v, r, k = (m, n, p.k[0].left) if flipped else (n, m, p.k[0].right)
    for tile in product.shapes(code.vector_bytes, p.dtype.itemsize):
        if v.extent >= tile.columns and r.extent >= tile.rows:
            scattered = _scattered(k * p.dtype.itemsize, p.k[0].extent, r.extent, tile.rows)
            return _Common(tile, flipped, scattered or v.left + v.right != 1)
    return None


def _call_common(code: Code, p: Product, how: _Common, pointers: Sequence[Value]) -> None:
    b = code.b
    m, outer_m = _main(p.m)
    n, outer_n = _main(p.n)
    (k,) = p.k
    symbol = code.function(product.write(b.module.attributes, p.dtype, how.tile, how.packed, code.fma))
    with ExitStack() as loops:
        left, right, out = _outer_loops(b, p, (*outer_m, *outer_n), loops, pointers)
        if how.flipped:
            operands = left, right, out
            numbers = n.extent, m.extent, k.extent, k.left, m.left, n.right, k.right, n.out
        else:
            operands = right, left, out
            numbers = m.extent, n.extent, k.extent, k.right, n.right, m.left, k.left, m.out
        constants = [text.constant("i64", x) for x in (*numbers, int(p.more), _block(k.extent))]
        b.call(symbol, "void", *operands, *constants, attributes="nounwind")


def _function(code: Code, p: Product, tiling: _Tiling) -> str:
    """The module that holds the loops of a product."""
    module = text.Module(code.b.module.attributes)
    b = module.function(
        PRODUCT,
        "void",
        [("ptr", "noalias readonly"), ("ptr", "noalias readonly"), ("ptr", "noalias")],
    )
    _write_tiles(Code(b, code.vector_bytes, code.fma), p, tiling, b.arguments)
    b.ret()
    return module.text()


def _outer_loops(
    b: Builder, p: Product, axes: tuple[Axis, ...], loops: ExitStack, pointers: Sequence[Value]
) -> tuple[Value, Value, Value]:
    """Loops over the batch and the axes that are not tiled; the addresses of both operands and the result inside."""
    left, right, out = pointers
    element = memory_type(p.dtype)
    for axis in (*p.batch, *axes):
        i = loops.enter_context(b.loop(0, axis.extent))
        left = _advance(b, element, left, i, axis.left)
        right = _advance(b, element, right, i, axis.right)
        out = _advance(b, element, out, i, axis.out)
    return left, right, out


def _write_tiles(code: Code, p: Product, tiling: _Tiling, pointers: Sequence[Value]) -> None:
    b = code.b
    m, outer_m = _main(p.m)
    n, outer_n = _main(p.n)
    k, outer_k = _main(p.k)
    if tiling.terms < k.extent * math.prod([a.extent for a in outer_k]):
        _write_blocks(code, p, tiling, pointers)
        return
    terms = [*outer_k, k] if p.k else [_UNIT]
    with ExitStack() as loops:
        left, right, out = _outer_loops(b, p, (*outer_m, *outer_n), loops, pointers)
        if tiling.flipped:
            vector, row = _Side(m.extent, m.left, m.out), _Side(n.extent, n.right, n.out)
            _Tiles(code, p, tiling, vector, row, [(a.extent, a.left, a.right) for a in terms]).write(
                left, right, out
            )
        else:
            vector, row = _Side(n.extent, n.right, n.out), _Side(m.extent, m.left, m.out)
            _Tiles(code, p, tiling, vector, row, [(a.extent, a.right, a.left) for a in terms]).write(
                right, left, out
            )


def _write_blocks(code: Code, p: Product, tiling: _Tiling, pointers: Sequence[Value]) -> None:
    """The product as a sum of products over parts of the longest axis of k, added up in memory."""
    b = code.b
    k, outer_k = _main(p.k)
    element = memory_type(p.dtype)
    size = _block(k.extent, math.prod([a.extent for a in outer_k]))
    if not p.more:
        _write_zeros(code, p, pointers[2])

    def block(first: Value, extent: int) -> None:
        part = k._replace(extent=extent)
        left, right = (
            _advance(b, element, pointers[0], first, k.left),
            _advance(b, element, pointers[1], first, k.right),
        )
        some = p._replace(k=(*outer_k, part), more=True)
        whole = tiling._replace(terms=extent * math.prod([a.extent for a in outer_k]))
        _write_tiles(code, some, whole, (left, right, pointers[2]))

    with b.loop(0, k.extent - size + 1, size) as first:
        block(first, size)
    if k.extent % size:
        block(text.constant("i64", k.extent // size * size), k.extent % size)


def _block(extent: int, others: int = 1) -> int:
    """How far along an axis of k a block goes, where each step along it is `others` terms."""
    size = max(1, product.BLOCK // others)
    size = -(-extent // -(-extent // size))
    return next((n for n in range(size, max(size // 2, 1) - 1, -1) if extent % n == 0), size)


def _write_zeros(code: Code, p: Product, out: Value) -> None:
    # The result is contiguous, but a part of it need not be.
    b, element = code.b, memory_type(p.dtype)
    axes = sorted((*p.batch, *p.m, *p.n), key=lambda a: -a.out)
    run = 1
    while axes and axes[-1].out == run:
        run *= axes.pop().extent
    with ExitStack() as loops:
        for axis in axes:
            out = _advance(b, element, out, loops.enter_context(b.loop(0, axis.extent)), axis.out)
        b.memset(out, text.constant("i8", 0), text.constant("i64", run * p.dtype.itemsize))


def _main(axes: tuple[Axis, ...]) -> tuple[Axis, tuple[Axis, ...]]:
    """The axis to tile and the others, which become loops: a long one, of long ones the closest in memory."""
    if len(axes) < 2:
        return (axes[0] if axes else _UNIT), ()
    i = max(
        range(len(axes)),
        key=lambda j: (
            min(axes[j].extent, _LONG),
            -abs(axes[j].left) - abs(axes[j].right),
            axes[j].extent,
            j,
        ),
    )
    return axes[i], axes[:i] + axes[i + 1 :]


def _advance(b: Builder, element: str, base: Value, i: Value | None, stride: int) -> Value:
    if stride == 0 or i is None:
        return base
    return b.gep(element, base, i if stride == 1 else b.mul(i, text.constant("i64", stride), "nsw"))


# --- the choice of tiles ----------------------------------------------------------------------------------------------


def _best(code: Code, m: Axis, n: Axis, p: Product) -> _Tiling:
    itemsize = p.dtype.itemsize
    registers = 24 if code.vector_bytes == 64 else 12  # accumulators
    terms = math.prod([a.extent for a in p.k])
    k = _main(p.k)[0]
    sizes = terms, itemsize, code.vector_bytes, registers
    choices = [
        _tiling(False, _Side(n.extent, n.right, n.out), m.extent, k.right, *sizes),
        _tiling(True, _Side(m.extent, m.left, m.out), n.extent, k.left, *sizes),
    ]
    return min(choices, key=lambda t: t.cost)


def _tiling(
    flipped: bool,
    v: _Side,
    rows: int,
    stride: int,
    terms: int,
    itemsize: int,
    vector_bytes: int,
    registers: int,
) -> _Tiling:
    lanes = 1
    while 2 * lanes <= min(vector_bytes // itemsize, v.extent):
        lanes *= 2
    vectors = _even(-(-v.extent // lanes), 4 if registers >= 24 else 3)
    per_tile = _even(rows, min(registers // vectors, 8))
    columns = -(-v.extent // (lanes * vectors))
    tiles = columns * -(-rows // per_tile)
    strided = v.stride != 1 and lanes > 1
    packed = (strided and rows > per_tile) or _scattered(stride * itemsize, terms, rows, per_tile)
    gathered = strided and not packed
    cost = tiles * terms * (vectors * per_tile + vectors * (1.5 * lanes if gathered else 1.0) + per_tile)
    blocks = -(-terms // product.BLOCK)
    apart = 8.0 if abs(v.out) * itemsize >= _FAR else 2.0  # elements stored one by one, and in a page each
    cost += tiles * blocks * vectors * per_tile * (1.0 if v.out == 1 or lanes == 1 else apart * lanes)
    cost += (1.5 if strided else 0.5) * columns * terms * vectors * lanes * packed
    return _Tiling(flipped, lanes, vectors, per_tile, packed, min(terms, product.BLOCK), gathered, cost)


def _scattered(nbytes: int, terms: int, rows: int, per_tile: int) -> bool:
    """Whether vectors `nbytes` apart are worth a copy: each needs a page of its own, and many rows use them."""
    return abs(nbytes) >= _FAR and terms >= 64 and rows >= 8 * per_tile


def _even(count: int, most: int) -> int:
    """The size of tiles, at most `most`, that covers `count` with the least work done twice; the largest of those."""

    def waste(size: int) -> tuple[int, int]:
        tiles = -(-count // size)
        return tiles * (size + 2), -size

    return min(range(1, min(count, most) + 1), key=waste)


# --- tiled loops ------------------------------------------------------------------------------------------------------


class _Tiles:
    """The loops over the tiles of one matrix product."""

    def __init__(
        self, code: Code, p: Product, tiling: _Tiling, v: _Side, r: _Side, terms: list[tuple[int, int, int]]
    ) -> None:
        self.code, self.b, self.d, self.t = code, code.b, p.dtype, tiling
        self.v, self.r, self.terms = v, r, terms
        self.more = p.more
        self.element = memory_type(p.dtype)
        self.kind = register_type(p.dtype, tiling.lanes)

    def write(self, vectors: Value, splats: Value, out: Value) -> None:
        """Write all tiles; the operand that is read as vectors comes first."""
        b, t = self.b, self.t
        with ExitStack() as loops:
            column, starts, columns_done = self._tiles(loops, self.v.extent, t.lanes, t.vectors)
            vectors = _advance(b, self.element, vectors, column, self.v.stride)
            out = _advance(b, self.element, out, column, self.v.out)
            reads = starts
            if t.packed:
                vectors = self._pack(vectors, column is None)
                reads = [g * t.lanes for g in range(t.vectors)]
            row, rows, rows_done = self._tiles(loops, self.r.extent, 1, t.rows)
            splats = _advance(b, self.element, splats, row, self.r.stride)
            out = _advance(b, self.element, out, row, self.r.out)
            zero = text.constant(self.kind, 0)
            sums = self._sums(0, vectors, splats, [zero] * (len(starts) * len(rows)), reads, rows)
            if t.lanes > 1 and self.v.out != 1:
                self._spread(sums, out, rows, rows_done, starts, columns_done)
                return
            for j, place in enumerate(rows):
                for g, start in enumerate(starts):
                    at = b.gep(self.element, out, place * self.r.out + start)
                    x = sums[j * len(starts) + g]
                    if self.more:
                        before = load(b, self.d, at, t.lanes)
                        x = b.fadd(before, x)
                        for done in (
                            self._lanes_done(g, starts, columns_done),
                            self._row_done(place, rows_done),
                        ):
                            if done is not None:
                                x = b.select(done, before, x)
                    store(b, self.d, x, at)

    def _tiles(
        self, loops: ExitStack, extent: int, unit: int, count: int
    ) -> tuple[Value | None, list[int], Value | None]:
        """A loop over tiles of `count` units, unless there is only one; and where the units begin within a tile.

        Also how many elements at its beginning an earlier tile has done already, None for none.
        """
        b, size = self.b, unit * count
        if size >= extent:
            return None, [min(i * unit, extent - unit) for i in range(count)], None
        starts = [i * unit for i in range(count)]
        index = loops.enter_context(b.loop(0, extent, size))
        if not extent % size:
            return index, starts, None
        at = b.intrinsic("smin", index, text.constant("i64", extent - size))
        return at, starts, b.sub(index, at)

    def _lanes_done(self, g: int, starts: list[int], done: Value | None) -> Value | None:
        """Which lanes of a vector are done, by an earlier tile or by the vector before; None for none."""
        lanes, start = self.t.lanes, starts[g]
        if done is not None:
            numbers = self.b.iota(text.vector("i64", lanes), text.constant("i64", start))
            return self.b.icmp("slt", numbers, self.b.splat(done, lanes))
        before = g * lanes - start
        if not before:
            return None
        flags = ", ".join(["i1 true" if lane < before else "i1 false" for lane in range(lanes)])
        return Value(f"<{flags}>", f"<{lanes} x i1>")

    def _row_done(self, place: int, done: Value | None) -> Value | None:
        return None if done is None else self.b.icmp("slt", text.constant("i64", place), done)

    def _spread(
        self,
        sums: list[Value],
        out: Value,
        rows: list[int],
        rows_done: Value | None,
        starts: list[int],
        columns_done: Value | None,
    ) -> None:
        """Store a tile whose lanes lie apart in the result: by way of the stack, element by element in a loop."""
        b, none = self.b, text.constant("i64", 0)
        width = starts[-1] + self.t.lanes
        space = self.code.scratch(len(rows) * width * self.d.itemsize, "tile")
        for j in range(len(rows)):
            for g, start in enumerate(starts):
                store(b, self.d, sums[j * len(starts) + g], b.gep(self.element, space, j * width + start))
        first_column = columns_done if self.more and columns_done is not None else none
        first_row = rows_done if self.more and rows_done is not None else none
        with b.loop(first_column, text.constant("i64", width)) as i:
            to = _advance(b, self.element, out, i, self.v.out)
            source = b.gep(self.element, space, i)
            with b.loop(first_row, text.constant("i64", len(rows))) as row:
                at = _advance(b, self.element, to, row, self.r.out)
                x = load(b, self.d, _advance(b, self.element, source, row, width))
                store(b, self.d, b.fadd(load(b, self.d, at), x) if self.more else x, at)

    def _sums(
        self, depth: int, vectors: Value, splats: Value, sums: list[Value], starts: list[int], rows: list[int]
    ) -> list[Value]:
        b = self.b
        extent, v_stride, s_stride = self.terms[depth]
        inner: Callable[[Value, Value, list[Value]], list[Value]]
        if depth + 1 < len(self.terms):

            def inner(x: Value, y: Value, z: list[Value]) -> list[Value]:
                return self._sums(depth + 1, x, y, z, starts, rows)
        else:

            def inner(x: Value, y: Value, z: list[Value]) -> list[Value]:
                return self._term(x, y, z, starts, rows)

            if extent * len(sums) <= _UNROLLED or extent <= 2:
                for j in range(extent):
                    x = b.gep(self.element, vectors, j * v_stride) if j else vectors
                    y = b.gep(self.element, splats, j * s_stride) if j else splats
                    sums = inner(x, y, sums)
                return sums
        with b.carry(0, extent, sums) as (i, loop):
            x = _advance(b, self.element, vectors, i, v_stride)
            y = _advance(b, self.element, splats, i, s_stride)
            loop.update(*inner(x, y, loop.values))
        return loop.results

    def _term(
        self, vectors: Value, splats: Value, sums: list[Value], starts: list[int], rows: list[int]
    ) -> list[Value]:
        b, lanes = self.b, self.t.lanes
        xs = []
        for start in starts:
            at = b.gep(self.element, vectors, start * self.v.stride) if start else vectors
            xs.append(load(b, self.d, at, lanes, self.v.stride))
        out = []
        for j, i in enumerate(rows):
            at = b.gep(self.element, splats, i * self.r.stride) if i else splats
            y = b.splat(load(b, self.d, at), lanes)
            for g, x in enumerate(xs):
                z = sums[j * len(starts) + g]
                out.append(b.fma(x, y, z) if self.code.fma else b.fadd(b.fmul(x, y), z))
        return out

    def _pack(self, vectors: Value, only: bool) -> Value:
        """Copy the vectors of a column of tiles, one after another for each term of the sum.

        Args:
            vectors: where the column begins.
            only: whether it is the only one, so that its last vector may overlap the one before.
        """
        b, t = self.b, self.t
        step = t.vectors * t.lanes
        terms = []
        for extent, v_stride, s_stride in reversed(self.terms):
            terms.append((extent, v_stride, s_stride, step))
            step *= extent
        terms.reverse()
        space = self.code.scratch(step * self.d.itemsize, "panel")
        with ExitStack() as loops:
            source, to = vectors, space
            for extent, v_stride, _, packed in terms:
                i = loops.enter_context(b.loop(0, extent))
                source = _advance(b, self.element, source, i, v_stride)
                to = _advance(b, self.element, to, i, packed)
            start = loops.enter_context(b.loop(0, t.vectors * t.lanes, t.lanes))
            to = _advance(b, self.element, to, start, 1)
            if only and self.v.extent % t.lanes:
                start = b.intrinsic("smin", start, text.constant("i64", self.v.extent - t.lanes))
            source = _advance(b, self.element, source, start, self.v.stride)
            store(b, self.d, load(b, self.d, source, t.lanes, self.v.stride), to)
        self.v = _Side(self.v.extent, 1, self.v.out)
        self.terms = [(extent, packed, s_stride) for extent, _, s_stride, packed in terms]
        return space
