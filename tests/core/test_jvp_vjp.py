"""`jvp` and `vjp`: against matrices written down by hand, against each other, and what they refuse."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import quabla as qb

A = qb.array


def mix(x: Any) -> Any:
    """R^3 -> R^2, with the Jacobian `mix_jacobian`."""
    return qb.stack([qb.sin(x[0]) * x[1], x[2] ** 2 + qb.exp(x[0])])


def mix_jacobian(x: np.ndarray) -> np.ndarray:
    return np.array([[np.cos(x[0]) * x[1], np.sin(x[0]), 0.0], [np.exp(x[0]), 0.0, 2.0 * x[2]]])


vectors = arrays(np.float64, 3, elements=st.floats(-2, 2))


@settings(max_examples=30, deadline=None)
@given(vectors, vectors)
def test_jvp_is_the_jacobian_times_the_tangent(x: np.ndarray, t: np.ndarray) -> None:
    value, tangent = qb.jvp(mix, (A(x),), (A(t),))
    np.testing.assert_allclose(
        value.numpy(), [np.sin(x[0]) * x[1], x[2] ** 2 + np.exp(x[0])], rtol=1e-14, atol=1e-14
    )
    np.testing.assert_allclose(tangent.numpy(), mix_jacobian(x) @ t, rtol=1e-13, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(vectors, arrays(np.float64, 2, elements=st.floats(-2, 2)))
def test_vjp_is_the_cotangent_times_the_jacobian(x: np.ndarray, ct: np.ndarray) -> None:
    value, pullback = qb.vjp(mix, A(x))
    assert value.shape == (2,)
    (back,) = pullback(A(ct))
    np.testing.assert_allclose(back.numpy(), ct @ mix_jacobian(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "f",
    [
        lambda m, a, b: a * b,
        lambda m, a, b: a / (2.0 + b * b),
        lambda m, a, b: m.matmul(a, b),
        lambda m, a, b: m.einsum("ij,ik->jk", a, b),
        lambda m, a, b: m.outer(a[0], b[1]),
        lambda m, a, b: m.tensordot(a, b, 2),
        lambda m, a, b: m.where(a > b, a * a, b),
    ],
)
def test_the_product_rule_where_both_operands_move(f: Any) -> None:
    rng = np.random.default_rng(4)
    a, b, da, db = rng.normal(size=(4, 3, 3))
    _, tangent = qb.jvp(lambda a, b: f(qb, a, b), (A(a), A(b)), (A(da), A(db)))
    h = 1e-6
    numeric = (f(np, a + h * da, b + h * db) - f(np, a - h * da, b - h * db)) / (2 * h)
    np.testing.assert_allclose(tangent.numpy(), numeric, rtol=1e-7, atol=1e-8)
    ct = rng.normal(size=numeric.shape)
    back_a, back_b = qb.vjp(lambda a, b: f(qb, a, b), A(a), A(b))[1](A(ct))
    total = (back_a.numpy() * da).sum() + (back_b.numpy() * db).sum()
    assert total == pytest.approx((ct * tangent.numpy()).sum(), rel=1e-12, abs=1e-13)


def test_hessian_vector_product_is_forward_over_reverse() -> None:
    rng = np.random.default_rng(0)
    m, x, v = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=4)
    f = lambda x: qb.sum(qb.sin(A(m) @ x))
    g, hv = qb.jvp(qb.grad(f), (A(x),), (A(v),))
    np.testing.assert_allclose(g.numpy(), m.T @ np.cos(m @ x), rtol=1e-13)
    np.testing.assert_allclose(hv.numpy(), m.T @ (-np.sin(m @ x) * (m @ v)), rtol=1e-13)
    reverse = qb.grad(lambda x: qb.sum(qb.grad(f)(x) * A(v)))(A(x))
    np.testing.assert_allclose(reverse.numpy(), hv.numpy(), rtol=1e-13)


def test_forward_mode_repeated() -> None:
    d = lambda f: lambda x: qb.jvp(f, (x,), (1.0,))[1]
    assert d(d(d(qb.sin)))(0.3).item() == pytest.approx(-np.cos(0.3), rel=1e-15)


def test_reverse_over_forward_inside_a_loss() -> None:
    rng = np.random.default_rng(1)
    w, x, u = rng.normal(size=(3, 4)), rng.normal(size=3), rng.normal(size=3)

    def loss(w: Any) -> Any:
        return qb.sum(qb.jvp(lambda x: qb.tanh(x @ w), (A(x),), (A(u),))[1] ** 2)

    def by_jacobian(w: Any) -> Any:
        return qb.sum((qb.jacobian(lambda x: qb.tanh(x @ w))(A(x)) @ A(u)) ** 2)

    np.testing.assert_allclose(
        qb.grad(loss)(A(w)).numpy(), qb.grad(by_jacobian)(A(w)).numpy(), rtol=1e-13, atol=1e-14
    )


def test_a_pullback_inside_a_loss() -> None:
    def loss(w: Any) -> Any:
        value, pullback = qb.vjp(lambda x: qb.sin(x * w), 0.3)
        (slope,) = pullback(value)
        return slope * value

    w, x, h = 1.2, 0.3, 1e-6
    plain = lambda w: np.cos(x * w) * w * np.sin(x * w) ** 2
    assert loss(A(w)).item() == pytest.approx(plain(w), rel=1e-14)
    assert qb.grad(loss)(w).item() == pytest.approx((plain(w + h) - plain(w - h)) / (2 * h), rel=1e-8)


def test_a_traced_cotangent_of_a_concrete_function() -> None:
    _, pullback = qb.vjp(lambda x: x * x * A([1.0, 2.0]), A([3.0, 4.0]))
    g = qb.grad(lambda c: qb.sum(pullback(c)[0] ** 2))(A([1.0, 1.0]))
    np.testing.assert_allclose(g.numpy(), [2.0 * 36.0, 2.0 * 256.0])


def test_trees_of_primals_tangents_and_cotangents() -> None:
    f = lambda p, q: {"sum": p["a"] + q[0], "product": (p["a"] * q[1], None)}
    p, q = {"a": A([1.0, 2.0])}, [A([3.0, 4.0]), A(5.0)]
    value, tangent = qb.jvp(f, (p, q), ({"a": A([1.0, 0.0])}, [A([0.0, 1.0]), A(10.0)]))
    assert value["sum"].tolist() == [4.0, 6.0]
    assert tangent["sum"].tolist() == [1.0, 1.0]
    assert tangent["product"][0].tolist() == [15.0, 20.0]
    assert tangent["product"][1] is None
    value, pullback = qb.vjp(f, p, q)
    dp, dq = pullback({"sum": A([1.0, 1.0]), "product": (A([1.0, 0.0]), None)})
    assert dp["a"].tolist() == [6.0, 1.0]
    assert [x.tolist() for x in dq] == [[1.0, 1.0], 1.0]


def test_dicts_match_whatever_their_order_of_keys() -> None:
    f = lambda d: d["a"] * 10.0 + d["b"]
    value, tangent = qb.jvp(f, ({"a": A(1.0), "b": A(2.0)},), ({"b": A(5.0), "a": A(7.0)},))
    assert (value.item(), tangent.item()) == (12.0, 75.0)
    assert qb.jvp(f, (OrderedDict(b=A(2.0), a=A(1.0)),), (OrderedDict(a=A(7.0), b=A(5.0)),))[1].item() == 75.0


def test_numbers_as_primals_tangents_and_cotangents() -> None:
    assert [x.item() for x in qb.jvp(lambda x: x**3, (2.0,), (1,))] == [8.0, 12.0]
    assert [x.item() for x in qb.jvp(lambda x: x**3, [2], [0.5])] == [8.0, 6.0]
    assert qb.jvp(lambda x: x * x, (np.int64(3),), (1.0,))[1].item() == 6.0
    value, pullback = qb.vjp(lambda x, y: x * y, 2, 5.0)
    assert value.item() == 10.0
    assert [g.item() for g in pullback(1)] == [5.0, 2.0]
    x = A([1.0], "float32")[0]
    _, tangent = qb.jvp(lambda x: x * 2.0, (x,), (1.0,))
    assert tangent.dtype is qb.float32
    (back,) = qb.vjp(lambda x: x * 2.0, x)[1](3.0)
    assert (back.dtype, back.item()) == (qb.float32, 6.0)


def test_numbers_do_not_retrace() -> None:
    traces: list[int] = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x * x

    for i in range(20):
        assert qb.jvp(f, (1.0 + i,), (2.0 + i,))[1].item() == 2.0 * (1.0 + i) * (2.0 + i)
    assert len(traces) == 1
    for i in range(20):
        value, pullback = qb.vjp(f, 1.0 + i)
        assert (value.item(), pullback(1.0 * i)[0].item()) == ((1.0 + i) ** 2, 2.0 * i * (1.0 + i))
    assert len(traces) == 3


def test_outputs_of_every_kind() -> None:
    f = lambda x: (x, x, 3.0, A([1.0, 2.0]), x > 0.0, None, 2.0 * x)
    value, tangent = qb.jvp(f, (A([1.0, -1.0]),), (A([10.0, 20.0]),))
    assert [v if v is None else v.tolist() for v in value] == [
        [1.0, -1.0], [1.0, -1.0], 3.0, [1.0, 2.0], [True, False], None, [2.0, -2.0],
    ]  # fmt: skip
    assert [t if t is None else t.tolist() for t in tangent] == [
        [10.0, 20.0], [10.0, 20.0], 0.0, [0.0, 0.0], [False, False], None, [20.0, 40.0],
    ]  # fmt: skip
    _, pullback = qb.vjp(f, A([1.0, -1.0]))
    ones = A([1.0, 1.0])
    (back,) = pullback((ones, ones, 5.0, ones, None, None, ones))
    assert back.tolist() == [4.0, 4.0]


def test_bool_arguments_have_no_cotangent() -> None:
    f = lambda x, m: qb.where(m, x, 0.0)
    _, pullback = qb.vjp(f, A([1.0, 2.0]), A([True, False]))
    back = pullback(A([1.0, 1.0]))
    assert back[0].tolist() == [1.0, 0.0]
    assert back[1] is None
    for tangent in (None, A([True, True]), A([0.0, 0.0])):
        assert qb.jvp(f, (A([1.0, 2.0]), A([True, False])), (A([3.0, 4.0]), tangent))[1].tolist() == [
            3.0,
            0.0,
        ]


def test_vjp_of_a_function_without_arguments() -> None:
    value, pullback = qb.vjp(lambda: A([1.0, 2.0]))
    assert value.tolist() == [1.0, 2.0]
    assert pullback(A([1.0, 1.0])) == ()
    value, tangent = qb.jvp(lambda: A([1.0, 2.0]), (), ())
    assert (value.tolist(), tangent.tolist()) == ([1.0, 2.0], [0.0, 0.0])


def test_vjp_with_aux() -> None:
    f = lambda x: (x * x, {"tag": "t", "n": 3, "y": x + 1.0})
    value, pullback, aux = qb.vjp(f, A(3.0), has_aux=True)
    assert (value.item(), aux["tag"], aux["n"], aux["y"].item()) == (9.0, "t", 3, 4.0)
    assert [g.item() for g in pullback(1.0)] == [6.0]
    constant, pullback, aux = qb.vjp(lambda x: (3.0, None), A(1.0), has_aux=True)
    assert (constant.item(), aux, pullback(1.0)[0].item()) == (3.0, None, 0.0)
    with pytest.raises(qb.DtypeError, match=r"vjp: with has_aux=True, <lambda> must return a pair"):
        qb.vjp(lambda x: x, A(1.0), has_aux=True)


def test_a_pullback_can_be_called_again() -> None:
    _, pullback = qb.vjp(mix, A([0.1, 0.2, 0.3]))
    rows = [pullback(A(e))[0].numpy() for e in np.eye(2)]
    np.testing.assert_allclose(rows, mix_jacobian(np.array([0.1, 0.2, 0.3])), rtol=1e-14)


def test_jvp_and_vjp_of_vmap() -> None:
    f = qb.vmap(lambda x, w: qb.sum(qb.sin(x * w)), in_axes=(0, None))
    x, w, t = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), np.array([1.5, -0.5]), np.array([1.0, 2.0])
    _, tangent = qb.jvp(lambda w: f(A(x), w), (A(w),), (A(t),))
    np.testing.assert_allclose(tangent.numpy(), (np.cos(x * w) * x * t).sum(1), rtol=1e-14)
    _, pullback = qb.vjp(f, A(x), A(w))
    dx, dw = pullback(A([1.0, 10.0, 100.0]))
    ct = np.array([[1.0], [10.0], [100.0]])
    np.testing.assert_allclose(dx.numpy(), ct * np.cos(x * w) * w, rtol=1e-14)
    np.testing.assert_allclose(dw.numpy(), (ct * np.cos(x * w) * x).sum(0), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_are_kept(dtype: str) -> None:
    x = A([0.5, 1.0, 2.0], dtype)
    value, tangent = qb.jvp(mix, (x,), (x,))
    assert value.dtype is tangent.dtype is x.dtype
    value, pullback = qb.vjp(mix, x)
    assert pullback(value)[0].dtype is x.dtype
    wide = mix_jacobian(np.array([0.5, 1.0, 2.0])) @ np.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(tangent.numpy(), wide, rtol=1e-6 if dtype == "float32" else 1e-14)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "primals, tangents, error, match",
    [
        (
            (A([1.0, 2.0]),),
            (A([1.0, 2.0, 3.0]),),
            ValueError,
            r"at 0 must be an array float64\[2\].*float64\[3\]",
        ),
        ((A(1.0),), (A(1.0, "float32"),), TypeError, r"float64\[\].*float32\[\].*astype\(quabla.float64\)"),
        ((A([1.0]),), (1.0,), ValueError, r"number 1.0.*scalar only.*float64\[1\].*full\(\(1,\), 1.0"),
        ((A(1.0), A(2.0)), (A(1.0),), ValueError, "2 primals but 1 tangents"),
        ((A(1.0),), (None,), TypeError, "tangent at 0 is None.*zeros"),
        (((A(1.0), A(2.0)),), (A(1.0),), ValueError, "tangents must have the structure of the primals"),
        (({"a": A(1.0)},), ({"b": A(1.0)},), ValueError, "tangents must have the structure of the primals"),
        (A(1.0), A(1.0), TypeError, r"jvp\(f, \(x,\), \(t,\)\)"),
        ((A(1.0),), A(1.0), TypeError, "tuples with one entry per argument"),
    ],
)
def test_tangents_that_do_not_fit(primals: Any, tangents: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=f"(?s)jvp.*{match}") as caught:
        qb.jvp(lambda *args: args[0], primals, tangents)
    assert isinstance(caught.value, qb.QuablaError)


@pytest.mark.parametrize("call", [lambda: qb.jvp(3, (1.0,), (1.0,)), lambda: qb.vjp(3, 1.0)])
def test_what_is_no_function(call: Any) -> None:
    with pytest.raises(qb.DtypeError, match=r"^[jv][vj]p: the first argument must be a function, got an int"):
        call()


@pytest.mark.parametrize(
    "f, cotangent, error, match",
    [
        (
            lambda x: 2.0 * x,
            qb.ones(2),
            ValueError,
            r"must be an array float64\[3\], like the value; got an array float64\[2\]",
        ),
        (lambda x: (x, x), qb.ones(3), ValueError, "cotangents must have the structure of the value"),
        (
            lambda x: x,
            (qb.ones(3), qb.ones(3)),
            ValueError,
            r"an array float64\[3\], like the value; got a tuple",
        ),
        (lambda x: {"a": x}, {"a": None}, TypeError, "cotangent at a is None"),
        (
            lambda x: (x, x),
            (qb.ones(3), qb.ones((3,), "float32")),
            TypeError,
            r"at 1 .*float64\[3\].*float32\[3\].*astype\(quabla.float64\)",
        ),
    ],
)
def test_cotangents_that_do_not_fit(f: Any, cotangent: Any, error: Any, match: str) -> None:
    _, pullback = qb.vjp(f, qb.ones(3))
    with pytest.raises(error, match=f"(?s){match}") as caught:
        pullback(cotangent)
    assert isinstance(caught.value, qb.QuablaError)
