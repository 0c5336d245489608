"""`custom_jvp` and `custom_vjp`: under every transform, inside regions, outputs without derivatives, and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array


def jvp_sine() -> Any:
    f = qb.custom_jvp(lambda x: qb.sin(x))
    f.defjvp(lambda p, t: (f(p[0]), qb.cos(p[0]) * t[0]))
    return f


def vjp_sine() -> Any:
    f = qb.custom_vjp(lambda x: qb.sin(x))
    f.defvjp(lambda x: (qb.sin(x), x), lambda x, ct: (ct * qb.cos(x),))
    return f


TRANSFORMS: dict[str, Any] = {
    "value": lambda f: f,
    "grad": qb.grad,
    "second": lambda f: qb.grad(qb.grad(f)),
    "third": lambda f: qb.grad(qb.grad(qb.grad(f))),
    "hessian": qb.hessian,
    "jacobian_of_pair": qb.jacobian,
    "forward_over_reverse": lambda f: lambda x: qb.jvp(qb.grad(f), (x,), (2.0 * x,)),
}
PLACES: dict[str, Any] = {
    "alone": lambda s: s,
    "loop": lambda s: lambda x: qb.fori_loop(0, 3, lambda i, c: s(c) * x + 0.1 * i, x),
    "scan": lambda s: (
        lambda x: qb.sum(qb.scan(lambda c, a: (s(c) + a, s(a * c)), x, qb.stack([x, 2.0 * x]))[1])
    ),
    "cond": lambda s: lambda x: qb.cond(x > 0.0, lambda x: s(x) * x, lambda x: x * x, x),
    "while": lambda s: lambda x: qb.while_loop(lambda c: c > 0.4, lambda c: s(c) * 0.9, x, max_steps=5),
    "checkpoint": lambda s: qb.checkpoint(lambda x: s(s(x) * x)),
    "jit": lambda s: qb.jit(lambda x: s(x) * x),
    "vmap": lambda s: lambda x: qb.sum(qb.vmap(s)(qb.stack([x, x * x]))),
    "vmap_shared": lambda s: lambda x: qb.sum(qb.vmap(lambda a: s(x) * a)(A([1.0, 2.0]))),
    "vmap_twice": lambda s: (
        lambda x: qb.sum(
            qb.vmap(lambda a: qb.vmap(lambda b: s(x * b) * s(a) * b)(A([1.0, 2.0])))(x * A([1.0, 2.0, 3.0]))
        )
    ),
    "loop_of_vmap": lambda s: (
        lambda x: qb.sum(qb.fori_loop(0, 2, lambda i, c: qb.vmap(lambda a: s(a) * s(x))(c), A([0.5, 0.2])))
    ),
}


@pytest.mark.parametrize("rule", [jvp_sine, vjp_sine])
@pytest.mark.parametrize("place", PLACES)
def test_as_the_function_itself(place: str, rule: Any) -> None:
    custom, plain = PLACES[place](rule()), PLACES[place](qb.sin)
    for name, transform in TRANSFORMS.items():
        x = A(0.7)
        expected = qb.tree.flatten(transform(plain)(x))[0]
        found = qb.tree.flatten(qb.jit(transform(custom))(x))[0]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, atol=1e-13, err_msg=name)
        many = A([0.7, 1.2, 0.1])
        expected = qb.tree.flatten(qb.vmap(transform(plain))(many))[0]
        found = qb.tree.flatten(qb.vmap(transform(custom))(many))[0]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                a.numpy(), b.numpy(), rtol=1e-12, atol=1e-13, err_msg=f"vmap of {name}"
            )


def test_the_rule_is_what_is_used() -> None:
    f = qb.custom_jvp(lambda x, a=3.0: x * a)
    f.defjvp(lambda p, t: (p[0] * p[1], 100.0 * t[0]))
    assert qb.grad(f)(1.0).item() == 100.0
    assert qb.grad(lambda x: f(x, a=2.0))(1.0).item() == 100.0  # keywords are no way around it
    assert qb.grad(lambda x: f(x=x))(1.0).item() == 100.0
    g = qb.custom_vjp(lambda x: x * 2.0)
    g.defvjp(lambda x: (x * 2.0, None), lambda r, ct: (ct * 100.0,))
    assert qb.grad(g)(1.0).item() == 100.0 and qb.grad(lambda x: g(x=x))(1.0).item() == 100.0
    clip = qb.custom_vjp(lambda x: x)
    clip.defvjp(lambda x: (x, ()), lambda r, ct: (qb.clip(ct, -1.0, 1.0),))
    assert qb.grad(lambda x: 5.0 * clip(x))(1.0).item() == 1.0
    assert qb.grad(lambda x: qb.fori_loop(0, 3, lambda i, c: 5.0 * clip(c), x))(1.0).item() == 1.0
    assert qb.vmap(qb.grad(lambda x: 5.0 * clip(x)))(A([1.0, 2.0])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("own", [False, True], ids=["computes the value", "calls the function"])
def test_a_fwd_that_calls_its_own_function(own: bool) -> None:
    """Reverse mode takes the rules once more, as often as asked; forward mode over a gradient has none to take."""
    f = qb.custom_vjp(lambda x: qb.sin(x))
    f.defvjp(lambda x: (f(x) if own else qb.sin(x), qb.cos(x)), lambda c, ct: (ct * c,))
    places = {
        "itself": lambda x: f(f(x)),
        "loop": lambda x: qb.fori_loop(0, 2, lambda i, c: f(c), x),
        "scan": lambda x: qb.scan(lambda c, _: (f(c), None), x, length=2)[0],
        "branch": lambda x: qb.cond(x > 0.0, lambda x: f(f(x)), lambda x: x, x),
        "checkpoint": qb.checkpoint(lambda x: f(f(x))),
    }
    x, twice = 0.5, lambda x: qb.sin(qb.sin(x))
    first, second = qb.grad(twice)(x).item(), qb.grad(qb.grad(twice))(x).item()
    for place in places.values():
        assert qb.grad(place)(x).item() == pytest.approx(first, rel=1e-14)
        assert qb.grad(qb.grad(place))(x).item() == pytest.approx(second, rel=1e-14)
        assert qb.hessian(place)(A(x)).item() == pytest.approx(second, rel=1e-14)
        if own:
            with pytest.raises(qb.errors.UnsupportedOperationError, match="where its own fwd calls it"):
                qb.jvp(qb.grad(place), (x,), (1.0,))
        else:
            ahead = qb.jvp(qb.grad(place), (x,), (1.0,))[1]
            assert ahead.item() == pytest.approx(second, rel=1e-14)


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy

    def build(m: Any, custom_jvp: Any, custom_vjp: Any) -> Any:
        f = custom_jvp(lambda x, y: m.sin(x) * y)
        f.defjvp(
            lambda p, t: (f(*p), m.cos(p[0]) * p[1] * t[0] + 3.0 * m.sin(p[0]) * t[1])
        )  # a rule of its own
        g = custom_vjp(lambda x: x * x)
        g.defvjp(lambda x: (x * x, x), lambda x, ct: (ct * 2.5 * x,))
        return lambda x, y: f(g(x), y) + g(f(x, y))

    ours, theirs = build(qb, qb.custom_jvp, qb.custom_vjp), build(jnp, jax.custom_jvp, jax.custom_vjp)
    x, y = 0.4, 1.3
    for order in range(3):
        np.testing.assert_allclose(qb.jit(ours)(A(x), A(y)).item(), theirs(x, y), rtol=1e-12)
        ours, theirs = qb.grad(ours, order % 2), jax.grad(theirs, order % 2)
    xs = np.array([0.1, 0.9])
    np.testing.assert_allclose(
        qb.vmap(ours, (0, None))(A(xs), A(y)).numpy(), jax.vmap(theirs, (0, None))(xs, y), rtol=1e-12
    )


def test_trees_and_places_against_jax() -> None:
    """Rules that say another slope than the value has, so that every way around them shows."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp, lax = jax.numpy, jax.lax

    def build(
        m: Any, custom_jvp: Any, custom_vjp: Any, cond: Any, scan: Any, vmap: Any, again: Any
    ) -> list[Any]:
        f = custom_jvp(lambda d: {"o": d["a"] * d["b"][0], "i": m.sin(d["a"])})
        f.defjvp(
            lambda p, t: (
                f(p[0]),
                {"o": 2.0 * (t[0]["a"] * p[0]["b"][0] + p[0]["a"] * t[0]["b"][0]), "i": 5.0 * t[0]["a"]},
            )
        )
        g = custom_vjp(lambda d: {"o": d["a"] * d["b"][0], "i": m.sin(d["a"])})
        g.defvjp(
            lambda d: ({"o": d["a"] * d["b"][0], "i": m.sin(d["a"])}, d),
            lambda d, ct: ({"a": 2.0 * ct["o"] * d["b"][0] + 3.0 * ct["i"], "b": [7.0 * ct["o"] * d["a"]]},),
        )
        h = custom_jvp(m.sin)
        h.defjvp(lambda p, t: (h(p[0]), 3.0 * m.cos(p[0]) * t[0]))
        v = custom_vjp(m.sin)
        v.defvjp(lambda x: (m.sin(x), x), lambda x, ct: (3.0 * m.cos(x) * ct,))
        around = custom_jvp(lambda x: h(x) * v(x))  # rules within rules
        around.defjvp(lambda p, t: (around(p[0]), h(p[0]) * t[0] + v(p[0]) * p[0] * t[0]))

        def tree(c: Any) -> Any:
            return lambda x: c({"a": x, "b": [x * x]})["o"] * c({"a": 2.0 * x, "b": [x]})["i"]

        def places(c: Any) -> list[Any]:
            return [
                lambda x: cond(x > 0.0, lambda x: c(x) * x, lambda x: x, x),
                lambda x: m.sum(scan(lambda s, a: (c(s) + a, c(a * s)), x, m.stack([x, 2.0 * x]))[1]),
                again(lambda x: c(c(x) * x)),
                lambda x: m.sum(
                    vmap(lambda a: cond(a > 0.5, c, lambda a: a * c(2.0 * a), a))(m.stack([x, 2.0 * x]))
                ),
            ]

        return [tree(f), tree(g), around, *places(h), *places(v), *places(around)]

    ours = build(qb, qb.custom_jvp, qb.custom_vjp, qb.cond, qb.scan, qb.vmap, qb.checkpoint)

    def unrolled(body: Any, carry: Any, xs: Any) -> Any:
        # Second derivatives of its own scan do not take the rule a second time, those of its Python loops do.
        ys = []
        for x in xs:
            carry, y = body(carry, x)
            ys.append(y)
        return carry, jnp.stack(ys)

    theirs = build(jnp, jax.custom_jvp, jax.custom_vjp, lax.cond, unrolled, jax.vmap, jax.checkpoint)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for x in (0.4, -0.3):
            f, g = a, b
            for order in range(3):
                expected = float(g(x))
                assert qb.jit(f)(A(x)).item() == pytest.approx(expected, rel=1e-11), (i, order)
                f, g = qb.grad(f), jax.grad(g)
        many = np.array([0.3, 0.9])
        found = qb.vmap(qb.value_and_grad(a))(A(many))
        for y, z in zip(found, jax.vmap(jax.value_and_grad(b))(many), strict=True):
            np.testing.assert_allclose(y.numpy(), z, rtol=1e-11, err_msg=str(i))


