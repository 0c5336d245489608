"""Linear systems and factorisations: routines that call LAPACK and BLAS, one matrix of a stack after the other.

LAPACK stores columns one after another, we store rows. What it is given is therefore the transposed matrix, and flags
say so: a row-major lower triangle is the upper triangle of what LAPACK sees, and systems are solved from the right,
xᵀ aᵀ = bᵀ, in the memory of the result. Only an LU factorisation needs its matrix rearranged, into memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from quabla.dtypes import dtype
from quabla.lowering.loops import Apply, Buffer, Call, Entry, Kernel, Load, Scalar, Store, collapse
from quabla.lowering.views import contiguous, squeeze
from quabla_cpu import text, tiny
from quabla_cpu.kernels import write_kernel
from quabla_cpu.routines import address, routine
from quabla_cpu.text import Builder, Value
from quabla_cpu.tiny import TINY
from quabla_cpu.writing import Code, memory_type

__all__ = ["Caller", "systems", "times", "write_symmetric_part"]

Shape = tuple[int, ...]


class Caller:
    """Calls library functions of one element type."""

    def __init__(self, code: Code, d: dtype) -> None:
        self.code, self.b, self.d = code, code.b, d
        self.real = memory_type(d)

    def call(self, name: str, *arguments: Value | str | int | float) -> None:
        """Call `name` for the element type; letters, integers and numbers become constants in memory."""
        symbol = ("d" if self.d.name == "float64" else "s") + name
        self.code.calls.add(symbol)
        module = self.b.module
        given = []
        for x in arguments:
            if isinstance(x, str):
                x = module.array(f"blas_{x}", "i8", [ord(x)], 1)
            elif isinstance(x, int):
                x = module.array(f"blas_int_{x}", "i32", [x], 4)
            elif isinstance(x, float):
                x = module.array(f"blas_{self.real}_{int(x)}", self.real, [x], 8)
            given.append(x)
        self.b.call(symbol, "void", *given)

    def at(self, base: Value, *terms: Value | int) -> Value:
        """The address of an element: the sum of the terms is its index."""
        index: Value | None = None
        offset = 0
        for t in terms:
            if isinstance(t, int):
                offset += t
            else:
                index = t if index is None else self.b.add(index, t, "nsw")
        if index is not None:
            base = self.b.gep(self.real, base, index)
        return self.b.gep(self.real, base, offset) if offset else base

    def load(self, base: Value, *terms: Value | int) -> Value:
        return self.b.load(self.real, self.at(base, *terms))

    def store(self, x: Value, base: Value, *terms: Value | int) -> None:
        self.b.store(x, self.at(base, *terms))

    def number(self, x: float) -> Value:
        return text.constant(self.real, x)

    def fill(self, base: Value, count: int, x: float) -> None:
        with self.b.loop(0, count) as i:
            self.store(self.number(x), base, i)

    def swap(self, base: Value, first: Value, second: Value, stride: int, count: int) -> None:
        """Exchange two runs of `count` elements that are `stride` apart; they begin at two indices."""
        with self.b.loop(0, count) as i:
            step = times(self.b, i, stride)
            one, two = self.at(base, first, step), self.at(base, second, step)
            x, y = self.b.load(self.real, one), self.b.load(self.real, two)
            self.b.store(y, one)
            self.b.store(x, two)

    def any_on_diagonal(self, base: Value, n: int, predicate: str, number: float) -> Value:
        """Whether an element of the diagonal compares so with a number."""
        b = self.b
        with b.carry(0, n, [text.constant("i1", 0)]) as (i, loop):
            x = self.load(base, times(b, i, n + 1))
            loop.update(b.or_(loop.values[0], b.fcmp(predicate, x, self.number(number))))
        return loop.results[0]


def times(b: Builder, i: Value, n: int) -> Value:
    """`i * n`."""
    return i if n == 1 else b.mul(i, text.constant(i.type, n), "nsw")


@contextmanager
def systems(code: Code, count: int, *parts: tuple[Value, int]) -> Iterator[list[Value]]:
    """A loop over the matrices of a stack: the addresses of the parts, each with the bytes of one matrix."""
    b = code.b
    if count == 1:
        yield [pointer for pointer, _ in parts]
        return
    with b.loop(0, count) as i:
        yield [b.gep("i8", pointer, times(b, i, nbytes)) for pointer, nbytes in parts]


def _copy(code: Code, buffer: Buffer, offset: int, shape: Shape, to: Buffer, strides: Shape) -> None:
    """Copy an array into another order of elements."""
    domain = tuple([n for n in shape if n != 1])
    body: tuple[Entry, ...] = (
        Load(buffer, offset, contiguous(domain)),
        Store(0, to, 0, squeeze(shape, strides)),
    )
    write_kernel(code, collapse(Kernel(domain, body)))
    _forget(code, to)


def _forget(code: Code, buffer: Buffer) -> None:
    """What a routine changes in place is not what a kernel stored there."""
    code.forget(buffer)


# --- LU ---------------------------------------------------------------------------------------------------------------


@routine("lu")
def _lu(code: Code, step: Call) -> None:
    (a, offset), (factors, pivots) = step.inputs[0], step.outputs
    shape, d = step.node.inputs[0].shape, step.node.inputs[0].dtype
    n, b, c = shape[-1], code.b, Caller(code, d)
    *rest, row, column = contiguous(shape)
    _copy(code, a, offset, shape, factors, (*rest, column, row))
    info = b.alloca("i32", 1, 4)
    parts = (address(code, factors), n * n * d.itemsize), (address(code, pivots), n * 8)
    with systems(code, math.prod(shape[:-2]), *parts) as (f, p):
        if n <= TINY:
            tiny.lu(b, c.real, n, f, p)
        else:
            c.call("getrf", n, n, f, n, p, info)
            # 32 bits from 1 become 64 bits from 0 in the same memory: the last first.
            with b.loop(0, n) as i:
                at = b.sub(text.constant("i64", n - 1), i)
                number = b.sext(b.load("i32", b.gep("i32", p, at)), "i64")
                b.store(b.sub(number, text.constant("i64", 1)), b.gep("i64", p, at))


@routine("lu_solve")
def _lu_solve(code: Code, step: Call) -> None:
    factors, pivots, right = step.inputs
    (out,) = step.outputs
    shape, d = step.node.inputs[2].shape, step.node.inputs[2].dtype
    n, k = shape[-2:]
    transposed = step.node.params["transposed"]
    b, c = code.b, Caller(code, d)
    _copy(code, *right, shape, out, contiguous(shape))
    parts = (
        (address(code, *factors), n * n * d.itemsize),
        (address(code, *pivots), n * 8),
        (address(code, out), n * k * d.itemsize),
    )

    def exchange(p: Value, x: Value) -> None:
        with b.loop(0, n) as i:
            j = b.sub(text.constant("i64", n - 1), i) if transposed else i
            other = b.load("i64", b.gep("i64", p, j))
            inside = b.icmp("ult", other, text.constant("i64", n))
            with b.if_(b.and_(inside, b.icmp("ne", other, j))):
                c.swap(x, times(b, j, k), times(b, other, k), 1, k)

    with systems(code, math.prod(shape[:-2]), *parts) as (f, p, x):
        if n <= TINY:
            tiny.lu_solve(b, c.real, n, f, p, x, k, transposed)
            return
        branch = b.branch(c.any_on_diagonal(f, n, "oeq", 0.0), likely=False)
        with branch.then():
            c.fill(x, n * k, math.nan)
        with branch.otherwise():
            if transposed:
                _substitute(c, f, x, n, k, "U", "T", "N")
                _substitute(c, f, x, n, k, "L", "T", "U")
                exchange(p, x)
            else:
                exchange(p, x)
                _substitute(c, f, x, n, k, "L", "N", "U")
                _substitute(c, f, x, n, k, "U", "N", "N")
        branch.results()


def _substitute(
    c: Caller, a: Value, x: Value, n: int, k: int, triangle: str, transposed: str, diagonal: str
) -> None:
    """Solve a triangular system in place; the flags describe `a` as LAPACK sees it, `x` has rows."""
    if k == 1:
        c.call("trsv", triangle, transposed, diagonal, n, a, n, x, 1)
    else:
        turned = "N" if transposed == "T" else "T"
        c.call("trsm", "R", triangle, turned, diagonal, k, n, 1.0, a, n, x, k)


_FAR = (
    2.0**500
)  # between its inverse and it, numbers can be multiplied once without leaving the range of float64


@routine("lu_det")
def _lu_det(code: Code, step: Call) -> None:
    factors, pivots = step.inputs
    (out,) = step.outputs
    shape, d = step.node.inputs[0].shape, step.node.inputs[0].dtype
    n, b, c = shape[-1], code.b, Caller(code, d)
    parts = (
        (address(code, *factors), n * n * d.itemsize),
        (address(code, *pivots), n * 8),
        (address(code, out), d.itemsize),
    )
    with systems(code, math.prod(shape[:-2]), *parts) as (f, p, to):
        one, none = text.constant("double", 1.0), text.constant("i64", 0)
        with b.carry(0, n, [one, none]) as (i, loop):
            product, exponent = loop.values
            x = b.fpext(c.load(f, times(b, i, n + 1)), "double")
            if step.node.params["signs"]:
                whole = b.copysign(one, x)
                # Zero and NaN stay what they are.
                x = b.select(b.fcmp("one", x, text.constant("double", 0.0)), whole, x)
            else:
                x, exponent = _near(b, x, exponent)
            swapped = b.icmp("ne", b.load("i64", b.gep("i64", p, i)), i)
            product = b.fmul(product, b.select(swapped, b.fneg(x), x))
            loop.update(*_near(b, product, exponent))
        product, exponent = loop.results
        negative = b.icmp("slt", exponent, none)
        factor = b.select(negative, text.constant("double", 1.0 / _FAR), text.constant("double", _FAR))
        count = b.select(negative, b.sub(none, exponent), exponent)
        with b.carry(0, b.intrinsic("smin", count, text.constant("i64", 5)), [product]) as (_, scaling):
            scaling.update(b.fmul(scaling.values[0], factor))
        b.store(b.fptrunc(scaling.results[0], c.real), to)
    _forget(code, out)


def _near(b: Builder, x: Value, exponent: Value) -> tuple[Value, Value]:
    """`x` times a power of `_FAR` that brings it near 1, and that power taken out of the exponent."""
    size = b.fabs(x)
    for predicate, bound, change in (("ogt", _FAR, 1), ("olt", 1.0 / _FAR, -1)):
        beyond = b.fcmp(predicate, size, text.constant("double", bound))
        x = b.select(beyond, b.fmul(x, text.constant("double", 1.0 / bound)), x)
        moved = b.add(exponent, text.constant("i64", change))
        exponent = b.select(beyond, moved, exponent)
    return x, exponent


# --- triangular systems, Cholesky -------------------------------------------------------------------------------------


@routine("triangular_solve")
def _triangular_solve(code: Code, step: Call) -> None:
    matrix, right = step.inputs
    (out,) = step.outputs
    shape, d = step.node.inputs[1].shape, step.node.inputs[1].dtype
    n, k = shape[-2:]
    params = step.node.params
    triangle = "U" if params["lower"] else "L"
    transposed = "N" if params["transposed"] else "T"
    diagonal = "U" if params["unit"] else "N"
    c = Caller(code, d)
    _copy(code, *right, shape, out, contiguous(shape))
    parts = (address(code, *matrix), n * n * d.itemsize), (address(code, out), n * k * d.itemsize)
    with systems(code, math.prod(shape[:-2]), *parts) as (a, x):
        never = text.constant("i1", 0)
        branch = code.b.branch(never if params["unit"] else c.any_on_diagonal(a, n, "oeq", 0.0), likely=False)
        with branch.then():
            c.fill(x, n * k, math.nan)
        with branch.otherwise():
            _substitute(c, a, x, n, k, triangle, transposed, diagonal)
        branch.results()


def write_symmetric_part(code: Code, a: Buffer, offset: int, shape: tuple[int, ...], out: Buffer) -> None:
    """Write (a + a^T) / 2 of a stack of matrices."""
    own, d = contiguous(shape), out.dtype
    body: tuple[Entry, ...] = (
        Load(a, offset, squeeze(shape, own)),
        Load(a, offset, squeeze(shape, (*own[:-2], own[-1], own[-2]))),
        Scalar(0.5, d),
        Apply("mul", (0, 2), {}, d),
        Apply("mul", (1, 2), {}, d),
        Apply("add", (3, 4), {}, d),
        Store(5, out, 0, squeeze(shape, own)),
    )
    write_kernel(code, collapse(Kernel(tuple([m for m in shape if m != 1]), body)))


@routine("cholesky")
def _cholesky(code: Code, step: Call) -> None:
    ((a, offset),), (out,) = step.inputs, step.outputs
    shape, d = step.node.inputs[0].shape, step.node.inputs[0].dtype
    n, b, c = shape[-1], code.b, Caller(code, d)
    write_symmetric_part(code, a, offset, shape, out)
    _forget(code, out)
    info = b.alloca("i32", 1, 4)
    with systems(code, math.prod(shape[:-2]), (address(code, out), n * n * d.itemsize)) as (x,):
        if n <= TINY:
            tiny.cholesky(b, c.real, n, x)
            return
        c.call("potrf", "U", n, x, n, info)
        failed = b.icmp("ne", b.load("i32", info), text.constant("i32", 0))
        # A NaN reaches the diagonal of its row, whether or not the factorisation noticed it.
        branch = b.branch(b.or_(failed, c.any_on_diagonal(x, n, "uno", 0.0)), likely=False)
        with branch.then():
            c.fill(x, n * n, math.nan)
        with branch.otherwise(), b.loop(0, n) as i, b.loop(b.add(i, text.constant("i64", 1)), n) as j:
            c.store(c.number(0.0), x, times(b, i, n), j)
        branch.results()


# --- elimination with complete pivoting -------------------------------------------------------------------------------


@routine("eliminate")
def _eliminate(code: Code, step: Call) -> None:
    ((a, offset),), (left, right, reduced, sign) = step.inputs, step.outputs
    shape, d = step.node.inputs[0].shape, step.node.inputs[0].dtype
    n, c = shape[-1], Caller(code, d)
    _copy(code, a, offset, shape, reduced, contiguous(shape))
    matrix = n * n * d.itemsize
    parts = *[(address(code, m), matrix) for m in (left, right, reduced)], (address(code, sign), d.itemsize)
    with systems(code, math.prod(shape[:-2]), *parts) as (x, y, z, s):
        for each in (x, y):
            c.fill(each, n * n, 0.0)
            with code.b.loop(0, n) as i:
                c.store(c.number(1.0), each, times(code.b, i, n + 1))
        code.b.store(c.number(1.0), s)
        with code.b.loop(0, n) as j:
            _eliminate_column(c, n, j, x, y, z, s)


def _eliminate_column(c: Caller, n: int, j: Value, x: Value, y: Value, z: Value, s: Value) -> None:
    b = c.b
    with b.carry(j, n, [c.number(0.0), j, j]) as (i, rows):
        with b.carry(j, n, rows.values) as (k, columns):
            best, row, column = columns.values
            size = b.fabs(c.load(z, times(b, i, n), k))
            larger = b.fcmp("ogt", size, best)
            columns.update(
                b.select(larger, size, best), b.select(larger, i, row), b.select(larger, k, column)
            )
        rows.update(*columns.results)
    best, row, column = rows.results
    own = times(b, j, n)
    following = b.add(j, text.constant("i64", 1))
    with b.if_(b.fcmp("ogt", best, c.number(0.0))):
        for m in (z, x):
            c.swap(m, own, times(b, row, n), 1, n)
        for m in (z, y):
            c.swap(m, j, column, n, n)
        odd = b.xor(b.icmp("ne", row, j), b.icmp("ne", column, j))
        parity = b.load(c.real, s)
        b.store(b.select(odd, b.fneg(parity), parity), s)
        pivot = c.load(z, own, j)

        def subtract(m: Value, to: Value, source: Value, factor: Value, index: Value) -> None:
            old = c.load(m, to, index)
            c.store(b.fsub(old, b.fmul(factor, c.load(m, source, index))), m, to, index)

        with b.loop(following, n) as i:
            at = times(b, i, n)
            factor = b.fdiv(c.load(z, at, j), pivot)
            with b.loop(following, n) as k:
                subtract(z, at, own, factor, k)
            with b.loop(0, n) as k:
                subtract(x, at, own, factor, k)
            c.store(c.number(0.0), z, at, j)
        with b.loop(following, n) as k:
            c.store(b.fdiv(c.load(z, own, k), pivot), z, own, k)
        with b.loop(0, n) as i:
            at = times(b, i, n)
            factor = c.load(y, at, j)
            with b.loop(following, n) as k:
                old = c.load(y, at, k)
                c.store(b.fsub(old, b.fmul(factor, c.load(z, own, k))), y, at, k)
        with b.loop(following, n) as k:
            c.store(c.number(0.0), z, own, k)
