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


def with_rule(fun: Any, rule: Any) -> Any:
    f = qb.custom_jvp(fun)
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