def test_the_value_is_that_of_the_function() -> None:
    """Under every transform, and so the derivative of the value is always that of the rule."""
    f = qb.custom_jvp(lambda x: qb.round(x))
    f.defjvp(lambda p, t: (100.0 * p[0], t[0]))  # straight through
    square = lambda x: f(x) * f(x)
    value, slope = qb.value_and_grad(square)(1.7)
    assert value.item() == 4.0 and slope.item() == 4.0
    assert qb.jvp(square, (1.7,), (1.0,))[0].item() == 4.0
    assert qb.hessian(square)(1.7).item() == 2.0
    pair = qb.hessian(lambda x: qb.sum(f(x) * x))(A([1.7, 2.2]))
    np.testing.assert_array_equal(pair.numpy(), 2.0 * np.eye(2))


@pytest.mark.parametrize("rule", [jvp_sine, vjp_sine])
def test_aux_beside_the_value(rule: Any) -> None:
    f = rule()
    whole = lambda x: (f(x) * x, {"f": f(x), "n": 3})
    expected = np.cos(0.7) * 0.7 + np.sin(0.7)
    slope, aux = qb.grad(whole, has_aux=True)(0.7)
    assert slope.item() == pytest.approx(expected) and aux["f"].item() == pytest.approx(np.sin(0.7))
    (value, aux), slope = qb.value_and_grad(whole, has_aux=True)(0.7)
    assert value.item() == pytest.approx(0.7 * np.sin(0.7)) and aux["n"] == 3
    value, pullback, aux = qb.vjp(whole, 0.7, has_aux=True)
    assert pullback(A(1.0))[0].item() == pytest.approx(expected) and aux["f"].item() == pytest.approx(
        np.sin(0.7)
    )


