"""The loop-nest form: what a backend prints as code.

A `Kernel` visits every point of a rectangular domain once, in any order. Its body is a list in static single assignment
form: an entry names earlier ones by their position. Loads and stores are affine: an offset and a stride per axis of the
domain, in elements. A `Reduce` combines the values along some axes and stores one result per point of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from quabla.dtypes import dtype
from quabla.ir.program import Node

__all__ = [
    "Apply",
    "Branches",
    "Buffer",
    "Call",
    "Kernel",
    "Load",
    "Panel",
    "Product",
    "Reduce",
    "Rows",
    "Scalar",
    "Store",
    "collapse",
    "restrict",
    "singly",
]

Shape = tuple[int, ...]
Bounds = tuple[tuple[int, int], ...]


# Named tuples and a class with slots, for the time to import them: Python needs several times as long to make a frozen
# dataclass, and every process that compiles a program imports this.


class Buffer:
    """Memory of one array.

    Attributes:
        kind: "input", "output", "constant", "temporary", or "private" to a thread of a panel.
        dtype: the element type.
        size: the number of elements.
        index: which input, output or constant; the number of a temporary.
        offset: where in the output block or the workspace it begins, in bytes; set when all kernels are known.
    """

    __slots__ = ("dtype", "index", "kind", "offset", "size")

    def __init__(self, kind: str, dtype: dtype, size: int, index: int, offset: int = 0) -> None:
        self.kind = kind
        self.dtype = dtype
        self.size = size
        self.index = index
        self.offset = offset

    def __repr__(self) -> str:
        return f"{self.kind}{self.index}"


class Load(NamedTuple):
    """An element of a buffer; zero, without touching memory, where an index is not within its bounds.

    `bounds` holds the first and the last index plus one for each axis of the domain, or nothing where all are valid.
    """

    buffer: Buffer
    offset: int
    strides: Shape
    bounds: Bounds = ()


class Scalar(NamedTuple):
    """A constant."""

    value: Any
    dtype: dtype


class Apply(NamedTuple):
    """An elementwise op on earlier entries; `dtype` is that of the result."""

    op: str
    args: tuple[int, ...]
    params: dict[str, Any]
    dtype: dtype


class Store(NamedTuple):
    """Store an earlier entry at every point."""

    value: int
    buffer: Buffer
    offset: int
    strides: Shape


class Reduce(NamedTuple):
    """Combine an earlier entry along `axes`, where the strides are 0. `op` is "sum", "max", "min", "any" or "all".

    With `more`, what is in the buffer already is combined with the rest.
    """

    op: str
    value: int
    axes: frozenset[int]
    buffer: Buffer
    offset: int
    strides: Shape
    more: bool = False


Entry = Load | Scalar | Apply | Store | Reduce


class Kernel(NamedTuple):
    """A loop nest: the extents of its domain (none is 1) and its body."""

    domain: Shape
    body: tuple[Entry, ...]


class Axis(NamedTuple):
    """An axis of a product: its extent and the strides of the left operand, the right operand and the result."""

    extent: int
    left: int
    right: int
    out: int


class Product(NamedTuple):
    """out[batch, m, n] = sum over k of left[batch, m, k] * right[batch, k, n], each axis a list of strided ones.

    The result is contiguous. Axes of extent 1 are dropped and neighbours merged where all strides allow it. With `more`
    the sums are added to what is in `out` already. The result is a part of `out` where another product makes the rest.
    `outermost` says whether k is outside of all other axes in the memory of both operands.
    """

    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]
    k: tuple[Axis, ...]
    left: Buffer
    left_offset: int
    right: Buffer
    right_offset: int
    out: Buffer
    dtype: dtype
    more: bool = False
    out_offset: int = 0
    outermost: bool = False


class Call(NamedTuple):
    """A node that the backend computes by a routine of its own: a loop over a region, a factorisation, a sort.

    Attributes:
        node: the node: its op, its params, and the types of its operands and results.
        inputs: buffer and offset, in elements, of each operand; its elements are contiguous there.
        outputs: a buffer per result.
        scratch: memory for the routine's own use, if it asked for any.
    """

    node: Node
    inputs: tuple[tuple[Buffer, int], ...]
    outputs: tuple[Buffer, ...]
    scratch: Buffer | None


class Rows(NamedTuple):
    """Where the rows of a step are: an axis that counts `per` points for each.

    Attributes:
        of: "domain" of a kernel; "batch", "m", "n" or "k" of a product.
        axis: which of those axes.
        per: points of that axis that a row has: 1 unless columns are merged into it.
    """

    of: str
    axis: int
    per: int


class Panel(NamedTuple):
    """Steps that treat the rows of their arrays alike, done for some rows at a time.

    The rows are divided into spans that can be computed side by side, a span into passes over `chunk` rows. What the
    passes of a span sum up, they sum up in a part of a buffer that is the span's own; the sums of all spans are
    combined by a kernel after the panel. Spans and passes depend on the sizes of the program alone, and so do the
    results.

    Attributes:
        rows: how many rows there are.
        chunk: the rows of a pass.
        spans: how many spans there are.
        passes: the passes of a span; the last span may have fewer, and the rest.
        begin: kernels that a span starts with: they fill its parts of the sums with what is neutral.
        steps: the steps of a pass, with where the rows are in each. Extents of those axes are those of a pass.
        rest: the same for the rows that are left after the last whole pass, if any.
        parts: buffers of sums, and the elements of a span's part.
        private: the memory of a thread for what no other step reads, `private_nbytes` for each of `spans` threads.
        private_nbytes: the bytes for one thread; buffers of kind "private" have their offset in it.
    """

    rows: int
    chunk: int
    spans: int
    passes: int
    begin: tuple[Kernel, ...]
    steps: tuple[tuple[Kernel | Product, Rows], ...]
    rest: tuple[tuple[Kernel | Product, Rows], ...]
    parts: dict[Buffer, int]
    private: Buffer | None
    private_nbytes: int


class Branches(NamedTuple):
    """Steps that need nothing of each other and can run side by side; the one that takes longest is the last."""

    steps: tuple[Kernel | Product | Call, ...]


Step = Kernel | Product | Call | Panel | Branches


def singly(steps: Sequence[Step]) -> list[Kernel | Product | Call | Panel]:
    """The steps one by one, also those that run side by side."""
    out: list[Kernel | Product | Call | Panel] = []
    for step in steps:
        out += step.steps if isinstance(step, Branches) else (step,)
    return out


def collapse(kernel: Kernel) -> Kernel:
    """The kernel with neighbouring axes merged wherever every access allows it."""
    domain, body = kernel.domain, kernel.body
    if len(domain) < 2:
        return kernel
    accesses = [e for e in body if isinstance(e, (Load, Store, Reduce))]
    joined = [0]  # old axis -> new axis
    for a in range(1, len(domain)):
        n = domain[a]
        mergeable = all(
            [
                e.strides[a - 1] == e.strides[a] * n
                and (not isinstance(e, Reduce) or (a in e.axes) == (a - 1 in e.axes))
                and (
                    not isinstance(e, Load)
                    or not e.bounds
                    or e.bounds[a - 1 : a + 1] == ((0, domain[a - 1]), (0, n))
                )
                for e in accesses
            ]
        )
        joined.append(joined[-1] + (not mergeable))
    if joined[-1] == len(domain) - 1:
        return kernel
    extents = [1] * (joined[-1] + 1)
    last = [0] * len(extents)
    for a, to in enumerate(joined):
        extents[to] *= domain[a]
        last[to] = a  # the stride of a merged axis is that of its last part
    merged: list[Entry] = []
    for e in body:
        if isinstance(e, Reduce):
            e = e._replace(
                strides=tuple([e.strides[a] for a in last]), axes=frozenset([joined[a] for a in e.axes])
            )
        elif isinstance(e, (Load, Store)):
            e = e._replace(strides=tuple([e.strides[a] for a in last]))
            if isinstance(e, Load) and e.bounds:  # those of merged axes are all of their extents
                kept = zip(last, extents, strict=True)
                e = e._replace(bounds=tuple([e.bounds[a] if domain[a] == n else (0, n) for a, n in kept]))
        merged.append(e)
    return Kernel(tuple(extents), tuple(merged))


def merge_axes(axes: list[Axis]) -> tuple[Axis, ...]:
    """Axes of a product without those of extent 1, neighbours merged where all three strides allow it."""
    out: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        if out:
            before = out[-1]
            if before[1:] == tuple([s * axis.extent for s in axis[1:]]):
                out[-1] = Axis(before.extent * axis.extent, *axis[1:])
                continue
        out.append(axis)
    return tuple(out)


def restrict(kernel: Kernel, roots: list[int]) -> Kernel:
    """The kernel with only these stores and reductions, and what they need."""
    needed = set(roots)
    for i in range(len(kernel.body) - 1, -1, -1):
        if i in needed:
            e = kernel.body[i]
            if isinstance(e, Apply):
                needed.update(e.args)
            elif isinstance(e, (Store, Reduce)):
                needed.add(e.value)
    place: dict[int, int] = {}
    body: list[Entry] = []
    for i, e in enumerate(kernel.body):
        if i in needed:
            if isinstance(e, Apply):
                e = e._replace(args=tuple([place[a] for a in e.args]))
            elif isinstance(e, (Store, Reduce)):
                e = e._replace(value=place[e.value])
            place[i] = len(body)
            body.append(e)
    return Kernel(kernel.domain, tuple(body))
