"""Products, variances, sums over what is not missing, and sums of exponentials: NumPy, SciPy and JAX as oracles."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import scipy.special

import quabla as qb
from quabla.testing import check_grads

INF, NAN = math.inf, math.nan
AXES = [None, 0, 1, -1, (0, 2), (2, 0, 1), (1,)]
X = np.random.default_rng(0).normal(size=(3, 4, 5))


def close(got: Any, expected: Any, rtol: float = 1e-13) -> None:
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("name", ["var", "std", "prod", "nansum", "nanmean"])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name: str, axis: Any, keepdims: bool) -> None:
    ours, theirs = getattr(qb, name), getattr(np, name)
    x = np.where(X > 1.0, NAN, X) if name.startswith("nan") else X
    close(ours(qb.array(x), axis, keepdims), theirs(x, axis=axis, keepdims=keepdims))
    close(
        qb.jit(lambda v: ours(v, axis=axis, keepdims=keepdims))(qb.array(x)),
        theirs(x, axis=axis, keepdims=keepdims),
    )


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("ddof", [0, 1, 1.5])
def test_degrees_of_freedom(name: str, ddof: float) -> None:
    close(getattr(qb, name)(qb.array(X), 1, ddof=ddof), getattr(np, name)(X, axis=1, ddof=ddof))
    close(getattr(qb.array(X), name)(axis=(0, 1), ddof=ddof), getattr(np, name)(X, axis=(0, 1), ddof=ddof))


def test_too_few_samples_give_nan() -> None:
    one = qb.array([3.0])
    assert math.isnan(qb.var(one, ddof=1).item())
    assert math.isnan(qb.std(one, ddof=1).item())
    assert math.isnan(qb.grad(lambda x: qb.var(x, ddof=1))(one).item())
    assert qb.var(qb.array([1.0, 2.0]), ddof=3).item() == INF  # as NumPy, which divides by 0, not by -1


def test_ddof_is_a_number() -> None:
    with pytest.raises(TypeError, match="var: ddof is a number"):
        qb.var(qb.ones(3), ddof="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["var", "std", "prod", "nanmean", "logsumexp", "softmax", "log_softmax"])
def test_derivatives_in_all_modes(name: str) -> None:
    check_grads(lambda x: getattr(qb, name)(x, axis=1), (qb.array(X[:2, :3, 0]),), order=2, rtol=1e-6)


def test_variance_far_from_zero() -> None:
    x = 1e9 + np.array([4.0, 7.0, 13.0, 16.0])
    assert qb.var(qb.array(x), ddof=1).item() == pytest.approx(30.0, rel=1e-14)


def test_float32_keeps_its_dtype() -> None:
    x = X.astype(np.float32)
    for name in ("var", "std", "prod", "nansum", "nanmean"):
        got = getattr(qb, name)(qb.array(x), axis=1)
        assert got.dtype is qb.float32
        np.testing.assert_allclose(np.asarray(got), getattr(np, name)(X, axis=1), rtol=2e-5, atol=1e-6)


# --- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 13, 31])
def test_products_of_any_length(n: int) -> None:
    x = np.random.default_rng(n).uniform(0.5, 1.5, (2, n))
    close(qb.prod(qb.array(x), axis=1), np.prod(x, axis=1))
    close(qb.grad(lambda v: qb.sum(qb.prod(v, axis=1)))(qb.array(x)), np.prod(x, axis=1, keepdims=True) / x)


def test_products_with_zeros_differentiate() -> None:
    assert qb.grad(qb.prod)(qb.array([0.0, 3.0, 4.0])).tolist() == [12.0, 0.0, 0.0]
    assert qb.grad(qb.prod)(qb.array([0.0, 3.0, 0.0])).tolist() == [0.0, 0.0, 0.0]
    assert qb.hessian(qb.prod)(qb.array([0.0, 3.0, 0.0])).tolist() == [
        [0.0, 0.0, 3.0],
        [0.0, 0.0, 0.0],
        [3.0, 0.0, 0.0],
    ]


def test_every_partial_derivative_of_a_product() -> None:
    """Ten derivatives, one after another; time that grows exponentially would never end."""
    start = time.process_time()
    f: Any = lambda *xs: qb.prod(qb.stack(list(xs)))
    for i in range(10):
        f = qb.grad(f, argnums=i)
    assert f(*[qb.array(float(i + 2)) for i in range(10)]).item() == 1.0
    assert time.process_time() - start < 20.0


# --- what is missing --------------------------------------------------------------------------------------------------


def test_missing_numbers() -> None:
    x = qb.array([NAN, 1.0, 2.0])
    assert qb.grad(qb.nansum)(x).tolist() == [0.0, 1.0, 1.0]
    assert qb.grad(qb.nanmean)(x).tolist() == [0.0, 0.5, 0.5]
    assert qb.grad(lambda v: qb.nanmean(v**2))(x).tolist() == [0.0, 1.0, 2.0]
    assert math.isnan(qb.nanmean(qb.array([NAN, NAN])).item())
    assert qb.nansum(qb.array([NAN, NAN])).item() == 0.0


# --- sums of exponentials ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_softmax_family(axis: Any) -> None:
    close(qb.logsumexp(qb.array(X), axis), scipy.special.logsumexp(X, axis=axis))
    close(qb.logsumexp(qb.array(X), axis, True), scipy.special.logsumexp(X, axis=axis, keepdims=True))
    close(qb.softmax(qb.array(X), axis), scipy.special.softmax(X, axis=axis))
    close(qb.log_softmax(qb.array(X), axis), scipy.special.log_softmax(X, axis=axis), 1e-12)


def test_a_scalar_is_its_own_softmax() -> None:
    assert (qb.softmax(3.0).item(), qb.log_softmax(3.0).item(), qb.logsumexp(3.0).item()) == (1.0, 0.0, 3.0)


@pytest.mark.parametrize(
    ("x", "value"),
    [
        ([-INF, -INF], -INF), ([INF, 0.0], INF), ([INF, -INF], INF), ([0.0, -INF], 0.0), ([1e4, 1e4 - 2000], 1e4),
        ([NAN, 1.0], NAN), ([INF, INF], INF),
    ],
)  # fmt: skip
def test_logsumexp_with_infinities(x: list[float], value: float) -> None:
    for got in (qb.logsumexp(qb.array(x)), qb.jit(qb.logsumexp)(qb.array(x))):
        np.testing.assert_array_equal(np.asarray(got), value)


def test_logsumexp_of_nothing_has_derivative_zero() -> None:
    x = qb.array([[-INF, -INF], [0.0, -INF], [0.0, 0.0]])
    f = lambda v: qb.logsumexp(v, axis=1)
    assert qb.grad(lambda v: qb.sum(f(v)))(x).tolist() == [[0.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    assert qb.jvp(f, (x,), (qb.ones((3, 2)),))[1].tolist() == [0.0, 1.0, 1.0]
    hessian = np.asarray(qb.vmap(qb.hessian(qb.logsumexp))(x))
    assert hessian.tolist() == [
        [[0.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[0.25, -0.25], [-0.25, 0.25]],
    ]


def test_softmax_with_infinities() -> None:
    assert qb.softmax(qb.array([0.0, -INF])).tolist() == [1.0, 0.0]
    assert qb.softmax(qb.array([INF, 0.0])).tolist() == [1.0, 0.0]
    assert qb.softmax(qb.array([INF, INF])).tolist() == [0.5, 0.5]
    assert all(math.isnan(v) for v in qb.softmax(qb.array([-INF, -INF])).tolist())
    assert qb.jacobian(qb.softmax)(qb.array([0.0, 0.0, -INF])).tolist()[0] == [0.25, -0.25, 0.0]


@pytest.mark.parametrize(
    ("logits", "value", "gradient"),
    [
        ([-431.0, 279.0, 427.0], 858.0, [-1.0, 5.3e-65, 1.0]),
        ([-1047.0, -981.0, 1891.0], 2938.0, [-1.0, 0.0, 1.0]),
    ],
)
def test_cross_entropy_of_far_apart_logits(logits: list[float], value: float, gradient: list[float]) -> None:
    loss, grad = qb.value_and_grad(lambda o: -qb.log_softmax(o)[0])(qb.array(logits))
    assert loss.item() == value
    np.testing.assert_allclose(np.asarray(grad), gradient, rtol=0.02)


def test_softplus_in_float32() -> None:
    x = qb.array(np.array([-100.0, 0.0, 100.0, 1000.0], np.float32))
    np.testing.assert_allclose(np.asarray(qb.softplus(x)), [3.78e-44, 0.6931472, 100.0, 1000.0], rtol=2e-3)
    np.testing.assert_allclose(
        np.asarray(qb.grad(lambda v: qb.sum(qb.softplus(v)))(x)), [0.0, 0.5, 1.0, 1.0], atol=1e-6
    )


@pytest.mark.parametrize("name", ["sum", "mean", "var", "prod"])
def test_errors_name_the_function(name: str) -> None:
    with pytest.raises(qb.ShapeError, match=f"{name}: axis 3"):
        getattr(qb, name)(qb.ones((2, 3)), axis=3)
    with pytest.raises(qb.DtypeError, match=name):
        getattr(qb, name)("text" if name in ("sum", "mean") else qb.array([True]))


# --- accumulation -----------------------------------------------------------------------------------------------------


def test_float32_means_of_many() -> None:
    n = 2**24 + 8
    ones = qb.ones((n, 2), dtype=qb.float32)
    np.testing.assert_allclose(np.asarray(qb.mean(ones, axis=0)), [1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(qb.jit(lambda x: qb.sum(x, axis=0))(ones)), [n, n], rtol=1e-7)


def test_the_count_of_a_float32_mean_is_not_rounded() -> None:
    x = np.zeros(2**24 + 1, np.float32)
    x[0] = 2**24 - 1
    assert qb.mean(qb.array(x)).item() == np.float32(0.99999988)
    assert qb.jit(qb.mean)(qb.array(x)).item() == np.float32(0.99999988)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_norms_out_of_range(scale: float) -> None:
    assert qb.norm(qb.full((2, 2), scale)).item() == pytest.approx(2.0 * scale, rel=1e-15)


def test_tied_maxima_after_fusion() -> None:
    rng = np.random.default_rng(7)
    f = qb.jit(qb.grad(lambda x: qb.max(qb.sin(x) * 1.1 + 0.3 * x)))
    for _ in range(200):
        for d in (np.float64, np.float32):
            assert np.count_nonzero(np.asarray(f(qb.array(rng.normal(size=17).astype(d))))) == 1


@pytest.mark.parametrize(("dtype", "size"), [(qb.float64, 1e200), (qb.float64, 1e-200), (qb.float32, 1e30)])
def test_distances_whose_squares_leave_the_range(dtype: Any, size: float) -> None:
    plain = np.array([1.0, 2.0, 4.0])
    x = qb.array(plain * size, dtype)
    with np.errstate(over="ignore"):
        assert qb.std(x).item() == np.std(x.numpy())  # inf or 0
    scaled = lambda x: qb.norm(x - qb.mean(x)) / qb.sqrt(3.0)  # what the docstring advises
    slopes = (plain - plain.mean()) / (3.0 * plain.std())
    np.testing.assert_allclose(scaled(x).item(), plain.std() * size, rtol=1e-6)
    np.testing.assert_allclose(qb.grad(scaled)(x).numpy(), slopes, rtol=1e-6)