@pytest.mark.parametrize("place", [p for p in PLACES if p != "alone"])
def test_forward_mode_refuses_custom_vjp_everywhere(place: str) -> None:
    f = PLACES[place](vjp_sine())
    with pytest.raises(qb.UnsupportedOperationError, match="define a custom_jvp"):
        qb.jvp(f, (A(0.7),), (A(1.0),))
    assert qb.jacobian(f)(A(0.7)).item() == pytest.approx(qb.grad(f)(0.7).item())


def test_whole_numbers_and_truth_beside_floating_arguments() -> None:
    def weighed(n: Any, m: Any, x: Any) -> Any:
        return qb.where(m, qb.astype(n, qb.float64) * x, -x)

    f = qb.custom_jvp(weighed)

    def rule(p: Any, t: Any) -> Any:
        assert t[0] is None and t[1] is None
        return f(*p), 10.0 * weighed(p[0], p[1], t[2])

    f.defjvp(rule)
    g = qb.custom_vjp(weighed)
    g.defvjp(lambda n, m, x: (weighed(n, m, x), (n, m)), lambda r, ct: (None, None, 10.0 * weighed(*r, ct)))
    n, m, x = qb.astype(A([3.0, 4.0]), qb.int64), A([True, False]), A([1.0, 2.0])
    for c in (f, g):
        assert qb.grad(lambda x, c=c: qb.sum(c(n, m, x)))(x).tolist() == [30.0, -10.0]
        assert qb.vmap(qb.grad(c, 2))(n, m, x).tolist() == [30.0, -10.0]
        assert qb.vmap(qb.grad(c, 2), (0, 0, None))(n, m, 1.0).tolist() == [30.0, -10.0]
        assert qb.grad(lambda x, c=c: qb.sum(c(n, True, x)))(x).tolist() == [30.0, 40.0]


