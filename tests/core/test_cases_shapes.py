"""Shapes, indices and nothing at all, in situations that users of libraries like this one have met.

Where another file tests a situation it is not repeated here:

| situation | test |
|---|---|
| cotangents have the shapes of broadcast operands | `test_cases_derivatives`, `test_kinks` |
| an index per example, repeated positions, positions that are traced | `test_ops_take` |
| negative steps and their gradients; arithmetic on reversed views | `test_ops_index` |
| right-hand sides of linear systems: vectors, matrices, stacks, and what does not fit | `test_linalg` |
| one matrix, many right-hand sides under a map: one factorisation | `test_linalg` |
| sizes, axes and containers of maps that do not fit | `test_vmap`, `test_messages` |
| tangents and cotangents of another shape or structure | `test_jvp_vjp`, `test_messages` |
| maps, Jacobians and Hessians in chunks | `test_chunks` |
| lengths, numbers, formats and remainders of an array of one element | `test_arrays`, `test_ops_math` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

F = Callable[..., Any]
A = qb.array


# --- nothing: a clear refusal wherever it could come in ---------------------------------------------------------------

NOTHING: list[tuple[str, F]] = [
    ("zeros", lambda: qb.zeros((0,))),
    ("ones of a matrix", lambda: qb.ones((2, 0))),
    ("full", lambda: qb.full((0, 3), 1.0)),
    ("eye", lambda: qb.eye(0)),
    ("arange", lambda: qb.arange(3, 1)),
    ("linspace", lambda: qb.linspace(0.0, 1.0, 0)),
    ("array of a list", lambda: qb.array([])),
    ("array of lists", lambda: qb.array([[], []])),
    ("asarray of NumPy's", lambda: qb.asarray(np.zeros((2, 0)))),
    ("slice", lambda: qb.arange(5)[5:5:2]),
    ("reversed slice", lambda: qb.arange(5)[1:3:-1]),
    ("slice of one axis of two", lambda: qb.ones((3, 4))[:, 4:]),
    ("mask", lambda: qb.arange(3)[qb.arange(3) > 5.0]),
    ("list of positions", lambda: qb.arange(3)[[]]),
    ("reshape", lambda: qb.reshape(qb.ones(3), (3, 0))),
    ("broadcast", lambda: qb.broadcast_to(qb.ones(1), (0,))),
    ("repeat", lambda: qb.repeat(qb.ones(3), 0)),
    ("tile", lambda: qb.tile(qb.ones(3), 0)),
    ("concat", lambda: qb.concat([])),
    ("stack", lambda: qb.stack([])),
    ("argument of jit", lambda: qb.jit(qb.sum)(np.zeros((0, 2)))),
    ("argument of vmap", lambda: qb.vmap(qb.sum)(np.zeros((0, 2)))),
    ("argument of grad", lambda: qb.grad(qb.sum)(np.zeros(0))),
    ("result", lambda: qb.jit(lambda x: np.zeros(0))(qb.ones(2))),
    ("scan", lambda: qb.scan(lambda c, i: (c, c), qb.ones(()), length=0)),
]
# The words that name nothing, one of which every refusal has.
WORDS = ("empty", "at least 1", "at least one", "selects nothing", "no steps", "no elements", "no values")


@pytest.mark.parametrize("mistake", [n[1] for n in NOTHING], ids=[n[0] for n in NOTHING])
def test_nothing_is_refused_and_the_message_says_so(mistake: F) -> None:
    with pytest.raises(ValueError) as caught:
        mistake()
    assert isinstance(caught.value, qb.QuablaError)
    assert any(w in str(caught.value) for w in WORDS), str(caught.value)


def test_nothing_inside_a_traced_function_names_the_line() -> None:
    for f in (lambda x: x[3:], lambda x: qb.reshape(x, (0, 3)), lambda x: qb.sum(x[5:5])):
        with pytest.raises(qb.ShapeError, match=r"\(at .*test_cases_shapes\.py, line \d+: for f in"):
            qb.jit(f)(qb.ones(3))


@pytest.mark.parametrize("traced", [False, True], ids=["concrete", "traced"])
def test_a_loop_of_no_steps_is_its_initial_value(traced: bool) -> None:
    through = qb.jit if traced else lambda f: f
    for low, high in ((3, 1), (3, 3), (0, 0), (0, -2)):
        f = lambda x, low=low, high=high: qb.fori_loop(low, high, lambda i, c: {"a": c["a"] * x}, {"a": x})
        assert through(f)(A([2.0, 3.0]))["a"].tolist() == [2.0, 3.0]
        assert through(qb.grad(lambda x, f=f: qb.sum(f(x)["a"])))(A([2.0, 3.0])).tolist() == [1.0, 1.0]
        assert qb.jvp(f, (A(2.0),), (A(5.0),))[1]["a"].item() == 5.0
    never = lambda x: qb.while_loop(lambda c: c < 0.0, lambda c: c * 2.0, x, max_steps=4)
    assert through(never)(A(3.0)).item() == 3.0
    assert through(qb.grad(never))(A(3.0)).item() == 1.0


def test_a_scan_of_one_step() -> None:
    carry, ys = qb.jit(lambda x: qb.scan(lambda c, y: (c + y, c * y), x, A([5.0])))(A(2.0))
    assert carry.item() == 7.0 and ys.tolist() == [10.0]


# --- one spelling, one meaning ----------------------------------------------------------------------------------------

RANKS = [((2,), (2,)), ((3, 2), (2,)), ((2,), (2, 4)), ((3, 2), (2, 4)), ((5, 3, 2), (2,)), ((2,), (5, 2, 4)),
         ((5, 3, 2), (2, 4)), ((5, 1, 3, 2), (6, 2, 4))]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), RANKS, ids=str)
def test_the_operator_and_the_function_of_products_agree(left: Any, right: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=left), rng.normal(size=right)
    expected = x @ y
    for f in (lambda x, y: x @ y, qb.matmul, qb.jit(lambda x, y: x @ y), qb.jit(qb.matmul)):
        got = f(A(x), A(y))
        assert got.shape == expected.shape
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(np.asarray(A(x) @ y), expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(np.asarray(x @ A(y)), expected, rtol=1e-14, atol=1e-14)
    ct = rng.normal(size=expected.shape)
    x_bar, y_bar = qb.vjp(lambda x, y: x @ y, A(x), A(y))[1](A(ct))
    assert x_bar.shape == left and y_bar.shape == right
    t = rng.normal(size=left)
    assert np.sum(np.asarray(x_bar) * t) == pytest.approx(np.sum(ct * (t @ y)), rel=1e-12)


SPELLINGS: list[tuple[str, F, F]] = [
    ("sum", lambda x: x.sum(axis=0), lambda x: qb.sum(x, axis=0)),
    ("mean", lambda x: x.mean(), lambda x: qb.mean(x)),
    ("max", lambda x: x.max(axis=-1), lambda x: qb.max(x, axis=-1)),
    ("reshape by numbers", lambda x: x.reshape(3, 2), lambda x: qb.reshape(x, (3, 2))),
    ("reshape by a tuple", lambda x: x.reshape((3, -1)), lambda x: qb.reshape(x, (3, 2))),
    ("transpose", lambda x: x.T, lambda x: qb.transpose(x)),
    ("abs", lambda x: abs(x), qb.abs),
    ("negative", lambda x: -x, qb.neg),
    ("power", lambda x: x**2.5, lambda x: qb.power(x, 2.5)),
    ("remainder", lambda x: x % 0.7, lambda x: qb.mod(x, 0.7)),
    ("floor", lambda x: x // 0.7, lambda x: qb.floor_divide(x, 0.7)),
    ("comparison", lambda x: x > 1.0, lambda x: qb.greater(x, 1.0)),
    ("and", lambda x: (x > 1.0) & (x < 2.0), lambda x: qb.logical_and(x > 1.0, x < 2.0)),
    ("index", lambda x: x[1], lambda x: qb.take(x, 1, axis=0)),
]


@pytest.mark.parametrize(("method", "function"), [s[1:] for s in SPELLINGS], ids=[s[0] for s in SPELLINGS])
def test_operators_and_methods_are_the_functions(method: F, function: F) -> None:
    x = A(np.random.default_rng(1).uniform(0.5, 2.5, (2, 3)))
    for f, g in ((method, function), (qb.jit(method), qb.jit(function))):
        got, expected = f(x), g(x)
        assert got.dtype is expected.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


# --- mapped functions and the shape of what they close over -----------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_gradient_of_a_captured_value_has_its_shape_whatever_maps_are_around(depth: int) -> None:
    x = A(np.random.default_rng(2).normal(size=(2, 3, 4)[:depth]))
    for shape in ((), (1,), (5,)):
        w = qb.full(shape, 0.7)

        def total(w: Any) -> Any:
            f = lambda v: qb.sum(qb.sin(w * v))
            for _ in range(depth):
                f = qb.vmap(f)
            return qb.sum(f(x))

        got = qb.grad(total)(w)
        assert got.shape == shape
        expected = np.sum(np.asarray(x) * np.cos(0.7 * np.asarray(x)))
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-13)


@pytest.mark.parametrize("name", ["norm", "std", "max", "logsumexp"])
def test_examples_do_not_mix(name: str) -> None:
    """Derivatives of a reduction under a map are those of each example by itself."""
    x = np.random.default_rng(3).normal(size=(5, 3))
    f = getattr(qb, name)
    for transform in (qb.grad, qb.jacobian, qb.hessian):
        together = np.asarray(qb.vmap(transform(f))(A(x)))
        for i in range(5):
            np.testing.assert_allclose(together[i], np.asarray(transform(f)(A(x[i]))), rtol=1e-13, atol=1e-15)


def test_a_map_over_an_axis_in_the_middle_and_out_to_another() -> None:
    x = np.random.default_rng(4).normal(size=(2, 5, 3))
    for axis in (0, 1, 2, -1, -2, -3):
        moved = np.moveaxis(x, axis, 0)
        for out in (0, 1, -1, -2):
            got = np.asarray(qb.vmap(lambda m: qb.sum(m, axis=1), in_axes=axis, out_axes=out)(A(x)))
            np.testing.assert_allclose(got, np.moveaxis(moved.sum(axis=2), 0, out), rtol=1e-14)
