"""What fusion works on: items, which are units of work or arrays in memory, and views of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from quabla.dtypes import dtype
from quabla.ir.program import Node
from quabla.lowering.loops import Bounds, Buffer
from quabla.lowering.views import contiguous

__all__ = ["Full", "Item", "View", "bounded", "domain_of", "stored", "view_of", "written"]

Shape = tuple[int, ...]


class Item:
    """A unit of work, or an array that exists already."""

    __slots__ = ("again", "args", "axes", "buffer", "depth", "domain", "dtype", "kind", "node", "op", "ops", "params",
                 "results", "roots", "shape", "size", "target", "users")  # fmt: skip
    op: str  # of maps and reductions
    params: dict[str, Any]
    axes: frozenset[int]  # of reductions, among the axes of the domain
    node: Node  # of products and calls
    target: tuple[Buffer, int, Shape]  # of puts

    def __init__(self, kind: str, shape: Shape, dtype: dtype, domain: Shape, depth: int) -> None:
        # "leaf", "map", "reduce", "product", "call" and its "result"s, "assembly", or "put": a store into an assembly
        # or an output.
        self.kind = kind
        self.shape = shape
        self.size = math.prod(shape)
        self.dtype = dtype
        self.domain = domain
        self.depth = depth
        self.buffer: Buffer | None = None
        self.args: list[View | Full] = []
        self.results: list[Item] = []
        self.users: list[tuple[Item, bool]] = []  # each with whether the two may share a kernel
        self.roots: frozenset[Item] | None = None  # what it can be computed from again, if it is cheap
        self.ops = 0  # how many ops that takes
        self.again = False  # whether each kernel that uses it computes it


class View(NamedTuple):
    """How a value reads an item: strides per axis of the value; `whole` if it is all of it in its own order.

    Where `bounds` are given (per axis of the value, from the first index to the last plus one) it is zero beyond them.
    """

    item: Item
    offset: int
    strides: Shape
    whole: bool
    bounds: Bounds = ()


class Full(NamedTuple):
    """An array of equal elements."""

    value: Any
    dtype: dtype


def domain_of(shape: Shape) -> Shape:
    """The extents that are not 1: what kernels go over."""
    return tuple([n for n in shape if n != 1]) if 1 in shape else shape


def view_of(item: Item) -> View:
    """All of an item, in its own order."""
    return View(item, 0, contiguous(item.shape), True)


def bounded(view: View, shape: Shape, bounds: Bounds) -> View | Full:
    """A view of `shape` with these bounds: simply zero where they leave nothing, a plain view where they leave all."""
    clipped = tuple([(max(low, 0), min(high, n)) for (low, high), n in zip(bounds, shape, strict=True)])
    if any([low >= high for low, high in clipped]):
        return Full(False if view.item.dtype.kind == "b" else 0, view.item.dtype)
    if all([bound == (0, n) for bound, n in zip(clipped, shape, strict=True)]):
        return view._replace(bounds=())
    return view._replace(bounds=clipped, whole=False)


def stored(item: Item, without: Item | None = None) -> bool:
    """Whether anybody (but `without`) reads the item from memory."""
    if item.buffer is not None:
        return True
    return any([not joins or user.depth != item.depth for user, joins in item.users if user is not without])


def written(item: Item) -> bool:
    """Whether the item needs memory."""
    return not item.again and stored(item)
