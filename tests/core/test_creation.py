"""Creation functions against NumPy's, and their refusals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import quabla as qb

DTYPES = [None, qb.float64, qb.float32, qb.bool_, "float32", np.float64]
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), 3, (2,), (2, 3), [1, 2], (np.int64(2), 1)])
def test_filled(shape: Any, dtype: Any) -> None:
    to = qb.zeros((), dtype).dtype
    assert to is (qb.float64 if dtype is None else qb.array(0.0, dtype=dtype).dtype)
    for made, expected in (
        (qb.zeros(shape, dtype), np.zeros(shape, to.numpy)),
        (qb.ones(shape, dtype), np.ones(shape, to.numpy)),
        (qb.full(shape, 2.5, dtype), np.full(shape, 2.5, to.numpy)),
        (qb.full(shape, value=2.5, dtype=dtype), np.full(shape, 2.5, to.numpy)),
        (qb.full(shape, fill_value=2.5, dtype=dtype), np.full(shape, 2.5, to.numpy)),
    ):
        assert made.dtype is to and made.shape == expected.shape
        np.testing.assert_array_equal(made.numpy(), expected)


def test_full_takes_the_dtype_of_its_value() -> None:
    assert qb.full(2, True).dtype is qb.bool_
    assert qb.full(2, 1).dtype is qb.float64
    assert qb.full(2, np.float32(1)).dtype is qb.float32
    assert qb.full((2, 2), qb.array([1.0, 2.0])).tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert qb.full((1,), 0.1).item() == 0.1
    for arguments in ({}, {"value": 1.0, "fill_value": 1.0}):
        with pytest.raises(TypeError, match="full"):
            qb.full(2, **arguments)


def test_full_of_a_traced_value_is_differentiable() -> None:
    assert qb.grad(lambda v: qb.sum(qb.full((2, 3), v)))(2.0).item() == 6.0
    assert qb.grad(lambda v: qb.sum(qb.full_like(qb.ones(4), v)))(2.0).item() == 4.0


def test_likes() -> None:
    x = qb.ones((2, 3), qb.float32)
    for f, value in (
        (qb.zeros_like, 0.0),
        (qb.ones_like, 1.0),
        (lambda y, **k: qb.full_like(y, 7, **k), 7.0),
    ):
        for like in (x, x.slice(0, 0, 2), np.ones((2, 3), np.float32)):
            made = f(like)
            assert (made.shape, made.dtype) == ((2, 3), qb.float32)
            assert set(made.to_flat_list()) == {value}
            assert f(like, dtype=qb.float64).dtype is qb.float64
    seen = []
    qb.grad(lambda y: seen.append(qb.ones_like(y)) or y.sum())(qb.ones((2, 2)))  # type: ignore[func-returns-value]
    assert type(seen[0]) is qb.Tensor and seen[0].shape == (2, 2)


@pytest.mark.parametrize("f", [qb.zeros, qb.ones, lambda s: qb.full(s, 1.0)])
@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (0, ValueError),
        ((2, 0), ValueError),
        (-1, ValueError),
        (1.5, TypeError),
        ("3", TypeError),
        (None, TypeError),
        ((2**31, 2**31), ValueError),
    ],
)
def test_bad_shapes(f: Any, shape: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"zeros|ones|full") as caught:
        f(shape)
    assert isinstance(caught.value, qb.QuablaError)


# --- arange -----------------------------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e3, 1e3))
def test_arange_follows_numpy(start: float, stop: float, step: float) -> None:
    assume(step != 0 and abs((stop - start) / step) < 1000)
    expected = np.arange(start, stop, step)
    if expected.size == 0:
        with pytest.raises(qb.ShapeError, match=r"arange.*empty"):
            qb.arange(start, stop, step)
        return
    assert qb.arange(start, stop, step).numpy().tobytes() == expected.tobytes()


def test_arange_forms() -> None:
    assert qb.arange(3).tolist() == [0.0, 1.0, 2.0]
    assert qb.arange(1, 3).tolist() == [1.0, 2.0]
    assert qb.arange(0, 1, 0.1).shape == (10,)
    assert qb.arange(0.0, 0.5, step=0.25, dtype=qb.float32).dtype is qb.float32
    assert qb.arange(qb.array(3.0)).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "arguments",
    [(3, 0), (0,), (-1,), (0, 3, 0), (0, 3, -1), (math.nan,), (0, math.inf), (0, 1, math.nan), (1e30,)],
)
def test_empty_and_endless_ranges_are_refused(arguments: Any) -> None:
    with pytest.raises(qb.ShapeError, match=r"arange\("):
        qb.arange(*arguments)


# --- linspace ---------------------------------------------------------------------------------------------------------


@given(FINITE, FINITE, st.integers(1, 20))
def test_linspace_over_the_whole_range(start: float, stop: float, num: int) -> None:
    made = qb.linspace(start, stop, num).numpy()
    assert made.shape == (num,) and np.isfinite(made).all()
    assert made[0] == start and (num == 1 or made[-1] == stop)
    a, b = Fraction(start), Fraction(stop)
    scale = max(abs(start), abs(stop))
    for i, x in enumerate(made.tolist()):
        exact = a + (b - a) * Fraction(i, max(num - 1, 1))
        assert abs(Fraction(x) - exact) <= 4 * Fraction(math.ulp(scale))
    with np.errstate(over="ignore"):
        if np.isfinite(np.float64(stop) - np.float64(start)):
            assert made.tobytes() == np.linspace(start, stop, num).tobytes()


def test_linspace_examples() -> None:
    assert qb.linspace(1e308, -1e308, 3).tolist() == [1e308, 0.0, -1e308]
    assert qb.linspace(0, 1, 1).tolist() == [0.0]
    assert qb.linspace(0.0, 1.0, num=3, dtype=qb.float32).dtype is qb.float32
    assert qb.linspace(5e-324, 0.0, 2).tolist() == [5e-324, 0.0]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, 1, 0), ValueError, "num must be at least 1, got 0"),
        ((0, 1, -2), ValueError, "num"),
        ((0, 1, 2.5), TypeError, "num is an integer, got 2.5"),
        (("0", 1, 2), TypeError, "linspace"),
        ((10**400, 1, 2), TypeError, "linspace"),
    ],
)
def test_bad_linspace(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        qb.linspace(*arguments)


# --- eye --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.none() | st.integers(1, 5), st.sampled_from(DTYPES))
def test_eye(n: int, m: int | None, dtype: Any) -> None:
    made = qb.eye(n, m, dtype)
    np.testing.assert_array_equal(made.numpy(), np.eye(n, m))


@pytest.mark.parametrize(
    ("arguments", "error"), [((0,), ValueError), ((2, 0), ValueError), ((1.5,), TypeError)]
)
def test_bad_eye(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="eye"):
        qb.eye(*arguments)


@pytest.mark.parametrize("f", [qb.zeros, qb.ones, qb.arange, qb.eye])
def test_bad_dtypes(f: Any) -> None:
    for dtype in ("float16", np.complex128, "nonsense", 3):
        with pytest.raises(TypeError, match="float64, float32, bool_ or int64"):
            f(2, dtype=dtype)


def test_traced_arguments_are_refused() -> None:
    for f in (
        lambda n: qb.linspace(0.0, n, 3),
        lambda n: qb.arange(n),
        lambda n: qb.eye(n),
        lambda n: qb.zeros(n),
    ):
        with pytest.raises(qb.TracerError):
            qb.grad(f)(2.0)


# --- the constructor: a shape and flat data ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float32", qb.bool_, np.float64])
@pytest.mark.parametrize("shape", [(), 6, [6], (2, 3), [1, 3, 2], np.array([3, 2])])
@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda x: np.array(x, np.float32), qb.array])
def test_tensor_of_a_shape_and_flat_data(kind: Any, shape: Any, dtype: Any) -> None:
    numbers = [2.0] if np.size(shape) == 0 else [0.0, 1.0, 2.0, 0.0, 4.0, 5.0]
    x = qb.Tensor(shape, kind(numbers), dtype)
    expected = (
        np.array(numbers)
        .reshape(shape)
        .astype("float64" if dtype is None else qb.zeros(1, dtype).numpy().dtype)
    )
    np.testing.assert_array_equal(x.numpy(), expected)
    assert x.numpy().dtype == expected.dtype and not x.numpy().flags.writeable
    assert (
        qb.jit(lambda x: qb.where(x, 1.0, 2.0) if x.dtype is qb.bool_ else x * 2.0)(x).shape == expected.shape
    )


def test_tensor_is_made_of_a_copy() -> None:
    data = np.arange(4.0)
    x, y = qb.Tensor((2, 2), data), qb.Tensor(shape=[4], data=data)
    data[0] = 9.0
    assert x[0, 0].item() == y[0].item() == 0.0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([[1.0, 2.0]],), TypeError, "quabla.array"),
        (((2, 2), [1.0]), qb.ShapeError, r"\(2, 2\).*4 elements.*\(1,\)"),
        (((2, 2), [[1.0, 2.0], [3.0, 4.0]]), qb.ShapeError, "flat.*quabla.array takes nested"),
        (((2,), np.ones((2, 1))), qb.ShapeError, "flat"),
        (((1,), 1.0), qb.ShapeError, "flat"),
        (((0,), []), qb.ShapeError, "empty"),
        (((-1,), [1.0]), qb.ShapeError, "negative"),
        (((2.0,), [1.0, 2.0]), qb.DtypeError, "shape"),
        (((True,), [1.0]), qb.DtypeError, "shape"),
        (((2,), "ab"), qb.DtypeError, "ab"),
        (((2,), [1.0, 2.0], "int32"), qb.DtypeError, "int32"),
    ],
)
def test_what_no_tensor_is_made_of(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        qb.Tensor(*arguments)


def test_traced_data_makes_no_tensor() -> None:
    with pytest.raises(qb.TracerError, match=r"quabla\.reshape"):
        qb.jit(lambda x: qb.Tensor((2, 1), x))(qb.ones(2))


def test_creation_functions_are_methods_of_the_class() -> None:
    assert qb.Tensor.linspace(0.0, 1.0, 3).tolist() == [0.0, 0.5, 1.0]
    assert qb.Tensor.zeros((2,)).tolist() == [0.0, 0.0] and qb.Tensor.ones(1).tolist() == [1.0]
    assert qb.Tensor.full((2,), 3.0).tolist() == [3.0, 3.0] and qb.Tensor.arange(2).tolist() == [0.0, 1.0]
    assert qb.Tensor.eye(2).tolist() == qb.eye(2).tolist() == qb.ones((1,)).eye(2).tolist()
