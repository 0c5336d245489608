"""Reductions against NumPy, with the corners: ties, NaN, infinities, huge and tiny norms, long float32 means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import Tensor, wrap
from quabla.errors import DtypeError, ShapeError
from quabla.ops import norms, reduce

AXES = [None, 0, 1, -1, (0, 2), (2, 0), (), (0, 1, 2)]


def tensor(x: object) -> Tensor:
    return wrap(np.array(x))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_arithmetic_reductions_are_those_of_numpy(name: str, axis: object, keepdims: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    ours = getattr(reduce, name)(tensor(x), axis, keepdims)
    expected = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["any", "all"])
def test_truth_reductions_are_those_of_numpy(name: str, axis: object, keepdims: bool) -> None:
    x = np.random.default_rng(1).random((2, 3, 4)) < 0.6
    expected = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))
    np.testing.assert_array_equal(getattr(reduce, name)(tensor(x), axis, keepdims).numpy(), expected)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (1, 2), (0, 2)])
def test_norm_is_that_of_numpy(axis: object, keepdims: bool) -> None:
    x = np.random.default_rng(2).normal(size=(2, 3, 4))
    expected = np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))
    ours = norms.norm(tensor(x), axis, keepdims)
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("factor", [1e300, 1e200, 1.0, 1e-200, 1e-300, 5e-324])
def test_norm_neither_overflows_nor_underflows(factor: float) -> None:
    assert norms.norm(tensor(np.array([3.0, 4.0]) * factor)).numpy() == pytest.approx(5.0 * factor, rel=1e-15)


@pytest.mark.parametrize("exponent", [-149, -140, -126, -91, -60, -50, -49, 0, 49, 50, 51, 90, 124, 125])
def test_float32_norm_is_right_at_all_magnitudes(exponent: int) -> None:
    x = (np.array([3.0, 4.0, 5.0]) * 2.0**exponent).astype(np.float32)
    exact = np.sqrt(np.sum(x.astype(np.float64) ** 2))
    ours = norms.norm(wrap(x)).numpy()
    if exact > np.finfo(np.float32).max:
        assert np.isinf(ours)
    else:
        assert abs(float(ours) - exact) <= max(1.2e-7 * exact, 2.0**-149)


@pytest.mark.parametrize("exponent", [-1074, -1022, -601, -500, -499, 499, 500, 501, 600, 1020])
def test_norm_is_right_at_all_magnitudes(exponent: int) -> None:
    x = np.array([3.0, 4.0, 12.0]) * 2.0**exponent if exponent > -1074 else np.array([3, 4, 12]) * 5e-324
    expected = 13.0 * 2.0**exponent if exponent > -1074 else 13 * 5e-324
    assert norms.norm(tensor(x)).numpy() == expected


def test_norm_of_special_values() -> None:
    rows = np.array([[np.inf, 1.0], [np.nan, 1.0], [-np.inf, np.inf], [np.nan, np.inf], [0.0, -0.0]])
    np.testing.assert_array_equal(norms.norm(tensor(rows), axis=1).numpy(), np.linalg.norm(rows, axis=1))
    assert norms.norm(tensor(-3.0)).numpy() == 3.0


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_propagate_nan_along_their_axis_only(name: str) -> None:
    x = np.array([[1.0, np.nan], [2.0, 3.0], [np.inf, -np.inf]])
    np.testing.assert_array_equal(getattr(reduce, name)(tensor(x), 1).numpy(), getattr(np, name)(x, axis=1))


def test_a_long_float32_mean_is_right() -> None:
    n = 2**24 + 1
    one_ulp = 1.2e-7
    ones = wrap(np.ones(n, np.float32))
    assert reduce.sum(ones).numpy() == np.float32(n)
    # The sum has been rounded to n - 1 already, and is divided by n itself.
    assert reduce.mean(ones).numpy() == pytest.approx(1.0, rel=one_ulp)
    x = np.full(n, 0.1, np.float32)
    assert reduce.mean(wrap(x)).numpy() == pytest.approx(np.mean(x, dtype=np.float64), rel=one_ulp)


def test_float32_stays_float32() -> None:
    x = wrap(np.ones((2, 3), np.float32))
    for f in (reduce.sum, reduce.mean, reduce.max, reduce.min, norms.norm):
        assert f(x, 1).dtype.name == "float32"


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_truth_values_are_counted(name: str, axis: Any) -> None:
    mask = np.random.default_rng(3).random((4, 3, 2)) < 0.4
    f = lambda m: getattr(qb, name)(m, axis)
    expected = getattr(np, name)(mask, axis)
    for got in (f(qb.array(mask)), qb.jit(f)(qb.array(mask)), getattr(qb.array(mask), name)(axis)):
        assert got.dtype is qb.float64
        np.testing.assert_array_equal(np.asarray(got), expected)
    lanes = qb.vmap(getattr(qb, name))(qb.array(mask))
    np.testing.assert_array_equal(np.asarray(lanes), getattr(np, name)(mask, (1, 2)))


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32])
def test_a_count_adopts_the_dtype_of_what_it_meets(dtype: Any) -> None:
    x = qb.array([1.0, 2.0, 4.0], dtype)
    f = lambda x: qb.sum(qb.where(x > 1.5, x, 0.0)) / qb.sum(x > 1.5)
    for through in (f, qb.jit(f)):
        assert through(x).dtype is dtype and through(x).item() == 3.0
    assert qb.grad(f)(x).tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("name", ["max", "min", "norm"])
def test_bools_are_refused_where_they_make_no_sense(name: str) -> None:
    with pytest.raises(DtypeError, match=rf"^{name}: .*bool\[2\].*astype.*any or all"):
        getattr(qb, name)(tensor([True, False]))


@pytest.mark.parametrize("name", ["any", "all"])
def test_floats_are_refused_by_any_and_all(name: str) -> None:
    with pytest.raises(DtypeError, match=rf"^{name}: takes bool operands only, got float64\[2\]; compare"):
        getattr(reduce, name)(tensor([1.0, 0.0]))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "norm", "any", "all"])
def test_axes_are_checked(name: str) -> None:
    x = tensor([[True]]) if name in ("any", "all") else tensor([[1.0]])
    with pytest.raises(ShapeError, match=rf"^{name}: axis 2 is out of range for 2 dimensions"):
        getattr(qb, name)(x, 2)
    with pytest.raises(ShapeError, match=rf"^{name}: .*twice"):
        getattr(qb, name)(x, (0, -2))
