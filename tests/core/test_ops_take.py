"""Elements by positions: `take`, `take_along_axis` and indexing with arrays and masks, against NumPy and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quabla as qb
from quabla.testing import check_grads

X = np.random.default_rng(5).normal(size=(3, 4, 5))


def same(got: Any, expected: Any) -> None:
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize(
    "indices",
    [0, -1, [0, 2, 0], [[1, -1], [2, -3]], np.array(1), np.array([2], np.uint8), np.array([1.0, 2.0])],
    ids=repr,
)
def test_take(indices: Any, axis: int | None) -> None:
    expected = np.take(X, np.asarray(indices).astype(int), axis)
    same(qb.take(qb.array(X), indices, axis), expected)
    i = qb.array(np.asarray(indices))
    same(qb.take(qb.array(X), i, axis), expected)
    same(qb.jit(lambda x, i: qb.take(x, i, axis))(qb.array(X), i), expected)


@pytest.mark.parametrize("shape", [(3, 4, 2), (1, 4, 3), (3, 1, 5), (1, 1, 1)])
def test_take_along_axis(shape: tuple[int, ...]) -> None:
    indices = np.random.default_rng(0).integers(-5, 5, shape)
    expected = np.take_along_axis(X, indices, 2)
    same(qb.take_along_axis(qb.array(X), indices, 2), expected)
    same(qb.jit(lambda x, i: qb.take_along_axis(x, i))(qb.array(X), qb.array(indices)), expected)
    wide = np.take_along_axis(X[:, :1], np.abs(indices) % 5, -1)
    same(qb.take_along_axis(qb.array(X[:, :1]), np.abs(indices) % 5), wide)


def test_bool_and_single_precision_arrays() -> None:
    same(qb.take(qb.array(X > 0), [2, 0], 1), (X > 0)[:, [2, 0]])
    x = X.astype(np.float32)
    got = qb.jit(lambda x, i: x[i])(qb.array(x), qb.array(np.array([2.0, 0.0], np.float32)))
    same(got, x[[2, 0]])
    assert got.dtype == qb.float32


_extent = st.shared(st.just(X.shape))


@st.composite
def keys(draw: Any) -> tuple[Any, ...]:
    """A key that NumPy takes, with at least one array."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    items: list[Any] = []
    axis = 0
    count = draw(st.integers(1, 3))
    while axis < count:
        n = X.shape[axis]
        kind = draw(
            st.sampled_from(
                ["array", "array", "list", "stretched", "integer", "slice", "mask", "new", "matrix"]
            )
        )
        axis += kind != "new"
        if kind in ("array", "list"):
            a = draw(hnp.arrays(np.int64, shape, elements=st.integers(-n, n - 1)))
            items.append(a.tolist() if kind == "list" and a.ndim else a)
        elif kind == "stretched":
            items.append(draw(hnp.arrays(np.int64, (1,) * len(shape), elements=st.integers(-n, n - 1))))
        elif kind == "integer":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            items.append(
                draw(
                    st.sampled_from([slice(None), slice(None, None, -1), slice(1, None, 2), slice(-1, None)])
                )
            )
        elif kind == "new":
            items.append(None)
        elif kind == "mask":
            items.append(draw(hnp.arrays(np.bool_, (n,))))
        elif axis < X.ndim and count == axis:
            items.append(draw(hnp.arrays(np.bool_, X.shape[axis - 1 : axis + 1])))
            break
        else:
            items.append(slice(None))
    if draw(st.booleans()):
        items.append(Ellipsis)
    return tuple(items)


@settings(max_examples=400, deadline=None)
@given(keys())
def test_keys_as_in_numpy(key: tuple[Any, ...]) -> None:
    try:
        expected = X[key]
    except IndexError:  # masks and arrays that do not broadcast
        with pytest.raises((qb.ShapeError, IndexError)):
            qb.array(X)[key]
        return
    if expected.size == 0:
        with pytest.raises(qb.ShapeError, match="selects nothing"):
            qb.array(X)[key]
        return
    same(qb.array(X)[key], expected)


