"""Factorisations of matrices of a few rows, written out: all elements in registers, and choices instead of branches.

A call of LAPACK costs more than these take, above all in a stack of many small systems. The steps are those of LAPACK:
the pivot is the first of the largest, and a pivot that is zero is not divided by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from quabla_cpu import text
from quabla_cpu.text import Builder, Value

__all__ = ["TINY", "cholesky", "lu", "lu_solve"]

TINY = 4
"""Rows up to which a factorisation is written out."""

Matrix = list[list[Value]]


def _index(i: int) -> Value:
    return text.constant("i64", i)


def _load(b: Builder, real: str, base: Value, offsets: Sequence[int]) -> list[Value]:
    return [b.load(real, b.gep(real, base, i)) for i in offsets]


def _store(b: Builder, values: Sequence[Value], base: Value, offsets: Sequence[int]) -> None:
    for x, i in zip(values, offsets, strict=True):
        b.store(x, b.gep(x.type, base, i))


def lu(b: Builder, real: str, n: int, factors: Value, pivots: Value) -> None:
    """Factor a matrix that is stored by columns, in place; `pivots` are 64 bits wide and count from 0."""
    rows: Matrix = [_load(b, real, factors, range(i, n * n, n)) for i in range(n)]
    for j in range(n):
        largest, at = b.fabs(rows[j][j]), _index(j)
        for i in range(j + 1, n):
            size = b.fabs(rows[i][j])
            larger = b.fcmp("ogt", size, largest)
            largest, at = b.select(larger, size, largest), b.select(larger, _index(i), at)
        b.store(at, b.gep("i64", pivots, j))
        _exchange(b, rows, j, at, range(j + 1, n))
        pivot = rows[j][j]
        zero = b.fcmp("oeq", pivot, text.constant(real, 0.0))
        divisor = b.select(zero, text.constant(real, 1.0), pivot)
        for i in range(j + 1, n):
            rows[i][j] = b.fdiv(rows[i][j], divisor)
            for k in range(j + 1, n):
                rows[i][k] = b.fsub(rows[i][k], b.fmul(rows[i][j], rows[j][k]))
    for i in range(n):
        _store(b, rows[i], factors, range(i, n * n, n))


def _exchange(b: Builder, rows: Matrix, j: int, at: Value, others: Sequence[int]) -> None:
    """Exchange row j with the one of the others, if any, whose number is `at`."""
    first = list(rows[j])
    for i in others:
        this = b.icmp("eq", at, _index(i))
        for k, x in enumerate(rows[i]):
            rows[j][k] = b.select(this, x, rows[j][k])
            rows[i][k] = b.select(this, first[k], x)


def lu_solve(
    b: Builder, real: str, n: int, factors: Value, pivots: Value, x: Value, columns: int, transposed: bool
) -> None:
    """Solve the systems in the columns of `x`, in place; NaN throughout where a pivot is zero."""
    stored = _load(b, real, factors, range(n * n))
    at = [b.load("i64", b.gep("i64", pivots, j)) for j in range(n)]
    singular = text.constant("i1", 0)
    for i in range(n):
        singular = b.or_(singular, b.fcmp("oeq", stored[i * n + i], text.constant(real, 0.0)))
    nan = text.constant(real, math.nan)

    def lower(i: int, j: int) -> Value:
        return stored[j * n + i]

    def turned(i: int, j: int) -> Value:
        return stored[i * n + j]

    with b.loop(0, columns) as column:
        base = b.gep(real, x, column)
        offsets = range(0, n * columns, columns)
        rows: Matrix = [[v] for v in _load(b, real, base, offsets)]
        if transposed:
            _substitute(b, rows, turned, range(n), unit=False)
            _substitute(b, rows, turned, range(n - 1, -1, -1), unit=True)
            for j in range(n - 1, -1, -1):
                _exchange(b, rows, j, at[j], [i for i in range(n) if i != j])
        else:
            for j in range(n):
                _exchange(b, rows, j, at[j], [i for i in range(n) if i != j])
            _substitute(b, rows, lower, range(n), unit=True)
            _substitute(b, rows, lower, range(n - 1, -1, -1), unit=False)
        _store(b, [b.select(singular, nan, row[0]) for row in rows], base, offsets)


def _substitute(
    b: Builder, rows: Matrix, element: Callable[[int, int], Value], order: range, unit: bool
) -> None:
    done: list[int] = []
    for i in order:
        y = rows[i][0]
        for j in done:
            y = b.fsub(y, b.fmul(element(i, j), rows[j][0]))
        rows[i][0] = y if unit else b.fdiv(y, element(i, i))
        done.append(i)


def cholesky(b: Builder, real: str, n: int, x: Value) -> None:
    """Factor a symmetric matrix in place: the lower triangle, and zeros above it; NaN throughout if that fails."""
    zero, nan = text.constant(real, 0.0), text.constant(real, math.nan)
    rows: Matrix = [_load(b, real, x, range(i * n, i * n + i + 1)) for i in range(n)]
    failed = text.constant("i1", 0)
    for j in range(n):
        for k in range(j):
            rows[j][j] = b.fsub(rows[j][j], b.fmul(rows[j][k], rows[j][k]))
        failed = b.or_(failed, b.fcmp("ule", rows[j][j], zero))  # NaN too
        rows[j][j] = b.sqrt(rows[j][j])
        for i in range(j + 1, n):
            for k in range(j):
                rows[i][j] = b.fsub(rows[i][j], b.fmul(rows[i][k], rows[j][k]))
            rows[i][j] = b.fdiv(rows[i][j], rows[j][j])
    for i in range(n):
        row = [*rows[i], *[zero] * (n - 1 - i)]
        _store(b, [b.select(failed, nan, v) for v in row], x, range(i * n, i * n + n))
