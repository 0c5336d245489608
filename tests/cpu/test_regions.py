"""Regions as native code: branches and loops against the reference executor, blocks that swap, stacks, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
BIG = 20_000  # numbers: more than the native stack holds


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def lotka(x: Any) -> Any:
    def slope(s: Any) -> Any:
        return qb.stack([1.1 * s[0] - 0.4 * s[0] * s[1], 0.1 * s[0] * s[1] - 0.4 * s[1]])

    def step(i: Any, s: Any) -> Any:
        k = slope(s)
        return s + 0.01 * slope(s + 0.005 * k) + 0.0 * i

    return qb.fori_loop(0, 200, step, x[:2])


LOOPS: dict[str, Any] = {
    "one": lambda x: qb.fori_loop(0, 7, lambda i, c: qb.sin(c) + 0.1 * i, x),
    "swapped": lambda x: qb.fori_loop(0, 5, lambda i, c: (c[1], c[0]), (x, 2.0 * x)),
    "rotated": lambda x: qb.fori_loop(0, 7, lambda i, c: (c[1], c[2], c[0] + c[1]), (x, 2.0 * x, 3.0 * x)),
    "untouched": lambda x: qb.fori_loop(0, 3, lambda i, c: c, (x, x)),
    "constant": lambda x: qb.fori_loop(
        0, 3, lambda i, c: (qb.ones(3), c[0]), (qb.zeros(3), qb.zeros(3) * x[:1])
    ),
    "stacked": lambda x: qb.scan(lambda c, i: (c * 0.5, (c, i, c > 0.1)), x, length=5),
    "stacked_carry_twice": lambda x: qb.scan(lambda c, i: (c + 1.0, (c, c)), x, length=4),
    "sliced": lambda x: qb.scan(lambda c, a: (c + a[0] * a[1], c * a[1]), 0.0, (x, x * x)),
    "nested": lambda x: qb.fori_loop(
        0, 3, lambda i, c: qb.scan(lambda d, j: (d * 0.9 + c, None), c, length=4)[0], x
    ),
    "while": lambda x: qb.while_loop(lambda c: qb.sum(c * c) < 1e3, lambda c: c * 1.5, x + 0.5),
    "while_never": lambda x: qb.while_loop(lambda c: qb.sum(c) > 1e9, lambda c: c * 1.5, x),
    "while_cut": lambda x: qb.while_loop(
        lambda c: c[0][0] < 1e9, lambda c: (c[1], c[0] + 1.0), (x, x * 2), max_steps=5
    ),
    "cond": lambda x: qb.cond(qb.sum(x) > 0.0, lambda: (x, qb.sin(x)), lambda: (x * 2.0, x)),
    "cond_of_loops": lambda x: qb.cond(
        qb.sum(x) > 0.0,
        lambda: qb.fori_loop(0, 3, lambda i, c: c * c, x),
        lambda: qb.fori_loop(0, 9, lambda i, c: c + x, x),
    ),
    "loop_of_conds": lambda x: qb.fori_loop(
        0,
        6,
        lambda i, c: qb.cond(
            c[0] > i * 0.1, lambda: c * 0.7, lambda: qb.cond(c[1] > 0.0, lambda: -c, lambda: c + 1.0)
        ),
        x,
    ),
    "products": lambda x: (
        qb.fori_loop(0, 3, lambda i, c: qb.tanh(qb.outer(c, c) @ x), x) if x.size < 100 else x
    ),
    "checkpoint": lambda x: qb.checkpoint(lambda c: qb.exp(-c * c))(x) + qb.checkpoint(qb.sin)(x),
    "lotka": lotka,
}


@pytest.mark.parametrize("size", [3, 17, BIG])
@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", LOOPS)
def test_against_the_reference(name: str, kind: str, size: int) -> None:
    f = LOOPS[name]
    for sign in (1.0, -1.0):
        x = qb.astype(A(sign * rng().uniform(0.1, 1.0, size)), getattr(qb, kind))
        if name == "constant":
            if kind == "float32":
                continue
            x = x[:3]
        found, treedef = qb.tree.flatten(qb.jit(f)(x))
        expected, other = qb.tree.flatten(qb.jit(f, device="reference")(x))
        assert treedef == other
        for a, b in zip(found, expected, strict=True):
            assert a.dtype is b.dtype and a.shape == b.shape
            np.testing.assert_allclose(
                a.numpy(), b.numpy(), rtol=1e-12 if kind == "float64" else 2e-5, atol=1e-6
            )


@pytest.mark.parametrize(
    "name", [n for n in LOOPS if n not in ("stacked", "while", "while_never", "products")]
)
def test_gradients_against_the_reference(name: str) -> None:
    def loss(x: Any) -> Any:
        leaves = [v for v in qb.tree.flatten(LOOPS[name](x))[0] if v.dtype is qb.float64]
        return sum((qb.sum(qb.sin(v)) for v in leaves), 0.0)

    x = A(rng().uniform(0.1, 1.0, 3))
    for transform in (qb.grad, qb.hessian, lambda f: qb.vmap(qb.grad(f))):
        given = x if transform in (qb.grad, qb.hessian) else qb.stack([x, -0.5 * x])
        found = qb.jit(transform(loss))(given)
        expected = qb.jit(transform(loss), device="reference")(given)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-11, atol=1e-11)


def test_rows_of_steps_that_were_not_made_are_zero() -> None:
    # The residuals of a bounded loop: memory comes back dirty, derivatives read it.
    f = lambda x: qb.sum(qb.while_loop(lambda c: qb.sum(c) < 50.0, lambda c: c * c, x, max_steps=500))
    x = A(np.full(64, 1.5))
    dirty = [qb.jit(lambda x, i=i: x * np.nan + i)(A(np.zeros(40_000))) for i in range(4)]
    del dirty
    expected = qb.jit(qb.grad(f), device="reference")(x).numpy()
    for _ in range(3):
        np.testing.assert_array_equal(qb.jit(qb.grad(f))(x).numpy(), expected)


def test_many_threads() -> None:
    f = qb.jit(qb.grad(lambda x: qb.sum(qb.fori_loop(0, 50, lambda i, c: qb.sin(c) * x, x))))
    xs = [A(rng().uniform(0.1, 1.0, 40) * (i + 1) / 8) for i in range(8)]
    expected = [f(x).numpy() for x in xs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for a, b in zip(pool.map(f, xs), expected, strict=True):
                np.testing.assert_array_equal(a.numpy(), b)


def test_one_region_used_twice() -> None:
    step = qb.checkpoint(qb.sin)
    assert qb.jit(lambda x: step(step(x)))(A([1.0])).item() == pytest.approx(np.sin(np.sin(1.0)), rel=1e-15)
    assert qb.jit(lambda x: step(x) + step(x))(A([1.0])).item() == pytest.approx(2.0 * np.sin(1.0), rel=1e-15)


# Small arrays that are put together from parts and read as vectors at once, and the other way round.
PARTS: dict[str, Any] = {
    "stack": lambda m, x: m.stack([x[0] * 2, x[1] + 1, x[2] * x[0], x[3]]) * x[:4],
    "stack_then_parts": lambda m, x: (
        m.stack([m.stack([x[1], x[0]])[1] * 3, m.stack([x[2], x[3]])[0]]) + x[4:6]
    ),
    "vector_then_scalars": lambda m, x: m.stack([(x[:4] * 2)[3], (x[:4] * 2)[1] + (x[:4] * 2)[0]]) * x[:2],
    "overlapping": lambda m, x: m.concat([x[:2] * 3, x[1:3] + 1, x[5:6] * x[0:1]])[1:5] * x[:4],
    "reversed": lambda m, x: m.stack([x[0] * 2, x[1] * 3, x[2] * 4])[::-1] * x[:3],
    "twice": lambda m, x: m.concat([m.stack([x[0] + 1, x[1]]) * 2, m.stack([x[1], x[0] + 1]) * 3]) - x[:4],
    "flags": lambda m, x: m.where(m.stack([x[0] > 0, x[1] > 0, x[2] > 0]), x[:3], x[3:6]),
}


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_in_registers(name: str, kind: str) -> None:
    class Numpy:
        stack, concat, where = np.stack, np.concatenate, np.where

    x = rng().normal(size=6).astype(kind)
    found = qb.jit(lambda x: PARTS[name](qb, x))(A(x)).numpy()
    np.testing.assert_allclose(found, PARTS[name](Numpy, x), rtol=1e-6 if kind == "float32" else 1e-15)


def test_padding_that_is_written_over() -> None:
    x = A([1.0, 2.0, 3.0])
    found = qb.jit(qb.grad(lambda x: qb.sum((x[1:] * x[:-1]) ** 2)))(x).numpy()
    np.testing.assert_allclose(found, [2 * 1 * 4, 2 * 2 * 1 + 2 * 2 * 9, 2 * 3 * 4], rtol=1e-15)
    second = qb.jit(qb.hessian(lambda x: qb.sum((x[1:] * x[:-1]) ** 2)))(x).numpy()
    np.testing.assert_allclose(second, [[8, 8, 0], [8, 20, 24], [0, 24, 8]], rtol=1e-15)