@settings(max_examples=60, deadline=None)
@given(keys())
def test_traced_positions_select_the_same(key: tuple[Any, ...]) -> None:
    try:
        expected = X[key]
    except IndexError:
        return
    if expected.size == 0:
        return
    arrays = [np.asarray(k) for k in key if isinstance(k, np.ndarray | list) and np.asarray(k).dtype != bool]

    def pick(x: Any, *positions: Any) -> Any:
        rest = iter(positions)
        traced = [
            next(rest) if isinstance(k, np.ndarray | list) and np.asarray(k).dtype != bool else k for k in key
        ]
        return x[tuple(traced)]

    same(qb.jit(pick, device="reference")(qb.array(X), *[qb.array(a) for a in arrays]), expected)


@settings(max_examples=80, deadline=None)
@given(keys(), st.integers(0, 2**32))
def test_gradients_go_where_the_elements_came_from(key: tuple[Any, ...], seed: int) -> None:
    try:
        picked = X[key]
    except IndexError:
        return
    if picked.size == 0:
        return
    weights = np.random.default_rng(seed).normal(size=picked.shape)
    expected = np.zeros((2, *X.shape))
    xs = np.stack([X, X[::-1]])
    for x, gradient in zip(xs, expected, strict=True):
        np.add.at(gradient, key, 2.0 * weights * x[key])
    mapped = qb.vmap(qb.grad(lambda x: qb.sum(x[key] ** 2 * qb.array(weights))))
    got = qb.jit(mapped, device="reference")(qb.array(xs)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-14)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ([3], IndexError, r"position 3 is out of range for axis 0 of float64\[3,4,5\] with 3 elements"),
        ((0, [0, -5]), IndexError, "position -5 is out of range for axis 1"),
        ([0.5], IndexError, "0.5 is not a position along axis 0.*round"),
        ([float("nan")], IndexError, "nan is not a position"),
        ([1e300], IndexError, "out of range"),
        (np.array(7), IndexError, "index 7 is out of range"),
        ([0, [1]], IndexError, "not an array of positions"),
        (["a"], qb.DtypeError, "whole numbers"),
        ([], qb.ShapeError, "no positions"),
        (([0, 1], [0, 1, 2]), qb.ShapeError, r"\(2,\) and \(3,\) do not broadcast"),
        ([True, False], IndexError, r"mask of shape \(2,\) does not fit .* whose extents from axis 0 are \(3,\)"),
        ((0, np.zeros((5, 4), bool)), IndexError, r"mask of shape \(5, 4\).*\(4, 5\)"),
        (np.zeros((3,), bool), qb.ShapeError, "mask selects nothing.*where"),
        (([0], [0], [0], [0]), IndexError, "4 indices for an array"),
        ((np.ones((3, 4), bool), 0, 0), IndexError, "4 indices for an array"),
    ],
    ids=str,
)  # fmt: skip
def test_malformed_positions(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        qb.array(X)[key]


def test_malformed_arguments_of_functions() -> None:
    x = qb.array(X)
    with pytest.raises(qb.ShapeError, match="take: axis 3"):
        qb.take(x, 0, axis=3)
    with pytest.raises(IndexError, match="take: position 60 is out of range for axis 0 with 60"):
        qb.take(x, 60)
    with pytest.raises(qb.DtypeError, match="take: positions along axis 0 are whole numbers, got bool"):
        qb.take(x, [True], axis=0)
    with pytest.raises(qb.ShapeError, match="as many axes as the array"):
        qb.take_along_axis(x, [0], axis=0)
    with pytest.raises(qb.ShapeError, match="do not broadcast"):
        qb.take_along_axis(x, np.zeros((2, 4, 5)), axis=2)


def test_traced_masks_are_refused_and_the_way_out_is_named() -> None:
    with pytest.raises(qb.TracerError, match=r"mask bool\[3,4,5\].*where\(mask, x, other\).*test_ops_take"):
        qb.jit(lambda x: x[x > 0])(qb.array(X))
    with pytest.raises(qb.DtypeError, match="whole numbers, got bool"):
        qb.jit(lambda x: qb.take(x, x > 0))(qb.array(X))
    with pytest.raises(qb.TracerError, match=r"join them with quabla.stack"):
        qb.jit(lambda x, i: x[[i, i]])(qb.array(X), qb.array(1.0))


# --- traced positions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "reference"])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_traced_positions_are_moved_inside(device: str | None, kind: Any) -> None:
    # From the end if negative, rounded towards zero, the nearest element if out of range; NaN is the first.
    given_ = [0.0, 2.0, -1.0, -3.0, 1.9, -0.5, 3.0, -4.0, 1e30, -1e30, np.inf, -np.inf, np.nan]
    expected = [0, 2, 2, 0, 1, 0, 2, 0, 2, 0, 2, 0, 0]
    x, i = np.arange(3.0), np.array(given_, kind)
    same(qb.jit(lambda x, i: x[i], device=device)(qb.array(x), qb.array(i)), x[expected])
    both = qb.jit(lambda x, i: x[i, i], device=device)(qb.array(X[:, :3]), qb.array(i))
    same(both, X[expected, expected])


def test_loop_indices_select() -> None:
    def total(x: Any) -> Any:
        return qb.fori_loop(0, 3, lambda i, c: c + x[i] * x[2 - i], 0.0)

    x = np.array([2.0, 3.0, 5.0])
    assert qb.jit(total)(qb.array(x)).item() == 29.0
    np.testing.assert_array_equal(qb.grad(total)(qb.array(x)).numpy(), [10.0, 6.0, 4.0])
    np.testing.assert_array_equal(qb.hessian(total)(qb.array(x)).numpy(), [[0, 0, 2], [0, 2, 0], [2, 0, 0]])


def test_a_window_at_a_traced_place() -> None:
    window = qb.jit(lambda x, start: qb.take(x, start + qb.arange(3)))
    same(window(qb.arange(10), qb.array(4.0)), np.arange(4.0, 7.0))


# --- derivatives and maps ---------------------------------------------------------------------------------------------


def test_index_per_example() -> None:
    x, i = qb.array(np.arange(6.0).reshape(3, 2)), qb.array([0, 1, 1])
    picked = qb.vmap(lambda row, i: row[i])
    assert picked(x, i).tolist() == [0.0, 3.0, 5.0]
    gradient = qb.grad(lambda x: qb.sum(picked(x, i) ** 2))(x)
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 6.0], [0.0, 10.0]]


