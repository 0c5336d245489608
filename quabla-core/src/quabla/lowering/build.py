"""From items that know their kernel to steps: kernels, products and calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quabla.lowering.items import Full, Item, View, written
from quabla.lowering.loops import (
    Apply,
    Axis,
    Buffer,
    Call,
    Entry,
    Kernel,
    Load,
    Product,
    Reduce,
    Scalar,
    Store,
    collapse,
    merge_axes,
)
from quabla.lowering.views import contiguous, squeeze
from quabla.ops.matmul import free_axes

__all__ = ["build"]

Shape = tuple[int, ...]


def build(items: list[Item], temporary: Callable[[Item], Buffer]) -> tuple[Kernel | Product | Call, ...]:
    """Give memory to what needs it, and turn items into steps in the order in which they run."""
    groups: dict[Any, list[Item]] = {}
    others: list[tuple[int, int, Item]] = []
    for i, item in enumerate(items):
        if item.kind == "assembly":
            continue
        if item.buffer is None and item.kind not in ("put", "call") and (item.kind != "map" or written(item)):
            item.buffer = temporary(item)
        if item.kind in ("product", "call"):
            others.append((item.depth, i, item))
        elif item.kind != "result":
            groups.setdefault((item.depth, item.domain), []).append(item)
    steps: list[tuple[int, int, Kernel | Product | Call]] = [
        (depth, i, _kernel(domain, members)) for i, ((depth, domain), members) in enumerate(groups.items())
    ]
    for depth, i, item in others:
        steps.append((depth, len(groups) + i, _product(item) if item.kind == "product" else _call(item)))
    steps.sort(key=lambda entry: entry[:2])
    return tuple([step for _, _, step in steps])


def _kernel(domain: Shape, members: list[Item]) -> Kernel:
    """One loop nest for items of one domain and depth."""
    body: list[Entry] = []
    place: dict[Any, int] = {}
    own = contiguous(domain)

    def operand(rep: View | Full, shape: Shape) -> int:
        if isinstance(rep, View):
            item = rep.item
            if rep.whole and item.domain == domain:
                at = place.get(item)
                if at is None and item.buffer is None and item.kind == "map":
                    at = compute(item)
                if at is not None:
                    return at
            strides, bounds = rep.strides, rep.bounds
            if len(strides) != len(domain):
                strides = squeeze(shape, strides)
                bounds = tuple([b for n, b in zip(shape, bounds, strict=True) if n != 1]) if bounds else ()
            key: Any = (item.buffer, rep.offset, strides, bounds)
            at = place.get(key)
            if at is None:
                assert item.buffer is not None
                at = place[key] = len(body)
                body.append(Load(item.buffer, rep.offset, strides, bounds))
            return at
        key = (repr(rep.value), rep.dtype)
        at = place.get(key)
        if at is None:
            at = place[key] = len(body)
            body.append(Scalar(rep.value, rep.dtype))
        return at

    def compute(item: Item) -> int:
        args = tuple([operand(rep, item.shape) for rep in item.args])
        at = place[item] = len(body)
        body.append(Apply(item.op, args, item.params, item.dtype))
        return at

    for item in members:
        if item.kind == "map":
            if item.again:
                continue  # where it is used
            compute(item)
            if item.buffer is not None:
                body.append(Store(place[item], item.buffer, 0, own))
        elif item.kind == "put":
            value = operand(item.args[0], item.shape)
            body.append(Store(value, *item.target))
        else:
            value = operand(item.args[0], domain)
            kept = contiguous(tuple([n for a, n in enumerate(domain) if a not in item.axes]))
            strides = iter(kept)
            assert item.buffer is not None
            body.append(
                Reduce(
                    item.op,
                    value,
                    item.axes,
                    item.buffer,
                    0,
                    tuple([0 if a in item.axes else next(strides) for a in range(len(domain))]),
                )
            )
    return collapse(Kernel(domain, tuple(body)))


def _call(item: Item) -> Call:
    inputs = []
    for rep in item.args:
        assert isinstance(rep, View) and rep.item.buffer is not None
        inputs.append((rep.item.buffer, rep.offset))
    outputs = [result.buffer for result in item.results if result.buffer is not None]
    return Call(item.node, tuple(inputs), tuple(outputs), item.buffer)


def _product(item: Item) -> Product:
    node = item.node
    left, right = item.args
    assert isinstance(left, View) and isinstance(right, View)
    assert left.item.buffer is not None and right.item.buffer is not None and item.buffer is not None
    lhs, rhs = node.inputs
    (lc, rc), (lb, rb) = node.params["contract"], node.params["batch"]
    lf, rf = free_axes(lhs.ndim, lc, lb), free_axes(rhs.ndim, rc, rb)
    out = list(contiguous(item.shape))
    batch = [
        Axis(lhs.shape[a], left.strides[a], right.strides[b], s) for a, b, s in zip(lb, rb, out, strict=False)
    ]
    m = [Axis(lhs.shape[a], left.strides[a], 0, s) for a, s in zip(lf, out[len(lb) :], strict=False)]
    n = [
        Axis(rhs.shape[a], 0, right.strides[a], s) for a, s in zip(rf, out[len(lb) + len(lf) :], strict=False)
    ]
    k = [Axis(lhs.shape[a], left.strides[a], right.strides[b], 0) for a, b in zip(lc, rc, strict=True)]
    # An operand repeated along a batch axis: the axis belongs to the other operand alone.
    kept = []
    for axis in batch:
        if axis.right == 0 and axis.left:
            m.insert(len([x for x in m if x.out > axis.out]), axis)
        elif axis.left == 0 and axis.right:
            n.insert(len([x for x in n if x.out > axis.out]), axis)
        else:
            kept.append(axis)
    outermost = _outside(lhs.shape, left.strides, lc) and _outside(rhs.shape, right.strides, rc)
    return Product(
        merge_axes(kept),
        merge_axes(m),
        merge_axes(n),
        merge_axes(sorted(k, key=lambda axis: -abs(axis.left))),
        left.item.buffer,
        left.offset,
        right.item.buffer,
        right.offset,
        item.buffer,
        item.dtype,
        outermost=outermost,
    )


def _outside(shape: Shape, strides: Shape, terms: Shape) -> bool:
    """Whether some axes of an array are outside of all others in memory; so are those along which nothing moves."""
    least = min([abs(strides[a]) for a in terms if shape[a] > 1], default=0)
    inner = [abs(s) for a, (n, s) in enumerate(zip(shape, strides, strict=True)) if n > 1 and a not in terms]
    return not least or all([s <= least for s in inner])