def test_a_rule_that_broadcasts() -> None:
    f = qb.custom_jvp(lambda x, y: x * y)
    f.defjvp(lambda p, t: (p[0] * p[1], p[0] * t[1] + p[1] * t[0]))
    gx, gy = qb.grad(lambda x, y: qb.sum(f(x, y)), (0, 1))(2.0, A([1.0, 3.0]))
    assert gx.shape == () and gx.item() == 4.0 and gy.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("zero", [None, 0.0])
def test_outputs_without_derivatives(zero: Any) -> None:
    seconds: dict[str, Any] = {
        "floor": qb.floor,
        "flag": lambda x: x > 2.0,
        "int": lambda x: qb.astype(x > 2.0, qb.float64),
    }
    for name, second in seconds.items():
        f = qb.custom_jvp(lambda x, second=second: (x * x, second(x)))
        f.defjvp(lambda p, t, f=f: (f(p[0]), (2.0 * p[0] * t[0], zero)))
        primals, tangents = qb.jvp(qb.vmap(f), (A([1.5, 2.5]),), (A([1.0, 2.0]),))
        assert primals[0].tolist() == [2.25, 6.25], name
        assert primals[1].tolist() == qb.vmap(second)(A([1.5, 2.5])).tolist()
        assert tangents[0].tolist() == [3.0, 10.0] and not any(tangents[1].tolist())
        assert qb.vmap(qb.grad(lambda x, f=f: f(x)[0]))(A([1.5, 2.5])).tolist() == [3.0, 5.0]
    g = qb.custom_vjp(lambda x: (x * x, x > 1.0))
    g.defvjp(lambda x: ((x * x, x > 1.0), x), lambda x, ct: (2.0 * x * ct[0],))
    assert qb.vmap(qb.grad(lambda x: g(x)[0]))(A([3.0, 0.0])).tolist() == [6.0, 0.0]


