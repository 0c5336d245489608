"""Gradients of composed functions against JAX, where it is installed: shapes, indexing, reductions, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

F = Callable[[Any, Any], Any]

# Each is written once, in names that both libraries share; `m` is the module.
FUNCTIONS: dict[str, Callable[[Any], F]] = {
    "matmul": lambda m: lambda x, y: m.matmul(x, y),
    "matmul_of_ranks": lambda m: (
        lambda x, y: m.matmul(m.reshape(x, (2, 1, 3, 2)), m.reshape(y[:2, :3], (3, 2, 1)))
    ),
    "einsum_three": lambda m: lambda x, y: m.einsum("ij,jk,ik->k", x, y, x[:, :1] * y[:1]),
    "einsum_diagonal": lambda m: lambda x, y: m.einsum("ii,ij->j", x[:3, :3], y[:3]),
    "einsum_dots": lambda m: lambda x, y: m.einsum("...j,...j->...", x, y.T[:3, :4]),
    "tensordot": lambda m: lambda x, y: m.tensordot(x, y, axes=((1,), (0,))),
    "outer": lambda m: lambda x, y: m.outer(x[0], y[:, 1]),
    "slices": lambda m: lambda x, y: x[::-2, 1:] * y[None, 1, 2:5],
    "indices": lambda m: lambda x, y: x[-1, ..., None] * y[:, 0] + x[0, 1],
    "concat_and_flip": lambda m: lambda x, y: m.flip(m.stack([x[0], y[:, 1]], axis=1), axis=0) ** 3,
    "roll": lambda m: lambda x, y: m.roll(x, (1, 2), axis=(0, 1)) * x,
    "tile": lambda m: lambda x, y: m.tile(x, (2, 1)) * m.repeat(x, 2, axis=0),
    "triangles": lambda m: lambda x, y: m.tril(x, 1) @ m.triu(y, -1),
    "moved_axes": lambda m: (
        lambda x, y: m.moveaxis(m.reshape(x, (3, 2, 2)), 0, -1) * m.swapaxes(x, 0, 1)[:2, None]
    ),
    "max": lambda m: lambda x, y: m.max(x, axis=0) * m.min(y, axis=1)[:4],
    "mean_and_var": lambda m: lambda x, y: m.mean((x - m.mean(x, axis=1, keepdims=True)) ** 2, axis=1),
    "softmax": lambda m: lambda x, y: m.exp(y - m.max(y)) / m.sum(m.exp(y - m.max(y)), axis=0),
}


def _of(m: Any, name: str) -> Callable[[Any, Any], Any]:
    fun = FUNCTIONS[name](m)
    return lambda x, y: m.sum(m.sin(fun(x, y)))


@pytest.fixture(scope="module", autouse=True)
def _double() -> Any:
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    ours = qb.value_and_grad(_of(qb, name), argnums=(0, 1))(qb.array(x), qb.array(y))
    theirs = jax.value_and_grad(_of(jnp, name), argnums=(0, 1))(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(ours[0].numpy(), theirs[0], rtol=1e-12)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessian_products(name: str) -> None:
    rng = np.random.default_rng(4)
    x, y, t = rng.normal(size=(3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(3, 4))
    f, g = _of(qb, name), _of(jnp, name)
    ours = qb.jvp(qb.grad(f), (qb.array(x), qb.array(y)), (qb.array(t), qb.zeros((4, 5))))[1]
    theirs = jax.jvp(jax.grad(g), (jnp.asarray(x), jnp.asarray(y)), (jnp.asarray(t), jnp.zeros((4, 5))))[1]
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mapped_gradients(name: str) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(7, 3, 4)), rng.normal(size=(4, 5))
    ours = qb.vmap(qb.grad(_of(qb, name), argnums=(0, 1)), in_axes=(0, None))(qb.array(x), qb.array(y))
    theirs = jax.vmap(jax.grad(_of(jnp, name), argnums=(0, 1)), in_axes=(0, None))(
        jnp.asarray(x), jnp.asarray(y)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-11, atol=1e-13)
