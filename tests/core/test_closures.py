"""Functions that close over arrays (constants) and over traced values of enclosing functions (captures)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
W, X = 1.2, 0.3


def slope(f: Callable[[float], float], x: float, h: float = 1e-6) -> float:
    return (f(x + h) - f(x - h)) / (2 * h)


def test_a_derivative_of_a_squared_derivative() -> None:
    g = qb.grad(lambda w: qb.grad(lambda x: qb.sin(x * w))(X) ** 2)
    exact = 2.0 * W * np.cos(X * W) * (np.cos(X * W) - W * X * np.sin(X * W))
    assert exact == pytest.approx(1.8173126966773971, rel=1e-15)
    for _ in range(3):  # the second call goes through the cache
        assert g(W).item() == pytest.approx(exact, rel=1e-14)
    assert qb.jit(g)(A(W)).item() == pytest.approx(exact, rel=1e-14)


# Each takes a traced w and a concrete or traced x and applies one transform to a function that closes over w. All are
# w cos(x w) in value.
INNER: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("grad", lambda w, x: qb.grad(lambda t: qb.sin(t * w))(x)),
    ("jit_grad", lambda w, x: qb.jit(qb.grad(lambda t: qb.sin(t * w)))(x)),
    ("grad_jit", lambda w, x: qb.grad(qb.jit(lambda t: qb.sin(t * w)))(x)),
    ("jit", lambda w, x: qb.jit(lambda t: w * qb.cos(t * w))(x)),
    ("value_and_grad", lambda w, x: qb.value_and_grad(lambda t: qb.sin(t * w))(x)[1]),
    ("value", lambda w, x: qb.value_and_grad(lambda t: w * qb.cos(t * w))(x)[0]),
    ("aux", lambda w, x: qb.grad(lambda t: (qb.sin(t * w), w * 2.0), has_aux=True)(x)[0]),
    ("aux_of_capture", lambda w, x: qb.grad(lambda t: (t, w * qb.cos(x * w)), has_aux=True)(x)[1]),
    ("jvp", lambda w, x: qb.jvp(lambda t: qb.sin(t * w), (x,), (1.0,))[1]),
    ("jvp_value", lambda w, x: qb.jvp(lambda t: w * qb.cos(t * w), (x,), (1.0,))[0]),
    ("jvp_tangent", lambda w, x: qb.jvp(qb.sin, (x * w,), (w,))[1]),
    ("vjp", lambda w, x: qb.vjp(lambda t: qb.sin(t * w), x)[1](1.0)[0]),
    ("vjp_cotangent", lambda w, x: qb.vjp(lambda t: qb.sin(t), x * w)[1](w)[0]),
    ("vmap", lambda w, x: qb.vmap(lambda t: w * qb.cos(t * w))(qb.stack([qb.asarray(x)] * 3))[1]),
    ("vmap_grad", lambda w, x: qb.vmap(qb.grad(lambda t: qb.sin(t * w)))(qb.stack([qb.asarray(x)] * 3))[2]),
    ("grad_vmap", lambda w, x: qb.grad(lambda t: qb.sum(qb.vmap(lambda s: qb.sin(s * w))(t)))(qb.stack([x, x]))[0]),
    ("jacobian", lambda w, x: qb.jacobian(lambda t: qb.stack([qb.sin(t * w), t]))(x)[0]),
    ("jacobian_reverse", lambda w, x: qb.jacobian(lambda t: qb.sin(qb.sum(t) * w))(qb.stack([x, 0.0 * w]))[1]),
    ("hessian", lambda w, x: qb.hessian(lambda t: -qb.cos(t * w) / w)(x)),
    ("two_functions", lambda w, x: (lambda f: qb.grad(lambda t: f(t))(x))(lambda t: qb.sin(t * w))),
    ("with_constant", lambda w, x: qb.grad(lambda t: qb.sum(qb.sin(t * w) * A([0.25, 0.75])))(x)),
    ("argument_too", lambda w, x: qb.grad(lambda t, v: qb.sin(t * w) * v / w)(x, w)),
]  # fmt: skip


@pytest.mark.parametrize("traced", [False, True], ids=["concrete", "traced"])
@pytest.mark.parametrize("name, inner", INNER, ids=[i[0] for i in INNER])
def test_every_transform_captures(name: str, inner: Callable[[Any, Any], Any], traced: bool) -> None:
    if traced:
        f = lambda w, x: inner(w, x)
        value = qb.jit(f)(A(W), A(X)).item()
        g = qb.grad(f)(W, X).item()
    else:
        f = lambda w: inner(w, A(X) if name in ("vmap", "vmap_grad", "grad_vmap", "jacobian_reverse") else X)
        value = qb.jit(f)(A(W)).item()
        g = qb.grad(f)(W).item()
    assert value == pytest.approx(W * np.cos(X * W), rel=1e-14)
    exact = np.cos(X * W) - W * X * np.sin(X * W)
    assert g == pytest.approx(exact, rel=1e-13)


def test_a_capture_from_two_levels_up() -> None:
    def outer(w: Any) -> Any:
        v = w * 2.0  # computed in the outermost trace

        def middle(y: Any) -> Any:
            return qb.grad(lambda x: qb.sin(x * w) * y * v)(0.3)

        return qb.grad(middle)(0.7)

    plain = lambda w: np.cos(0.3 * w) * w * 2.0 * w
    assert qb.jit(outer)(A(W)).item() == pytest.approx(plain(W), rel=1e-14)
    assert qb.grad(outer)(W).item() == pytest.approx(slope(plain, W), rel=1e-8)


def test_a_capture_through_every_level() -> None:
    def f(a: Any) -> Any:
        def g(b: Any) -> Any:
            def h(c: Any) -> Any:
                return qb.grad(lambda d: a * b * c * d**2)(1.0)

            return qb.grad(h)(1.0) * a

        return qb.grad(g)(1.0) * a

    # inner 2abc; d/dc 2ab, times a; d/db 2a^2, times a: 2a^3.
    assert qb.grad(f)(3.0).item() == pytest.approx(6.0 * 9.0, rel=1e-14)


def test_perturbations_are_not_confused() -> None:
    # d/dx [x d/dy (x + y)] at 1 is 1, not 2.
    assert qb.grad(lambda x: x * qb.grad(lambda y: x + y)(1.0))(1.0).item() == 1.0
    forward = lambda f, x: qb.jvp(f, (x,), (1.0,))[1]
    assert forward(lambda x: x * forward(lambda y: x + y, 1.0), 1.0).item() == 1.0
    assert forward(lambda x: x * qb.grad(lambda y: x + y)(1.0), 1.0).item() == 1.0
    assert qb.grad(lambda x: x * forward(lambda y: x * y, 2.0))(3.0).item() == 6.0


def test_a_value_of_outer_values_alone_stays_outside() -> None:
    def outer(w: Any) -> Any:
        def inner(x: Any) -> Any:
            assert (w * 2.0).frame is w.frame
            return x * (w * 2.0)

        return qb.grad(inner)(1.0)

    assert qb.grad(outer)(5.0).item() == 2.0


def test_an_inner_function_may_return_an_outer_value() -> None:
    assert qb.grad(lambda w: qb.jit(lambda x: w)(A(1.0)) * w)(3.0).item() == 6.0
    assert qb.grad(lambda w: qb.vmap(lambda x: w)(qb.ones(4))[0])(3.0).item() == 1.0
    assert qb.grad(lambda w: qb.grad(lambda x: w * w)(1.0) + w)(3.0).item() == 1.0


def test_loops_of_closures() -> None:
    def f(w: Any) -> Any:
        total = 0.0
        for k in range(20):  # more than max_traces
            total = total + qb.grad(lambda x: qb.sin(x * w))(0.1 * k)
        return total

    plain = lambda w: sum(np.cos(0.1 * k * w) * w for k in range(20))
    assert qb.jit(f)(A(W)).item() == pytest.approx(plain(W), rel=1e-14)
    assert qb.grad(f)(W).item() == pytest.approx(slope(plain, W), rel=1e-8)


def test_one_transformed_closure_in_a_loop() -> None:
    u = lambda x, w: qb.sin(x * w)

    def f(w: Any) -> Any:
        du = qb.grad(lambda x: u(x, w))
        return sum((du(0.1 * k) for k in range(20)), start=0.0)

    plain = lambda w: sum(np.cos(0.1 * k * w) * w for k in range(20))
    assert qb.grad(f)(W).item() == pytest.approx(slope(plain, W), rel=1e-8)


def test_a_closure_that_is_rebound_to_other_traced_values() -> None:
    box: dict[str, Any] = {}
    slope_of = qb.grad(lambda t: t * box["w"])

    def f(w: Any) -> Any:
        total = 0.0
        for k in range(3):
            box["w"] = w * (k + 1.0)
            total = total + slope_of(0.3)
        return total

    for _ in range(2):
        assert qb.grad(f)(2.0).item() == 6.0


def test_a_closure_compiled_with_a_constant_and_then_bound_to_a_traced_value() -> None:
    box: dict[str, Any] = {"w": A(2.0)}
    slope_of = qb.grad(lambda t: t * box["w"])
    assert slope_of(0.3).item() == 2.0  # compiled, with 2.0 as a constant

    def f(w: Any) -> Any:
        box["w"] = w * w
        return slope_of(0.3)

    assert qb.grad(f)(5.0).item() == 10.0
    value, tangent = qb.jvp(f, (5.0,), (1.0,))
    assert (value.item(), tangent.item()) == (25.0, 10.0)


@pytest.mark.parametrize("make", [qb.jit, qb.vmap, lambda f: qb.jit(qb.vmap(f))])
def test_the_same_for_compiled_and_mapped_functions(make: Any) -> None:
    box: dict[str, Any] = {"w": A(2.0)}
    times = make(lambda t: t * box["w"])
    assert times(A([1.0, 2.0])).tolist() == [2.0, 4.0]

    def f(w: Any) -> Any:
        box["w"] = w
        return qb.sum(times(A([1.0, 2.0])))

    assert qb.grad(f)(5.0).item() == 3.0


def test_arrays_closed_over_are_constants() -> None:
    m = np.random.default_rng(0).normal(size=(4, 4))
    f = lambda x: qb.sum(qb.sin(A(m) @ x))
    x = np.arange(4.0)
    np.testing.assert_allclose(qb.grad(f)(A(x)).numpy(), m.T @ np.cos(m @ x), rtol=1e-13)
    big = A(np.random.default_rng(0).normal(size=(300, 300)))
    for _ in range(2):
        np.testing.assert_allclose(
            qb.jit(lambda x: qb.sum(big * x))(A(2.0)).item(), 2.0 * big.numpy().sum(), rtol=1e-11
        )


def test_a_view_closed_over_is_a_constant() -> None:
    view = A([[1.0, 2.0], [3.0, 4.0]]).slice(1, 1, 1)
    assert isinstance(view, qb.TensorView)
    assert qb.grad(lambda x: qb.sum(view * x))(2.0).item() == 6.0


def test_a_numpy_array_closed_over_says_what_to_do() -> None:
    a = np.ones(2)
    for f in (lambda x: qb.sum(x * a), lambda x: qb.sum(a * x)):
        with pytest.raises(qb.TracerError, match="asarray"):
            qb.grad(f)(A([1.0, 2.0]))
    assert qb.grad(lambda x: qb.sum(x * qb.asarray(a)))(A([1.0, 2.0])).tolist() == [1.0, 1.0]


def test_constants_of_equal_value_and_other_sign_are_kept_apart() -> None:
    f = qb.jit(lambda x: (x * 0.0, x * -0.0, x * A(0.0), x * A(-0.0)))
    assert [np.signbit(y.item()) for y in f(A(1.0))] == [False, True, False, True]


def test_numbers_met_inside_adopt_the_dtype_of_the_arrays() -> None:
    w = A(2.0, "float32")
    f = lambda x: qb.grad(lambda t: t * w * 0.1 + 1)(x)
    g = qb.jit(f)(A(1.0, "float32"))
    assert g.dtype is qb.float32
    assert g.item() == np.float32(2.0) * np.float32(0.1)


def test_a_python_number_in_a_differentiated_place_within_a_float32_trace_is_float64() -> None:
    # The number 1.0 becomes a float64 array, which does not mix with float32: the error says so.
    with pytest.raises(qb.DtypeError, match=r"float64.*float32|float32.*float64"):
        qb.grad(lambda w: qb.grad(lambda t: t * w)(1.0))(A(2.0, "float32"))


def test_a_captured_dict_of_parameters() -> None:
    def loss(p: Any) -> Any:
        u = lambda x: qb.tanh(x * p["w"]) * p["b"]
        return qb.sum(qb.vmap(qb.grad(u))(A([0.1, 0.2])) ** 2)

    p = {"w": A(0.7), "b": A(1.5)}
    g = qb.grad(loss)(p)
    x = np.array([0.1, 0.2])
    plain = lambda w, b: float(np.sum(((1.0 - np.tanh(x * w) ** 2) * w * b) ** 2))
    assert g["w"].item() == pytest.approx(slope(lambda w: plain(w, 1.5), 0.7), rel=1e-8)
    assert g["b"].item() == pytest.approx(slope(lambda b: plain(0.7, b), 1.5), rel=1e-8)


def test_a_jacobian_over_captures_of_two_traces() -> None:
    def f(a: Any) -> Any:
        return qb.sum(
            qb.vmap(lambda b: qb.sum(qb.jacobian(lambda c: c * a * b)(A([1.0, 2.0]))))(A([3.0, 4.0]))
        )

    assert qb.grad(f)(5.0).item() == 14.0  # sum over b of 2 b


def test_whole_programs_match_finite_differences() -> None:
    rng = np.random.default_rng(5)
    m = rng.normal(size=(3, 3))

    def f(w: Any) -> Any:
        inner = qb.jit(lambda x: qb.tanh(A(m) @ x) * w)
        v, pull = qb.vjp(inner, w * 2.0)
        h = qb.hessian(lambda x: qb.sum(inner(x) ** 2))(w)
        return qb.sum(pull(v)[0]) + qb.sum(h) + qb.sum(qb.vmap(lambda x: qb.sum(x * w))(qb.eye(3)))

    x = rng.normal(size=3)
    value = lambda v: qb.jit(f)(A(v)).item()
    numeric = [(value(x + 1e-6 * e) - value(x - 1e-6 * e)) / 2e-6 for e in np.eye(3)]
    np.testing.assert_allclose(qb.grad(f)(A(x)).numpy(), numeric, rtol=1e-7, atol=1e-7)
