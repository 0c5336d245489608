"""`checkpoint`: the same values and derivatives, computed again in the backward pass, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array


def plain(x: Any, w: Any) -> Any:
    return qb.sum(qb.tanh(qb.sin(x * w) * qb.exp(-x * x)) * x)


TRANSFORMS: dict[str, Any] = {
    "value": lambda f: f,
    "grad": lambda f: qb.grad(f, (0, 1)),
    "hessian": qb.hessian,
    "jvp": lambda f: lambda x, w: qb.jvp(f, (x, w), (x, w)),
    "reverse_over_reverse": lambda f: qb.grad(lambda x, w: qb.sum(qb.grad(f)(x, w) * x)),
    "third": lambda f: qb.grad(qb.grad(qb.grad(f, 1), 1), 1),
    "vmap": lambda f: lambda x, w: qb.vmap(qb.grad(f, (0, 1)), (0, None))(qb.stack([x, 2.0 * x]), w),
    "grad_of_vmap": lambda f: qb.grad(
        lambda x, w: qb.sum(qb.vmap(f, (None, 0))(x, qb.stack([w, 2.0 * w]))), (0, 1)
    ),
    "jacobian": lambda f: qb.jacobian(lambda x, w: qb.stack([f(x, w), f(2.0 * x, w)]), (0, 1)),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_same_values_and_derivatives(name: str, times: int) -> None:
    again: Any = plain
    for _ in range(times):
        again = qb.checkpoint(again)
    x, w = A(np.random.default_rng(0).normal(size=7)), A(0.7)
    expected, treedef = qb.tree.flatten(qb.jit(TRANSFORMS[name](plain))(x, w))
    found, other = qb.tree.flatten(qb.jit(TRANSFORMS[name](again))(x, w))
    assert treedef == other
    for a, b in zip(found, expected, strict=True):
        if name == "value":
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14, atol=1e-14)


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    f = lambda m, remat: remat(lambda x: m.sum(m.sin(m.sin(x) * x)))
    x = np.linspace(-1.0, 1.0, 5)
    np.testing.assert_allclose(
        qb.grad(f(qb, qb.checkpoint))(A(x)).numpy(), jax.grad(f(jax.numpy, jax.checkpoint))(x), rtol=1e-13
    )


def body(program: Any, op: str) -> list[Any]:
    """The programs that the nodes of an op hold, at any depth."""
    found = []
    for node in program.nodes:
        for held in node.params.values():
            if hasattr(held, "nodes"):
                found += [held] if node.op.name == op else []
                found += body(held, op)
    return found


def test_it_computes_again_and_keeps_nothing() -> None:
    deep = lambda x: qb.sin(qb.sin(qb.sin(x)))
    f = lambda x: qb.sum(qb.checkpoint(deep)(x) ** 2)
    program = qb.jit(qb.grad(f)).lower(A([1.0, 2.0])).program
    forward, backward = body(program, "checkpoint")
    # The forward pass hands on its result alone; the backward pass starts from the argument and its cotangent.
    assert len(forward.outputs) == 1
    assert [node.op.name for node in forward.nodes].count("sin") == 3
    assert [node.op.name for node in backward.nodes].count("sin") >= 2
    assert [v.shape for v in backward.inputs] == [(2,), (2,)]
    assert (
        len(body(qb.jit(qb.grad(lambda x: qb.sum(deep(x) ** 2))).lower(A([1.0, 2.0])).program, "checkpoint"))
        == 0
    )


def test_what_it_closes_over_is_computed_again_too() -> None:
    f = lambda w: qb.sum(qb.checkpoint(lambda x: qb.exp(w) * qb.sin(x))(A([1.0, 2.0]) * w))
    expected = qb.grad(lambda w: qb.sum(qb.exp(w) * qb.sin(A([1.0, 2.0]) * w)))(0.3).item()
    assert qb.grad(f)(0.3).item() == pytest.approx(expected, rel=1e-14)
    outer = qb.jit(qb.grad(f)).lower(A(0.3)).program
    assert "exp" not in [node.op.name for node in outer.nodes]


def test_steps_of_loops() -> None:
    step = lambda c, w: qb.sin(c * w) + c * c * 0.1
    kept = lambda x, w: qb.sum(qb.fori_loop(0, 5, lambda i, c: step(c, w), x))
    again = lambda x, w: qb.sum(qb.fori_loop(0, 5, lambda i, c: qb.checkpoint(step)(c, w), x))
    scanned = lambda x, w: qb.sum(qb.scan(qb.checkpoint(lambda c, i: (step(c, w), c)), x, length=5)[0])
    x, w = A([0.3, -0.5]), A(0.8)
    for transform in (
        lambda f: qb.grad(f, (0, 1)),
        qb.hessian,
        lambda f: qb.grad(lambda x, w: qb.grad(f, 1)(x, w)),
    ):
        expected = qb.tree.flatten(transform(kept)(x, w))[0]
        for f in (again, scanned):
            for a, b in zip(qb.tree.flatten(qb.jit(transform(f))(x, w))[0], expected, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-13, atol=1e-14)


def test_arguments() -> None:
    f = qb.checkpoint(lambda d, n, scale=1.0: qb.sum(d["a"] ** n) * scale, static_argnums=1)
    d = {"a": A([1.0, 2.0])}
    assert qb.grad(lambda d: f(d, 3, scale=2.0))(d)["a"].tolist() == [6.0, 24.0]
    assert f(d, 3).item() == 9.0 and qb.remat is qb.checkpoint
    assert f.__name__ == "checkpoint(<lambda>)"
    assert qb.jit(qb.checkpoint(lambda x: (x > 0.0, {"y": x})))(A(1.0))[0].item() is True
    with pytest.raises(qb.DtypeError, match="must be a function, got an int"):
        qb.checkpoint(3)


MEMORY = """
import resource, sys
import numpy as np
import quabla as qb
steps, size = 100, 100_000
def f(c, w):
    inner = lambda c: qb.fori_loop(0, steps, lambda i, c: c * 0.999 + 0.001 * c * c * w, c)
    return qb.sum(qb.fori_loop(0, steps, lambda i, c: qb.checkpoint(inner)(c), c))
g = qb.jit(qb.grad(f, (0, 1)))
out = g(qb.array(np.linspace(0.0, 1.0, size)), qb.array(0.5))
assert np.isfinite(out[1].item())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(peak)
"""


@pytest.mark.slow
def test_a_long_loop_in_bounded_memory(run_python: Callable[..., Any]) -> None:
    pytest.importorskip("resource")
    peak = int(run_python(MEMORY).stdout)
    assert peak < 600e6  # 10,000 steps over 100,000 numbers would keep 8 GB
