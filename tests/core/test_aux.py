"""Auxiliary results of `jacobian`, `hessian` and `jvp`: what JAX gives, as values, once and not per basis vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array


def vector(x: Any) -> Any:
    return qb.stack([x[0] * x[1], x[1] * x[2] ** 2]), {
        "norm": qb.sum(x * x),
        "y": x * 2.0,
        "tag": "t",
        "n": 3,
    }


def scalar(x: Any) -> Any:
    return x[0] ** 2 * x[1] + x[2] ** 3, {"norm": qb.sum(x * x), "y": x * 2.0, "tag": "t", "n": 3}


# What jax.jacfwd, jax.jacrev and jax.hessian with has_aux=True and jax.jvp with has_aux=True say at POINT.
POINT = [1.0, 2.0, 3.0]
JACOBIAN = [[2.0, 1.0, 0.0], [0.0, 9.0, 12.0]]
HESSIAN = [[4.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 18.0]]
CASES = {"jacobian": (qb.jacobian, vector, JACOBIAN), "hessian": (qb.hessian, scalar, HESSIAN)}


def check_aux(aux: Any) -> None:
    assert aux["norm"].tolist() == 14.0
    assert aux["y"].tolist() == [2.0, 4.0, 6.0]
    assert (aux["tag"], aux["n"], type(aux["n"])) == ("t", 3, int)


@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_blocks_and_aux(name: str, chunk: int | None) -> None:
    transform, f, expected = CASES[name]
    made = transform(f, has_aux=True, chunk_size=chunk)
    for of in (made, qb.jit(made)):
        for _ in range(2):
            blocks, aux = of(A(POINT))
            np.testing.assert_allclose(blocks.numpy(), expected, rtol=1e-15)
            check_aux(aux)


def test_products_and_aux() -> None:
    push = lambda x, t: qb.jvp(vector, (x,), (t,), has_aux=True)
    for of in (push, qb.jit(lambda x, t: (*push(x, t)[:2], {**push(x, t)[2], "tag": 0.0, "n": 0.0}))):
        value, tangent, aux = of(A(POINT), A([1.0, 0.0, -1.0]))
        assert (value.tolist(), tangent.tolist()) == ([2.0, 18.0], [2.0, -12.0])
        check_aux(aux if of is push else {**aux, "tag": "t", "n": 3})


@pytest.mark.parametrize("name", CASES)
def test_aux_per_example(name: str) -> None:
    transform, f, expected = CASES[name]
    blocks, aux = qb.vmap(transform(f, has_aux=True))(A([POINT, [2.0, 3.0, 4.0]]))
    np.testing.assert_allclose(blocks.numpy()[0], expected, rtol=1e-15)
    assert aux["norm"].tolist() == [14.0, 29.0]
    assert aux["y"].tolist() == [[2.0, 4.0, 6.0], [4.0, 6.0, 8.0]]
    assert aux["tag"] == "t"


def test_aux_with_argnums() -> None:
    (bx, by), (total,) = qb.jacobian(lambda x, y: (x * y, (x + y,)), argnums=(0, 1), has_aux=True)(2.0, 3.0)
    assert (bx.item(), by.item(), total.item()) == (3.0, 2.0, 5.0)


def test_aux_is_not_differentiated() -> None:
    @qb.custom_vjp
    def backwards_only(x: Any) -> Any:
        return x * 5.0

    backwards_only.defvjp(lambda x: (x * 5.0, None), lambda _, ct: (ct * 5.0,))
    f = lambda x: (x**2, backwards_only(x))
    value, tangent, aux = qb.jvp(f, (3.0,), (1.0,), has_aux=True)
    assert (value.item(), tangent.item(), aux.item()) == (9.0, 6.0, 15.0)
    for transform, expected in ((qb.jacobian, 6.0), (qb.hessian, 2.0)):
        derivative, aux = transform(f, has_aux=True)(3.0)
        assert (derivative.item(), aux.item()) == (expected, 15.0)


@pytest.mark.parametrize("transform", [qb.jacobian, qb.hessian])
def test_gradients_through_blocks_and_aux_of_an_enclosing_trace(transform: Any) -> None:
    def outer(w: Any) -> Any:
        block, aux = transform(lambda x: (x**2 * w, w * w * x), has_aux=True)(0.5)
        return block * aux  # jacobian: w * w^2 / 2; hessian: 2 w * w^2 / 2

    factor = 1.5 if transform is qb.jacobian else 3.0
    assert qb.grad(outer)(2.0).item() == pytest.approx(4.0 * factor, rel=1e-15)


@pytest.mark.parametrize("name", ["jacobian", "hessian", "jvp"])
def test_a_result_that_is_no_pair(name: str) -> None:
    f = lambda x: x * x
    with pytest.raises(qb.DtypeError, match=rf"^{name}: with has_aux=True, <lambda> must return a pair"):
        if name == "jvp":
            qb.jvp(f, (1.0,), (1.0,), has_aux=True)
        else:
            getattr(qb, name)(f, has_aux=True)(1.0)


AUXILIARIES = [
    None,
    (),
    {"a": None, "b": (True, -0.0, "s")},
    7,
    [A([1.0, 2.0])],
    np.arange(3.0),
    len,
    object(),
]


@pytest.mark.parametrize("aux", AUXILIARIES, ids=lambda a: type(a).__name__)
def test_aux_is_whatever_grad_hands_through(aux: Any) -> None:
    f = lambda x: (x**3, aux)
    expected = qb.grad(f, has_aux=True)(2.0)[1]
    push = lambda f, has_aux: lambda x: qb.jvp(f, (x,), (1.0,), has_aux=has_aux)
    for transform in (qb.jacobian, qb.hessian, push):
        found = transform(f, has_aux=True)(2.0)[-1]
        assert type(found) is type(expected)
        assert repr(found) == repr(expected)


def test_aux_of_aux() -> None:
    f = lambda x: (qb.sin(x) * x, qb.cos(x))
    again = qb.jacobian(lambda x: qb.jacobian(f, has_aux=True)(x), has_aux=True)
    first = qb.jacobian(lambda x: (lambda d, aux: (aux, d))(*qb.hessian(f, has_aux=True)(x)), has_aux=True)
    for of, numbers in (
        (again, (2 * np.cos(0.3) - 0.3 * np.sin(0.3), np.cos(0.3))),
        (first, (-np.sin(0.3), 2 * np.cos(0.3) - 0.3 * np.sin(0.3))),
    ):
        for run in (of, qb.jit(of), lambda x, of=of: [a[0] for a in qb.vmap(of)(qb.stack([x, x]))]):
            np.testing.assert_allclose([float(v) for v in run(A(0.3))], numbers, rtol=1e-14)


@pytest.mark.parametrize("transform", [qb.jacobian, qb.hessian])
def test_aux_is_computed_once(transform: Any) -> None:
    f = lambda x: (qb.sum(x**3), qb.tanh(x))
    text = str(qb.jit(transform(f, has_aux=True)).lower(A(POINT)).program)
    assert [line.count("float64[3,3]") for line in text.splitlines() if "tanh" in line] == [0]


def test_the_same_as_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy

    def written(np: Any) -> Any:
        return lambda x, y: (np.sin(x) * y, {"sum": np.sum(x * y), "of": (np.exp(y), 2)})

    x, y = [0.1, 0.2, 0.3], [1.0, -2.0, 0.5]
    ours = qb.jacobian(written(qb), argnums=(0, 1), has_aux=True)(A(x), A(y))
    theirs = jax.jacobian(written(jnp), argnums=(0, 1), has_aux=True)(jnp.array(x), jnp.array(y))
    moved = qb.jvp(written(qb), (A(x), A(y)), (A(y), A(x)), has_aux=True)
    expected = jax.jvp(written(jnp), (jnp.array(x), jnp.array(y)), (jnp.array(y), jnp.array(x)), has_aux=True)
    found, wanted = (qb.tree.flatten(t)[0] for t in (ours, moved)), map(jax.tree.leaves, (theirs, expected))
    for mine, other in zip(found, wanted, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-14)
