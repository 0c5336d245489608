"""How far the mask of a `where` keeps infinities and NaN out of a gradient, and where that ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

F = Callable[..., Any]
A = qb.array
NAN, INF = math.nan, math.inf

# Rows of which the last is left out; its slope of sqrt(x) * log(x) is NaN below zero and infinite at zero.
X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [-1.0, 0.0, NAN]])
KEPT = np.array([[True] * 3, [True] * 3, [False] * 3])
W = np.arange(1.0, 10.0).reshape(3, 3)


def bad(x: Any) -> Any:
    return qb.log(x) / x


def slope(x: np.ndarray) -> np.ndarray:
    return (1.0 - np.log(x)) / x**2


def total(f: F) -> F:
    """The sum of `f` of the bad function, its elements weighted, those of the last row left out."""
    return lambda x: qb.sum(qb.where(A(KEPT), f(bad(x)) * A(W), 0.0))


FOLLOWED: list[tuple[str, F]] = [
    ("elementwise", total(lambda y: y)),
    ("reshape", total(lambda y: qb.reshape(qb.reshape(y, (9,)), (3, 3)))),
    ("transpose", total(lambda y: qb.transpose(qb.transpose(y)))),
    ("moved axes", total(lambda y: qb.moveaxis(qb.moveaxis(y, 0, 1), 1, 0))),
    ("concat", lambda x: qb.sum(qb.where(
        A(np.concatenate([KEPT, KEPT])), qb.concat([bad(x), bad(x)]) * A(np.concatenate([W, 0.0 * W])), 0.0))),
    ("stack", lambda x: qb.sum(qb.where(
        A(np.stack([KEPT, KEPT], 1)), qb.stack([bad(x), 0.0 * bad(x)], axis=1) * A(W[:, None, :]), 0.0))),
    ("sum over an axis", lambda x: qb.sum(qb.where(A(KEPT[:, 0]), qb.sum(bad(x) * A(W), axis=1), 0.0))),
    ("mean over an axis", lambda x: qb.sum(qb.where(A(KEPT[:, 0]), qb.mean(3.0 * bad(x) * A(W), axis=1), 0.0))),
    ("checkpoint", total(qb.checkpoint(lambda y: y * 1.0))),
    ("checkpoint of all", lambda x: qb.sum(qb.where(A(KEPT), qb.checkpoint(bad)(x) * A(W), 0.0))),
    ("branch", lambda x: qb.sum(qb.where(A(KEPT), qb.cond(x[0, 0] > 0.0, bad, qb.sin, x) * A(W), 0.0))),
    ("jit", lambda x: qb.sum(qb.where(A(KEPT), qb.jit(bad)(x) * A(W), 0.0))),
    ("map", lambda x: qb.sum(qb.where(A(KEPT), qb.vmap(bad)(x) * A(W), 0.0))),
    ("map of all", lambda x: qb.sum(qb.vmap(lambda k, r, w: qb.sum(qb.where(k, bad(r) * w, 0.0)))(A(KEPT), x, A(W)))),
    ("scan of rows", lambda x: qb.scan(
        lambda c, s: (c + qb.sum(qb.where(s[0], bad(s[1]) * s[2], 0.0)), None), 0.0, (A(KEPT), x, A(W)))[0]),
    ("other side", lambda x: qb.sum(qb.where(A(~KEPT), 0.0, qb.reshape(qb.checkpoint(bad)(x), (3, 3)) * A(W)))),
    ("two masks", lambda x: qb.sum(qb.where(
        A(KEPT), qb.where(A(W) > 0.0, qb.checkpoint(bad)(x) * A(W), 0.0), 0.0))),
]  # fmt: skip


@pytest.mark.parametrize("f", [m[1] for m in FOLLOWED], ids=[m[0] for m in FOLLOWED])
def test_through_these_the_mask_is_followed(f: F) -> None:
    with np.errstate(all="ignore"):
        expected = np.where(KEPT, slope(X) * W, 0.0)
    for g in (qb.grad(f), qb.jit(qb.grad(f))):
        np.testing.assert_allclose(np.asarray(g(A(X))), expected, rtol=1e-13)
    np.testing.assert_allclose(
        np.asarray(qb.vmap(qb.grad(f))(qb.stack([A(X), A(X)])))[1], expected, rtol=1e-13
    )
    ahead = qb.jvp(f, (A(X),), (qb.ones((3, 3)),))[1]
    assert ahead.item() == pytest.approx(expected.sum(), rel=1e-13)
    # Once more, in both modes: the second derivative is diagonal.
    with np.errstate(all="ignore"):
        curved = np.where(KEPT, (2.0 * np.log(X) - 3.0) / X**3 * W, 0.0)
    back = qb.grad(lambda x: qb.sum(qb.grad(f)(x)))(A(X))
    np.testing.assert_allclose(np.asarray(back), curved, rtol=1e-12)
    np.testing.assert_allclose(
        np.asarray(qb.jvp(qb.grad(f), (A(X),), (qb.ones((3, 3)),))[1]), curved, rtol=1e-12
    )


def test_a_shared_operand_of_elements_that_are_all_left_out() -> None:
    f = lambda s: qb.sum(qb.where(A([False, False]), bad(s) * A([1.0, 2.0]), 0.0))
    assert qb.grad(f)(0.0).item() == qb.grad(f)(-1.0).item() == 0.0
    some = lambda s: qb.sum(qb.where(A([True, False]), bad(s) * A([1.0, 2.0]), 0.0))
    assert qb.grad(some)(2.0).item() == pytest.approx(slope(np.array(2.0)), rel=1e-14)
    assert not math.isfinite(qb.grad(some)(0.0).item())  # it counts


ENDS: list[tuple[str, F]] = [
    ("product", lambda y: y @ qb.eye(3)),
    ("einsum", lambda y: qb.einsum("ij,jk->ik", y, qb.eye(3))),
    ("slice", lambda y: y[::-1][::-1]),
    ("rows", lambda y: y[A([0, 1, 2])]),
    ("running sum of rows", lambda y: qb.cumsum(y, axis=1)),
    ("solve", lambda y: qb.transpose(qb.solve(qb.eye(3), qb.transpose(y)))),
]


@pytest.mark.parametrize("f", [e[1] for e in ENDS], ids=[e[0] for e in ENDS])
def test_behind_these_the_operand_has_to_be_replaced_too(f: F) -> None:
    good = np.where(KEPT, X, 1.0)
    expected = np.where(KEPT, np.asarray(qb.grad(total(f))(A(good))), 0.0)
    plain = np.asarray(qb.grad(total(f))(A(X)))
    assert np.isnan(plain[2]).any()
    both = qb.grad(lambda x: total(f)(qb.where(A(KEPT), x, 1.0)))
    np.testing.assert_allclose(np.asarray(both(A(X))), expected, rtol=1e-13)


def test_a_product_with_missing_rows_shows_the_limit() -> None:
    x, y = A([[1.0, 2.0], [NAN, 3.0]]), A([1.0, NAN])
    seen = ~qb.isnan(y)
    loss = lambda w, x: qb.sum(qb.where(seen, (x @ w - y) ** 2, 0.0))
    w = A([0.5, -0.3])
    assert np.isnan(np.asarray(qb.grad(loss)(w, x))[0])
    filled = qb.where(qb.isnan(x), 0.0, x)
    expected = 2.0 * (1.0 * 0.5 - 2.0 * 0.3 - 1.0) * np.array([1.0, 2.0])
    np.testing.assert_allclose(np.asarray(qb.grad(loss)(w, filled)), expected, rtol=1e-14)
    by_rows = lambda w: qb.sum(qb.where(seen, (qb.sum(x * w, axis=1) - y) ** 2, 0.0))
    np.testing.assert_allclose(np.asarray(qb.grad(by_rows)(w)), expected, rtol=1e-14)


def test_a_factor_of_zero_is_no_mask() -> None:
    f = lambda x: qb.sum(A([1.0, 0.0]) * x**2)
    assert math.isnan(f(A([1.0, NAN])).item()) and np.isnan(np.asarray(qb.grad(f)(A([1.0, NAN])))[1])


def test_no_more_nodes_where_nothing_is_masked() -> None:
    """Following masks costs nothing in a program without `where`."""
    f = lambda w, x: qb.mean(qb.tanh(qb.checkpoint(lambda x: x @ w + 1.0)(x)) ** 2)
    program = qb.jit(qb.grad(f)).lower(qb.ones((3, 2)), qb.ones((4, 3))).program
    assert not {"where", "reduce_any", "logical_not"} & {node.op.name for node in program.nodes}
