"""A function being written: what it may rely on, what it has in registers, and how elements reach memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from quabla.arrays.tensor import Tensor
from quabla.dtypes import dtype
from quabla.lowering.loops import Buffer, Store
from quabla_cpu import diskcache, text
from quabla_cpu.text import Builder, Value

__all__ = ["MEMORY", "Code", "load", "memory_type", "store", "transposed"]

MEMORY = {"float64": "double", "float32": "float", "int64": "i64", "bool": "i8"}

_SMALL = 8  # lanes that may be put together from registers one by one


class Code:
    """The function being written.

    Attributes:
        b: its builder.
        vector_bytes: the width of vectors.
        fma: whether the machine multiplies and adds in one instruction.
        pointers: the address of each buffer.
        calls: the functions of `outside.py` called so far.
        functions: symbol and module of each function used so far that is compiled on its own.
        constants: symbol and array of each large constant used so far.
        regions: symbol of the function of each program held by a node.
        known: what is in registers already: values at the top level of the function, by where in memory they are.
        lanes: elements that are lanes of vectors in `known`, by where in memory they are.
        writers: the store that wrote to a buffer last.
    """

    def __init__(self, b: Builder, vector_bytes: int, fma: bool) -> None:
        self.b = b
        self.vector_bytes = vector_bytes
        self.fma = fma
        self.pointers: dict[Buffer, Value] = {}
        self.known: dict[Any, Value] = {}
        self.lanes: dict[tuple[Buffer, int], tuple[Value, int]] = {}
        self.writers: dict[Buffer, Store] = {}
        self.calls: set[str] = set()
        self.functions: dict[str, str] = {}
        self.constants: list[tuple[str, Tensor]] = []
        self.regions: dict[Any, str] = {}
        self.scratches: dict[tuple[int, str], Value] = {}

    def beside(self, b: Builder) -> Code:
        """Another function of the same module."""
        other = Code(b, self.vector_bytes, self.fma)
        other.calls, other.functions = self.calls, self.functions
        other.constants, other.regions = self.constants, self.regions
        return other

    def function(self, module: str) -> str:
        """The symbol by which to call the function that a module of its own defines; known by the module's text."""
        symbol = _symbol(module)
        self.functions[symbol] = module
        return symbol

    def written(self, e: Store, elements: range | None) -> None:
        """Forget what was known of elements that another store has written to: `pad` and `concat` use several.

        Args:
            e: the store.
            elements: which elements it writes; None for all of the buffer.
        """
        if self.writers.setdefault(e.buffer, e) is not e:
            self.writers[e.buffer] = e
            self.forget(e.buffer, elements)

    def forget(self, buffer: Buffer, elements: range | None = None) -> None:
        """Forget what was known of these elements of a buffer (None: all), since something else writes to them."""

        def kept(key: Any) -> bool:
            return key[0] is not buffer or (elements is not None and not _among(key, elements))

        self.known = {key: x for key, x in self.known.items() if kept(key)}
        self.lanes = {key: x for key, x in self.lanes.items() if kept(key)}

    def keep(self, buffer: Buffer, offset: int, stride: int, x: Value) -> None:
        """Note a vector that holds elements of a buffer, and that its lanes do."""
        lanes = text.lanes(x.type)
        self.known[buffer, offset, stride, lanes] = x
        if lanes <= _SMALL:
            for lane in range(lanes):
                self.known.pop((buffer, offset + lane * stride), None)
                self.lanes[buffer, offset + lane * stride] = x, lane

    def element(self, buffer: Buffer, offset: int) -> Value | None:
        """An element of a buffer, if it is in a register."""
        found = self.known.get((buffer, offset))
        if found is None and (buffer, offset) in self.lanes:
            found = self.known[buffer, offset] = self.b.extract(*self.lanes[buffer, offset])
        return found

    def vector(self, buffer: Buffer, offset: int, stride: int, lanes: int) -> Value | None:
        """A vector of elements of a buffer, if all are in registers.

        To load it right after its elements were stored would wait for the stores to reach the memory.
        """
        found = self.known.get((buffer, offset, stride, lanes))
        if found is None and 1 < lanes <= _SMALL:
            elements = [self.element(buffer, offset + lane * stride) for lane in range(lanes)]
            parts = [x for x in elements if x is not None]
            if len(parts) == lanes:
                found = Value("poison", text.vector(parts[0].type, lanes))
                for lane, x in enumerate(parts):
                    found = self.b.insert(found, x, lane)
                self.known[buffer, offset, stride, lanes] = found
        return found

    def scratch(self, nbytes: int, purpose: str) -> Value:
        """Memory on the native stack, used at once: later calls for the same purpose may return the same again."""
        found = self.scratches.get((nbytes, purpose))
        if found is None:
            found = self.scratches[nbytes, purpose] = self.b.alloca("i8", nbytes, 64)
        return found


@lru_cache(maxsize=64)  # products of one form are written many times
def _symbol(module: str) -> str:
    return f"quabla_{diskcache.digest(module.encode())}"


def _among(key: Any, elements: range) -> bool:
    """Whether what a key of `Code.known` stands for is among these elements, in part."""
    _, offset, stride, lanes = key if len(key) == 4 else (*key, 1, 1)
    return any(offset + lane * stride in elements for lane in range(lanes))


def memory_type(d: dtype, lanes: int = 1) -> str:
    """The LLVM type of elements in memory."""
    return text.vector(MEMORY[d.name], lanes)


def load(b: Builder, d: dtype, address: Value, lanes: int = 1, stride: int = 1) -> Value:
    """Load `lanes` elements that are `stride` elements apart, as the type that registers hold."""
    kind = memory_type(d, lanes)
    if lanes == 1 or stride == 1:
        x = b.load(kind, address, d.itemsize)
    elif stride == -1:
        x = b.load(kind, b.gep(MEMORY[d.name], address, 1 - lanes), d.itemsize)
        x = b.shuffle(x, None, list(range(lanes - 1, -1, -1)))
    else:
        element = MEMORY[d.name]
        x = Value("poison", kind)
        for lane in range(lanes):
            at = b.gep(element, address, lane * stride) if lane else address
            x = b.insert(x, b.load(element, at), lane)
    return b.icmp("ne", x, text.constant(kind, 0)) if d.name == "bool" else x


def store(b: Builder, d: dtype, x: Value, address: Value, stride: int = 1) -> None:
    """Store the lanes of a register `stride` elements apart."""
    if d.name == "bool":
        x = b.zext(x, "i8")
    lanes = text.lanes(x.type)
    if lanes == 1 or stride == 1:
        b.store(x, address, d.itemsize)
        return
    if stride == -1:
        x = b.shuffle(x, None, list(range(lanes - 1, -1, -1)))
        b.store(x, b.gep(MEMORY[d.name], address, 1 - lanes), d.itemsize)
        return
    for lane in range(lanes):
        b.store(b.extract(x, lane), b.gep(MEMORY[d.name], address, lane * stride) if lane else address)


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """The columns of a square in registers: as many vectors as each has lanes, a power of two.

    Blocks off the diagonal change places, of half the size of the square, then of a quarter, and so on.
    """
    size = len(rows)
    half = size // 2
    while half:
        upper = [lane if not lane & half else size + lane - half for lane in range(size)]
        lower = [lane + half if not lane & half else size + lane for lane in range(size)]
        moved = list(rows)
        for i in range(size):
            if not i & half:
                x, y = rows[i], rows[i + half]
                moved[i], moved[i + half] = b.shuffle(x, y, upper), b.shuffle(x, y, lower)
        rows, half = moved, half // 2
    return rows