def test_none_is_zero() -> None:
    f = qb.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, y), lambda y, ct: (ct * y, None))
    gx, gy = qb.grad(f, (0, 1))(2.0, 3.0)
    assert gx.item() == 3.0 and gy.item() == 0.0
    masked = qb.custom_vjp(lambda m, x: qb.where(m, x * x, x))
    masked.defvjp(
        lambda m, x: (qb.where(m, x * x, x), (m, x)),
        lambda r, ct: (None, ct * qb.where(r[0], 2.0 * r[1], 1.0)),
    )
    assert qb.grad(lambda x: qb.sum(masked(A([True, False]), x)))(A([3.0, 4.0])).tolist() == [6.0, 1.0]


def test_arguments_that_are_not_differentiated() -> None:
    f = qb.custom_jvp(lambda n, x: x**n, nondiff_argnums=(0,))
    f.defjvp(lambda n, p, t: (p[0] ** n, n * p[0] ** (n - 1) * t[0]))
    assert (
        qb.grad(lambda x: f(3, x))(2.0).item() == 12.0 and qb.hessian(lambda x: f(3, x))(2.0).item() == 12.0
    )
    apply = qb.custom_jvp(lambda fun, x: fun(x), nondiff_argnums=0)
    apply.defjvp(lambda fun, p, t: (fun(p[0]), 7.0 * t[0]))
    assert qb.vmap(qb.grad(lambda x: apply(qb.sin, x)))(A([0.0, 1.0])).tolist() == [7.0, 7.0]
    g = qb.custom_vjp(lambda n, x: x**n, nondiff_argnums=(0,))
    g.defvjp(lambda n, x: (x**n, x), lambda n, x, ct: (n * x ** (n - 1) * ct,))
    assert qb.vmap(qb.grad(lambda x: g(3, x)))(A([2.0, 3.0])).tolist() == [12.0, 27.0]
    h = qb.custom_vjp(lambda x: x * 2.0)  # residuals may hold what is no array
    h.defvjp(
        lambda x: (x * 2.0, {"n": 3, "tag": "t", "x": x}),
        lambda r, ct: (ct * r["n"] if r["tag"] == "t" else ct,),
    )
    assert qb.vmap(qb.grad(h))(A([2.0, 3.0])).tolist() == [3.0, 3.0]


def test_trees() -> None:
    f = qb.custom_jvp(lambda d: {"o": d["a"] * d["b"][0]})
    f.defjvp(lambda p, t: (f(p[0]), {"o": t[0]["a"] * p[0]["b"][0] + p[0]["a"] * t[0]["b"][0]}))
    g = qb.grad(lambda d: qb.sum(f(d)["o"]))({"a": A([1.0, 2.0]), "b": [A([3.0, 4.0])]})
    assert g["a"].tolist() == [3.0, 4.0] and g["b"][0].tolist() == [1.0, 2.0]


def test_numbers_adopt_float32() -> None:
    f = qb.custom_jvp(lambda x, a: x * a)
    f.defjvp(lambda p, t: (p[0] * p[1], p[0] * t[1] + p[1] * t[0]))
    x = qb.astype(A([1.0, 2.0]), qb.float32)
    for out in (f(x, 2.0), qb.jit(lambda x: f(x, 2.0))(x), qb.grad(lambda x: qb.sum(f(x, 2.0)))(x)):
        assert out.dtype is qb.float32
    assert qb.vmap(qb.grad(lambda x: f(x, 2.0)))(x).dtype is qb.float32


