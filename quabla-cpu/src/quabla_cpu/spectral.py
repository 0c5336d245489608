"""Eigenvalues and eigenvectors of symmetric matrices, by LAPACK's divide and conquer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quabla.ir.program import Node
from quabla.lowering.loops import Call
from quabla.ops.spectral import FIRST
from quabla_cpu import text
from quabla_cpu.lapack import Caller, systems, times, write_symmetric_part
from quabla_cpu.rounds import divided
from quabla_cpu.routines import address, routine
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__: list[str] = []

_SMALL = 48  # rows of matrices of a stack that threads share; the scratch memory of one is on the stack


def _parts(node: Node) -> tuple[int, int, int]:
    """The bytes of one matrix, and of the elements and the integers that LAPACK wants for itself."""
    aval = node.inputs[0].aval
    n = aval.shape[-1]
    sizes = (n * n, 1 + 6 * n + 2 * n * n)
    matrix, work = [-(-m * aval.dtype.itemsize // 64) * 64 for m in sizes]
    return matrix, work, (3 + 5 * n) * 4


def _shared(node: Node) -> bool:
    """Whether threads share the matrices of a stack: LAPACK runs in one thread for them."""
    shape = node.inputs[0].shape
    return math.prod(shape[:-2]) > 1 and shape[-1] <= _SMALL


@routine("eigh", lambda node: 0 if _shared(node) else sum(_parts(node)))
def _eigh(code: Code, step: Call) -> None:
    ((a, offset),), (values, vectors) = step.inputs, step.outputs
    shape, d = step.node.inputs[0].shape, step.node.inputs[0].dtype
    n, c = shape[-1], Caller(code, d)
    # The symmetric part, in the place of the result: LAPACK leaves the eigenvectors there one after the other.
    write_symmetric_part(code, a, offset, shape, vectors)
    code.forget(vectors)
    nbytes, count, sizes = n * n * d.itemsize, math.prod(shape[:-2]), _parts(step.node)
    x, w = address(code, vectors), address(code, values)
    if _shared(step.node):

        def one(inner: Code, pointers: Sequence[Value], i: Value) -> None:
            x, w = (
                inner.b.gep("i8", pointer, times(inner.b, i, apart))
                for pointer, apart in zip(pointers, (nbytes, n * d.itemsize), strict=True)
            )
            _solve(Caller(inner, d), x, w, inner.b.alloca("i8", sum(sizes), 64), sizes, n)

        divided(code, (x, w), count, 600.0 * n + 2.0 * n**3, one)
    else:
        assert step.scratch is not None
        scratch = address(code, step.scratch)
        with systems(code, count, (x, nbytes), (w, n * d.itemsize)) as (matrix, line):
            _solve(c, matrix, line, scratch, sizes, n)
    code.forget(values)
    code.forget(vectors)


def _solve(c: Caller, x: Value, w: Value, rows: Value, sizes: tuple[int, int, int], n: int) -> None:
    """Decompose the matrix at `x` in its place, with scratch memory at `rows`; the eigenvalues go to `w`."""
    b = c.b
    matrix, work_nbytes, _ = sizes
    work = b.gep("i8", rows, matrix)
    integers = b.gep("i8", work, work_nbytes)
    info = b.alloca("i32", 1, 4)
    b.memcpy(rows, x, text.constant("i64", n * n * c.d.itemsize))
    branch = b.branch(_finite(c, rows, n * n), likely=True)
    with branch.then():
        c.call("syevd", "V", "L", n, rows, n, w, work, 1 + 6 * n + 2 * n * n, integers, 3 + 5 * n, info)
        branch.give(b.icmp("eq", b.load("i32", info), text.constant("i32", 0)))
    with branch.otherwise():
        branch.give(text.constant("i1", 0))
    (done,) = branch.results()
    branch = b.branch(done, likely=True)
    with branch.then():
        _turn(c, rows, x, n)
    with branch.otherwise():
        c.fill(w, n, math.nan)
        c.fill(x, n * n, math.nan)
    branch.results()


def _finite(c: Caller, x: Value, count: int) -> Value:
    b = c.b
    with b.carry(0, count, [text.constant("i1", 1)]) as (i, loop):
        size = b.fabs(c.load(x, i))
        loop.update(b.and_(loop.values[0], b.fcmp("olt", size, c.number(math.inf))))
    return loop.results[0]


def _turn(c: Caller, rows: Value, out: Value, n: int) -> None:
    """Make columns of the eigenvectors, each with its sign."""
    b = c.b
    with b.loop(0, n) as j:
        start = times(b, j, n)
        with b.carry(0, n, [c.number(0.0)]) as (i, loop):
            loop.update(b.maximum(loop.values[0], b.fabs(c.load(rows, start, i))))
        bound = b.fmul(c.number(FIRST), loop.results[0])
        with b.carry(0, n, [c.number(0.0)]) as (i, loop):
            (sign,) = loop.values
            x = c.load(rows, start, i)
            open_ = b.fcmp("oeq", sign, c.number(0.0))
            first = b.and_(open_, b.fcmp("ogt", b.fabs(x), bound))
            loop.update(b.select(first, b.copysign(c.number(1.0), x), sign))
        (sign,) = loop.results
        with b.loop(0, n) as i:
            c.store(b.fmul(sign, c.load(rows, start, i)), out, times(b, i, n), j)
