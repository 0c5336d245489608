"""What rules of `custom_jvp` do with tangents: all that is linear works both ways, the rest is refused by name.

The yardstick is the rule itself, run on arrays along each basis vector: no transform takes part in that. For the rules
of ops, whose tangents are programs, it is their own pullback.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.control.regions import evaluate
from quabla.ir.op import Refused
from quabla.testing.table import Case, cases
from quabla.transforms.forward import jvp
from quabla.transforms.linearity import transposable
from quabla.transforms.reverse import vjp

A = qb.array
X = np.array([1.3, 0.4, 0.9])
M = A([[2.0, 0.0, 1.0], [1.0, 3.0, 0.0], [0.0, -1.0, 4.0]])


def with_rule(tangent: Any, fun: Any = lambda x: x) -> Any:
    f = qb.custom_jvp(fun)
    f.defjvp(lambda p, t: (fun(p[0]), tangent(p[0], t[0])))
    return f


def overridden(kind: str) -> Any:
    """x -> 3x, whose rule says another slope; for a tangent it is its value that counts."""
    if kind == "jvp":
        return with_rule(lambda p, t: 5.0 * t, lambda x: 3.0 * x)
    f = qb.custom_vjp(lambda x: 3.0 * x)
    f.defvjp(lambda x: (3.0 * x, ()), lambda r, ct: (7.0 * ct,))
    return f


JVP3, VJP3 = overridden("jvp"), overridden("vjp")
POSITIVE = lambda p: qb.sum(p) > 0.0

LINEAR: dict[str, Any] = {
    "factor": lambda p, t: qb.cos(p) * t / (1.0 + p * p) - 2.0 * t,
    "None": lambda p, t: None,
    "zeros": lambda p, t: qb.zeros_like(p),
    "plus zeros": lambda p, t: t + 0.0 * p,
    "matmul": lambda p, t: M @ t,
    "solve": lambda p, t: qb.solve(M + qb.diag(p), t),
    "moved": lambda p, t: qb.concat([t[1:] * p[0], qb.cumsum(t[:1])]),
    "picked": lambda p, t: t[A([2, 2, 0])] + p * t,
    "sorted by primals": lambda p, t: t[qb.argsort(p)],
    "where": lambda p, t: qb.where(p > 0.5, t, 0.0) + qb.where(p > 1.0, p * t, -t),
    "where NaN": lambda p, t: qb.where(p < -9.0, np.nan, p * t),
    "float32 and back": lambda p, t: qb.astype(qb.astype(t, qb.float32), qb.float64),
    "stopped primal": lambda p, t: qb.stop_gradient(p) * t * p,
    "stopped tangent": lambda p, t: qb.stop_gradient(p * t) + t,
    "custom_jvp of tangent": lambda p, t: p * JVP3(t),
    "custom_vjp of tangent": lambda p, t: p * VJP3(t),
    "cond": lambda p, t: qb.cond(POSITIVE(p), lambda a: 3.0 * a, lambda a: 2.0 * a, t),
    "cond of both": lambda p, t: qb.cond(POSITIVE(p), lambda a, b: qb.sin(b) * a, lambda a, b: 0.0 * b, t, p),
    "cond closing over": lambda p, t: qb.cond(POSITIVE(p), lambda: p * t, lambda: t),
    "cond of customs": lambda p, t: qb.cond(POSITIVE(p), lambda a: VJP3(a) * p, lambda a: JVP3(a), t),
    "cond of stopped": lambda p, t: qb.cond(POSITIVE(p), qb.stop_gradient, lambda a: a, t) * p,
    "while": lambda p, t: qb.while_loop(
        lambda s: s[0] < 3.0, lambda s: (s[0] + 1.0, s[1] * 2.0 * p), (0.0, t), max_steps=5
    )[1],
    "scan": lambda p, t: qb.scan(lambda s, x: (s * x, s * 2.0), t, qb.stack([p, 2.0 * p]))[0],
    "scan stacking": lambda p, t: qb.sum(qb.scan(lambda s, x: (s * x, s * 2.0), t, qb.stack([p, p]))[1], axis=0),
    "scan of tangents": lambda p, t: qb.scan(lambda s, x: (s + x, None), qb.zeros_like(p), qb.stack([t, p * t]))[0],
    "scan of customs": lambda p, t: qb.scan(lambda s, _: (JVP3(s) * p, None), t, length=2)[0],
    "fori": lambda p, t: qb.fori_loop(0, 3, lambda i, s: s * 2.0 + t, t),
    "swapping loop": lambda p, t: qb.fori_loop(0, 3, lambda i, s: (s[1], s[0] * p), (t, qb.zeros_like(t)))[0],
    "checkpoint": lambda p, t: qb.checkpoint(lambda a: a * qb.sin(p))(t),
    "jit": lambda p, t: qb.jit(lambda a: a * 2.0 * p)(t),
    "vmap": lambda p, t: qb.vmap(lambda p, t: qb.sin(p) * t)(p, t),
    "vmap of cond": lambda p, t: qb.vmap(
        lambda p, t: qb.cond(p > 0.7, lambda a: 3.0 * a, lambda a: a * p, t)
    )(p, t),
    "vmap of while": lambda p, t: qb.vmap(
        lambda p, t: qb.while_loop(lambda s: s[0] < p, lambda s: (s[0] + 0.5, s[1] * 2.0), (0.0, t), max_steps=4)[1]
    )(p, t),
    "jvp of another": lambda p, t: qb.jvp(lambda x: qb.norm(x) * qb.tanh(x), (p,), (t,))[1],
    "second jvp": lambda p, t: qb.jvp(
        lambda x: qb.jvp(lambda y: qb.sum(qb.abs(y) * y) * qb.sqrt(y), (x,), (t,))[1], (p,), (A([1.0, 2.0, -1.0]),)
    )[1],
    "vjp of another": lambda p, t: qb.vjp(qb.sin, p)[1](t)[0],
}  # fmt: skip

PLACES: dict[str, Any] = {
    "alone": lambda c: c,
    "jit": qb.jit,
    "cond": lambda c: lambda x: qb.cond(qb.sum(x) > 0.0, c, lambda x: x, x),
    "scan": lambda c: lambda x: qb.scan(lambda s, _: (c(x), None), x, length=1)[0],
    "while": lambda c: lambda x: qb.while_loop(
        lambda s: s[0] < 1.0, lambda s: (s[0] + 1.0, c(s[1])), (0.0, x), max_steps=2
    )[1],
    "checkpoint": qb.checkpoint,
}  # fmt: skip


def along(rule: Any, p: np.ndarray) -> np.ndarray:
    """The matrix of a rule at `p`: what it makes of each basis vector."""
    columns = [rule(A(p), A(e)) for e in np.eye(p.size)]
    return np.stack([np.zeros(p.size) if c is None else c.numpy() for c in columns], axis=1)


def slope(rule: Any, p: np.ndarray) -> np.ndarray:
    """The derivative of the sums of the columns of that matrix, by central differences of fourth order."""

    def sums(q: np.ndarray) -> np.ndarray:
        return np.asarray(along(rule, q).sum(axis=0))

    h = 1e-3
    steps = [(1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)]
    return np.stack(
        [sum(w * sums(p + k * h * e) for k, w in steps) / (12 * h) for e in np.eye(p.size)], axis=1
    )


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_rule_in_both_modes(name: str) -> None:
    rule = LINEAR[name]
    expected, second = along(rule, X), slope(rule, X)
    c = with_rule(rule)
    x, ct = A(X), A([0.5, -1.0, 2.0])
    close = np.testing.assert_allclose
    for place, put in PLACES.items():
        f = put(c)
        close(qb.grad(lambda x, f=f: qb.sum(f(x)))(x).numpy(), expected.sum(axis=0), rtol=1e-7, err_msg=place)
        close(qb.vjp(f, x)[1](ct)[0].numpy(), ct.numpy() @ expected, rtol=1e-7, atol=1e-12, err_msg=place)
        close(qb.jvp(f, (x,), (ct,))[1].numpy(), expected @ ct.numpy(), rtol=1e-7, atol=1e-12, err_msg=place)
        wide, tall = (lambda x, f=f: f(x)[:2]), (lambda x, f=f: qb.concat([f(x), f(2.0 * x / 2.0)]))
        close(qb.jacobian(wide)(x).numpy(), expected[:2], rtol=1e-7, atol=1e-12, err_msg=place)
        close(qb.jacobian(tall)(x).numpy(), np.tile(expected, (2, 1)), rtol=1e-7, atol=1e-12, err_msg=place)
        if (
            "stopped" not in name
        ):  # as a function of the primals, such a rule has another slope than its values
            found = qb.hessian(lambda x, f=f: qb.sum(f(x)))(x)
            close(found.numpy(), second, rtol=1e-5, atol=1e-6, err_msg=place)


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_rule_of_many_examples(name: str) -> None:
    """Under `vmap` a predicate of the primals differs from one example to the next."""
    rule = LINEAR[name]
    c = with_rule(rule)
    many = np.stack([X, 0.5 * X, -X])
    expected = np.stack([along(rule, p).sum(axis=0) for p in many])
    total = lambda x: qb.sum(c(x))
    for found in (
        qb.vmap(qb.grad(total))(A(many)),
        qb.jit(qb.vmap(qb.grad(total)))(A(many)),
        qb.grad(lambda xs: qb.sum(qb.vmap(c)(xs)))(A(many)),
        qb.grad(lambda xs: qb.sum(qb.scan(lambda s, x: (s + total(x), None), 0.0, xs)[0]))(A(many)),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("place", PLACES)
def test_a_number_forwards_and_backwards(place: str) -> None:
    """The gradient by one number goes forward, by one of several it goes backward."""
    for name in (
        "factor",
        "None",
        "where",
        "stopped tangent",
        "custom_jvp of tangent",
        "cond",
        "while",
        "scan",
        "fori",
    ):
        rule = LINEAR[name]
        f = PLACES[place](with_rule(rule))
        moved = rule(A(1.3), A(1.0))
        expected = 0.0 if moved is None else moved.item()
        assert qb.grad(f)(1.3).item() == pytest.approx(expected, rel=1e-12), name
        both = qb.grad(lambda x, y, f=f: f(x) * y, (0, 1))(1.3, 1.0)
        assert both[0].item() == pytest.approx(expected, rel=1e-12), name
        assert qb.vmap(qb.grad(f))(A([1.3, 1.3])).tolist() == pytest.approx([expected] * 2, rel=1e-12), name


def differentiable() -> list[Case]:
    found = []
    for case in cases((qb.float64,)):
        refused = isinstance(case.op.jvp, Refused) or case.op.name == "sqrt_tangent"  # which bends (turns.py)
        if not refused and any(a.dtype.kind == "f" for a in case.program().out_avals):
            found.append(case)
    return found


@pytest.mark.parametrize("case", differentiable(), ids=str)
def test_the_tangents_of_every_op_are_linear(case: Case) -> None:
    """As a rule, the tangent of an op and that of its pullback pass, and backwards they are its pullback."""
    program = case.program()
    xs, rng = case.operands(), np.random.default_rng(3)
    moved = [x for x in xs if x.dtype.kind == "f"]
    tangents = transposable(jvp(program), len(xs), len(program.outputs), case.op.name, None)
    cts = [rng.normal(size=a.shape) for a in program.out_avals if a.dtype.kind == "f"]
    n = len(program.outputs)
    with np.errstate(all="ignore"):
        expected = evaluate(vjp(program), [*xs, *cts])[n:]
        found = evaluate(vjp(tangents), [*xs, *map(np.zeros_like, moved), *cts])
    for a, b in zip(found[len(found) - len(moved) :], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    pulled, pushed = vjp(program), jvp(program)
    for again, once in ((jvp(pulled), pulled), (vjp(pulled), pulled), (vjp(pushed), pushed)):
        made = transposable(again, len(once.inputs), len(once.outputs), case.op.name, None)
        assert len(made.outputs) == len(again.outputs) - len(once.outputs)


# --- refused ----------------------------------------------------------------------------------------------------------

NOT_LINEAR: dict[str, tuple[Any, str]] = {
    "plus one": (lambda p, t: t + 1.0, "add"),
    "minus primal": (lambda p, t: t - p, "sub"),
    "constant": (lambda p, t: qb.full(p.shape, 3.0), "returns"),
    "primal": (lambda p, t: p, "returns"),
    "square": (lambda p, t: t * t, "mul"),
    "power": (lambda p, t: t**2, "integer_power"),
    "divided by": (lambda p, t: p / t, "div"),
    "product of sums": (lambda p, t: (p + t) * t, "add"),
    "abs": (lambda p, t: qb.abs(t), "abs"),
    "relu": (lambda p, t: qb.relu(t), "relu"),
    "maximum": (lambda p, t: qb.maximum(t, 0.0), "maximum"),
    "sin": (lambda p, t: qb.sin(t), "sin"),
    "without NaN": (lambda p, t: qb.where(qb.isnan(t), 0.0, t), "isnan"),
    "if positive": (lambda p, t: qb.where(t > 0.0, t, 2.0 * t), "greater"),
    "or primal": (lambda p, t: qb.where(p > 0.5, t, p), "where"),
    "to int": (lambda p, t: qb.astype(qb.astype(t, qb.int64), qb.float64), "astype"),
    "to bool": (lambda p, t: qb.astype(t > 0.0, qb.float64), "greater"),
    "floor": (lambda p, t: qb.floor(t), "floor"),
    "norm": (lambda p, t: qb.norm(t) * p, "abs"),
    "within custom_jvp": (lambda p, t: with_rule(lambda p, t: t, qb.sin)(t), "sin"),
    "within cond": (lambda p, t: qb.cond(POSITIVE(p), qb.sin, lambda a: a, t), "sin"),
    "predicate": (lambda p, t: qb.cond(qb.sum(t) > 0.0, lambda a: 3.0 * a, lambda a: 2.0 * a, t), "greater"),
    "one branch": (lambda p, t: qb.cond(POSITIVE(p), lambda t: t, lambda t: p, t), "cond"),
    "within scan": (lambda p, t: qb.scan(lambda s, _: (s * s, None), t, length=2)[0], "mul"),
    "growing": (lambda p, t: qb.fori_loop(0, 2, lambda i, s: s * (s + 1.0), t), "add"),
    "from primal": (lambda p, t: qb.fori_loop(0, 2, lambda i, s: (t, s[0]), (p, p))[1], "scan"),
    "met in the second step": (
        lambda p, t: qb.fori_loop(0, 3, lambda i, s: (s[1], s[0] * s[1]), (t, qb.ones_like(t)))[0],
        "scan",
    ),
    "until": (lambda p, t: qb.while_loop(lambda s: qb.sum(s) < 30.0, lambda s: 2.0 * s, t, max_steps=5), "less"),
    "within checkpoint": (lambda p, t: qb.checkpoint(lambda a: a * a)(t), "mul"),
    "within vmap": (lambda p, t: qb.vmap(lambda a: a * a)(t) if t.ndim else t * t, "mul"),
}  # fmt: skip

DERIVATIVES: dict[str, Any] = {
    "grad": lambda f, x: qb.grad(lambda x: qb.sum(f(x)))(x),
    "grad of a number": lambda f, x: qb.grad(f)(x[0]),
    "value_and_grad": lambda f, x: qb.value_and_grad(lambda x: qb.sum(f(x)))(x),
    "second of a number": lambda f, x: qb.grad(qb.grad(lambda x: f(x) ** 2))(x[0]),
    "vjp": lambda f, x: qb.vjp(f, x)[1](x),
    "wide": lambda f, x: qb.jacobian(lambda x: qb.sum(f(x)))(x),
    "tall": lambda f, x: qb.jacobian(lambda x: qb.concat([f(x), f(x)]))(x),
    "hessian": lambda f, x: qb.hessian(lambda x: qb.sum(f(x)))(x),
    "hessian of a number": lambda f, x: qb.hessian(f)(x[0]),
    "vmap": lambda f, x: qb.vmap(qb.grad(f))(x),
    "of vmap": lambda f, x: qb.grad(lambda x: qb.sum(qb.vmap(f)(x)))(x),
    "jit": lambda f, x: qb.jit(qb.grad(lambda x: qb.sum(f(x))))(x),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_is_refused(name: str) -> None:
    rule, op = NOT_LINEAR[name]

    def curved(x: Any) -> Any:
        return 1.0 * x

    c = qb.custom_jvp(curved)
    c.defjvp(lambda p, t: (1.0 * p[0], rule(p[0], t[0])))
    x = A(X)
    for place, put in PLACES.items():
        f = put(c)
        for how, derive in DERIVATIVES.items():
            with pytest.raises(qb.UnsupportedOperationError) as caught:
                derive(f, x)
            said = str(caught.value)
            for word in ("rule of curved", "not linear in it", op, "test_custom_rules_linear.py, line"):
                assert word in said, (place, how, said)
            assert caught.value.op == "custom_jvp"
    # Forward mode on request runs the rule as it is, once it is known by which tangent.
    t = A([0.5, -1.0, 2.0])
    np.testing.assert_array_equal(qb.jvp(c, (x,), (t,))[1].numpy(), rule(x, t).numpy())


def test_only_what_is_differentiated_must_be_linear() -> None:
    bad = with_rule(lambda p, t: t * t, qb.sin)
    worse = qb.custom_jvp(qb.sin)
    worse.defjvp(lambda p, t: 1 / 0)
    for f in (bad, worse):
        assert qb.grad(lambda x, f=f: x * f(A(1.0)))(2.0).item() == pytest.approx(np.sin(1.0))
        assert qb.grad(lambda x, f=f: x * f(qb.stop_gradient(x)))(2.0).item() == pytest.approx(np.sin(2.0))
        assert qb.grad(lambda x, y, f=f: x * f(y))(2.0, 1.0).item() == pytest.approx(np.sin(1.0))
        looped = qb.grad(lambda x, f=f: qb.fori_loop(0, 2, lambda i, s: s * f(1.0), x))(2.0)
        assert looped.item() == pytest.approx(np.sin(1.0) ** 2)
        found = qb.jacobian(lambda x, f=f: qb.concat([x, x * f(A(1.0))]))(A([2.0, 3.0]))
        np.testing.assert_allclose(found.numpy(), np.vstack([np.eye(2), np.sin(1.0) * np.eye(2)]))


def test_a_rule_bilinear_in_two_tangents() -> None:
    """The same whichever argument is asked for: that one of the tangents is zero then is no excuse."""
    f = qb.custom_jvp(lambda x, y: x * y)
    f.defjvp(lambda p, t: (p[0] * p[1], t[0] * t[1]))
    for argnums in (0, 1, (0, 1)):
        with pytest.raises(qb.UnsupportedOperationError, match="mul to a tangent and another"):
            qb.grad(f, argnums)(2.0, 3.0)


def test_loops_without_a_bound_go_forward_only() -> None:
    c = with_rule(
        lambda p, t: qb.while_loop(lambda s: s[0] < 3.0, lambda s: (s[0] + 1.0, s[1] * p), (0.0, t))[1]
    )
    assert qb.grad(c)(2.0).item() == 8.0
    assert qb.jvp(c, (A([2.0, 1.0]),), (A([1.0, 1.0]),))[1].tolist() == [8.0, 1.0]
    with pytest.raises(qb.UnsupportedOperationError, match="max_steps"):
        qb.grad(lambda x: qb.sum(c(x)))(A([2.0, 1.0]))


def test_customs_of_tangents_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)

    def build(m: Any, custom_jvp: Any, choose: Any) -> Any:
        def made(fun: Any, tangent: Any) -> Any:
            f = custom_jvp(fun)
            f.defjvp(lambda p, t: (f(p[0]), tangent(p[0], t[0])))
            return f

        g = made(m.sin, lambda p, t: 3.0 * m.cos(p) * t)
        scaled = made(lambda x: 3.0 * x, lambda p, t: 5.0 * t)
        return [
            made(m.sin, lambda p, t: g(p) * t),
            made(m.sin, lambda p, t: scaled(t) * p),
            made(m.sin, lambda p, t: choose(m.sum(p) > 0.0, scaled, lambda a: a * p, t)),
            made(lambda x: g(x) * x, lambda p, t: g(p) * t),
        ]

    ours, theirs = build(qb, qb.custom_jvp, qb.cond), build(jax.numpy, jax.custom_jvp, jax.lax.cond)
    for f, h in zip(ours, theirs, strict=True):
        for x in (0.7, -0.4):
            a, b = f, h
            for _ in range(3):
                np.testing.assert_allclose(a(A(x)).numpy(), b(x), rtol=1e-12)
                a, b = qb.grad(a), jax.grad(b)
        total, of_jax = (lambda x, f=f: qb.sum(f(x))), (lambda x, h=h: jax.numpy.sum(h(x)))
        np.testing.assert_allclose(qb.grad(total)(A(X)).numpy(), jax.grad(of_jax)(X), rtol=1e-12)
        np.testing.assert_allclose(
            qb.hessian(total)(A(X)).numpy(), jax.hessian(of_jax)(X), rtol=1e-12, atol=1e-12
        )
