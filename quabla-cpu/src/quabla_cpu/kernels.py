"""Loop nests as LLVM code: explicit vectors, every value computed in the outermost loop that it can be.

An entry of a kernel that does not vary along the vector axis is a scalar, computed once and spread over the lanes
where vectors need it. One that varies is one vector per vector of the tile. Its *level* is the number of loops that it
must be inside of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quabla.lowering.loops import Apply, Entry, Kernel, Load, Reduce, Scalar, Store
from quabla_cpu import text, vectormath
from quabla_cpu.folding import Folding
from quabla_cpu.interleaving import apart, interleaved, together
from quabla_cpu.pointwise import POINTWISE, register_type
from quabla_cpu.schedule import PARTIAL, Schedule, schedules
from quabla_cpu.text import Value
from quabla_cpu.writing import MEMORY, Code, load, memory_type, store

__all__ = ["write_kernel"]


def write_kernel(code: Code, kernel: Kernel, start: tuple[int, Value] | None = None) -> None:
    """Write the loops of a kernel.

    Args:
        code: the function being written.
        kernel: what to compute.
        start: an axis of the domain, and the index along it at which the kernel begins. Private buffers begin there,
            too.
    """
    for schedule in schedules(kernel, code.vector_bytes):
        _Nest(code, schedule, start).write()


def _halves(body: Sequence[Entry]) -> dict[int, tuple[str, int]]:
    """The entries that are one of two results of a function of which a kernel wants both: by which, and the result.

    Derivatives bring them: that of a sine is the cosine, that of tanh is sech2.
    """
    applied = {(e.op, e.args[0]): i for i, e in enumerate(body) if type(e) is Apply and e.args}
    found = {}
    for pair, (first, second) in vectormath.PAIRS.items():
        for (op, x), i in applied.items():
            if op == first and (second, x) in applied:
                found.update({i: (pair, 0), applied[second, x]: (pair, 1)})
    return found


def _inside(e: Load | Store | Reduce) -> bool:
    """Whether all addresses of an access are those of elements, also where nothing is loaded."""
    return type(e) is not Load or not e.bounds


def _distributed(like: dict[int, list[Value]], xs: Sequence[Value]) -> dict[int, list[Value]]:
    """The values of a loop by reduction, as they were handed to it."""
    left = iter(xs)
    return {i: [next(left) for _ in some] for i, some in like.items()}


class _Nest:
    """One loop nest being written."""

    def __init__(self, code: Code, schedule: Schedule, start: tuple[int, Value] | None) -> None:
        self.code, self.b = code, code.b
        self.s = schedule
        self.start = start
        self.domain, self.body = schedule.kernel.domain, schedule.kernel.body
        self.axis, self.lanes, self.starts, self.order = (
            schedule.axis,
            schedule.lanes,
            schedule.starts,
            schedule.order,
        )
        self.values: list[Any] = [None] * len(
            self.body
        )  # a scalar, or a list with a vector per vector of the tile
        self.spread: set[int] = set()  # entries that are needed as vectors
        self.vectors: dict[int, Value] = {}  # those of them that are scalars, spread over lanes
        self.addresses: dict[int, Value] = {}
        self.indices: dict[int, Value] = {}  # where along each axis with a loop
        self.masks: list[Value | None] = [None] * len(self.starts)
        self.start_of: dict[int, int] = {}  # reduction -> its outermost loop
        self.sums: dict[int, Value] = {}  # reduction -> its partial sums, where they are in memory
        self.round: Value = text.number(0)  # where along the vector axis a round of its loop begins
        self.halves = _halves(self.body)
        self.seen: dict[tuple[str, int], tuple[Any, Any]] = {}  # both results of those of them seen so far
        self.groups: dict[int, tuple[int, ...]] = {}  # by one access, those of all components side by side
        # What loads of such groups found, per vector of the tile.
        self.components: dict[int, list[list[Value]]] = {}
        self.levels = self._levels()

    def _levels(self) -> list[list[int]]:
        """Per number of enclosing loops, the entries to write there."""
        depth_of = {a: i + 1 for i, a in enumerate(self.order)}
        self.varies: list[bool] = []  # whether an entry varies along the vector axis
        spread = self.spread
        level: list[int] = []
        for i, e in enumerate(self.body):
            at, varies = 0, False
            if type(e) is Load:
                for a, s in enumerate(e.strides):
                    if s or self._cut(e, a):
                        at = max(at, depth_of.get(a, 0))
                        varies = varies or a == self.axis
            elif type(e) is Apply:
                for a in e.args:
                    at = max(at, level[a])
                    varies = varies or self.varies[a]
                if varies:
                    spread.update(e.args)
            elif type(e) is Store:
                at = max([depth_of.get(a, 0) for a, s in enumerate(e.strides) if s], default=0)
                at = max(at, level[e.value])
                varies = True
                spread.add(e.value)
            elif type(e) is Reduce:
                spread.add(e.value)
                self.start_of[i] = min(
                    [depth_of[a] - 1 for a in e.axes if a in depth_of], default=len(self.order)
                )
                at = -1
            level.append(at)
            self.varies.append(varies)
        if self.lanes > 1:
            self.groups = interleaved(self.body, self.axis, level)
        out: list[list[int]] = [[] for _ in range(len(self.order) + 1)]
        for i, at in enumerate(level):
            if at >= 0:
                out[at].append(i)
        return out

    def write(self) -> None:
        pointers = self.code.pointers
        for i, e in enumerate(self.body):
            if type(e) is Load or type(e) is Store or type(e) is Reduce:
                base = pointers[e.buffer]
                kind = MEMORY[e.buffer.dtype.name]
                self.addresses[i] = (
                    self.b.gep(kind, base, e.offset, inbounds=_inside(e)) if e.offset else base
                )
        if self.start is not None:
            self._advance(*self.start, still="private")
        # Whether a place in memory is the same on every call of this code: then registers may stand for it.
        self.fixed = not self.order and self.start is None
        if self.axis >= 0 and self.axis not in self.order:
            self._mask_last(self.domain[self.axis])
        self._inside(0, {})

    # --- loops ----------------------------------------------------------------------------------------------------

    def _inside(self, level: int, accumulators: dict[int, list[Value]]) -> dict[int, list[Value]]:
        """Write what is inside of `level` loops; returns the accumulators after it."""
        for i in self.levels[level]:
            self._entry(i, level)
        if level == len(self.order):
            return self._accumulate(accumulators)
        for i, at in self.start_of.items():
            if at == level:
                accumulators = {**accumulators, i: self._begun(i)}
        axis = self.order[level]
        if axis != self.axis:
            after = self._loop(level, self.domain[axis], 1, accumulators)
        else:
            tile = len(self.starts) * self.lanes
            stop = self.s.tiles * tile if self.s.rest else self.domain[axis]
            after = self._loop(level, stop, tile, accumulators)
            if self.s.rest:
                after = self._remaining(level, after)
        for i, at in self.start_of.items():
            if at == level:
                self._finish(i, self._ended(i, after.pop(i)), level)
        return after

    def _loop(
        self, level: int, stop: int, step: int, accumulators: dict[int, list[Value]]
    ) -> dict[int, list[Value]]:
        """Write the loop of a level."""
        axis = self.order[level]
        saved = self.addresses, dict(self.seen), dict(self.components)
        carried = [x for xs in accumulators.values() for x in xs]
        tile = len(self.starts) * self.lanes
        with self.b.carry(0, stop, carried, step) as (index, loop):
            if axis == self.axis:
                self.round = index
            if axis == self.axis and not self.s.rest and self.domain[axis] % tile:
                index = self._clipped(index, self.domain[axis], tile)
            self.indices[axis] = index
            self._advance(axis, index)
            inner = self._inside(level + 1, _distributed(accumulators, loop.values))
            loop.update(*[x for i in accumulators for x in inner[i]])
        self.addresses, self.seen, self.components = saved
        if axis == self.axis:
            self.masks = [None] * len(self.starts)
        return _distributed(accumulators, loop.results)

    def _remaining(self, level: int, accumulators: dict[int, list[Value]]) -> dict[int, list[Value]]:
        """Write the vectors that come after the tiles."""
        saved = self.addresses, self.starts, self.masks, dict(self.seen), dict(self.components)
        first = self.s.tiles * len(self.starts) * self.lanes
        self.starts = self.s.rest
        self.masks = [None] * len(self.starts)
        self._mask_last(self.domain[self.axis] - first)
        index = self.indices[self.axis] = text.number(first)
        self._advance(self.axis, index)
        after = self._inside(level + 1, accumulators)
        self.addresses, self.starts, self.masks, self.seen, self.components = saved
        return after

    def _across(self, i: int) -> bool:
        """Whether a reduction runs along the lanes."""
        e: Any = self.body[i]
        return self.axis in e.axes

    def _clipped(self, index: Value, extent: int, tile: int) -> Value:
        """Where a tile begins: the last one earlier, with masks for the elements that it does again."""
        limit = text.constant("i64", extent - tile)
        at = self.b.intrinsic("smin", index, limit)
        if self.start_of:
            again = self.b.splat(self.b.trunc(self.b.sub(index, at), "i32"), self.lanes)
            for g, start in enumerate(self.starts):
                if start >= -extent % tile:
                    break  # no tile does these again
                numbers = self.b.iota(f"<{self.lanes} x i32>", text.constant("i32", start) if start else None)
                self.masks[g] = self.b.icmp("sge", numbers, again)
        return at

    def _mask_last(self, elements: int) -> None:
        """The mask of the last of the vectors that begin at `starts` and do the last elements of an axis."""
        count = len(self.starts) * self.lanes - elements
        if count and self.start_of:
            flags = ", ".join(["i1 false" if lane < count else "i1 true" for lane in range(self.lanes)])
            self.masks[-1] = Value(f"<{flags}>", f"<{self.lanes} x i1>")

    def _advance(self, axis: int, index: Value, still: str = "") -> None:
        """Addresses for this index of a loop, of all buffers but those of the kind `still`."""
        scaled: dict[int, Value] = {1: index}
        addresses = dict(self.addresses)
        same: dict[Any, Value] = {}
        for i, address in addresses.items():
            e: Any = self.body[i]
            stride = e.strides[axis]
            if not stride or e.buffer.kind == still:
                continue
            kind = MEMORY[e.buffer.dtype.name]
            key = address.name, stride, kind, _inside(e)
            found = same.get(key)
            if found is None:
                offset = scaled.get(stride)
                if offset is None:
                    offset = scaled[stride] = self.b.mul(index, text.constant("i64", stride), "nsw")
                found = same[key] = self.b.gep(kind, address, offset, inbounds=_inside(e))
            addresses[i] = found
        self.addresses = addresses

    # --- entries --------------------------------------------------------------------------------------------------

    def _entry(self, i: int, level: int) -> None:
        e = self.body[i]
        if type(e) is Apply and i in self.halves:
            pair, place = self.halves[i]
            self.values[i] = self._pair(pair, e.args[0])[place]
        elif type(e) is Apply:
            write = POINTWISE[e.op]
            if self.varies[i]:
                args = [self._vector(a) for a in e.args]
                self.values[i] = [write(self.b, list(xs), e.params) for xs in zip(*args, strict=True)]
            else:
                self.values[i] = write(self.b, [self.values[a] for a in e.args], e.params)
        elif type(e) is Load:
            self.values[i] = self._load(i, e)
        elif type(e) is Scalar:
            self.values[i] = text.constant(register_type(e.dtype), e.value)
        elif type(e) is Store:
            self._store(i, e)
            return
        if self.axis >= 0 and i in self.spread and not self.varies[i]:
            self.vectors[i] = self.b.splat(self.values[i], self.lanes)

    def _pair(self, name: str, i: int) -> tuple[Any, Any]:
        """Both results of a function of an entry, by one call: either costs as much as both."""
        found = self.seen.get((name, i))
        if found is None:
            xs = self.values[i] if self.varies[i] else [self.values[i]]
            pairs = [vectormath.call(self.b, name, x) for x in xs]
            first, second = ([self.b.field(pair, k) for pair in pairs] for k in (0, 1))
            found = self.seen[name, i] = (first, second) if self.varies[i] else (first[0], second[0])
        return found

    def _vector(self, i: int) -> list[Value]:
        """The value of an entry as vectors."""
        x = self.values[i]
        if self.varies[i]:
            return x  # type: ignore[no-any-return]
        return [self.vectors[i]] * len(self.starts)

    def _load(self, i: int, e: Load) -> Any:
        b, known, d = self.b, self.code.known, e.buffer.dtype
        if e.bounds:
            return self._load_within(i, e)
        if not self.varies[i]:
            if any(e.strides) or self.start is not None:
                return load(b, d, self.addresses[i])
            x = self.code.element(e.buffer, e.offset)
            if x is None:
                x = known[e.buffer, e.offset] = load(b, d, self.addresses[i])
            return x
        stride = e.strides[self.axis]
        if i in self.groups and not self.fixed:
            group = self.groups[i]
            first = group[0]
            found = self.components.get(first)
            if found is None:
                places = [self._at(first, e, start) for start in self.starts]
                found = self.components[first] = [apart(b, d, at, self.lanes, stride) for at in places]
            return [xs[group.index(i)] for xs in found]
        out = []
        for start in self.starts:
            at = e.offset + start * stride
            x = self.code.vector(e.buffer, at, stride, self.lanes) if self.fixed else None
            if x is None:
                x = load(b, d, self._at(i, e, start), self.lanes, stride)
                if self.fixed:
                    self.code.keep(e.buffer, at, stride, x)
            out.append(x)
        return out

    def _cut(self, e: Load, axis: int) -> bool:
        """Whether a load has bounds along an axis of the domain."""
        return bool(e.bounds) and e.bounds[axis] != (0, self.domain[axis])

    def _within(self, position: Value, bounds: tuple[int, int], extent: int) -> Value | None:
        """Whether a position (or one per lane) along an axis is within bounds; None if it always is."""
        b, (low, high) = self.b, bounds
        tests = []
        if low > 0:
            tests.append(b.icmp("sge", position, text.constant(position.type, low)))
        if high < extent:
            tests.append(b.icmp("slt", position, text.constant(position.type, high)))
        return self._both(*tests) if tests else None

    def _both(self, *tests: Value | None) -> Value | None:
        found = [x for x in tests if x is not None]
        if not found:
            return None
        return found[0] if len(found) == 1 else self.b.and_(*found)

    def _load_within(self, i: int, e: Load) -> Any:
        """Load an element, or zero where an index of a loop or a lane is out of bounds: no memory is touched there."""
        b, d = self.b, e.buffer.dtype
        inside: Value | None = None  # of the bounds along the loops
        for axis in self.order:
            if axis != self.axis and self._cut(e, axis):
                inside = self._both(
                    inside, self._within(self.indices[axis], e.bounds[axis], self.domain[axis])
                )
        address = self.addresses[i]
        stride = e.strides[self.axis] if self.axis >= 0 else 0
        zero = text.constant(register_type(d), 0)
        if not stride:
            if inside is not None:
                address = b.select(inside, address, self.code.pointers[e.buffer])
            x = load(b, d, address)
            if inside is not None:
                x = b.select(inside, x, zero)
            if not self.varies[i]:
                return x
            wide = b.splat(x, self.lanes)
            nothing = text.constant(wide.type, 0)
            return [wide if m is None else b.select(m, wide, nothing) for m in self._lane_masks(e)]
        out = []
        kind = memory_type(d, self.lanes)
        for start, lanes_inside in zip(self.starts, self._lane_masks(e), strict=True):
            mask = self._both(lanes_inside, None if inside is None else b.splat(inside, self.lanes))
            at = address
            if start:
                at = b.gep(MEMORY[d.name], at, start * stride, inbounds=False)
            if mask is None:
                x = load(b, d, at, self.lanes, stride)
            else:
                if stride == 1:
                    x = b.masked_load(kind, at, mask, align=d.itemsize)
                else:
                    steps = b.mul(
                        b.iota(f"<{self.lanes} x i64>"), text.constant(f"<{self.lanes} x i64>", stride)
                    )
                    x = b.gather(kind, b.gep(MEMORY[d.name], at, steps, inbounds=False), mask)
                if d.name == "bool":
                    x = b.icmp("ne", x, text.constant(kind, 0))
            out.append(x)
        return out

    def _lane_masks(self, e: Load) -> list[Value | None]:
        """Per vector of the tile, which lanes are within bounds; None where all are."""
        if not self._cut(e, self.axis):
            return [None] * len(self.starts)
        (low, high), out = e.bounds[self.axis], []
        for start in self.starts:
            if self.axis not in self.order:
                flags = [low <= start + lane < high for lane in range(self.lanes)]
                listed = ", ".join([f"i1 {'true' if flag else 'false'}" for flag in flags])
                out.append(None if all(flags) else Value(f"<{listed}>", f"<{self.lanes} x i1>"))
            else:
                first = self.indices[self.axis]
                first = self.b.add(first, text.constant("i64", start)) if start else first
                positions = self.b.iota(f"<{self.lanes} x i64>", first)
                out.append(self._within(positions, (low, high), self.domain[self.axis]))
        return out

    def _at(self, i: int, e: Any, start: int) -> Value:
        address = self.addresses[i]
        return (
            self.b.gep(MEMORY[e.buffer.dtype.name], address, start * e.strides[self.axis])
            if start
            else address
        )

    def _store(self, i: int, e: Store) -> None:
        d = e.buffer.dtype
        if self.axis < 0:
            self.code.written(e, range(e.offset, e.offset + 1))
            store(self.b, d, self.values[e.value], self.addresses[i])
            if self.fixed:
                self.code.known[e.buffer, e.offset] = self.values[e.value]
            return
        stride = e.strides[self.axis]
        reach = self.domain[self.axis] * stride
        self.code.written(e, None if self.order or not stride else range(e.offset, e.offset + reach, stride))
        if i in self.groups and not self.fixed:
            group = self.groups[i]
            if i == max(group):
                columns = [self._vector(self.body[j].value) for j in group]  # type: ignore[union-attr]
                for start, xs in zip(self.starts, zip(*columns, strict=True), strict=True):
                    together(self.b, d, xs, self._at(group[0], e, start))
            return
        for start, x in zip(self.starts, self._vector(e.value), strict=True):
            store(self.b, d, x, self._at(i, e, start), stride)
            if self.fixed:
                self.code.keep(e.buffer, e.offset + start * stride, stride, x)

    # --- reductions -----------------------------------------------------------------------------------------------

    def _folding(self, i: int) -> Folding:
        e: Any = self.body[i]
        return Folding(e.op, e.buffer.dtype)

    def _begun(self, i: int) -> list[Value]:
        """The accumulators of a reduction before its loops; none where they are in memory between loops."""
        fold = self._folding(i)
        count = self._count(i)
        nothing = [text.constant(text.vector(fold.type, self.lanes), fold.neutral)] * count
        if count <= len(self.starts):
            return nothing
        self.sums[i] = self.code.scratch(count * self.lanes * 8, f"sums{i}")
        for place, x in enumerate(nothing):
            self.b.store(x, self._partial(i, text.number(place * self.lanes)))
        return []

    def _count(self, i: int) -> int:
        """How many accumulators a reduction has."""
        if not self._folding(i).ordered:
            return len(self.starts)
        if self._across(i):
            return self.s.partial
        return len(self.starts) * (1 if self.s.other is None else self.s.other[1])

    def _partial(self, i: int, number: Value) -> Value:
        """The address of a vector of partial sums; `number` counts elements."""
        return self.b.gep("i64", self.sums[i], number)

    def _add(self, i: int, xs: list[Value]) -> None:
        """Add vectors to partial sums in memory: these leave the registers to what is computed."""
        b, combine, lanes = self.b, self._folding(i).combine(self.b), self.lanes
        if self.s.other is None:
            first = b.and_(self.round, text.number((PARTIAL - 1) * lanes))
        else:
            lane = b.and_(self._position(*self.s.other), text.number(self.s.other[1] - 1))
            first = b.mul(lane, text.number(len(xs) * lanes), "nsw")
        for g, x in enumerate(xs):
            place = self._partial(i, b.add(first, text.number(g * lanes), "nsw") if g else first)
            b.store(combine(b.load(x.type, place), x), place)

    def _position(self, axis: int, lanes: int) -> Value:
        """Where an element along an axis would be in vectors along it, of which the last begins earlier."""
        b, index, extent = self.b, self.indices[axis], self.domain[axis]
        if extent % lanes == 0:
            return index
        last = b.icmp("sge", index, text.number(extent - extent % lanes))
        return b.select(last, b.add(index, text.number(-extent % lanes), "nsw"), index)

    def _ended(self, i: int, xs: list[Value]) -> list[Value]:
        """The accumulators after the loops."""
        if i not in self.sums:
            return xs
        b, fold = self.b, self._folding(i)
        kind = text.vector(fold.type, self.lanes)
        xs = [b.load(kind, self._partial(i, text.number(k * self.lanes))) for k in range(self._count(i))]
        while self.s.other is not None and len(xs) > len(self.starts):  # by halves, as lanes are
            half = len(xs) // 2
            xs = [fold.combine(b)(x, y) for x, y in zip(xs[:half], xs[half:], strict=True)]
        return xs

    def _accumulate(self, accumulators: dict[int, list[Value]]) -> dict[int, list[Value]]:
        b = self.b
        out: dict[int, list[Value]] = {}
        for i, level in self.start_of.items():
            e: Any = self.body[i]
            fold = self._folding(i)
            combine = fold.combine(b)
            if self.axis < 0:
                xs = [self.values[e.value]]
            else:
                xs = self._vector(e.value)
            if fold.type == "double":
                xs = [b.fpext(x, "double") if text.element(x.type) == "float" else x for x in xs]
            if self.axis in e.axes:
                neutral = text.constant(text.vector(fold.type, self.lanes), fold.neutral)
                xs = [
                    x if m is None else b.select(m, x, neutral) for x, m in zip(xs, self.masks, strict=True)
                ]
            if level == len(self.order):
                self._finish(i, self._in_turn(i, xs) if fold.ordered else xs, level)
                continue
            if i in self.sums:
                self._add(i, xs)
                out[i] = []
                continue
            sums = list(accumulators[i])
            for j, x in enumerate(xs):
                sums[j % len(sums)] = combine(sums[j % len(sums)], x)
            out[i] = sums
        return out

    def _in_turn(self, i: int, xs: list[Value]) -> list[Value]:
        """The sum of the vectors of a row that is a sum, one after another as in a loop."""
        if not self._across(i):
            return xs
        combine, total = self._folding(i).combine(self.b), xs[0]
        for x in xs[1:]:
            total = combine(total, x)
        return [total]

    def _finish(self, i: int, xs: list[Value], level: int) -> None:
        """Store the results of a reduction, with the addresses of the loops outside of it."""
        b = self.b
        e: Any = self.body[i]
        fold, d = self._folding(i), e.buffer.dtype
        if self.axis in e.axes:
            combine = fold.combine(b)
            while len(xs) > 1:  # pairwise
                xs = [combine(*xs[j : j + 2]) if j + 1 < len(xs) else xs[j] for j in range(0, len(xs), 2)]
            x = self._summed(e, fold, fold.across(b, xs[0]), self.addresses[i], 1, None)
            store(b, d, x, self.addresses[i])
            if level == 0 and self.start is None:
                self.code.known[e.buffer, e.offset] = x
            return
        stride = e.strides[self.axis] if self.axis >= 0 else 0
        for start, x, new in zip(self.starts, xs, self.masks, strict=True):
            at = self._at(i, e, start)
            x = self._summed(e, fold, x, at, stride, new)
            store(b, d, x, at, stride)
            if self.fixed:
                self.code.keep(e.buffer, e.offset + start * stride, stride, x)

    def _summed(
        self, e: Reduce, fold: Folding, x: Value, address: Value, stride: int, new: Value | None
    ) -> Value:
        """The result of a reduction as it is stored, with what is there already where that counts, too.

        Lanes that are not `new` were stored a moment ago, with that.
        """
        b, d = self.b, e.buffer.dtype
        if e.more:
            before = load(b, d, address, text.lanes(x.type), stride)
            if fold.type == "double" and d.name == "float32":
                before = b.fpext(before, "double")
            x = fold.combine(b)(before, x)
            if new is not None:
                x = b.select(new, x, before)
        return b.fptrunc(x, register_type(d)) if fold.type == "double" else x
