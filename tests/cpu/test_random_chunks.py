"""Random programs in chunks and at once: the same bits, whatever else is computed beside a sum.

The programs leave out what `quabla/transforms/chunks.py` excepts: sums over several axes at once, sums of 128 or more
terms over a first axis, and functions whose derivative is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

pytestmark = pytest.mark.cpu

Array = Any
SIZES = [2, 3, 4, 5, 8, 13, 17, 33, 50]


def random_function(
    rng: np.random.Generator, dtype: str, axes: int
) -> tuple[Callable[[Array], Array], tuple[int, ...]]:
    """A function of one example of some number of axes, and its shape."""

    def pick(xs: Any) -> Any:
        return xs[rng.integers(len(xs))]

    def w(*shape: int) -> Array:
        return qb.array((rng.normal(size=shape) / shape[0] ** 0.5).astype(dtype))

    shape = now = tuple(int(pick(SIZES)) for _ in range(axes))
    steps: list[Callable[[Array], Array]] = []
    for _ in range(rng.integers(2, 6)):
        axis, m = int(rng.integers(len(now))), int(pick(SIZES))
        a, row, column, wide, left = w(*now), w(now[-1]), w(now[0]), w(now[-1], m), w(m, now[0])
        f = pick([qb.sin, qb.tanh, qb.exp, qb.cos])
        steps.append(lambda x, f=f: f(x * 0.5))
        kinds: list[tuple[Callable[[Array], Array], tuple[int, ...]]] = [
            (lambda x: qb.sin(x) * x + qb.cos(x), now),
            (lambda x, a=a: x * a, now),
            (lambda x, axis=axis: qb.softmax(x, axis=axis), now),
            (lambda x, axis=axis: x - qb.mean(x, axis=axis, keepdims=True), now),
            (lambda x, b=wide: x @ b, (*now[:-1], m)),
            (lambda x, b=left: b @ x, (m, *now[1:])),
            (lambda x, b=row: x * b, now),
        ]
        if len(now) == 2:
            kinds += [
                (lambda x, axis=axis: qb.sum(x, axis=axis), (now[1 - axis],)),
                (lambda x, axis=axis: qb.logsumexp(x, axis=axis), (now[1 - axis],)),
                (lambda x: x.T, now[::-1]),
                (lambda x: x.T @ qb.sin(x), (now[1], now[1])),
            ]
        else:
            kinds += [
                (lambda x: qb.sum(x) * x, now),
                (lambda x: x / (1.0 + qb.norm(x)), now),
                (lambda x, b=column: x * qb.dot(x, b), now),
                (lambda x: qb.outer(x, qb.sin(x)), (now[0], now[0])),
            ]
        step, now = pick(kinds)
        steps.append(step)

    def function(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return qb.sin(x)

    return function, shape


def mapped(f: Callable[[Array], Array]) -> dict[str, Callable[[int | None], Callable[[Array], Array]]]:
    """Functions of lanes, by the size of chunks."""
    row = lambda x: qb.sum(f(x), axis=-1)
    slope = lambda x: qb.grad(lambda x: qb.dot(qb.reshape(f(x), (-1,)), qb.reshape(f(x), (-1,))))(x)
    return {
        "vmap": lambda c: qb.vmap(f, chunk_size=c),
        "of what is computed": lambda c: lambda x: qb.sin(qb.vmap(f, chunk_size=c)(qb.exp(-x * x))),
        "gradients": lambda c: qb.vmap(slope, chunk_size=c),
        "sums": lambda c: qb.vmap(row, chunk_size=c),
    }


@pytest.mark.parametrize("seed", range(80))
def test_lanes_of_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = ["float64", "float64", "float32"][seed % 3]
    f, shape = random_function(rng, dtype, int(rng.integers(1, 3)))
    kinds = mapped(f)
    make = kinds[sorted(kinds)[rng.integers(len(kinds))]]
    lanes = [3, 4, 8, 9, 13, 33, 64, 130][rng.integers(8)]
    x = qb.array(rng.normal(size=(lanes, *shape)).astype(dtype))
    whole, part = (qb.jit(make(c))(x).numpy() for c in (None, [2, 3, 5, 7][rng.integers(4)]))
    np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("seed", range(80))
def test_jacobians_and_hessians_of_random_programs(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    f, shape = random_function(rng, "float64", 1)  # both axes of a matrix may be summed at once
    size = int(np.prod(f(qb.ones(shape)).shape)) * shape[0]
    make = {
        0: lambda c: qb.jacobian(lambda x: qb.reshape(f(x), (-1,)), chunk_size=c),
        1: lambda c: qb.hessian(lambda x: qb.sum(qb.reshape(f(x), (-1,)) ** 2), chunk_size=c),
    }[int(size > 20_000 or rng.integers(2))]
    x = qb.array(rng.normal(size=shape))
    whole, part = (qb.jit(make(c))(x).numpy() for c in (None, [2, 3, 5, 7][rng.integers(4)]))
    np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize(
    "n", [1, 3, 8, 9, 13, 20, 31, 33, 40, 64, 100, 127, 130, 200, 257, 511, 1000, 2049, 5000]
)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (37,)])
def test_a_sum_has_one_order_whatever_else_its_kernel_computes(n: int, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(n).normal(size=(*shape, n))
    x = qb.array(array)
    alone = qb.jit(lambda x: qb.sum(x, axis=-1))(x).numpy()
    beside = [
        lambda x: (qb.sum(x, axis=-1), qb.sin(x) * qb.exp(x) + qb.tanh(x) * x * x * qb.cos(x)),
        lambda x: (qb.sum(x, axis=-1), qb.max(x * x - 1.0, axis=-1), qb.sum(x * x * x, axis=-1)),
        lambda x: (qb.sum(x, axis=-1), qb.sum(qb.sin(x) * qb.cos(x) * qb.exp(x), axis=-1)),
    ]
    for f in beside:
        np.testing.assert_array_equal(qb.jit(f)(x)[0].numpy(), alone)
    np.testing.assert_allclose(alone, array.sum(axis=-1), rtol=1e-12, atol=1e-13)
    three = qb.jit(beside[2])(x)[1].numpy()
    wanted = (np.sin(array) * np.cos(array) * np.exp(array)).sum(axis=-1)
    np.testing.assert_allclose(three, wanted, rtol=1e-11, atol=1e-12)
