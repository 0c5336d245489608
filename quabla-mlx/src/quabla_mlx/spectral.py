"""Eigenvalues and eigenvectors."""

from __future__ import annotations

import math

import mlx.core as mx

from quabla.ir.program import Node
from quabla.ops.spectral import FIRST
from quabla_mlx.linalg import nan_where, stream_of, turned
from quabla_mlx.rules import Call, rule
from quabla_mlx.target import Array, Target

__all__: list[str] = []


def _refined(a: Array, v: Array) -> Array:
    """The eigenvectors, with the digits that LAPACK's many rotations lost.

    T. Ogita and K. Aishima, Iterative refinement for symmetric eigenvalue decomposition, Japan Journal of Industrial
    and Applied Mathematics 35 (2018), algorithm 1. Vectors whose values are too close are only made orthogonal.
    """
    eye = mx.eye(a.shape[-1], dtype=a.dtype)
    r = eye - mx.matmul(turned(v), v)
    s = mx.matmul(turned(v), mx.matmul(a, v))
    values = mx.diagonal(s, 0, -2, -1) / (1.0 - mx.diagonal(r, 0, -2, -1))
    row = mx.expand_dims(values, -2)
    gaps = row - mx.expand_dims(values, -1)
    norms = [mx.sqrt(mx.sum(mx.square(x), (-2, -1), keepdims=True)) for x in (s - eye * row, a, r)]
    near = mx.less_equal(mx.abs(gaps), 2.0 * (norms[0] + norms[1] * norms[2]))
    moved = mx.where(near, r * 0.5, (s + row * r) / mx.where(near, 1.0, gaps))
    return v + mx.matmul(v, moved)


@rule("eigh")
def _eigh(node: Node, target: Target) -> Call:
    stream = stream_of(target)
    n = node.inputs[0].shape[-1]

    def eigh(a: Array) -> tuple[Array, Array]:
        a = a * 0.5 + turned(a) * 0.5
        bad = mx.logical_not(mx.all(mx.isfinite(a), (-2, -1)))
        safe = mx.where(mx.expand_dims(bad, (-2, -1)), mx.eye(n, dtype=a.dtype), a)
        if n == 1:
            values, vectors = safe[..., 0], mx.ones_like(safe)
        else:
            values, vectors = mx.linalg.eigh(safe, stream=stream)
            vectors = _refined(safe, vectors)
        # The sign of an eigenvector is that of its first element that is not much smaller than the largest.
        size = mx.abs(vectors)
        large = mx.greater(size, FIRST * mx.max(size, -2, keepdims=True))
        first = mx.take_along_axis(vectors, mx.expand_dims(mx.argmax(large, -2), -2), -2)
        vectors = mx.where(mx.less(first, 0.0), mx.negative(vectors), vectors)
        return mx.where(mx.expand_dims(bad, -1), math.nan, values), nan_where(bad, vectors)

    return Call(eigh)