def test_closures() -> None:
    def scaled(w: Any) -> Any:
        f = qb.custom_jvp(lambda x: x * w)
        f.defjvp(lambda p, t: (p[0] * w, t[0] * w))
        return f

    assert qb.jit(lambda w: scaled(w)(2.0))(A(3.0)).item() == 6.0
    assert qb.grad(lambda x: scaled(A(3.0))(x))(2.0).item() == 3.0
    with pytest.raises(qb.TracerError, match="closes over a traced value"):
        qb.jit(lambda w: qb.grad(scaled(w))(2.0))(A(3.0))
    with pytest.raises(qb.UnsupportedOperationError, match="pass the value as an argument"):
        qb.grad(lambda w: scaled(w)(2.0))(3.0)

    def cut(w: Any) -> Any:
        f = qb.custom_vjp(lambda x: x * w)
        f.defvjp(lambda x: (x * w, w), lambda w, ct: (ct * w,))
        return f

    with pytest.raises(qb.TracerError, match="residuals"):
        qb.jit(lambda w: qb.grad(cut(w))(2.0))(A(3.0))
    with pytest.raises(qb.UnsupportedOperationError, match="pass the value as an argument"):
        qb.grad(lambda w: cut(w)(2.0))(3.0)
    # An argument that the rule does not differentiate comes to it as if closed over.
    power = with_rule(lambda n, x: x**n, lambda n, p, t: (p[0] ** n, n * p[0] ** (n - 1.0) * t[0]), (0,))
    with pytest.raises(qb.UnsupportedOperationError, match="nondiff_argnums"):
        qb.grad(lambda n: power(n, 2.0))(3.0)
    with pytest.raises(qb.TracerError, match="nondiff_argnums"):
        qb.jit(lambda n: qb.grad(lambda x: power(n, x))(2.0))(A(3.0))
    # As often as it is asked.
    inner = scaled
    for _ in range(2):
        with pytest.raises(qb.TracerError, match="closes over a traced value"):
            qb.vmap(lambda w: qb.vmap(qb.grad(inner(w)))(A([1.0, 2.0])))(A([3.0, 4.0]))


def with_rule(fun: Any, rule: Any, nondiff: tuple[int, ...] = ()) -> Any:
    f = qb.custom_jvp(fun, nondiff)
    f.defjvp(rule)
    return f


def with_rules(fun: Any, fwd: Any, bwd: Any) -> Any:
    f = qb.custom_vjp(fun)
    f.defvjp(fwd, bwd)
    return f


def same(x: Any) -> Any:
    return x


