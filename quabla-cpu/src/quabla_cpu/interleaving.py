"""Arrays whose last axis is a few components, such as points in space: all components are loaded or stored at once.

One component of neighbouring points lies `stride` elements apart. Lane by lane it takes an instruction for each; whole
vectors of memory hold all components, and two shuffles per vector take three of them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quabla.dtypes import dtype
from quabla.lowering.loops import Load, Store
from quabla_cpu import text
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import MEMORY, memory_type

__all__ = ["apart", "interleaved", "together"]

_COMPONENTS = (2, 3, 4)  # more of them take more shuffles than there are lanes


def interleaved(body: Sequence[Any], axis: int, level: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Accesses of a kernel that together touch all components: by each, those of all in their order.

    Args:
        body: the entries of the kernel.
        axis: the one along the lanes.
        level: the number of loops that each entry is inside of.
    """
    found: dict[Any, dict[int, int]] = {}
    for i, e in enumerate(body):
        if (type(e) is Load and not e.bounds) or type(e) is Store:
            count = e.strides[axis]
            if count in _COMPONENTS:
                key = type(e), e.buffer, e.strides, e.offset // count, level[i]
                found.setdefault(key, {})[e.offset % count] = i
    groups = {}
    for (_, _, strides, _, _), members in found.items():
        if len(members) == strides[axis]:
            group = tuple([i for _, i in sorted(members.items())])
            groups.update(dict.fromkeys(group, group))
    return groups


def apart(b: Builder, d: dtype, address: Value, lanes: int, count: int) -> list[Value]:
    """The components of `lanes` neighbours from an address on, as the types that registers hold."""
    kind = memory_type(d, lanes)
    places = [b.gep(MEMORY[d.name], address, i * lanes) if i else address for i in range(count)]
    pieces = [b.load(kind, place, d.itemsize) for place in places]
    out = []
    for component in range(count):
        at = [divmod(lane * count + component, lanes) for lane in range(lanes)]
        x = _picked(b, pieces, at)
        out.append(b.icmp("ne", x, text.constant(kind, 0)) if d.name == "bool" else x)
    return out


def together(b: Builder, d: dtype, xs: Sequence[Value], address: Value) -> None:
    """Store the components of neighbours from an address on."""
    lanes, count = text.lanes(xs[0].type), len(xs)
    if d.name == "bool":
        xs = [b.zext(x, "i8") for x in xs]
    for i in range(count):
        at = [divmod(i * lanes + lane, count)[::-1] for lane in range(lanes)]
        place = b.gep(MEMORY[d.name], address, i * lanes) if i else address
        b.store(_picked(b, xs, at), place, d.itemsize)


def _picked(b: Builder, xs: Sequence[Value], at: Sequence[tuple[int, int]]) -> Value:
    """A vector from lanes of several: for each of its lanes the number of a vector and the lane there."""
    out, lanes = xs[0], len(at)
    order = [lane if number == 0 else -1 for number, lane in at]
    for i in range(1, len(xs)):
        mine = [
            lanes + lane if number == i else known for known, (number, lane) in zip(order, at, strict=True)
        ]
        if any([number == i for number, _ in at]):
            out = b.shuffle(out, xs[i], mine)
            order = [j if number <= i else -1 for j, (number, _) in enumerate(at)]
    return out