def test_repeated_positions_add_up_in_the_gradient() -> None:
    weights = qb.array([1.0, 2.0, 3.0])
    for key in ([0, 2, 0], qb.array([0.0, 2.0, 0.0])):
        assert qb.grad(lambda x, k=key: qb.sum(x[k] * weights))(qb.ones(3)).tolist() == [4.0, 0.0, 2.0]
    assert qb.grad(lambda x: qb.sum(qb.take(x, 7.0 * qb.ones(100000))))(qb.zeros(8))[7].item() == 1e5


MAPPED: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda x, i: qb.take(x, i, axis=1) * i,
    "flat": lambda x, i: qb.take(x * x, i),
    "rows": lambda x, i: x[i] ** 2,
    "columns": lambda x, i: qb.sin(x)[:, i],
    "pairs": lambda x, i: x[i, i + 1] * x[i, 0],
    "far_pairs": lambda x, i: qb.reshape(x, (3, 2, 2))[i, :, 0 * i - 1],
    "along": lambda x, i: qb.take_along_axis(x, qb.stack([i, i + 1, -i]), axis=1) ** 3,
    "first": lambda x, i: x[i[0], 1:],
}


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 1)])
def test_maps_are_loops(name: str, axes: tuple[int | None, int | None]) -> None:
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(3, 5, 4) if axes[0] == 1 else (5, 3, 4) if axes[0] == 0 else (3, 4))
    ks = rng.integers(0, 3, (2, 5) if axes[1] == 1 else (5, 2) if axes[1] == 0 else (2,))
    fun = MAPPED[name]

    def one(k: int, f: Callable[[Any, Any], Any]) -> np.ndarray:
        args = [
            np.take(a, k, axis) if axis is not None else a for a, axis in zip((xs, ks), axes, strict=True)
        ]
        return f(*[qb.array(a) for a in args]).numpy()

    def gradient(x: Any, i: Any) -> Any:
        return qb.grad(lambda x: qb.sum(qb.sin(fun(x, i))))(x)

    def curvature(x: Any, i: Any) -> Any:
        return qb.grad(lambda x: qb.sum(qb.cos(gradient(x, i))))(x)

    for f in (fun, gradient, curvature):
        got = qb.vmap(f, in_axes=axes)(qb.array(xs), qb.array(ks)).numpy()
        np.testing.assert_allclose(got, np.stack([one(k, f) for k in range(5)]), rtol=1e-13, atol=1e-14)
    nested = (
        qb.vmap(qb.vmap(fun, in_axes=(None, 0)), in_axes=(0, None))(
            qb.array(X), qb.array([[0, 1], [2, 0]])
        ).numpy()
        if name in ("take", "flat", "rows", "columns", "first")
        else None
    )
    if nested is not None:
        loop = [[fun(qb.array(x), qb.array(i)).numpy() for i in ([0, 1], [2, 0])] for x in X]
        np.testing.assert_allclose(nested, loop, rtol=1e-14)