ERRORS: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "no_rule": (lambda: qb.custom_jvp(same)(1.0), qb.DtypeError, ("same", "defjvp")),
    "no_rules": (lambda: qb.custom_vjp(same)(1.0), qb.DtypeError, ("same", "defvjp")),
    "no_function": (lambda: qb.custom_jvp(3), qb.DtypeError, ("function", "int")),
    "rule_no_function": (lambda: with_rule(same, 3), qb.DtypeError, ("rule", "int")),
    "rules_no_functions": (lambda: with_rules(same, same, 4), qb.DtypeError, ("bwd", "int")),
    "negative": (
        lambda: qb.custom_jvp(same, nondiff_argnums=(-1,)),
        qb.DtypeError,
        ("nondiff_argnums", "-1"),
    ),
    "out_of_range": (
        lambda: qb.custom_jvp(same, nondiff_argnums=(2,))(1.0),
        qb.ShapeError,
        ("nondiff_argnums", "2"),
    ),
    "keyword_only": (
        lambda: with_rule(lambda x, *, a: x * a, lambda p, t: (p[0], t[0]))(1.0, a=2.0),
        qb.DtypeError,
        ("a", "keyword"),
    ),
    "no_pair": (lambda: qb.grad(with_rule(same, lambda p, t: p[0]))(1.0), qb.DtypeError, ("same", "pair")),
    "value_structure": (
        lambda: qb.grad(with_rule(same, lambda p, t: ((p[0], p[0]), (t[0], t[0]))))(1.0),
        qb.DtypeError,
        ("structure",),
    ),
    "value_shape": (
        lambda: qb.grad(with_rule(same, lambda p, t: (p[0] * qb.ones(3), qb.ones(3) * t[0])))(1.0),
        qb.ShapeError,
        ("float64[3]", "float64[]"),
    ),
    "value_dtype": (
        lambda: qb.grad(with_rule(same, lambda p, t: (qb.astype(p[0], qb.float32), t[0])))(1.0),
        qb.DtypeError,
        ("float32[]", "float64[]"),
    ),
    "tangent_structure": (
        lambda: qb.grad(lambda x: with_rule(lambda x: (x, x), lambda p, t: ((p[0], p[0]), t[0]))(x)[0])(1.0),
        qb.QuablaError,
        ("tangents", "mirror"),
    ),
    "tangent_shape": (
        lambda: qb.grad(with_rule(same, lambda p, t: (p[0], qb.ones(3) * t[0])))(1.0),
        qb.ShapeError,
        ("tangent of same", "float64[3]"),
    ),
    "tangent_string": (
        lambda: qb.grad(with_rule(same, lambda p, t: (p[0], "a")))(1.0),
        qb.DtypeError,
        ("tangent", "str"),
    ),
    "tangent_truth": (
        lambda: qb.jvp(with_rule(same, lambda p, t: (p[0], p[0] > 0.0)), (1.0,), (1.0,)),
        qb.DtypeError,
        ("tangent of same", "bool[]", "float64[]", "astype"),
    ),
    "tangent_whole": (
        lambda: qb.grad(with_rule(same, lambda p, t: (p[0], qb.astype(A(3.0), qb.int64))))(1.0),
        qb.DtypeError,
        ("tangent of same", "int64[]", "float64[]"),
    ),
    "tangent_number": (
        lambda: qb.grad(with_rule(same, lambda p, t: (p[0], 2.0)))(1.0),
        qb.UnsupportedOperationError,
        ("rule of same", "not linear in it", "zeros"),
    ),
    "not_linear": (
        lambda: qb.grad(lambda x: with_rule(same, lambda p, t: (p[0], t[0] * t[0]))(x).sum())(A([1.0, 2.0])),
        qb.UnsupportedOperationError,
        ("linear",),
    ),
    "fwd_no_pair": (
        lambda: qb.grad(with_rules(same, same, lambda r, ct: (ct,)))(1.0),
        qb.DtypeError,
        ("fwd", "pair"),
    ),
    "fwd_structure": (
        lambda: qb.grad(with_rules(same, lambda x: ((x, x), None), lambda r, ct: (ct,)))(1.0),
        qb.DtypeError,
        ("fwd",),
    ),
    "fwd_shape": (
        lambda: qb.grad(with_rules(same, lambda x: (x * qb.ones(2), None), lambda r, ct: (ct,)))(1.0),
        qb.ShapeError,
        ("fwd of same", "float64[2]"),
    ),
    "bwd_no_tuple": (
        lambda: qb.grad(with_rules(same, lambda x: (x, None), lambda r, ct: ct))(1.0),
        qb.DtypeError,
        ("bwd", "tuple"),
    ),
    "bwd_count": (
        lambda: qb.grad(with_rules(same, lambda x: (x, None), lambda r, ct: (ct, ct)))(1.0),
        qb.DtypeError,
        ("1 arg",),
    ),
    "bwd_shape": (
        lambda: qb.grad(with_rules(same, lambda x: (x, None), lambda r, ct: (ct * qb.ones(2),)))(1.0),
        qb.ShapeError,
        ("cotangent of same", "float64[2]"),
    ),
    "bwd_truth": (
        lambda: qb.grad(with_rules(same, lambda x: (x, None), lambda r, ct: (ct > 0.0,)))(1.0),
        qb.DtypeError,
        ("cotangent of same", "bool[]", "float64[]"),
    ),
    "bwd_dict": (
        lambda: qb.grad(with_rules(same, lambda x: (x, None), lambda r, ct: {"x": ct}))(1.0),
        qb.DtypeError,
        ("bwd of same", "tuple"),
    ),
    "forward": (
        lambda: qb.jvp(with_rules(same, lambda x: (x, None), lambda r, ct: (ct,)), (1.0,), (1.0,)),
        qb.UnsupportedOperationError,
        ("custom_vjp", "custom_jvp"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes(name: str) -> None:
    f, kind, words = ERRORS[name]
    with pytest.raises(kind) as caught:
        f()
    for word in words:
        assert word in str(caught.value), str(caught.value)
