"""Control flow on MLX: the reference backend agrees, in values and derivatives, and memory stays bounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import quabla as qb

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx


def same(function: Any, *xs: Any, rtol: float = 1e-12) -> Any:
    """Run on both, compare, and return what MLX gave."""
    got = qb.jit(function, device="mlx")(*xs)
    expected = qb.jit(function, device="reference")(*xs)
    for a, b in zip(qb.tree.flatten(got)[0], qb.tree.flatten(expected)[0], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol)
    return got


def branching(x: Any) -> Any:
    return qb.cond(qb.sum(x) > 0.0, lambda v: qb.sum(qb.sin(v) ** 2), lambda v: qb.sum(v**3), x)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_and_its_derivatives(sign: float) -> None:
    x = qb.array([0.3, 0.5, 0.9]) * sign
    for function in (branching, qb.grad(branching), qb.hessian(branching)):
        same(function, x)
    same(qb.vmap(branching), qb.array([[0.3, 0.5], [-0.3, -0.5]]))


def test_only_the_branch_taken_runs() -> None:
    # The other one would be NaN, and as a loop would never end.
    def f(x: Any) -> Any:
        return qb.cond(
            x > 0.0, lambda v: v * 2.0, lambda v: qb.while_loop(lambda s: s < 1.0, lambda s: s * 1.0, v), x
        )

    assert qb.jit(f, device="mlx")(qb.array(3.0)).item() == 6.0


def test_scan_with_stacks_and_gradients() -> None:
    xs = qb.array(np.random.default_rng(0).normal(size=(9, 3)))
    start = qb.array([0.1, 0.2, 0.3])

    def run(s: Any, xs: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            s = qb.tanh(s + x)
            return s, qb.sum(s * x)

        return qb.scan(step, s, xs)

    def loss(s: Any, xs: Any) -> Any:  # its derivative is a scan from the last step to the first
        state, ys = run(s, xs)
        return qb.sum(ys**2) + qb.sum(state)

    same(run, start, xs)
    same(qb.grad(loss, argnums=(0, 1)), start, xs)
    same(qb.vmap(qb.grad(loss), in_axes=(0, None)), qb.stack([start, -start]), xs)


def test_an_ordinary_differential_equation_and_its_gradient() -> None:
    def loss(p: Any, s: Any) -> Any:
        def rhs(s: Any) -> Any:
            return qb.stack([p[0] * s[0] - p[1] * s[0] * s[1], p[2] * s[0] * s[1] - p[3] * s[1]])

        def body(i: Any, s: Any) -> Any:
            k1 = rhs(s)
            return s + 0.01 * rhs(s + 0.005 * k1)

        return qb.sum(qb.fori_loop(0, 200, body, s) ** 2)

    same(qb.value_and_grad(loss), qb.array([1.1, 0.4, 0.1, 0.4]), qb.array([10.0, 5.0]), rtol=1e-9)


def test_while_forward_bounded_and_per_lane() -> None:
    def newton(a: Any) -> Any:
        return qb.while_loop(
            lambda x: qb.abs(x * x - a) > 1e-10, lambda x: 0.5 * (x + a / x), a, max_steps=60
        )

    (value,) = qb.tree.flatten(same(newton, qb.array(2.0)))[0]
    assert abs(value.item() - math.sqrt(2.0)) < 1e-9
    same(qb.grad(newton), qb.array(2.0), rtol=1e-8)
    same(qb.vmap(newton), qb.array([2.0, 3.0, 400.0]))
    same(lambda a: qb.jvp(newton, (a,), (qb.ones_like(a),)), qb.array(2.0), rtol=1e-8)


def test_loops_within_loops_and_branches() -> None:
    def f(x: Any) -> Any:
        def outer(i: Any, s: Any) -> Any:
            inner = qb.fori_loop(0, 3, lambda j, t: t * 1.01 + qb.sin(t), s)
            return qb.cond(qb.sum(inner) > 2.0, lambda v: v * 0.5, lambda v: v + x, inner)

        return qb.sum(qb.fori_loop(0, 5, outer, x))

    same(qb.value_and_grad(f), qb.array([0.2, -0.4, 0.7]))


def test_checkpoint_and_custom_rules() -> None:
    @qb.custom_jvp
    def f(x: Any) -> Any:
        return qb.sin(x)

    f.defjvp(lambda primals, tangents: (qb.sin(primals[0]), 2.0 * tangents[0]))
    assert qb.jit(qb.grad(f), device="mlx")(qb.array(0.3)).item() == 2.0
    g = qb.checkpoint(lambda x: qb.sum(qb.sin(qb.exp(x))))
    same(qb.grad(g), qb.array([0.1, 0.2]))


def test_a_long_loop_needs_no_more_memory_than_a_short_one() -> None:
    def run(steps: int) -> int:
        f = qb.jit(lambda x: qb.fori_loop(0, steps, lambda i, s: qb.sin(s) + 1.0, x), device="mlx")
        x = qb.ones(10_000)
        f(x)
        mx.clear_cache()
        mx.reset_peak_memory()
        f(x)
        return int(mx.get_peak_memory())

    assert run(2000) < 2 * run(200) + 200_000
