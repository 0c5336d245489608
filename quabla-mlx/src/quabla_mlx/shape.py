"""Ops that rearrange, repeat and cut out elements; on a CPU most of them only make another view."""

from __future__ import annotations

import operator

import mlx.core as mx

from quabla.ir.program import Node
from quabla_mlx.rules import Call, rule
from quabla_mlx.target import Array, Target

__all__: list[str] = []

Shape = tuple[int, ...]


@rule("reshape")
def _reshape(node: Node, target: Target) -> Call:
    return Call(mx.reshape, (node.params["shape"],))


@rule("transpose")
def _transpose(node: Node, target: Target) -> Call:
    return Call(mx.transpose, (node.params["perm"],))


@rule("broadcast")
def _broadcast(node: Node, target: Target) -> Call:
    shape, dims = node.params["shape"], node.params["dims"]
    x = node.inputs[0].aval
    if dims == tuple(range(len(shape) - x.ndim, len(shape))):
        return Call(mx.broadcast_to, (shape,))
    inner = [1] * len(shape)
    for extent, axis in zip(x.shape, dims, strict=True):
        inner[axis] = extent

    def broadcast(x: Array) -> Array:
        return mx.broadcast_to(mx.reshape(x, inner), shape)

    return Call(broadcast)


@rule("slice")
def _slice(node: Node, target: Target) -> Call:
    p = node.params
    parts = zip(p["start"], p["stop"], p["step"], strict=True)
    # A stop of -1 with a negative step is the end before the first element; Python writes None there.
    return Call(operator.getitem, (tuple([slice(a, None if b < 0 else b, c) for a, b, c in parts]),))


@rule("concat")
def _concat(node: Node, target: Target) -> Call:
    axis = node.params["axis"]

    def concat(*xs: Array) -> Array:
        return mx.concatenate(xs, axis)

    return Call(concat)


@rule("pad")
def _pad(node: Node, target: Target) -> Call:
    p = node.params
    width = tuple(zip(p["low"], p["high"], strict=True))
    if not any(p["inner"]):
        return Call(mx.pad, (width,))
    shape, inner = node.inputs[0].shape, p["inner"]

    def pad(x: Array) -> Array:
        # Zeros between the elements: each gets its own row, with the zeros behind it, and the last ones are cut off.
        for axis, between in enumerate(inner):
            if between:
                n = shape[axis]
                rows = mx.pad(mx.expand_dims(x, axis + 1), _behind(x.ndim + 1, axis + 1, between))
                flat: Shape = (*x.shape[:axis], n * (between + 1), *x.shape[axis + 1 :])
                cut = (*[slice(None)] * axis, slice(0, n * (between + 1) - between))
                x = mx.reshape(rows, flat)[cut]
        return mx.pad(x, width)

    return Call(pad)


def _behind(ndim: int, axis: int, count: int) -> tuple[tuple[int, int], ...]:
    return tuple([(0, count if a == axis else 0) for a in range(ndim)])
