"""`jacobian` and `hessian`: dense blocks in both directions, of trees, beyond one batch of basis vectors, composed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb

A = qb.array


class Pair(NamedTuple):
    w: Any
    b: Any


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("rows, columns", [(2, 5), (5, 2), (3, 3), (1, 4), (4, 1)])
def test_a_linear_map_is_its_own_jacobian(rows: int, columns: int) -> None:
    m = rng().normal(size=(rows, columns))
    np.testing.assert_array_equal(qb.jacobian(lambda x: A(m) @ x)(qb.ones(columns)).numpy(), m)


@pytest.mark.parametrize("wide", [True, False])
def test_blocks_are_output_first(wide: bool) -> None:
    # y_ab = sin(x_abc m_c): derivative m_c cos(..) at matching a, b.
    x, m = rng().normal(size=(2, 3, 4)), rng().normal(size=(4,))
    f = (lambda x: qb.sin(x @ A(m))) if wide else (lambda x: qb.stack([qb.sin(x @ A(m))] * 5))
    j = qb.jacobian(f)(A(x)).numpy()
    cos = np.cos(x @ m)
    expected = np.einsum("ab,ad,be,c->abdec", cos, np.eye(2), np.eye(3), m)
    if wide:
        assert j.shape == (2, 3, 2, 3, 4)
        np.testing.assert_allclose(j, expected, rtol=1e-14, atol=1e-15)
    else:
        assert j.shape == (5, 2, 3, 2, 3, 4)
        for block in j:
            np.testing.assert_allclose(block, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    "n, m", [(600, 600), (600, 300), (300, 600), (257, 256), (512, 513), (1, 700), (700, 1)]
)
def test_more_basis_vectors_than_one_batch(n: int, m: int) -> None:
    def f(x: Any) -> Any:  # m results of n arguments: y_i = sin(x_{i mod n}) (i + 1)
        parts = [x] * (-(-m // n))
        return qb.sin(qb.concat(parts)[:m]) * qb.linspace(1.0, float(m), m)

    x = rng().normal(size=n)
    expected = np.zeros((m, n))
    expected[np.arange(m), np.arange(m) % n] = np.cos(x[np.arange(m) % n]) * np.linspace(1.0, m, m)
    np.testing.assert_allclose(qb.jacobian(f)(A(x)).numpy(), expected, rtol=1e-14, atol=1e-14)


def test_basis_vectors_that_run_over_several_leaves() -> None:
    x, y = rng().normal(size=(200,)), rng().normal(size=(20, 10))
    f = lambda p: {"s": qb.sin(p["x"]), "q": p["x"] * qb.reshape(p["y"], (200,)), "t": qb.sum(p["y"], axis=1)}
    j = qb.jacobian(f)({"x": A(x), "y": A(y)})
    np.testing.assert_allclose(j["s"]["x"].numpy(), np.diag(np.cos(x)), rtol=1e-14)
    np.testing.assert_array_equal(j["s"]["y"].numpy(), np.zeros((200, 20, 10)))
    np.testing.assert_allclose(j["q"]["x"].numpy(), np.diag(y.ravel()), rtol=1e-14)
    np.testing.assert_allclose(j["q"]["y"].numpy().reshape(200, 200), np.diag(x), rtol=1e-14)
    np.testing.assert_array_equal(j["t"]["x"].numpy(), np.zeros((20, 200)))
    np.testing.assert_array_equal(j["t"]["y"].numpy(), np.einsum("ab,c->abc", np.eye(20), np.ones(10)))


@pytest.mark.parametrize("outputs", [1, 40])
def test_trees_in_both_directions(outputs: int) -> None:
    p = {"layer": Pair(A(rng().normal(size=(2, 3))), A([1.0, 2.0])), "none": None, "mask": A([True, False])}
    v = A([0.5, -1.0, 2.0])

    def f(p: Any) -> Any:
        y = p["layer"].w @ v + p["layer"].b
        return (y[0], [qb.stack([y[1]] * outputs)])

    first, (rest,) = qb.jacobian(f)(p)
    assert type(first["layer"]) is Pair
    assert first["none"] is None
    assert first["mask"] is None
    np.testing.assert_array_equal(first["layer"].w.numpy(), [[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(first["layer"].b.numpy(), [1.0, 0.0])
    assert rest["layer"].w.shape == (outputs, 2, 3)
    assert rest["layer"].b.shape == (outputs, 2)
    np.testing.assert_array_equal(rest["layer"].w.numpy()[-1], [[0.0, 0.0, 0.0], [0.5, -1.0, 2.0]])


def test_argnums() -> None:
    f = lambda x, y: qb.stack([x[0] * y, x[1] + y * y])
    x, y = A([2.0, 3.0]), A(5.0)
    jx, jy = [[5.0, 0.0], [0.0, 1.0]], [2.0, 10.0]
    assert qb.jacobian(f)(x, y).tolist() == jx
    assert qb.jacobian(f, argnums=1)(x, y).tolist() == jy
    assert qb.jacobian(f, argnums=-1)(x, 5.0).tolist() == jy
    assert [b.tolist() for b in qb.jacobian(f, argnums=(1, 0))(x, y)] == [jy, jx]
    one = qb.jacobian(f, argnums=(1,))(x, y)
    assert type(one) is tuple and len(one) == 1
    with pytest.raises(qb.ShapeError, match="twice"):
        qb.jacobian(f, argnums=(0, -2))(x, y)
    with pytest.raises(qb.ShapeError, match="out of range"):
        qb.jacobian(f, argnums=2)(x, y)


@pytest.mark.parametrize("outputs", [1, 5])
def test_the_dtype_of_a_block_is_that_of_the_result(outputs: int) -> None:
    narrow = qb.jacobian(lambda x: qb.astype(qb.stack([qb.sum(x * x)] * outputs), qb.float32))(A([1.0, 2.0]))
    assert narrow.dtype is qb.float32
    wide = qb.jacobian(lambda x: qb.astype(qb.stack([qb.sum(x * x)] * outputs), qb.float64))(
        A([1.0, 2.0], "float32")
    )
    assert wide.dtype is qb.float64
    same = qb.jacobian(lambda x: qb.stack([qb.sum(x * x)] * outputs))(A([1.0, 2.0], "float32"))
    assert same.dtype is qb.float32
    for j in (narrow, wide, same):
        np.testing.assert_array_equal(j.numpy(), [[2.0, 4.0]] * outputs)


def test_a_float64_result_computed_partly_in_float32_is_not_narrowed_on_its_way() -> None:
    # d/dx of (float64(float32(x)) * c) is c exactly; a cotangent that passes through float32 would round it.
    c = 1.0 + 2.0**-40
    f = lambda x: qb.sum(qb.astype(qb.astype(x, qb.float32), qb.float64)) * c
    assert qb.jacobian(f)(A([1.0, 2.0])).tolist() == [c, c]
    hessian = qb.hessian(lambda x: 0.5 * c * qb.sum(qb.astype(qb.astype(x, qb.float32), qb.float64) * x))(
        A([1.0, 2.0])
    )
    assert hessian.dtype is qb.float64


def test_results_without_derivative() -> None:
    f = lambda x: (x > 0.0, A([1.0, 2.0]), 3.0, x[0])
    above, constant, number, first = qb.jacobian(f)(A([1.0, -1.0]))
    assert above.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert constant.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert number.tolist() == [0.0, 0.0]
    assert first.tolist() == [1.0, 0.0]
    assert qb.jacobian(lambda x: None)(A([1.0])) is None
    assert qb.jacobian(lambda m: qb.where(m, 1.0, 2.0))(A([True])) is None


def test_the_hessian_of_a_quadratic_is_its_matrix() -> None:
    m = rng().normal(size=(5, 5))
    h = qb.hessian(lambda x: 0.5 * qb.sum(x * (A(m) @ x)))(A(rng().normal(size=5)))
    np.testing.assert_allclose(h.numpy(), 0.5 * (m + m.T), rtol=1e-14, atol=1e-15)


def test_the_hessian_of_trees_and_arguments() -> None:
    f = lambda p, s: qb.sum(p["x"] ** 2 * p["y"]) * s
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    h = qb.hessian(f, argnums=(0, 1))({"x": A(x), "y": A(y)}, 2.0)
    # A tree like the gradient, of trees like the arguments.
    np.testing.assert_allclose(h[0]["x"][0]["x"].numpy(), np.diag(4.0 * y))
    np.testing.assert_allclose(h[0]["x"][0]["y"].numpy(), np.diag(4.0 * x))
    np.testing.assert_allclose(h[0]["y"][0]["y"].numpy(), np.zeros((2, 2)))
    np.testing.assert_allclose(h[0]["x"][1].numpy(), 2.0 * x * y)
    np.testing.assert_allclose(h[1][0]["y"].numpy(), x**2)
    assert h[1][1].item() == 0.0


def test_a_large_hessian() -> None:
    x = rng().normal(size=300)
    h = qb.hessian(lambda x: qb.sum(x**3) + qb.sum(x) ** 2)(A(x))
    np.testing.assert_allclose(h.numpy(), np.diag(6.0 * x) + 2.0, rtol=1e-13, atol=1e-13)


def test_rosenbrock() -> None:
    f = lambda x: qb.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)
    x = np.array([-1.2, 1.0, 0.7])
    from scipy.optimize import rosen_der, rosen_hess

    np.testing.assert_allclose(qb.grad(f)(A(x)).numpy(), rosen_der(x), rtol=1e-13)
    np.testing.assert_allclose(qb.hessian(f)(A(x)).numpy(), rosen_hess(x), rtol=1e-13)


# --- composition ------------------------------------------------------------------------------------------------------


def test_a_gradient_through_a_hessian() -> None:
    f = lambda x: qb.sum(qb.hessian(lambda y: qb.sum(y**4))(x))
    np.testing.assert_allclose(qb.grad(f)(A([1.0, 2.0])).numpy(), [24.0, 48.0])


def test_a_gradient_through_a_jacobian() -> None:
    x = np.array([0.3, -0.8, 1.1])
    f = lambda x: qb.sum(qb.jacobian(lambda y: qb.sin(y) * qb.sum(y))(x) ** 2)

    def plain(x: np.ndarray) -> float:
        j = np.diag(np.cos(x) * x.sum()) + np.outer(np.sin(x), np.ones(3))
        return float((j**2).sum())

    h = 1e-6
    expected = [(plain(x + h * e) - plain(x - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(qb.grad(f)(A(x)).numpy(), expected, rtol=1e-8)


def test_third_derivatives_as_a_jacobian_of_a_hessian() -> None:
    t = qb.jacobian(qb.hessian(lambda x: qb.sum(x**3) + x[0] * x[1] ** 2))(A([1.0, 2.0])).numpy()
    expected = np.zeros((2, 2, 2))
    expected[0, 0, 0] = expected[1, 1, 1] = 6.0
    expected[0, 1, 1] = expected[1, 0, 1] = expected[1, 1, 0] = 2.0
    np.testing.assert_allclose(t, expected, atol=1e-14)


def test_a_hessian_per_example() -> None:
    x = rng().normal(size=(4, 3))
    h = qb.vmap(qb.hessian(lambda x: qb.sum(qb.sin(x)) * x[0]))(A(x)).numpy()
    for i in range(4):
        one = qb.hessian(lambda x: qb.sum(qb.sin(x)) * x[0])(A(x[i])).numpy()
        np.testing.assert_allclose(h[i], one, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(one[1, 1], -np.sin(x[i, 1]) * x[i, 0], rtol=1e-13)


def test_a_jacobian_per_row_of_the_norm() -> None:
    x = rng().normal(size=(5, 3))
    j = qb.vmap(qb.jacobian(qb.norm))(A(x)).numpy()
    np.testing.assert_allclose(j, x / np.linalg.norm(x, axis=1, keepdims=True), rtol=1e-15)


def test_the_jacobian_of_vmap_is_block_diagonal() -> None:
    x = rng().normal(size=(3, 2))
    j = qb.jacobian(qb.vmap(lambda x: qb.sum(x**2)))(A(x)).numpy()
    np.testing.assert_allclose(j, np.einsum("ab,ac->abc", np.eye(3), 2.0 * x))


def test_a_laplacian_inside_a_loss() -> None:
    def laplacian(u: Any) -> Any:
        return lambda x: qb.sum(qb.hessian(u)(x) * qb.eye(2))

    def loss(w: Any, x: Any) -> Any:
        u = lambda x: qb.sin(w * x[0]) * qb.exp(x[1])
        return qb.mean(qb.vmap(laplacian(u))(x) ** 2)

    x, w = rng().normal(size=(6, 2)), 1.3
    plain = lambda w: np.mean(((1.0 - w**2) * np.sin(w * x[:, 0]) * np.exp(x[:, 1])) ** 2)
    value, g = qb.jit(qb.value_and_grad(loss))(w, A(x))
    assert value.item() == pytest.approx(plain(w), rel=1e-13)
    assert g.item() == pytest.approx((plain(w + 1e-6) - plain(w - 1e-6)) / 2e-6, rel=1e-7)


def test_curvature_of_a_product_of_squares_is_symmetric_in_both_modes() -> None:
    f = lambda x: qb.sum(x[:1] * x[1:]) + qb.sum(qb.tanh(x)) ** 2
    x = A(rng().normal(size=4))
    forward_over_reverse = qb.hessian(f)(x).numpy()
    reverse_over_reverse = qb.vmap(lambda v: qb.grad(lambda x: qb.sum(qb.grad(f)(x) * v))(x))(
        qb.eye(4)
    ).numpy()
    np.testing.assert_allclose(forward_over_reverse, forward_over_reverse.T, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(forward_over_reverse, reverse_over_reverse, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32])
def test_results_that_take_steps_have_blocks_of_zeros(dtype: Any) -> None:
    x, flag = qb.ones((2, 3), dtype), qb.array(True)

    def f(p: Any) -> Any:
        return {"mask": p["w"] > 0.0, "sum": qb.sum(p["w"]), "at": qb.astype(p["w"][0], qb.int64)}

    for jacobian in (qb.jacobian(f), qb.jit(qb.jacobian(f))):
        blocks = jacobian({"w": x, "flag": flag})
        assert all(block["flag"] is None for block in blocks.values())
        found = {name: block["w"] for name, block in blocks.items()}
        assert {b.dtype for b in found.values()} == {dtype}
        np.testing.assert_array_equal(found["mask"].numpy(), np.zeros((2, 3, 2, 3)))
        np.testing.assert_array_equal(found["at"].numpy(), np.zeros((3, 2, 3)))
        np.testing.assert_array_equal(found["sum"].numpy(), np.ones((2, 3)))
    only = qb.vmap(qb.jacobian(lambda v: v > 0.0))(x)
    assert only.shape == (2, 3, 3) and not only.numpy().any()
