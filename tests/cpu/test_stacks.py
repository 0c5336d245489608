"""Loops over states that are stacked from components, and over grids with zeros around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.backends.reference import build as reference
from quabla_cpu.backend import CpuBackend, build
from tests.cpu.test_panels import threads

__all__ = ["threads"]  # a fixture

pytestmark = pytest.mark.cpu

WIDTHS = (16, 32, 64)


def lorenz(stack: Any, s: Any) -> Any:
    """The slope of a state, or of many, whose components lie along the last axis."""
    x, y, z = s[..., 0], s[..., 1], s[..., 2]
    return stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 2.5 * z], -1)


def stepped(stack: Any, s: Any) -> Any:
    k = lorenz(stack, s)
    return s + 0.01 * lorenz(stack, s + 0.005 * k)


@pytest.mark.parametrize("count", [1, 3, 7, 8, 21, 1000])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_batch_of_systems_is_numpys_to_the_last_bit(count: int, dtype: Any) -> None:
    s = np.random.default_rng(0).normal(size=(count, 3)).astype(dtype)
    got = qb.jit(qb.vmap(lambda s: qb.fori_loop(0, 50, lambda i, s: stepped(qb.stack, s), s)))(s)
    for _ in range(50):
        s = stepped(np.stack, s)
    np.testing.assert_array_equal(got, s)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.bool_, np.int64])
@pytest.mark.parametrize("parts", [2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(9,), (37,), (3, 21), (5, 4)])
def test_components_side_by_side(shape: tuple[int, ...], parts: int, dtype: Any, width: int) -> None:
    """All of them, some of them, and out of order; read and written."""
    x = np.random.default_rng(1).normal(size=(*shape, parts)) * 9.0
    x = x > 0 if dtype is np.bool_ else x.astype(dtype)

    def f(x: Any) -> Any:
        columns = [x[..., i] for i in range(parts)]
        flip = qb.logical_not if x.dtype is qb.bool_ else qb.neg
        join = qb.logical_and if x.dtype is qb.bool_ else qb.add
        turned = [join(flip(a), b) for a, b in zip(columns, columns[1:] + columns[:1], strict=True)]
        return (
            qb.stack(turned, -1),
            qb.stack(turned[::-1], -1),
            flip(columns[1]),
            qb.stack(turned[:2], 0),
            turned[-1],
        )

    program, _ = trace(f, [qb.array(x).aval])
    want = reference(program)(qb.array(x))
    got = build(CpuBackend().lower(program, "cpu"), width)(qb.array(x))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g.numpy(), w.numpy())


@pytest.mark.parametrize(("parts", "whole"), [(2, True), (3, True), (4, True), (5, False)])
def test_few_components_are_read_and_written_as_whole_vectors(parts: int, whole: bool) -> None:
    def f(x: Any) -> Any:
        return (qb.stack([x[:, i] * x[:, i - 1] for i in range(parts)], -1),)

    program, _ = trace(f, [qb.zeros((80, parts)).aval])
    code = CpuBackend().lower(program, "cpu").generate(32).text
    assert ("load double," not in code and "store double " not in code) == whole
    assert ("shufflevector" in code) == whole


@pytest.mark.parametrize("shape", [(3, 3), (17, 40), (300, 260)])
def test_a_grid_with_zeros_around_it(shape: tuple[int, int], threads: Any) -> None:
    def step(pad: Any, u: Any) -> Any:
        inner = u[1:-1, 1:-1] + 0.1 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4.0 * u[1:-1, 1:-1]
        )
        return pad(inner, ((1, 1), (1, 1)))

    u = np.random.default_rng(2).normal(size=shape)
    want = u
    for _ in range(20):
        want = step(np.pad, want)
    f = qb.jit(lambda u: qb.fori_loop(0, 20, lambda i, u: step(qb.pad, u), u))
    for n in (1, 2, 5):
        threads(n)
        np.testing.assert_array_equal(f(u), want)