@pytest.mark.parametrize("name", MAPPED)
def test_second_derivatives(name: str) -> None:
    i = qb.array([2.0, 0.0])
    x = qb.array(np.random.default_rng(2).normal(size=(3, 4)))
    check_grads(lambda x: qb.tanh(MAPPED[name](x, i)), (x,), order=2)


JAX: dict[str, Callable[[Any], Callable[[Any, Any], Any]]] = {
    "array": lambda m: lambda x, i: x[i],
    "two_arrays": lambda m: lambda x, i: x[i, i[::-1]] * x[i, 1],
    "apart": lambda m: lambda x, i: m.reshape(x, (3, 2, 2))[i, :, i[:, None] - 1],
    "mixed": lambda m: lambda x, i: x[None, 1:, i][..., ::-1],
    "take": lambda m: lambda x, i: m.take(x, i, axis=0) * m.take(x, i, axis=1)[:2, :1],
    "along": lambda m: lambda x, i: m.take_along_axis(x, i[None, :], axis=1),
    "sorted": lambda m: lambda x, i: m.sort(x, axis=0) * m.sort(x, axis=None)[2:6],
    "by_order": lambda m: lambda x, i: m.take_along_axis(x * x, m.argsort(x, axis=1), axis=1),
    "at_maximum": lambda m: lambda x, i: x[m.argmax(x, axis=0), 0] * x.ravel()[m.argmin(x)],
    "running": lambda m: lambda x, i: m.cumsum(x, axis=1) * m.cumprod(x, axis=0),
    "flat_running": lambda m: lambda x, i: m.cumprod(x)[3:] + m.cumsum(x)[:-3],
    "interp": lambda m: lambda x, i: m.interp(x, m.cumsum(m.exp(x[0])), x[1]),
    "searched": lambda m: lambda x, i: m.take(x[2], m.searchsorted(m.sort(x[0]), x[1, :3]) - 1, axis=0),
}  # fmt: skip


@pytest.mark.parametrize("name", JAX)
def test_against_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    jnp = pytest.importorskip("jax.numpy")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        x = np.random.default_rng(4).normal(size=(3, 4))
        i = np.array([2, 0])
        t, c = np.random.default_rng(6).normal(size=(2, 3, 4))

        def ours(x: Any) -> Any:
            return qb.sum(qb.sin(JAX[name](qb)(x, qb.array(i))))

        def theirs(x: Any) -> Any:
            return jnp.sum(jnp.sin(JAX[name](jnp)(x, jnp.asarray(i))))

        value, gradient, hessian, mapped = jax.jit(
            lambda x, both: (
                theirs(x),
                jax.grad(theirs)(x),
                jax.hessian(theirs)(x),
                jax.vmap(jax.grad(theirs))(both),
            )
        )(x, np.stack([x, c]))  # in one go: compiling is what takes time
        got = qb.value_and_grad(ours)(qb.array(x))
        np.testing.assert_allclose(got[0].numpy(), value, rtol=1e-13)
        np.testing.assert_allclose(got[1].numpy(), gradient, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(qb.hessian(ours)(qb.array(x)).numpy(), hessian, rtol=1e-11, atol=1e-12)
        second = qb.jvp(qb.grad(ours), (qb.array(x),), (qb.array(t),))[1].numpy()
        np.testing.assert_allclose(second, np.tensordot(hessian, t), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(
            qb.vmap(qb.grad(ours))(qb.array(np.stack([x, c]))).numpy(), mapped, rtol=1e-12, atol=1e-13
        )


METHODS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.take([2, 0], 1), lambda x: x.take([5, 5]), lambda x: x.argsort(), lambda x: x.argsort(axis=0),
    lambda x: x.argmax(), lambda x: x.argmin(axis=1, keepdims=True), lambda x: x.cumsum(), lambda x: x.cumprod(axis=1),
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_those_of_numpy(method: Callable[[Any], Any]) -> None:
    x = X[0]
    same(method(qb.array(x)), method(x))
    same(qb.jit(method)(qb.array(x)), method(x))
