"""Reductions, and sums and products along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from quabla.dtypes import float32
from quabla.ir.program import Node
from quabla_mlx.rules import RULES, Call, rule
from quabla_mlx.target import Array, Target

__all__: list[str] = []

_LONG = 4096
"""A running sum of more terms is cut into shorter ones: MLX adds in the dtype of the terms, one after the other."""


@rule("reduce_sum")
def _sum(node: Node, target: Target) -> Call:
    x, axes = node.inputs[0].aval, node.params["axes"]
    if x.dtype.kind == "b":
        return Call(mx.any, (axes,))
    terms = math.prod([x.shape[a] for a in axes])
    if x.dtype.kind != "f" or terms <= _LONG or target.gpu:
        return Call(mx.sum, (axes,))
    if len(axes) == x.ndim:
        return Call(_long_sum, (x.size,))
    if target.computed(x.dtype) is float32:
        return Call(_wide_sum, (axes,))
    return Call(mx.sum, (axes,))


def _long_sum(x: Array, size: int) -> Array:
    """The sum of all elements: of rows first, then of the sums."""
    flat = mx.reshape(x, (size,))
    length = 1 << ((size.bit_length() + 1) // 2)
    rows = size // length
    total = mx.sum(mx.sum(mx.reshape(flat[: rows * length], (rows, length)), 1), 0)
    return total if rows * length == size else mx.add(total, mx.sum(flat[rows * length :], 0))


def _wide_sum(x: Array, axes: tuple[int, ...]) -> Array:
    return mx.astype(mx.sum(mx.astype(x, mx.float64), axes), mx.float32)


def _over_axes(function: Callable[..., Array]) -> Callable[[Node, Target], Call]:
    return lambda node, target: Call(function, (node.params["axes"],))


RULES["reduce_max"] = _over_axes(mx.max)
RULES["reduce_min"] = _over_axes(mx.min)
RULES["reduce_any"] = _over_axes(mx.any)
RULES["reduce_all"] = _over_axes(mx.all)


# --- along an axis ----------------------------------------------------------------------------------------------------


def _running(function: Callable[..., Array]) -> Callable[[Node, Target], Call]:
    def each(node: Node, target: Target) -> Call:
        axis, reverse = node.params["axis"], node.params["reverse"]
        x = node.inputs[0].aval
        # Sums in float32 are kept in float64 where there is one, as the definition does.
        wide = target.computed(x.dtype) is float32 and target.double

        def running(x: Array) -> Array:
            out = function(mx.astype(x, mx.float64) if wide else x, axis=axis, reverse=reverse)
            return mx.astype(out, mx.float32) if wide else out

        return Call(running)

    return each


RULES["cumsum"] = _running(mx.cumsum)
RULES["cumprod"] = _running(mx.cumprod)

_STEPPED = 64
"""Up to this many steps a recurrence is one step after the other; beyond, it doubles its reach with each."""


@rule("recurrence")
def _recurrence(node: Node, target: Target) -> Call:
    """y[i] = a[i] y[i - 1] + b[i] along an axis, from either end."""
    axis, reverse = node.params["axis"], node.params["reverse"]
    shape = node.inputs[0].shape
    n = shape[axis]
    wide = target.computed(node.inputs[0].aval.dtype) is float32 and target.double

    def at(start: int, stop: int) -> tuple[Any, ...]:
        return (*[slice(None)] * axis, slice(start, stop))

    def behind(x: Array, k: int, fill: float) -> Array:
        # `x` moved by k positions away from the end at which the recurrence begins.
        edge = mx.full((*shape[:axis], k, *shape[axis + 1 :]), fill, dtype=x.dtype)
        kept = x[at(k, n)] if reverse else x[at(0, n - k)]
        return mx.concatenate([kept, edge] if reverse else [edge, kept], axis)

    def stepped(a: Array, b: Array) -> Array:
        rows: list[Array] = []
        for i in reversed(range(n)) if reverse else range(n):
            row = b[at(i, i + 1)]
            rows.append(mx.add(row, mx.multiply(a[at(i, i + 1)], rows[-1])) if rows else row)
        return mx.concatenate(rows[::-1] if reverse else rows, axis)

    def doubled(a: Array, b: Array) -> Array:
        # (a, b) after (a', b') is (a a', a b' + b): the reach of each pair doubles (Hillis and Steele, CACM 29, 1986).
        k = 1
        while k < n:
            b = mx.add(mx.multiply(a, behind(b, k, 0.0)), b)
            a = mx.multiply(a, behind(a, k, 1.0))
            k *= 2
        return b

    run = stepped if n <= _STEPPED else doubled

    def recurrence(a: Array, b: Array) -> Array:
        if wide:
            a, b = mx.astype(a, mx.float64), mx.astype(b, mx.float64)
        out = run(a, b)
        return mx.astype(out, mx.float32) if wide else out

    return Call(recurrence)
