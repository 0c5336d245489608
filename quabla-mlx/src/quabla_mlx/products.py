"""`dot_general` as one matrix product, with its operands' axes in the order that the product wants."""

from __future__ import annotations

import math

import mlx.core as mx

from quabla.ir.program import Node
from quabla.ops.matmul import free_axes
from quabla_mlx.rules import Call, rule
from quabla_mlx.target import Array, Target

__all__: list[str] = []

Axes = tuple[int, ...]
Step = tuple[object, tuple[int, ...]]


def _arranged(shape: Axes, order: Axes, wanted: Axes) -> list[Step]:
    """How to bring an array into an order of axes and then into a shape, in as few steps as there can be."""
    steps: list[Step] = []
    if order != tuple(range(len(order))):
        steps.append((mx.transpose, order))
    if tuple([shape[a] for a in order]) != wanted:
        steps.append((mx.reshape, wanted))
    return steps


@rule("dot_general")
def _dot_general(node: Node, target: Target) -> Call:
    lhs, rhs = node.inputs
    (lc, rc), (lb, rb) = node.params["contract"], node.params["batch"]
    lf, rf = free_axes(lhs.ndim, lc, lb), free_axes(rhs.ndim, rc, rb)
    batch = tuple([lhs.shape[a] for a in lb])
    m, n = math.prod([lhs.shape[a] for a in lf]), math.prod([rhs.shape[a] for a in rf])
    k = math.prod([lhs.shape[a] for a in lc])
    left = _arranged(lhs.shape, (*lb, *lf, *lc), (*batch, m, k))
    right = _arranged(rhs.shape, (*rb, *rc, *rf), (*batch, k, n))
    shape = node.outputs[0].shape
    if not left and not right and shape == (*batch, m, n):
        return Call(mx.matmul)

    def product(x: Array, y: Array) -> Array:
        for function, how in left:
            x = function(x, how)  # type: ignore[operator]
        for function, how in right:
            y = function(y, how)  # type: ignore[operator]
        out = mx.matmul(x, y)
        return out if out.shape == shape else mx.reshape(out, shape)

    return Call(product)
