"""Arguments and results as users of NumPy and SciPy write them, each against what NumPy or SciPy makes of them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.errors import DtypeError, ShapeError

X = np.array([[1.5, -2.0, 0.5], [4.0, 0.25, -3.0]])
V = np.array([2.0, -1.0, 4.0, 0.5])
SPD = np.array([[4.0, 1.0], [1.0, 3.0]])
B = np.array([[1.0, 2.0], [3.0, -1.0]])


def same(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-13, atol=1e-15, strict=True)


SAME: dict[str, Callable[[Any, Any], Any]] = {
    "nan_to_num_by_position": lambda m, a: m.nan_to_num(a(np.array([np.nan, 1.0, np.inf])), True, 5.0, 7.0),
    "nan_to_num_copy": lambda m, a: m.nan_to_num(a(np.array([np.nan, 1.0])), copy=False, nan=2.0),
    "diff_prepend": lambda m, a: m.diff(a(V), prepend=1.0),
    "diff_append": lambda m, a: m.diff(a(V), append=a(np.array([3.0, 9.0]))),
    "diff_both_twice": lambda m, a: m.diff(a(V), 2, prepend=0, append=1.0),
    "diff_rows": lambda m, a: m.diff(a(X), axis=0, prepend=a(X[:1] * 2.0)),
    "diff_columns": lambda m, a: m.diff(a(X), axis=-1, append=4.0),
    "diff_of_one": lambda m, a: m.diff(a(V[:1]), prepend=3.0),
    "repeat_each": lambda m, a: m.repeat(a(V), [1, 0, 3, 2]),
    "repeat_rows": lambda m, a: m.repeat(a(X), (2, 1), axis=0),
    "repeat_columns": lambda m, a: m.repeat(a(X), np.array([0, 2, 1]), axis=-1),
    "repeat_flat": lambda m, a: m.repeat(a(X), [1, 2, 0, 1, 1, 3]),
    "repeat_all_alike": lambda m, a: m.repeat(a(X), [2], axis=1),
    "split": lambda m, a: m.stack(m.split(a(V), indices_or_sections=2)),
    "var_ddof": lambda m, a: m.var(a(X), 0, ddof=1),
    "cross_axes": lambda m, a: m.cross(a(X.T), a(X[::-1]), axisa=0, axisb=1, axisc=0),
    "cross_axis": lambda m, a: m.cross(a(X.T), a(X.T[:, ::-1]), axis=0),
    "cross_by_position": lambda m, a: m.cross(a(X.T), a(X), 0),
    "slogdet_sign": lambda m, a: m.linalg.slogdet(a(-SPD)).sign,
    "slogdet_logabsdet": lambda m, a: m.linalg.slogdet(a(SPD)).logabsdet,
    "eigenvalues": lambda m, a: m.linalg.eigh(a(SPD)).eigenvalues,
    "eigenvectors": lambda m, a: abs(m.linalg.eigh(a(SPD)).eigenvectors),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_as_numpy(name: str) -> None:
    f = SAME[name]
    same(f(qb, qb.array), f(np, np.asarray))
    same(qb.jit(lambda: f(qb, qb.array))(), f(np, np.asarray))


@pytest.mark.parametrize(
    ("f", "at"),
    [
        (lambda x: qb.sum(qb.diff(x, 2, prepend=x[:1] * 2.0, append=1.0) ** 2), V),
        (lambda x: qb.sum(qb.repeat(x, [3, 0, 1, 2]) ** 3), V),
        (lambda x: qb.sum(qb.cumsum(x, reverse=True) ** 2), V),
        (lambda x: qb.sum(qb.cross(x, x[::-1], axisa=0, axisb=0, axisc=0) ** 2 * x), X.T),
        (lambda x: qb.linalg.slogdet(x).logabsdet, SPD),
    ],
)
def test_their_derivatives(f: Callable[[Any], Any], at: np.ndarray) -> None:
    h = 1e-6
    steps = np.eye(at.size).reshape(at.size, *at.shape) * h
    numeric = [(f(qb.array(at + d)).item() - f(qb.array(at - d)).item()) / (2 * h) for d in steps]
    np.testing.assert_allclose(
        qb.grad(f)(qb.array(at)).numpy(), np.reshape(numeric, at.shape), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_running_from_the_end(axis: int | None) -> None:
    whole = X.ravel() if axis is None else X
    at = 0 if axis is None else axis
    for run, ours in ((np.cumsum, qb.cumsum), (np.cumprod, qb.cumprod)):
        expected = np.flip(run(np.flip(whole, at), at), at)
        same(ours(qb.array(X), axis, reverse=True), expected)
        same(qb.jit(lambda x, f=ours: f(x, axis, reverse=True))(qb.array(X)), expected)
    same(qb.array(X).cumsum(axis, reverse=True), np.flip(np.cumsum(np.flip(whole, at), at), at))


def test_solve_triangular_takes_its_options_in_the_order_of_scipy() -> None:
    from scipy.linalg import solve_triangular  # type: ignore[import-untyped]

    for options in ((), (0,), (1,), ("T",), (0, True), (1, True), (1, True, True), ("N", False, True)):
        same(
            qb.linalg.solve_triangular(qb.array(SPD), qb.array(B), *options),
            solve_triangular(SPD, B, *options),
        )


@pytest.mark.parametrize(
    ("repeats", "error", "words"),
    [
        ([1, 2], ShapeError, "2 repeats for the 4 elements"),
        ([1, -1, 2, 2], ShapeError, "0 or more"),
        ([0, 0, 0, 0], ShapeError, "not all 0.*empty arrays"),
        ([1.0, 2.0, 1.0, 1.0], DtypeError, "integers"),
        (2.0, DtypeError, "integers, got 2.0"),
        (-1, ShapeError, "negative"),
        (0, ShapeError, "empty"),
    ],
)
def test_repeats_that_are_refused(repeats: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        qb.repeat(qb.array(V), repeats)


def test_what_diff_refuses_to_join() -> None:
    with pytest.raises(ShapeError, match=r"^diff: the arrays must have one number of axes"):
        qb.diff(qb.array(X), prepend=qb.array(V))
    with pytest.raises(DtypeError, match="float32"):
        qb.diff(qb.array(X), prepend=qb.ones((2, 1), qb.float32))


METHODS = {
    "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "arcsinh": np.arcsinh, "arctan": np.arctan, "expm1": np.expm1,
    "floor": np.floor, "ceil": np.ceil, "cbrt": np.cbrt, "log1p": lambda x: np.log1p(x), "log2": np.log2,
    "log10": np.log10, "arcsin": np.arcsin, "arccos": np.arccos, "arctanh": np.arctanh,
    "arccosh": lambda x: np.arccosh(1.0 + x),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_functions_of_one_number_are_methods(name: str) -> None:
    x = np.array([0.1, 0.5, 0.9])
    y = qb.array(1.0 + x if name == "arccosh" else x)
    for got in (
        getattr(y, name)(),
        qb.jit(lambda t: getattr(t, name)())(y),
        getattr(y.slice(0, 0, 3), name)(),
    ):
        np.testing.assert_allclose(got.numpy(), METHODS[name](x), rtol=1e-14)


def test_methods_of_two_operands_and_of_matrices() -> None:
    import math

    x, y = qb.array(V), qb.array(V[::-1].copy())
    same(x.atan2(y), np.arctan2(V, V[::-1]))
    same(x.fmod(3.0), np.fmod(V, 3.0))
    same(qb.array(SPD).solve(qb.array(B)), np.linalg.solve(SPD, B))
    same(qb.array(SPD).cholesky(), np.linalg.cholesky(SPD))
    np.testing.assert_allclose(x.erf().numpy(), [math.erf(v) for v in V], rtol=1e-14)
    np.testing.assert_allclose(x.erfc().numpy(), [math.erfc(v) for v in V], rtol=1e-14)


def test_names_of_dtypes_are_those_of_the_package() -> None:
    for d in (qb.float64, qb.float32, qb.bool_, qb.int64):
        assert eval(repr(d), {"quabla": qb}) is d


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a class can export a buffer from Python 3.12 on")
@pytest.mark.parametrize("data", [X, X.astype(np.float32), X > 0.0, np.float64(3.0)])
def test_the_buffer_of_an_array(data: Any) -> None:
    x = qb.array(data)
    view = memoryview(x)  # type: ignore[arg-type]
    assert view.readonly and view.shape == np.shape(data) and np.dtype(view.format) == np.asarray(data).dtype
    np.testing.assert_array_equal(np.asarray(view), data)
    assert np.shares_memory(np.asarray(view), x.numpy())
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(view)[...] = 0.0
    with pytest.raises((BufferError, TypeError), match=r"writable|read-only"):
        ctypes.c_char.from_buffer(x)  # asks for memory that it may write to
