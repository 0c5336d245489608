"""Factorisations and linear systems, on MLX's CPU stream where the device is a GPU: only that has the routines.

What MLX calls raises for a singular triangle and returns an unfinished factor of a matrix that is not positive
definite. Here both are NaN, so the diagonal is looked at before and after.

The factors that `lu_factor` and `lu` return claim to hold more elements than they have memory for (MLX 0.32). Functions
that believe it read and write beyond; those that go by shape and strides do not, and one of them copies the factors
before anything else sees them. Where there is one row the claim cannot be told from the truth: no routine is called.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from quabla.dtypes import float64
from quabla.ir.program import Node
from quabla_mlx.rules import Call, rule
from quabla_mlx.target import Array, Target

__all__ = ["nan_where", "stream_of", "turned"]


def stream_of(target: Target) -> Any:
    """Where factorisations run."""
    return mx.cpu if target.gpu else None


def turned(a: Array) -> Array:
    """Each matrix transposed."""
    return mx.swapaxes(a, -1, -2)


def _diagonal(a: Array) -> Array:
    return mx.diagonal(a, 0, -2, -1)


def nan_where(bad: Array, x: Array) -> Array:
    """NaN throughout the matrices (..., n, k) for which `bad` (...) holds."""
    return mx.where(mx.expand_dims(bad, (-2, -1)), math.nan, x)


# --- triangles --------------------------------------------------------------------------------------------------------


def _triangle(a: Array, lower: bool, unit: bool) -> tuple[Array, Array]:
    """The triangle of `a`, with ones in place of zeros on its diagonal, and which matrices had such a zero."""
    n = a.shape[-1]
    eye = mx.eye(n, dtype=a.dtype)
    if unit:
        return (mx.tril(a, -1) if lower else mx.triu(a, 1)) + eye, mx.zeros(a.shape[:-2], dtype=mx.bool_)
    zero = mx.equal(_diagonal(a), 0.0)
    safe = (mx.tril(a) if lower else mx.triu(a)) + mx.where(mx.expand_dims(zero, -1), eye, 0.0)
    return safe, mx.any(zero, -1)


@rule("triangular_solve")
def _triangular_solve(node: Node, target: Target) -> Call:
    lower, transposed, unit = (node.params[name] for name in ("lower", "transposed", "unit"))
    stream = stream_of(target)

    def solve(a: Array, b: Array) -> Array:
        safe, singular = _triangle(a, lower, unit)
        inverse = mx.linalg.tri_inv(safe, upper=not lower, stream=stream)
        if transposed:
            safe, inverse = turned(safe), turned(inverse)
        x = mx.matmul(inverse, b)
        x = x + mx.matmul(
            inverse, b - mx.matmul(safe, x)
        )  # the inverse loses digits; one step gets them back
        return nan_where(singular, x)

    return Call(solve)


# --- LU ---------------------------------------------------------------------------------------------------------------


@rule("solve")
def _solve(node: Node, target: Target) -> Call:
    transposed, stream = node.params["transposed"], stream_of(target)
    if node.inputs[0].shape[-1] == 1:
        return Call(lambda a, b: mx.where(mx.equal(a, 0.0), math.nan, mx.divide(b, a)))

    def solve(a: Array, b: Array) -> Array:
        order, low, up = mx.linalg.lu(a, stream=stream)  # a[i] = (low up)[order[i]]
        up, singular = _triangle(up, False, False)
        low = mx.linalg.tri_inv(low, stream=stream)
        up = mx.linalg.tri_inv(up, upper=True, stream=stream)
        matrix = a
        at = mx.expand_dims(order if transposed else mx.argsort(order, -1), -1)
        if transposed:
            matrix, low, up = turned(a), turned(low), turned(up)

        def once(b: Array) -> Array:
            if transposed:
                return mx.take_along_axis(mx.matmul(low, mx.matmul(up, b)), at, -2)
            return mx.matmul(up, mx.matmul(low, mx.take_along_axis(b, at, -2)))

        x = once(b)
        return nan_where(singular, x + once(b - mx.matmul(matrix, x)))

    return Call(solve)


@rule("lu")
def _lu(node: Node, target: Target) -> Call:
    stream = stream_of(target)
    shape = node.inputs[0].shape
    if shape[-1] == 1:
        return Call(lambda a: (a, mx.zeros(shape[:-1], dtype=mx.int64)))

    def lu(a: Array) -> tuple[Array, Array]:
        factors, pivots = mx.linalg.lu_factor(a, stream=stream)
        return turned(mx.contiguous(factors)), mx.astype(pivots, mx.int64)

    return Call(lu)


def _swaps(pivots: Array, n: int) -> Array:
    """The order of rows after the interchanges, of which those with what is no row are left out."""
    places = mx.arange(n, dtype=mx.int64)
    order = mx.broadcast_to(places, pivots.shape)
    for j in range(n):
        at = pivots[..., j : j + 1]
        at = mx.where(mx.logical_and(mx.greater_equal(at, 0), mx.less(at, n)), at, j)
        there, here = mx.take_along_axis(order, at, -1), order[..., j : j + 1]
        order = mx.where(mx.equal(places, j), there, mx.where(mx.equal(places, at), here, order))
    return order


@rule("lu_solve")
def _lu_solve(node: Node, target: Target) -> Call:
    transposed, stream = node.params["transposed"], stream_of(target)
    n = node.inputs[0].shape[-1]

    def solve(factors: Array, pivots: Array, b: Array) -> Array:
        low, _ = _triangle(turned(factors), True, True)
        up, singular = _triangle(turned(factors), False, False)
        low_inverse = mx.linalg.tri_inv(low, stream=stream)
        up_inverse = mx.linalg.tri_inv(up, upper=True, stream=stream)
        order = _swaps(pivots, n)
        if transposed:
            first, second = (turned(up), turned(up_inverse)), (turned(low), turned(low_inverse))
        else:
            first, second = (low, low_inverse), (up, up_inverse)
            b = mx.take_along_axis(b, mx.expand_dims(order, -1), -2)

        x = b
        for matrix, inverse in (first, second):
            y = mx.matmul(inverse, x)
            x = y + mx.matmul(inverse, x - mx.matmul(matrix, y))
        if transposed:
            x = mx.take_along_axis(x, mx.expand_dims(mx.argsort(order, -1), -1), -2)
        return nan_where(singular, x)

    return Call(solve)


@rule("lu_det")
def _lu_det(node: Node, target: Target) -> Call:
    signs = node.params["signs"]
    factors = node.inputs[0].aval
    n = factors.shape[-1]
    most = 1000.0 if target.computed(factors.dtype) is float64 else 120.0

    def det(factors: Array, pivots: Array) -> Array:
        d = _diagonal(factors)
        swaps = mx.sum(mx.astype(mx.not_equal(pivots, mx.arange(n, dtype=mx.int64)), mx.int32), -1)
        odd = mx.equal(mx.remainder(swaps, 2), 1)
        if signs:
            d = mx.where(mx.equal(d, d), mx.sign(d), d)
            product = mx.prod(d, -1)
        else:
            # Powers of two apart: a product that is too large or too small on the way may be neither in the end.
            ordinary = mx.logical_and(mx.isfinite(d), mx.not_equal(d, 0.0))
            power = mx.round(mx.log2(mx.where(ordinary, mx.abs(d), 1.0)))
            power = mx.clip(power, -most, most)
            total = mx.clip(mx.sum(power, -1), -2.0 * most, 2.0 * most)
            half = mx.floor(total * 0.5)
            product = mx.prod(d * mx.power(2.0, mx.negative(power)), -1)
            product = product * mx.power(2.0, half) * mx.power(2.0, total - half)
        return mx.where(odd, mx.negative(product), product)

    return Call(det)


# --- others -----------------------------------------------------------------------------------------------------------


@rule("cholesky")
def _cholesky(node: Node, target: Target) -> Call:
    stream = stream_of(target)

    def cholesky(a: Array) -> Array:
        low = mx.linalg.cholesky(a * 0.5 + turned(a) * 0.5, stream=stream)
        # A factorisation that stops leaves the pivot at which it did, which is not positive.
        return nan_where(mx.logical_not(mx.all(mx.greater(_diagonal(low), 0.0), -1)), low)

    return Call(cholesky)


@rule("eliminate")
def _eliminate(node: Node, target: Target) -> Call:
    """Complete pivoting, step by step: MLX has no routine for it."""
    shape = node.inputs[0].shape
    n = shape[-1]

    def eliminate(a: Array) -> tuple[Array, ...]:
        d = mx.reshape(a, (-1, n, n))
        count = d.shape[0]
        places = mx.arange(n, dtype=mx.int64)
        left = right = mx.broadcast_to(mx.eye(n, dtype=a.dtype), d.shape)
        sign = mx.ones((count,), dtype=a.dtype)
        live = mx.ones((count,), dtype=mx.bool_)
        for j in range(n):
            m = n - j
            largest = mx.astype(mx.argmax(mx.reshape(mx.abs(d[:, j:, j:]), (count, m * m)), 1), mx.int64)
            row, column = j + mx.floor_divide(largest, m), j + mx.remainder(largest, m)
            pivot = _at(_at(d, row, 1), column, 2)
            live = mx.logical_and(live, mx.greater(mx.abs(pivot[:, 0, 0]), 0.0))
            row, column = mx.where(live, row, j), mx.where(live, column, j)
            rows, columns = _exchange(places, j, row), _exchange(places, j, column)
            d, left = _in_order(_in_order(d, rows, 1), columns, 2), _in_order(left, rows, 1)
            right = _in_order(right, columns, 2)
            sign = mx.where(
                mx.not_equal(mx.not_equal(row, j), mx.not_equal(column, j)), mx.negative(sign), sign
            )
            going = mx.reshape(live, (-1, 1, 1))
            pivot = mx.where(going, pivot, 1.0)
            beyond = mx.greater(places, j)
            down = mx.where(
                mx.logical_and(going, mx.reshape(beyond, (1, n, 1))), d[:, :, j : j + 1] / pivot, 0.0
            )
            across = mx.where(mx.logical_and(going, beyond), d[:, j : j + 1, :] / pivot, 0.0)
            cleared = _cleared(places, j)
            d = mx.where(
                mx.logical_and(going, cleared), 0.0, d - mx.where(going, down * d[:, j : j + 1, :], 0.0)
            )
            left = left - down * left[:, j : j + 1, :]
            right = right - right[:, :, j : j + 1] * across
        return (
            mx.reshape(left, shape), mx.reshape(right, shape), mx.reshape(d, shape), mx.reshape(sign, shape[:-2])
        )  # fmt: skip

    return Call(eliminate)


def _at(x: Array, position: Array, axis: int) -> Array:
    """The row or column of each matrix at its position."""
    at = mx.reshape(position, (-1, 1, 1))
    shape = [x.shape[0], x.shape[1], x.shape[2]]
    shape[axis] = 1
    return mx.take_along_axis(x, mx.broadcast_to(at, shape), axis)


def _exchange(places: Array, j: int, other: Array) -> Array:
    """The order in which `j` and `other` have changed places."""
    other = mx.expand_dims(other, -1)
    return mx.where(mx.equal(places, j), other, mx.where(mx.equal(places, other), j, places))


def _in_order(x: Array, order: Array, axis: int) -> Array:
    at = mx.expand_dims(order, 3 - axis)
    return mx.take_along_axis(x, mx.broadcast_to(at, x.shape), axis)


def _cleared(places: Array, j: int) -> Array:
    """What is zero after step j: the column below the pivot, and the row beyond it."""
    rows, columns = mx.expand_dims(places, 1), mx.expand_dims(places, 0)
    below = mx.logical_and(mx.greater(rows, j), mx.equal(columns, j))
    return mx.logical_or(below, mx.logical_and(mx.equal(rows, j), mx.greater(columns, j)))
