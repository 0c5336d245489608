"""Basic indexing against NumPy, and the refusals. Arrays as indices are in `test_ops_take.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import trace
from quabla.dtypes import float64
from quabla.errors import ShapeError, TracerError, UnsupportedOperationError
from quabla.ops.index import getitem
from quabla.shapes import aval_of

X = np.arange(60.0).reshape(3, 4, 5)


def tensor(x: np.ndarray) -> Any:
    return wrap(np.array(x))


@pytest.mark.parametrize(
    "key",
    [
        0, -1, np.int64(1), (1, 2), (1, -2, 3), slice(1, None), slice(None, None, -1), slice(None, None, 2),
        slice(-1, -3, -1), slice(2, 100), slice(-100, 2), (slice(None), 1), (..., 1), (1, ..., 2), ..., None, (),
        (None, ...), (..., None), (0, None, slice(None), None, 1), (slice(None, None, -2), ..., slice(4, 0, -3)),
        (0, 0, 0, ...), (slice(0, 3), slice(0, 4), slice(0, 5)),
    ],
    ids=str,
)  # fmt: skip
def test_as_in_numpy(key: Any) -> None:
    ours = getitem(tensor(X), key)
    assert ours.shape == X[key].shape
    np.testing.assert_array_equal(ours.numpy(), X[key])


_bound = st.none() | st.integers(-7, 7)
_step = st.none() | st.sampled_from([-3, -2, -1, 1, 2])
_item = st.integers(-3, 2) | st.just(None) | st.builds(slice, _bound, _bound, _step)


@settings(max_examples=200, deadline=None)
@given(st.lists(_item, max_size=5), st.none() | st.integers(0, 4))
def test_random_keys(items: list[Any], dots: int | None) -> None:
    if dots is not None:
        items.insert(dots, Ellipsis)
    assume(sum(i is not None and i is not Ellipsis for i in items) <= 3)
    key = tuple(items)
    expected = X[key]
    if expected.size == 0:
        with pytest.raises(ShapeError, match="selects nothing"):
            getitem(tensor(X), key)
    else:
        ours = getitem(tensor(X), key)
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours.numpy(), expected)


def test_the_whole_array_is_no_copy() -> None:
    x = tensor(X)
    assert getitem(x, ...) is x
    assert getitem(x, (slice(None), slice(0, 9))) is x


@pytest.mark.parametrize("index", [4, -5])
def test_out_of_range_names_axis_and_size(index: int) -> None:
    with pytest.raises(
        IndexError, match=rf"index {index} is out of range for axis 1 with 4 elements.*\[3,4,5\]"
    ):
        getitem(tensor(X), (0, index))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ((0, 0, 0, 0), IndexError, r"4 indices for an array float64\[3,4,5\] with 3 dimensions"),
        ((..., ...), IndexError, "only once"),
        (1.0, IndexError, "got 1.0 for axis 0"),
        ("a", IndexError, "got 'a'"),
        (slice(0, 3, 0), IndexError, "the step of a slice cannot be zero"),
        (slice(0, 3, 0), ValueError, "the step of a slice cannot be zero"),
        (slice(None, None, np.int64(0)), ValueError, "cannot be zero"),
        (np.array(True), UnsupportedOperationError, "a bool as an index"),
        (slice(0.5, None), IndexError, "positions are integers"),
        (slice(3, None), ShapeError, "slice 3: selects nothing of axis 0 with 3 elements.*empty arrays"),
        ((0, slice(2, 2)), ShapeError, "slice 2:2 selects nothing of axis 1"),
    ],
)
def test_malformed_keys(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        getitem(tensor(X), key)


@pytest.mark.parametrize("key", [True, np.True_, (0, False)], ids=repr)
def test_a_single_bool_is_refused(key: Any) -> None:
    with pytest.raises(
        UnsupportedOperationError, match=r"getitem: a bool .*not supported; use integers, slices"
    ) as raised:
        getitem(tensor(X), key)
    assert raised.value.op == "getitem"


def test_traced_bounds_of_slices_are_refused() -> None:
    with pytest.raises(TracerError, match=r"slice .* depends on a traced value.*take\(x, start \+ arange"):
        trace(lambda x, i: [getitem(x, slice(None, i))], [aval_of((3,), float64), aval_of((), float64)])


# --- reversed and empty, in derivatives and compiled ------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [slice(None, None, -1), slice(None, None, -3), (slice(None), slice(-2, None, -2)), (..., None, -1)],
    ids=str,
)
def test_gradients_of_slices_go_where_the_elements_came_from(key: Any) -> None:
    weights = np.random.default_rng(0).normal(size=X[key].shape)
    expected = np.zeros_like(X)
    expected[key] = 3.0 * weights * X[key] ** 2
    gradient = qb.grad(lambda x: qb.sum(x[key] ** 3 * qb.array(weights)))(qb.array(X))
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-15)


def test_compiled_arithmetic_on_a_reversed_view() -> None:
    assert qb.jit(lambda x: (x[::-1] * 2 + x)[::-1])(qb.arange(6)).tolist() == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_nothing_selected_is_refused_and_the_message_says_by_what(compiled: bool) -> None:
    for f in (lambda x: x[5:5:2], lambda x: x[:0], lambda x: x[:, 3:1]):
        with pytest.raises(
            ShapeError, match=r"getitem: slice .* selects nothing of axis .*\[7,4\].*empty arrays"
        ):
            (qb.jit(f) if compiled else f)(qb.ones((7, 4)))


@pytest.mark.parametrize("way", [lambda f: f, qb.jit], ids=["eager", "compiled"])
def test_slices_between_positions_that_functions_found(way: Any) -> None:
    x = np.array([3.0, 1.0, 9.0, 2.0])
    top = qb.argmax(qb.array(x))  # 2.0, as positions are floating here
    for end in (top, top.astype(qb.int64), np.array(2.0), np.array(2)):
        assert way(lambda v, e=end: v[:e])(qb.array(x)).tolist() == [3.0, 1.0]
        assert way(lambda v, e=end: v[e:])(qb.array(x)).tolist() == [9.0, 2.0]
        assert way(lambda v, e=end: v[::e])(qb.array(x)).tolist() == [3.0, 9.0]
    for wrong in (top + 0.5, qb.array([1.0]), qb.array(float("nan")), qb.array(True), 1.0, "a"):
        with pytest.raises(qb.PositionError, match=r"^getitem: slice .* positions are integers"):
            way(lambda v, w=wrong: v[:w])(qb.array(x))
