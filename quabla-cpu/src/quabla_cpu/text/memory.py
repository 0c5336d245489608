"""Memory, and the lanes of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .instructions import Instructions
from .values import Value, constant, element, is_float, lanes, mangled, size_of, split_type, vector
from .values import splat as splat_constant


class Memory(Instructions):
    """Adds loads, stores, stack memory, and what moves values between lanes."""

    __slots__ = ()

    # Memory

    def gep(self, element_type: str, base: Value, *indices: Value | int, inbounds: bool = True) -> Value:
        """The address of an element of an array of `element_type` at `base`; many addresses for a vector of indices."""
        flag = "inbounds " if inbounds else ""
        line = f"getelementptr {flag}{element_type}, {base.type} {base.name}"
        if len(indices) == 1:  # most of them
            (i,) = indices
            if isinstance(i, int):
                return self._emit("ptr", f"{line}, i64 {i}")
            return self._emit(vector("ptr", lanes(i.type)), f"{line}, {i.type} {i.name}")
        written, count = [], 1
        for index in indices:
            if isinstance(index, int):
                written.append(f"i64 {index}")
            else:
                written.append(f"{index.type} {index.name}")
                count = max(count, lanes(index.type))
        return self._emit(vector("ptr", count), f"{line}, {', '.join(written)}")

    def load(self, type: str, address: Value, align: int = 0, metadata: str = "") -> Value:
        """Load a value. `align` in bytes; by default the element's own size, which array data always has."""
        return self._emit(type, f"load {type}, ptr {address.name}, align {align or size_of(type)}{metadata}")

    def store(self, value: Value, address: Value, align: int = 0, metadata: str = "") -> None:
        """Store a value; `align` as for `load`."""
        self._lines.append(
            f"store {value.type} {value.name}, ptr {address.name}, align {align or size_of(value.type)}{metadata}"
        )

    def _mask(self, what: str, mask: Value, type: str) -> None:
        if mask.type != vector("i1", lanes(type)) or lanes(type) == 1:
            raise TypeError(
                f"{what}: a vector of type {type} needs a mask of the same lanes, got {mask.type}"
            )

    def masked_load(
        self, type: str, address: Value, mask: Value, default: Value | None = None, align: int = 0
    ) -> Value:
        """Load the lanes where `mask` is true; `default` (zero) elsewhere, where memory is not touched."""
        self._mask("masked_load", mask, type)
        rest = default or constant(type, 0)
        self._same("masked_load", rest, Value("", type))
        symbol = f"llvm.masked.load.{mangled(type)}.p0"
        self.module.declare(symbol, type, ["ptr", "i32", mask.type, type])
        return self._call(
            f"@{symbol}", type, (address, constant("i32", align or size_of(type)), mask, rest), ""
        )

    def masked_store(self, value: Value, address: Value, mask: Value, align: int = 0) -> None:
        """Store the lanes where `mask` is true."""
        self._mask("masked_store", mask, value.type)
        symbol = f"llvm.masked.store.{mangled(value.type)}.p0"
        self.module.declare(symbol, "void", [value.type, "ptr", "i32", mask.type])
        self._call(
            f"@{symbol}", "void", (value, address, constant("i32", align or size_of(value.type)), mask), ""
        )

    def gather(
        self, type: str, addresses: Value, mask: Value | None = None, default: Value | None = None
    ) -> Value:
        """Load one element per lane from a vector of addresses (see `gep`)."""
        mask = mask or constant(vector("i1", lanes(type)), True)
        self._mask("gather", mask, type)
        rest = default or constant(type, 0)
        many = vector("ptr", lanes(type))
        self._same("gather", addresses, Value("", many))
        self._same("gather", rest, Value("", type))
        symbol = f"llvm.masked.gather.{mangled(type)}.{mangled(many)}"
        self.module.declare(symbol, type, [many, "i32", mask.type, type])
        return self._call(f"@{symbol}", type, (addresses, constant("i32", size_of(type)), mask, rest), "")

    def scatter(self, value: Value, addresses: Value, mask: Value | None = None) -> None:
        """Store one element per lane to a vector of addresses, in lane order."""
        mask = mask or constant(vector("i1", lanes(value.type)), True)
        self._mask("scatter", mask, value.type)
        many = vector("ptr", lanes(value.type))
        self._same("scatter", addresses, Value("", many))
        symbol = f"llvm.masked.scatter.{mangled(value.type)}.{mangled(many)}"
        self.module.declare(symbol, "void", [value.type, many, "i32", mask.type])
        self._call(f"@{symbol}", "void", (value, addresses, constant("i32", size_of(value.type)), mask), "")

    def memcpy(self, to: Value, source: Value, size: Value) -> None:
        """Copy `size` bytes (i64) between blocks that do not overlap."""
        self.module.declare("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"])
        self._call("@llvm.memcpy.p0.p0.i64", "void", (to, source, size, constant("i1", 0)), "")

    def memset(self, to: Value, byte: Value, size: Value) -> None:
        """Fill `size` bytes (i64) with a byte (i8)."""
        self.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        self._call("@llvm.memset.p0.i64", "void", (to, byte, size, constant("i1", 0)), "")

    def alloca(self, type: str, count: int = 1, align: int = 0) -> Value:
        """Stack memory for `count` values, reserved once at the entry of the function."""
        name = f"%stack{len(self._entry)}"
        tail = f", align {align}" if align else ""
        self._entry.append(f"{name} = alloca {type}, i64 {count}{tail}")
        return Value(name, "ptr")

    # Vectors and structs

    def splat(self, x: Value, count: int) -> Value:
        """A scalar repeated over `count` lanes."""
        if count == 1:
            return x
        if not x.name.startswith(("%", "@")):
            return splat_constant(x, count)
        type = vector(x.type, count)
        one = self._emit(type, f"insertelement {type} poison, {x.type} {x.name}, i64 0")
        return self._emit(
            type, f"shufflevector {type} {one.name}, {type} poison, <{count} x i32> zeroinitializer"
        )

    def iota(self, type: str, start: Value | None = None) -> Value:
        """The lane numbers 0, 1, 2, ... of an integer vector type, plus `start` (a scalar) where given."""
        base, count = split_type(type)
        if count == 1:
            return start or constant(type, 0)
        numbers = Value(f"<{', '.join(f'{base} {lane}' for lane in range(count))}>", type)
        return numbers if start is None else self.add(self.splat(start, count), numbers)

    def extract(self, x: Value, lane: Value | int) -> Value:
        """One lane of a vector."""
        index = f"i64 {lane}" if isinstance(lane, int) else f"{lane.type} {lane.name}"
        return self._emit(element(x.type), f"extractelement {x.type} {x.name}, {index}")

    def insert(self, x: Value, value: Value, lane: Value | int) -> Value:
        """A vector with one lane replaced."""
        if value.type != element(x.type):
            raise TypeError(f"insert: cannot put {value.type} into {x.type}")
        index = f"i64 {lane}" if isinstance(lane, int) else f"{lane.type} {lane.name}"
        return self._emit(x.type, f"insertelement {x.type} {x.name}, {value.type} {value.name}, {index}")

    def shuffle(self, x: Value, y: Value | None, order: Sequence[int]) -> Value:
        """The lanes `order` of the concatenation of two vectors (`y` may be None where unused); -1 is any value."""
        base, count = split_type(x.type)
        if any(not -1 <= lane < (count if y is None else 2 * count) for lane in order):
            raise ValueError(f"shuffle: lane order {list(order)} is out of range for {x.type}")
        second = "poison" if y is None else y.name
        mask = ", ".join("i32 poison" if lane < 0 else f"i32 {lane}" for lane in order)
        return self._emit(
            f"<{len(order)} x {base}>",
            f"shufflevector {x.type} {x.name}, {x.type} {second}, <{len(order)} x i32> <{mask}>",
        )

    def reduce(self, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Reduce all lanes to a scalar by halving: the order is fixed, so the same bits come out on every run."""
        count = lanes(x.type)
        if count & (count - 1):
            raise ValueError(f"reduce: {x.type} does not have a power of two of lanes")
        while count > 1:
            half = count // 2
            low, high = range(half), range(half, 2 * half)
            if half == 1:
                pair = self.extract(x, 0), self.extract(x, 1)
            else:
                pair = self.shuffle(x, None, list(low)), self.shuffle(x, None, list(high))
            x, count = combine(*pair), half
        return x

    def reduce_add(self, x: Value) -> Value:
        """The sum of all lanes, pairwise."""
        return self.reduce(x, self.fadd if is_float(x.type) else self.add)

    def reduce_mul(self, x: Value) -> Value:
        """The product of all lanes, pairwise."""
        return self.reduce(x, self.fmul if is_float(x.type) else self.mul)

    def any(self, mask: Value) -> Value:
        """Whether any lane of a mask is true, as `i1`."""
        return self._mask_test(mask, "ne", 0)

    def all(self, mask: Value) -> Value:
        """Whether all lanes of a mask are true, as `i1`."""
        return self._mask_test(mask, "eq", -1)

    def _mask_test(self, mask: Value, predicate: str, number: int) -> Value:
        count = lanes(mask.type)
        if count == 1:
            return mask
        bits = self._emit(f"i{count}", f"bitcast {mask.type} {mask.name} to i{count}")
        return self._emit("i1", f"icmp {predicate} i{count} {bits.name}, {number}")

    def make_struct(self, *values: Value) -> Value:
        """A struct value with the given fields, as returned by functions with several results."""
        type = "{ " + ", ".join(value.type for value in values) + " }"
        out = Value("poison", type)
        for index, value in enumerate(values):
            out = self._emit(type, f"insertvalue {type} {out.name}, {value.type} {value.name}, {index}")
        return out

    def field(self, struct: Value, index: int) -> Value:
        """Field `index` of a struct value."""
        types = [part.strip() for part in struct.type.strip("{} ").split(", ")]
        return self._emit(types[index], f"extractvalue {struct.type} {struct.name}, {index}")
