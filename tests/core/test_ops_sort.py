"""Sorting, positions of extrema, search in sorted vectors, interpolation: against NumPy, with derivatives and maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quabla as qb
from quabla.testing import check_grads

ELEMENTS = st.floats(-3, 3, width=32) | st.sampled_from([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan])
MATRICES = hnp.arrays(
    st.sampled_from([np.float64, np.float32]),
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=6),
    elements=ELEMENTS,
)
LONG = hnp.arrays(np.float64, st.integers(1, 150), elements=ELEMENTS)
AXES = st.integers(-3, 2)


def same(got: Any, expected: Any) -> None:
    """Equal to the bit of sign of a zero."""
    assert got.shape == np.shape(expected)
    np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(expected))


# --- sort, argsort ----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(MATRICES, AXES)
def test_sort_and_argsort(x: np.ndarray, axis: int) -> None:
    axis %= x.ndim
    order = np.argsort(x, axis=axis, kind="stable")
    same(qb.sort(qb.array(x), axis), np.take_along_axis(x, order, axis))
    same(qb.argsort(qb.array(x), axis), order)
    assert qb.sort(qb.array(x)).dtype.numpy == x.dtype


@settings(max_examples=60, deadline=None)
@given(LONG)
def test_long_lines_sort_stably_when_compiled(x: np.ndarray) -> None:
    found = qb.jit(lambda x: (qb.sort(x), qb.argsort(x)))(qb.array(x))
    same(found[0], x[np.argsort(x, kind="stable")])
    same(found[1], np.argsort(x, kind="stable"))


def test_axis_none_sorts_a_vector_and_bools_sort() -> None:
    x = np.array([[3.0, 1.0], [2.0, 0.0]])
    same(qb.sort(qb.array(x), axis=None), [0.0, 1.0, 2.0, 3.0])
    same(qb.argsort(qb.array(x), axis=None), [3, 1, 2, 0])
    assert qb.sort(qb.array([True, False, True])).tolist() == [False, True, True]


def test_derivative_permutes() -> None:
    x = qb.array([3.0, 1.0, 2.0])
    np.testing.assert_array_equal(qb.jacobian(qb.sort)(x).numpy(), [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    ties = qb.grad(lambda x: qb.sum(qb.sort(x) * qb.array([1.0, 2.0, 3.0])))(qb.array([1.0, 0.0, 1.0]))
    assert ties.tolist() == [2.0, 1.0, 3.0]  # of equal elements the first stays first
    check_grads(
        lambda x: qb.sort(x * x, axis=0) ** 2,
        (qb.array(np.random.default_rng(0).normal(size=(4, 3))),),
        order=2,
    )


def test_median_by_sorting_and_its_map() -> None:
    x = np.random.default_rng(1).normal(size=(6, 5))
    median = lambda v: qb.sort(v)[2]
    same(qb.vmap(median)(qb.array(x)), np.median(x, axis=1))
    gradient = qb.vmap(qb.grad(median))(qb.array(x)).numpy()
    np.testing.assert_array_equal(gradient, x == np.median(x, axis=1, keepdims=True))


# --- argmax, argmin ---------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(MATRICES, AXES | st.none(), st.booleans())
def test_positions_of_extrema(x: np.ndarray, axis: int | None, keepdims: bool) -> None:
    axis = None if axis is None else axis % x.ndim
    for ours, numpys in ((qb.argmax, np.argmax), (qb.argmin, np.argmin)):
        same(ours(qb.array(x), axis, keepdims), numpys(x, axis=axis, keepdims=keepdims))


@settings(max_examples=25, deadline=None)
@given(hnp.arrays(np.float64, (3, 5), elements=ELEMENTS))
def test_positions_of_extrema_when_compiled(x: np.ndarray) -> None:
    f = qb.jit(lambda x: (qb.argmax(x, 1), qb.argmin(x, 0), qb.argmax(x), qb.argmin(x)))
    for got, expected in zip(f(qb.array(x)), (x.argmax(1), x.argmin(0), x.argmax(), x.argmin()), strict=True):
        same(got, expected)


def test_positions_adopt_the_dtype_of_what_they_meet_and_index() -> None:
    x = qb.array([[1.0, 5.0], [7.0, 2.0]], dtype=qb.float32)
    assert (qb.argmax(x, axis=1) + x[0]).dtype == qb.float32
    assert qb.argmax(x, axis=1).dtype == qb.float64
    assert qb.equal(qb.argmax(x, axis=1), qb.array([1.0, 0.0], dtype=qb.float32)).tolist() == [True, True]
    best = lambda x: qb.take_along_axis(x, qb.argmax(x, axis=1, keepdims=True), axis=1)
    assert qb.jit(best)(x).tolist() == [[5.0], [7.0]]
    assert qb.grad(lambda x: qb.sum(best(x)))(x).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert qb.argmax(qb.array([False, True])).item() == 1.0


def test_positions_have_no_derivative() -> None:
    x = qb.array([1.0, 3.0, 2.0])
    for f in (
        qb.argmax,
        qb.argmin,
        lambda x: qb.sum(qb.argsort(x) * qb.argsort(x)),
        lambda x: qb.searchsorted(x, x[0]),
    ):
        assert qb.grad(f)(x).tolist() == [0.0, 0.0, 0.0]
        assert qb.jvp(f, (x,), (x,))[1].item() == 0.0


# --- searchsorted -----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    LONG,
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=2), elements=ELEMENTS),
    st.sampled_from(["left", "right"]),
)
def test_searchsorted(a: np.ndarray, v: np.ndarray, side: Any) -> None:
    a = np.sort(a)
    same(qb.searchsorted(qb.array(a), qb.array(v), side), np.searchsorted(a, v, side))
    same(
        qb.jit(lambda a, v: qb.searchsorted(a, v, side))(qb.array(a), qb.array(v)),
        np.searchsorted(a, v, side),
    )


def test_searchsorted_maps() -> None:
    rng = np.random.default_rng(2)
    a, v = np.sort(rng.normal(size=(4, 9))), rng.normal(size=(4, 3))
    f = lambda a, v: qb.searchsorted(a, v)
    both = qb.vmap(f)(qb.array(a), qb.array(v))
    same(both, [np.searchsorted(x, y) for x, y in zip(a, v, strict=True)])
    same(qb.vmap(f, in_axes=(0, None))(qb.array(a), qb.array(v[0])), [np.searchsorted(x, v[0]) for x in a])
    same(qb.vmap(f, in_axes=(None, 0))(qb.array(a[0]), qb.array(v)), np.searchsorted(a[0], v))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: qb.searchsorted(x, 0.0), qb.ShapeError, r"must be a vector, got float64\[2,3\].*vmap"),
        (
            lambda x: qb.searchsorted(x[0], 0.0, side="middle"),
            qb.ShapeError,
            "side is 'left' or 'right', got 'middle'",
        ),
        (lambda x: qb.searchsorted(x[0], x.astype(qb.float32)), qb.DtypeError, "searchsorted: .*do not mix"),
        (lambda x: qb.sort(x, axis=2), qb.ShapeError, "sort: axis 2 is out of range"),
        (lambda x: qb.argsort(x, axis=-3), qb.ShapeError, "argsort: axis -3"),
        (lambda x: qb.argmax(x, axis=5), qb.ShapeError, "argmax: axis 5"),
        (lambda x: qb.sort(qb.array(1.0)), qb.ShapeError, "sort: axis -1 is out of range for 0 dimensions"),
        (lambda x: qb.interp(x, x, x), qb.ShapeError, "must be vectors of one length"),
        (lambda x: qb.interp(x, x[0], x[0, :2]), qb.ShapeError, "must be vectors of one length"),
        (lambda x: qb.interp(x, x[0], x[0], left=x), qb.ShapeError, "left must be a scalar"),
        (lambda x: qb.interp(x, x[0], x[0], period=0.0), qb.ShapeError, "positive number, got 0.0"),
    ],
)
def test_malformed_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(qb.array(np.arange(6.0).reshape(2, 3)))


# --- interp -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, st.integers(2, 8), elements=st.floats(-3, 3, width=16), unique=True),
    st.integers(0, 2**32),
    st.none() | st.just(-7.0),
    st.none() | st.just(np.nan),
)
def test_interp(xp: np.ndarray, seed: int, left: Any, right: Any) -> None:
    rng = np.random.default_rng(seed)
    xp, fp = np.sort(xp), rng.normal(size=len(xp))
    x = np.concatenate([rng.uniform(-4, 4, 12), xp, [np.inf, -np.inf, np.nan]])
    got = qb.interp(qb.array(x), qb.array(xp), qb.array(fp), left, right).numpy()
    np.testing.assert_allclose(got, np.interp(x, xp, fp, left, right), rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(got[12 : 12 + len(xp)], fp)


def test_interp_at_one_point_at_steps_and_round_a_circle() -> None:
    x = np.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    np.testing.assert_array_equal(
        qb.interp(qb.array(x), qb.array([0.5]), qb.array([3.0]), left=1.0).numpy(), [1, 1, 3, 3, 3, 3, 3]
    )
    xp, fp = np.array([0.0, 1.0, 1.0, 2.0, 2.0]), np.array([0.0, 1.0, 5.0, 6.0, 9.0])
    np.testing.assert_array_equal(
        qb.interp(qb.array(x), qb.array(xp), qb.array(fp)).numpy(), np.interp(x, xp, fp)
    )
    rng = np.random.default_rng(3)
    x, xp, fp = rng.normal(size=40) * 9, rng.normal(size=9) * 5, rng.normal(size=9)
    got = qb.interp(qb.array(x), qb.array(xp), qb.array(fp), period=3.5).numpy()
    np.testing.assert_allclose(got, np.interp(x, xp, fp, period=3.5), rtol=1e-10, atol=1e-12)


def test_derivatives_of_interp() -> None:
    xp, fp = qb.array([0.0, 1.0, 3.0]), qb.array([1.0, 2.0, 8.0])
    x = qb.array([-1.0, 0.25, 0.0, 1.0, 3.0, 4.0])
    # To the right at a point, to the left at the last, and nothing outside.
    assert qb.vmap(qb.grad(lambda t: qb.interp(t, xp, fp)))(x).tolist() == [0.0, 1.0, 1.0, 3.0, 3.0, 0.0]
    inside = qb.array([0.3, 0.7, 2.2, 5.5])
    check_grads(lambda x, xp, fp: qb.interp(x, xp, fp) ** 2, (inside, xp, fp), order=2)
    check_grads(lambda x, xp, fp: qb.interp(x, xp, fp, period=4.0) ** 2, (inside, xp, fp), order=2)


def test_what_is_no_number_stays_out_of_other_derivatives_of_interp() -> None:
    xp, fp = qb.array([0.0, 1.0, 3.0]), qb.array([1.0, 2.0, 8.0])
    x = qb.array([0.5, np.nan, np.inf, -np.inf])

    def total(xp: Any, fp: Any) -> Any:
        y = qb.interp(x, xp, fp)
        return qb.sum(qb.where(qb.isnan(y), 0.0, y))

    by_xp, by_fp = qb.grad(total, argnums=(0, 1))(xp, fp)
    np.testing.assert_allclose(by_fp.numpy(), [1.5, 0.5, 1.0])
    assert np.isfinite(by_xp.numpy()).all()
