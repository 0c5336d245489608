"""Running sums and products against NumPy; their derivatives at zeros, in single precision, mapped and in loops."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quabla as qb
from quabla.testing import check_grads

MATRICES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=6),
    elements=st.floats(-3, 3, width=32) | st.sampled_from([0.0, -0.0, np.inf, np.nan]),
)
PAIRS = ((qb.cumsum, np.cumsum), (qb.cumprod, np.cumprod))


@settings(max_examples=80, deadline=None)
@given(MATRICES, st.none() | st.integers(-3, 2))
def test_values(x: np.ndarray, axis: int | None) -> None:
    axis = None if axis is None else axis % x.ndim
    for ours, numpys in PAIRS:
        with np.errstate(all="ignore"):
            expected = numpys(x, axis)
        for got in (ours(qb.array(x), axis), qb.jit(lambda x, f=ours: f(x, axis))(qb.array(x))):
            np.testing.assert_array_equal(got.numpy(), expected)
            np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(expected))


@pytest.mark.parametrize("device", [None, "reference"])
def test_single_precision_is_accumulated_in_double(device: str | None) -> None:
    x = qb.full((100_000,), 0.1, dtype=qb.float32)
    total = qb.jit(qb.cumsum, device=device)(x)
    assert total.dtype == qb.float32
    assert abs(total[-1].item() - 10_000.0) < 1e-3  # a running float32 sum arrives at 9998.557
    gradient = qb.grad(lambda x: qb.sum(qb.cumsum(x)[-1:] * 1.0))(x)
    assert gradient.tolist()[::33_333] == [1.0] * 4
    ones = (
        qb.jit(qb.cumsum, device=device)(qb.ones((2**24 + 3,), dtype=qb.float32)) if device is None else None
    )
    assert ones is None or ones[-1].item() == 2.0**24 + 4  # 2**24 + 3, rounded to even
    factors = np.full(1000, 1.0001, np.float32)
    exact = mpmath.power(mpmath.mpf(float(factors[0])), 1000)
    assert qb.jit(qb.cumprod, device=device)(qb.array(factors))[-1].item() == np.float32(exact)


def test_derivatives_to_second_order() -> None:
    x = qb.array(np.random.default_rng(0).normal(size=(3, 4)))
    for axis in (None, 0, 1):
        check_grads(lambda x, a=axis: qb.cumsum(x * x, a) ** 2, (x,), order=2)
        check_grads(lambda x, a=axis: qb.cumprod(x, a), (x,), order=2)


@pytest.mark.parametrize("zeros", [(), (0,), (2,), (4,), (1, 3), (0, 1, 2, 3, 4)])
def test_derivatives_of_products_at_zeros(zeros: tuple[int, ...]) -> None:
    x = np.array([2.0, -3.0, 0.5, 4.0, 1.5])
    x[list(zeros)] = 0.0
    weights = np.array([1.0, -2.0, 3.0, 0.5, 2.0])

    def loss(x: Any) -> Any:
        return qb.sum(qb.cumprod(x) * qb.array(weights))

    def without(j: int, *left_out: int) -> float:
        """The product of the first j + 1 elements but those left out; 0 if one of those is not among them."""
        if max(left_out) > j or len(set(left_out)) < len(left_out):
            return 0.0
        return math.prod(v for i, v in enumerate(x[: j + 1]) if i not in left_out)

    n = range(len(x))
    np.testing.assert_allclose(
        qb.grad(loss)(qb.array(x)).numpy(),
        [sum(weights[j] * without(j, i) for j in n) for i in n],
        rtol=1e-14,
    )
    hessian = [[sum(weights[j] * without(j, i, k) for j in n) for k in n] for i in n]
    np.testing.assert_allclose(qb.hessian(loss)(qb.array(x)).numpy(), hessian, rtol=1e-14)


def test_a_gradient_that_divides_by_nothing() -> None:
    # dy / dx as y / x would be 0 / 0 here.
    assert qb.grad(lambda x: qb.sum(qb.cumprod(x)))(qb.zeros(3)).tolist() == [1.0, 0.0, 0.0]
    assert np.isfinite(qb.hessian(lambda x: qb.sum(qb.cumprod(x)))(qb.zeros(3)).numpy()).all()


@pytest.mark.parametrize("axes", [0, 1, -1])
def test_maps(axes: int) -> None:
    x = np.random.default_rng(1).normal(size=(4, 5, 3))
    for ours, numpys in PAIRS:
        for axis in (0, 1):
            got = qb.vmap(lambda v, f=ours, a=axis: f(v, a), in_axes=axes)(qb.array(x)).numpy()
            np.testing.assert_array_equal(got, [numpys(v, axis) for v in np.moveaxis(x, axes, 0)])
    gradient = qb.vmap(qb.grad(lambda v: qb.sum(qb.cumprod(v, 1) ** 2)))(qb.array(x)).numpy()
    alone = [qb.grad(lambda v: qb.sum(qb.cumprod(v, 1) ** 2))(qb.array(v)).numpy() for v in x]
    np.testing.assert_allclose(gradient, alone, rtol=1e-14)


def test_inside_a_loop() -> None:
    def f(x: Any) -> Any:
        return qb.sum(qb.fori_loop(0, 3, lambda i, c: qb.cumsum(c) * qb.cumprod(x), x))

    x = np.array([0.5, -1.0, 2.0])
    expected = x
    for _ in range(3):
        expected = np.cumsum(expected) * np.cumprod(x)
    np.testing.assert_allclose(qb.jit(f)(qb.array(x)).item(), expected.sum(), rtol=1e-14)
    check_grads(f, (qb.array(x),), order=2)


def test_refusals() -> None:
    with pytest.raises(qb.DtypeError, match=r"cumsum: takes a floating operand, got bool\[2\].*astype"):
        qb.cumsum(qb.array([True, False]))
    with pytest.raises(qb.ShapeError, match="cumprod: axis 1 is out of range"):
        qb.cumprod(qb.ones(3), axis=1)
