"""Products with a thin operand, as elementwise products and sums that fuse with their neighbours.

An outer product (contracted extent 1) is a product of broadcast operands; a matrix times a vector is a product summed
over an axis. What remains of `dot_general` has at least two rows, columns and terms.

A product with an identity matrix is the other operand: all columns of a Jacobian begin as one. The sum would add zero
times every other element, which spreads an infinity or a NaN over its row and turns -0.0 into 0.0; without it, only the
elements that depend on an infinity show it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.arrays.tracer import constant_op
from quabla.ir.program import Value
from quabla.lowering.passes import Rewriter, rule
from quabla.ops.matmul import free_axes

__all__: list[str] = []

Axes = tuple[int, ...]


def _extent(x: Value, axes: Axes) -> int:
    return math.prod([x.shape[a] for a in axes])


@rule("dot_general")
def _identity(r: Rewriter, xs: Any, params: Any) -> Value | None:
    (lc, rc), batch = params["contract"], params["batch"]
    if len(lc) != 1 or batch != ((), ()):
        return None
    lhs, rhs = xs
    if _is_identity(rhs):
        return r.apply("transpose", lhs, perm=(*free_axes(lhs.ndim, lc, ()), *lc))  # type: ignore[no-any-return]
    if _is_identity(lhs):
        return r.apply("transpose", rhs, perm=(*rc, *free_axes(rhs.ndim, rc, ())))  # type: ignore[no-any-return]
    return None


def _is_identity(x: Value) -> bool:
    if x.ndim != 2 or x.shape[0] != x.shape[1] or x.node is None or x.node.op is not constant_op:
        return False
    array = x.node.params["value"].numpy()
    return bool(array[0, 0] == 1.0 and array[-1, 0] == 0.0 and np.array_equal(array, np.eye(len(array))))


@rule("dot_general")
def _thin(r: Rewriter, xs: Any, params: Any) -> Value | None:
    lhs, rhs = xs
    if lhs.dtype.kind != "f":
        return None
    (lc, rc), (lb, rb) = params["contract"], params["batch"]
    lf, rf = free_axes(lhs.ndim, lc, lb), free_axes(rhs.ndim, rc, rb)
    if _extent(lhs, lc) == 1:
        return _outer(r, lhs, rhs, (lb, rb), (lf, rf), (lc, rc))
    shape = (*[lhs.shape[a] for a in (*lb, *lf)], *[rhs.shape[a] for a in rf])
    if _extent(rhs, rf) == 1:
        return _times_vector(r, lhs, rhs, (lb, lf, lc), (rb, rf, rc), shape)
    if _extent(lhs, lf) == 1:
        return _times_vector(r, rhs, lhs, (rb, rf, rc), (lb, lf, lc), shape)
    return None


def _moved(r: Rewriter, x: Value, order: Axes, dropped: Axes) -> Value:
    """`x` with its axes in this order; those dropped have extent 1."""
    out = r.apply("transpose", x, perm=(*order, *dropped))
    return r.apply("reshape", out, shape=tuple([x.shape[a] for a in order]))  # type: ignore[no-any-return]


def _outer(r: Rewriter, lhs: Value, rhs: Value, batch: Any, free: Any, contract: Any) -> Value:
    (lb, rb), (lf, rf), (lc, rc) = batch, free, contract
    shape = (*[lhs.shape[a] for a in (*lb, *lf)], *[rhs.shape[a] for a in rf])
    nb, nl = len(lb), len(lf)
    x = r.apply("broadcast", _moved(r, lhs, (*lb, *lf), lc), shape=shape, dims=tuple(range(nb + nl)))
    dims = (*range(nb), *range(nb + nl, len(shape)))
    y = r.apply("broadcast", _moved(r, rhs, (*rb, *rf), rc), shape=shape, dims=dims)
    return r.apply("mul", x, y)  # type: ignore[no-any-return]


def _times_vector(
    r: Rewriter, matrix: Value, vector: Value, of_matrix: Any, of_vector: Any, shape: Axes
) -> Value:
    # In the axis order of the matrix, which is read once; the vector is spread over it.
    (mb, mf, mc), (vb, vf, vc) = of_matrix, of_vector
    place = dict(zip((*vb, *vc), (*mb, *mc), strict=True))
    order = tuple(sorted(place, key=lambda a: place[a]))
    spread = r.apply(
        "broadcast", _moved(r, vector, order, vf), shape=matrix.shape, dims=tuple([place[a] for a in order])
    )
    out = r.apply("reduce_sum", r.apply("mul", matrix, spread), axes=tuple(sorted(mc)))
    kept = [a for a in range(matrix.ndim) if a not in mc]
    out = r.apply("transpose", out, perm=tuple([kept.index(a) for a in (*mb, *mf)]))
    return r.apply("reshape", out, shape=shape)  # type: ignore[no-any-return]


@rule("transpose")
def _transposed_product(r: Rewriter, xs: Any, params: Any) -> Value | None:
    """A transposed product is the product of the operands in the other order, if that is all that is transposed."""
    node, perm = xs[0].node, params["perm"]
    if node is None or node.op.name != "dot_general":
        return None
    lhs, rhs = node.inputs
    (lc, rc), (lb, rb) = node.params["contract"], node.params["batch"]
    nb = len(lb)
    nl = lhs.ndim - len(lc) - nb
    if perm != (*range(nb), *range(nb + nl, len(perm)), *range(nb, nb + nl)):
        return None
    return r.apply("dot_general", rhs, lhs, contract=(rc, lc), batch=(rb, lb))  # type: ignore[no-any-return]
