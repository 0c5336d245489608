"""Programs of several ops that a backend must run: what single ops cannot show.

Fusion and broadcasting, extents that leave a remainder after vectors, values used twice or not at all, constants,
inputs returned as they are, and derivatives of small models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import trace
from quabla.dtypes import dtype, float32, float64
from quabla.ir.program import Program
from quabla.ops import (
    compare,
    cumulative,
    elementwise,
    index,
    interpolate,
    matmul,
    norms,
    reduce,
    shape,
    sort,
    structure,
    take,
)
from quabla.testing.table import types_of
from quabla.transforms import batch, forward, reverse

__all__ = ["Composite", "composites"]


@dataclass(frozen=True)
class Composite:
    """A named program.

    Attributes:
        name: in the ids of tests.
        fun: the function; takes arrays and returns a list of them.
        shapes: the shapes of its operands, whose elements are drawn from a normal distribution.
        dtype: of all operands.
        transform: from the program to the program that runs.
    """

    name: str
    fun: Callable[..., Sequence[Any]]
    shapes: tuple[tuple[int, ...], ...]
    dtype: dtype
    transform: Callable[[Program], Program] = lambda program: program

    def __str__(self) -> str:
        return f"{self.name}-{self.dtype}"

    def program(self) -> Program:
        """The program."""
        base = trace(self.fun, types_of([np.empty(s, self.dtype.numpy) for s in self.shapes]))[0]
        return self.transform(base)

    def operands(self) -> list[np.ndarray]:
        """An array per input of the program, the same on every run."""
        rng = np.random.default_rng(11)
        return [rng.normal(size=a.shape).astype(a.dtype.numpy) for a in self.program().in_avals]


def _chain(x: Any, y: Any) -> list[Any]:
    a = elementwise.tanh(x * y + 0.5)
    b = elementwise.exp(-(x * x)) * elementwise.sin(y)
    return [a * b - elementwise.maximum(x, y), elementwise.where(compare.greater(a, b), a, b)]


def _arithmetic(x: Any, y: Any) -> list[Any]:
    return [x * y + x]


def _softmax(x: Any) -> list[Any]:
    e = elementwise.exp(x - reduce.max(x, axis=1, keepdims=True))
    return [e / reduce.sum(e, axis=1, keepdims=True)]


def _model(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> list[Any]:
    hidden = elementwise.tanh(matmul.matmul(x, w1) + b1)
    return [reduce.mean((matmul.matmul(hidden, w2) + b2) ** 2)]


def _pieces(x: Any) -> list[Any]:
    turned = shape.flip(shape.transpose(x), 0)
    parts = shape.split(turned, [1, 3], axis=1)
    joined = shape.concat([parts[2], parts[0], parts[1]], axis=1)
    return [joined, shape.roll(joined, 2, axis=0)[1::2, ::-1], shape.tril(x, -1), shape.tile(x[0], 2)]


def _assembled(x: Any, y: Any) -> list[Any]:
    # Several parts make one array, which is then read as a whole and in parts that are not those it was made of.
    rows = structure.pad(x, (0, 0), (2, 0), (0, 0)) + structure.pad(y, (3, 0), (0, 0), (0, 0))
    spread = structure.pad(x, (1, 0), (0, 2), (1, 0)) * 2.0 + 1.0
    both = shape.concat([x, y, x * y[:1]], axis=0)
    return [rows, elementwise.cos(spread), both[1:7:2] - 1.0, both * both, reduce.sum(rows, axis=0)]


def _edges(x: Any, y: Any) -> list[Any]:
    # An input as it is, a result twice, a constant, a number, a scalar made an array; `y` is not used.
    table = wrap(np.arange(6.0).reshape(2, 3).astype(x.dtype.numpy))
    z = x + table
    return [x, z, z, table, elementwise.mul(x, 0.0) + 3.0, reduce.sum(z), compare.less(z, 1.0)]


def _long(x: Any) -> list[Any]:
    y = x
    for i in range(60):
        y = elementwise.sin(y * 1.01 + float(i)) + x
    return [y]


def _products(x: Any, y: Any, z: Any) -> list[Any]:
    return [
        matmul.einsum("bij,bjk,k->bi", x, y, z),
        matmul.matmul(x, y),
        matmul.einsum("bij,bjk->ki", x, y),
        matmul.outer(z, z),
        matmul.dot(z, z),
    ]


def _reductions(x: Any) -> list[Any]:
    positive = compare.greater(x, 0.0)
    return [
        norms.norm(x, axis=(0, 2)), reduce.mean(x, axis=1), reduce.max(x), reduce.min(x, axis=(1, 2), keepdims=True),
        reduce.any(positive, axis=0), reduce.all(positive), reduce.sum(shape.astype(positive, x.dtype), axis=2),
    ]  # fmt: skip


def _broadcasts(x: Any, y: Any, z: Any) -> list[Any]:
    picked = index.getitem(y, slice(None, None, -2)) * index.getitem(x, (slice(None), 0, None))
    return [x + y * z, elementwise.maximum(x, z) / (1.0 + y * y), picked]


def _positions(x: Any, y: Any) -> list[Any]:
    # Positions that are found, computed and known, between kernels that make and use what is moved.
    order = sort.argsort(elementwise.sin(x), axis=1)
    ranked = take.take_along_axis(x * 2.0, order, axis=1)
    best = take.take(y, sort.argmax(x, axis=1), axis=0)
    knots = cumulative.cumsum(elementwise.exp(y))
    return [
        elementwise.exp(-ranked), best * best + x[:, 0], index.getitem(x.T, ([4, 0, 0], slice(None))) * 3.0,
        interpolate.interp(x, knots, cumulative.cumprod(y)), sort.searchsorted(knots, x) + y[0],
        sort.sort(x, axis=0) - sort.sort(y)[:1], cumulative.cumsum(x, axis=0), sort.argmin(x + 1.0),
    ]  # fmt: skip


def _scalars(x: Any, y: Any) -> list[Any]:
    return [elementwise.sqrt(x * x + y * y), elementwise.softplus(x) ** 3, elementwise.sigmoid(y) - x]


def _seeded(program: Program) -> Program:
    return reverse.vjp(program)


def _second(program: Program) -> Program:
    return forward.jvp(reverse.vjp(program))


def _mapped(program: Program) -> Program:
    return batch.vmap(program, [True] * len(program.inputs), 7)[0]


_MODEL = ((9, 2), (2, 5), (5,), (5, 1), (1,))


def composites(dtypes: Sequence[dtype] = (float64, float32)) -> Iterator[Composite]:
    """Every program of the suite."""
    for d in dtypes:
        for n in (1, 2, 3, 7, 16, 33, 1000):  # below, at and above the lengths of vectors, with remainders
            yield Composite(f"chain{n}", _chain, ((n,), (n,)), d)
        yield Composite("arithmetic", _arithmetic, ((7,), (7,)), d)
        yield Composite("chain_of_matrices", _chain, ((5, 13), (13,)), d)
        yield Composite("scalars", _scalars, ((), ()), d)
        yield Composite("broadcasts", _broadcasts, ((3, 1), (4,), (2, 3, 4)), d)
        yield Composite("softmax", _softmax, ((6, 11),), d)
        yield Composite("pieces", _pieces, ((4, 5),), d)
        yield Composite("assembled", _assembled, ((3, 4), (2, 4)), d)
        yield Composite("assembled_scalars", _assembled, ((3, 1), (2, 1)), d)
        yield Composite("assembled_large", _assembled, ((3, 400), (2, 400)), d, _seeded)
        yield Composite("edges", _edges, ((2, 3), (4,)), d)
        yield Composite("long", _long, ((19,),), d)
        yield Composite("products", _products, ((6, 2, 3), (6, 3, 4), (4,)), d)
        yield Composite("reductions", _reductions, ((5, 3, 18),), d)
        yield Composite("long_sum", lambda x: [reduce.sum(x * x), reduce.mean(x)], ((50_000,),), d)
        yield Composite("column_sums", lambda x: [reduce.sum(elementwise.exp(x), axis=0)], ((300, 7),), d)
        yield Composite("model", _model, _MODEL, d)
        yield Composite("model_gradient", _model, _MODEL, d, _seeded)
        yield Composite("model_second", _model, _MODEL, d, _second)
        yield Composite("model_mapped", _model, _MODEL, d, lambda p: _mapped(_seeded(p)))
        yield Composite("positions", _positions, ((3, 17), (17,)), d)
        yield Composite("positions_second", _positions, ((3, 17), (17,)), d, _second)
        yield Composite("positions_mapped", _positions, ((3, 17), (17,)), d, lambda p: _mapped(_seeded(p)))
        yield Composite("softmax_second", _softmax, ((6, 11),), d, _second)
        yield Composite("pieces_gradient", _pieces, ((4, 5),), d, _seeded)
        yield Composite("products_second", _products, ((6, 2, 3), (6, 3, 4), (4,)), d, _second)
