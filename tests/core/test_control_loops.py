"""`fori_loop` and `scan`: every transform to third order, trees, dtypes, closures, and what they refuse."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb

A = qb.array
POINTS = [
    ([0.3, 0.7, -0.4], 0.8, [1.0, -0.5, 0.3]),
    ([1.3, -0.7, 0.4], 1.1, [0.2, 0.5, 0.3]),
    ([-0.9, 0.2, 0.1], -0.6, [1.0, 2.0, -0.3]),
]


def fori_tree(m: Any, x: Any, w: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        a, (b,) = c["a"], c["b"]
        return {"a": m.sin(b) * w, "b": (a + b * a,)}

    r = m.fori_loop(0, 3, step, {"a": x, "b": (x * w,)})
    return m.sum(r["a"] * r["b"][0])


def scan_without_xs(m: Any, x: Any, w: Any) -> Any:
    last, rows = m.scan(lambda c, i: (m.tanh(c * w + i * 0.1), c * c), x, length=4)
    return m.sum(last * rows[1]) + m.sum(rows[3])


def scan_with_xs(m: Any, x: Any, w: Any) -> Any:
    last, rows = m.scan(lambda c, a: (m.sin(c * a) + w, c * a), w, x)
    return last + m.sum(rows)


def scan_with_tree(m: Any, x: Any, w: Any) -> Any:
    step = lambda c, a: (m.sin(c * a["u"]) + a["v"], {"y": c * a["v"]})
    last, rows = m.scan(step, w, {"u": x, "v": m.sin(x)})
    return last + m.sum(rows["y"] * x)


def nested(m: Any, x: Any, w: Any) -> Any:
    inner = lambda i, c: m.scan(lambda d, j: (m.sin(d * w + c), d), c, length=3)[0] + x
    return m.sum(m.fori_loop(0, 2, inner, x))


CASES: dict[str, Any] = {
    "fori": lambda m, x, w: m.sum(m.fori_loop(0, 4, lambda i, c: m.sin(c * w) + x * 0.3, x) ** 2),
    "index": lambda m, x, w: m.sum(m.fori_loop(2, 5, lambda i, c: c * m.cos(w * i) + i * x, x)),
    "operands": lambda m, x, w: m.sum(
        m.fori_loop(0, 3, lambda i, c, a, b: m.sin(c * a) * b, x, operands=(w, x))
    ),
    "tree": fori_tree,
    "scan": scan_without_xs,
    "xs": scan_with_xs,
    "xs_tree": scan_with_tree,
    "one_step": lambda m, x, w: m.sum(m.fori_loop(0, 1, lambda i, c: m.sin(c * w), x)),
    "no_step": lambda m, x, w: m.sum(m.fori_loop(3, 1, lambda i, c: m.sin(c * w), x) * w),
    "nested": nested,
    "carry_unread": lambda m, x, w: m.sum(x * w) + 0.0 * m.sum(m.fori_loop(0, 3, lambda i, c: c + 1.0, x)),
    "number_carry": lambda m, x, w: m.fori_loop(0, 3, lambda i, c: m.sin(c * w) + m.sum(x), 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_every_order(control: Any, name: str) -> None:
    control.climb(CASES[name], POINTS, control.quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_transform(control: Any, name: str) -> None:
    control.climb(CASES[name], POINTS, control.slow)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_against_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp, lax = jax.numpy, jax.lax

    class Theirs:
        sin, cos, tanh, sum = jnp.sin, jnp.cos, jnp.tanh, jnp.sum

        @staticmethod
        def fori_loop(low: int, high: int, body: Any, init: Any, operands: Any = ()) -> Any:
            init = jax.tree.map(jnp.asarray, init)
            return lax.fori_loop(low, high, lambda i, c: body(i, c, *operands), init)

        @staticmethod
        def scan(f: Any, init: Any, xs: Any = None, length: int | None = None) -> Any:
            return lax.scan(f, init, jnp.arange(length) if xs is None else xs, length=length)

    class Ours:
        sin, cos, tanh, sum, fori_loop, scan = qb.sin, qb.cos, qb.tanh, qb.sum, qb.fori_loop, qb.scan

    f = CASES[name]
    ours, theirs = (lambda x, w: f(Ours, x, w)), (lambda x, w: f(Theirs, x, w))
    x, w, t = (np.asarray(a) for a in POINTS[0])
    pairs = [
        (qb.grad(ours, (0, 1))(A(x), A(w)), jax.grad(theirs, (0, 1))(x, w)),
        (qb.hessian(ours)(A(x), A(w)), jax.hessian(theirs)(x, w)),
        (qb.jvp(ours, (A(x), A(w)), (A(t), A(w))), jax.jvp(theirs, (x, w), (t, w))),
    ]
    third = lambda m, f: m.grad(lambda w: m.hessian(f)(x if m is jax else A(x), w)[0, 1])
    pairs.append((third(qb, ours)(A(w)), third(jax, theirs)(w)))
    many = np.stack([x, -x, 2.0 * x])
    pairs.append(
        (qb.vmap(qb.grad(ours), (0, None))(A(many), A(w)), jax.vmap(jax.grad(theirs), (0, None))(many, w))
    )
    for mine, other in pairs:
        for a, b in zip(qb.tree.flatten(mine)[0], jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a.numpy(), np.asarray(b), rtol=1e-9, atol=1e-10)


def test_jacobians_in_both_directions() -> None:
    w = np.linspace(-0.5, 0.6, 6).reshape(2, 3)

    def f(x: Any) -> Any:
        return A(w) @ qb.fori_loop(0, 3, lambda i, c: qb.sin(c) + 0.1 * i * x, x)

    def straight(x: Any) -> Any:
        c = x
        for i in range(3):
            c = qb.sin(c) + 0.1 * i * x
        return A(w) @ c

    x = A([0.2, -0.4, 0.7])
    expected = qb.jacobian(straight)(x).numpy()
    np.testing.assert_allclose(qb.jit(qb.jacobian(f))(x).numpy(), expected, rtol=1e-13)
    tall = lambda x: qb.concat([f(x), f(2.0 * x)])
    np.testing.assert_allclose(qb.jacobian(tall)(x).numpy()[:2], expected, rtol=1e-13)
    stacked = lambda x: qb.scan(lambda c, i: (qb.sin(c), c), x, length=4)[1]
    assert qb.jacobian(stacked)(x).shape == (4, 3, 3)


def test_unrolled_is_the_same() -> None:
    f = lambda unroll: lambda x: qb.fori_loop(1, 4, lambda i, c: c * x + i, x, unroll=unroll)
    g = lambda unroll: lambda x: qb.scan(lambda c, a: (c * a, c + a), 1.0, x, unroll=unroll)
    x = A([1.5, -0.5])
    for one, two in ((f(True), f(False)), (g(True), g(False))):
        found, expected = qb.tree.flatten(qb.jit(one)(x))[0], qb.tree.flatten(qb.jit(two)(x))[0]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    # Unrolled steps see the index as an int.
    assert (
        qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: c + [1.0, 2.0, 3.0][i], x, unroll=True))(
            A(0.0)
        ).item()
        == 6.0
    )


def test_concrete_loops_run_now() -> None:
    seen: list[Any] = []
    total = qb.fori_loop(0, 3, lambda i, c: (seen.append(type(i)), c + i)[1], A(1.0))
    assert total.item() == 4.0 and seen == [qb.Tensor] * 3
    last, rows = qb.scan(lambda c, x: (c + x, c), A(0.0), A([1.0, 2.0]))
    assert last.item() == 3.0 and rows.tolist() == [0.0, 1.0]


INDEXED: dict[str, Any] = {
    "sum": lambda i, x: i,
    "division by zero": lambda i, x: 1.0 / i,
    "negative power": lambda i, x: (i - 1.0) ** -1,
    "element": lambda i, x: x[i] + x[i + 1] * x[-1 - i],
    "take": lambda i, x: qb.take(x, i),
    "comparison": lambda i, x: qb.where(i < 1, x[0], x[2]),
    "method": lambda i, x: (i * i).sum().astype(x.dtype),
    "shape": lambda i, x: qb.ones(i.shape, dtype=x.dtype) * i.ndim,
    "function": lambda i, x: qb.sin(i) * qb.full((), 2.0, dtype=x.dtype),
}


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32])
@pytest.mark.parametrize("name", INDEXED)
def test_the_index_is_the_same_scalar_with_and_without_a_trace(name: str, dtype: Any) -> None:
    """Its type, and what can be done with it, do not depend on whether the operands are traced."""
    use = INDEXED[name]
    avals: list[Any] = []
    x = qb.array([2.0, 3.0, 5.0, 7.0], dtype=dtype)

    def note(i: Any) -> Any:
        avals.append(i.aval)
        return i

    def loop(x: Any) -> Any:
        return qb.fori_loop(0, 3, lambda i, c: c + use(note(i), x), x[0] * 0.0)

    def rows(x: Any) -> Any:
        return qb.scan(lambda c, i: (c, use(note(i), x) + 0.0 * x[0]), x[0], length=3)[1]

    for f in (loop, rows):
        eager, compiled = f(x), qb.jit(f, device="reference")(x)
        assert eager.dtype is compiled.dtype is dtype
        np.testing.assert_allclose(eager.numpy(), compiled.numpy(), rtol=1e-6)
    assert len(set(avals)) == 1


def test_a_concrete_loop_within_a_trace_is_one_operation() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        return x * qb.fori_loop(0, 1000, lambda i, c: (seen.append(i), c + A([1.0, 2.0]))[1], A([0.0, 0.0]))

    assert qb.jit(f)(A([1.0, 1.0])).tolist() == [1000.0, 2000.0]
    assert len(seen) == 1


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class State:
    a: Any
    b: Any


@pytest.mark.parametrize("container", [Pair, State, lambda a, b: {"a": a, "b": b}, lambda a, b: [a, (b,)]])
def test_fibonacci_in_any_container(container: Any) -> None:
    def take(c: Any) -> Any:
        if isinstance(c, dict):
            return c["a"], c["b"]
        return (c.a, c.b) if hasattr(c, "a") else (c[0], c[1][0])

    def step(i: Any, c: Any) -> Any:
        a, b = take(c)
        return container(b, a + b)

    def f(x: Any) -> Any:
        return take(qb.fori_loop(0, 10, step, container(0.0, x)))[0]

    assert qb.jit(f)(A(1.0)).item() == 55.0
    assert qb.jit(qb.grad(f))(A(1.0)).item() == 55.0
    assert take(qb.fori_loop(0, 10, step, container(0.0, A(1.0))))[0].item() == 55.0


def test_empty_carries_and_results() -> None:
    assert qb.jit(lambda x: qb.scan(lambda c, i: (None, i * x), None, length=3))(A(2.0))[1].tolist() == [
        0.0,
        2.0,
        4.0,
    ]
    carry, y = qb.jit(lambda x: qb.scan(lambda c, i: (c * x, None), x, length=3))(A(2.0))
    assert carry.item() == 16.0 and y is None
    assert qb.jit(lambda x: (qb.fori_loop(0, 3, lambda i, c: (), ()), x))(A(2.0))[0] == ()
    slope = qb.grad(lambda x: qb.sum(qb.scan(lambda c, i: ((), qb.sin(i * x)), (), length=3)[1]))(A(1.0))
    np.testing.assert_allclose(slope.item(), np.cos(1.0) + 2.0 * np.cos(2.0), rtol=1e-15)
    kept = qb.jit(
        lambda x: qb.fori_loop(0, 3, lambda i, c: {"a": c["a"] * x, "n": None}, {"a": x, "n": None})
    )(A(2.0))
    assert kept["a"].item() == 16.0 and kept["n"] is None


def test_float32_stays_float32() -> None:
    x = qb.astype(A([1.0, 2.0]), qb.float32)
    out = qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: c * 0.5 + i, x))(x)
    assert out.dtype is qb.float32 and out.tolist() == [2.625, 2.75]
    assert (
        qb.grad(lambda x: qb.sum(qb.fori_loop(0, 3, lambda i, c: c * 0.5 * x + i, x)))(x).dtype is qb.float32
    )
    for init in (0, 0.0):  # a number adopts the dtype that the step gives it
        total = qb.jit(lambda x, init=init: qb.fori_loop(0, 3, lambda i, c: c + qb.sum(x), init))(x)
        assert total.dtype is qb.float32 and total.item() == 9.0
    last, rows = qb.jit(lambda x: qb.scan(lambda c, a: (c + a, c * a), 0.0, x))(x)
    assert last.dtype is rows.dtype is qb.float32
    swapped = qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: (c[1], c[0] + qb.sum(x)), (0.0, 1.0)))(x)
    assert [s.dtype for s in swapped] == [qb.float32] * 2 and [s.item() for s in swapped] == [4.0, 6.0]
    # Numbers that a step returns are weak, too, and so is a carry of numbers alone.
    reset = qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: (c[0] + x, 0.0), (x, x)))(x[0])
    assert [s.dtype for s in reset] == [qb.float32] * 2
    assert qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: c + 1.0, 0.0) * x)(x).dtype is qb.float32


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("dtype", [qb.float32, qb.float64])
def test_results_that_begin_as_python_numbers_take_the_dtype_of_the_others(dtype: Any, unroll: bool) -> None:
    x = qb.array([1.0, 2.0, 4.0], dtype)
    steps: dict[str, Any] = {
        "the carry of before": lambda c, v: (c + v, c),
        "a dict": lambda c, v: (c + v, {"before": c, "after": c + v, "number": 2.0}),
    }
    for step in steps.values():
        results = [
            run(lambda v, step=step: qb.scan(step, 0.0, v, unroll=unroll))(x) for run in (lambda f: f, qb.jit)
        ]
        for carry, ys in results:
            before = ys["before"] if isinstance(ys, dict) else ys
            assert (carry.dtype, before.dtype, before.tolist()) == (dtype, dtype, [0.0, 1.0, 3.0])
            assert not isinstance(ys, dict) or ys["number"].tolist() == [2.0] * 3


def test_carries_without_derivatives() -> None:
    n = A(np.array([1, 2]), qb.int64)
    doubled = qb.jit(lambda n: qb.fori_loop(0, 3, lambda i, c: c + c, n))(n)
    assert doubled.dtype is qb.int64 and doubled.tolist() == [8, 16]
    flags = A(np.array([True, False]))
    assert qb.jit(lambda b: qb.fori_loop(0, 3, lambda i, c: qb.logical_not(c), b))(flags).tolist() == [
        False,
        True,
    ]

    def f(x: Any) -> Any:
        step = lambda i, c: (c[0] * x, qb.logical_not(c[1]), c[2] + c[2])
        return qb.fori_loop(0, 3, step, (x, flags, n))[0]

    assert qb.grad(f)(A(2.0)).item() == 32.0 and qb.hessian(f)(A(2.0)).item() == 48.0
    many = qb.vmap(lambda b: qb.fori_loop(0, 3, lambda i, c: qb.logical_not(c), b))(flags)
    assert many.tolist() == [False, True]


def test_elements_by_the_index() -> None:
    x = A([1.0, 2.0, 4.0])
    assert qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: c * 2.0 + x[i], 0.0))(x).item() == 12.0
    assert qb.grad(lambda x: qb.fori_loop(0, 3, lambda i, c: c * 2.0 + x[i], 0.0))(x).tolist() == [
        4.0,
        2.0,
        1.0,
    ]


def test_closures_at_several_levels() -> None:
    f = lambda w: qb.fori_loop(0, 3, lambda i, c: c * w, 1)
    assert qb.grad(f)(2.0).item() == 12.0
    assert qb.grad(lambda w: qb.scan(lambda c, i: (c * w, c), 1, length=3)[0])(2.0).item() == 12.0
    assert qb.vmap(qb.grad(f))(A([2.0, 3.0])).tolist() == [12.0, 27.0]
    # d/dw of (d/dv of (w v)^2 at v = w) = d/dw 2 w^3
    outer = qb.grad(lambda w: qb.grad(lambda v: qb.fori_loop(0, 2, lambda i, c: c * w * v, 1.0))(w))
    assert outer(2.0).item() == qb.jit(outer)(A(2.0)).item() == 24.0
    constant = A([1.0, 2.0, 3.0])
    assert qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: c + constant, x))(
        A([0.0, 0.0, 0.0])
    ).tolist() == [3.0, 6.0, 9.0]
    inner = qb.jit(lambda x: qb.fori_loop(0, 2, lambda i, c: qb.grad(lambda y: y * y * x)(c), x))
    np.testing.assert_allclose(inner(A(1.5)).item(), 2 * (2 * 1.5 * 1.5) * 1.5, rtol=1e-15)


def test_a_step_that_is_never_made_computes_nothing() -> None:
    # What a step computes from the values around the loop alone belongs to the step.
    f = lambda x: x + qb.while_loop(lambda c: c < 0.0, lambda c: c * qb.sqrt(x), 1.0 + 0.0 * x, max_steps=3)
    assert qb.grad(f)(0.0).item() == 1.0
    text = str(qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: c * qb.exp(x), x)).lower(A(1.0)).program)
    assert "exp" in text.split("body")[1] and "exp" not in text.split("body")[0]


ERRORS: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "endless": (
        lambda x: qb.fori_loop(-1, 2**63 - 1, lambda i, c: c, x),
        qb.ShapeError,
        ("fori_loop", "count"),
    ),
    "endless_scan": (
        lambda x: qb.scan(lambda c, i: (c, None), x, length=2**63),
        qb.ShapeError,
        ("scan", "9223372036854775808 steps", "count"),
    ),
    "shape": (
        lambda x: qb.fori_loop(0, 3, lambda i, c: {"s": [c["s"][0] * A([1.0, 2.0])]}, {"s": [x]}),
        qb.ShapeError,
        ("fori_loop", "s/0", "float64[]", "float64[2]"),
    ),
    "dtype": (
        lambda x: qb.fori_loop(0, 3, lambda i, c: (qb.astype(c[0], qb.float32),), (x,)),
        qb.DtypeError,
        ("fori_loop", "float64[]", "float32[]", "astype"),
    ),
    "structure": (
        lambda x: qb.fori_loop(0, 3, lambda i, c: (c, c), x),
        qb.ShapeError,
        ("fori_loop", "structure"),
    ),
    "nothing": (lambda x: qb.fori_loop(0, 3, lambda i, c: None, x), qb.ShapeError, ("fori_loop", "None")),
    "traced_array": (
        lambda x: qb.fori_loop(0, qb.stack([x]), lambda i, c: c, x),
        qb.ShapeError,
        ("upper", "scalar"),
    ),
    "traced_mask": (lambda x: qb.fori_loop(x > 0.0, 3, lambda i, c: c, x), qb.DtypeError, ("lower", "bool")),
    "float_bound": (lambda x: qb.fori_loop(0, 3.0, lambda i, c: c, x), qb.DtypeError, ("upper", "int")),
    "bool_bound": (lambda x: qb.fori_loop(0, True, lambda i, c: c, x), qb.DtypeError, ("upper", "int")),
    "no_function": (lambda x: qb.fori_loop(0, 3, 5, x), qb.DtypeError, ("body_fun", "function", "int")),
    "python_if": (
        lambda x: qb.fori_loop(0, 3, lambda i, c: c if c > 0 else x, x),
        qb.TracerError,
        ("quabla.cond",),
    ),
    "list_index": (lambda x: qb.fori_loop(0, 3, lambda i, c: [1, 2, 3][i], x), qb.TracerError, ("index",)),
    "traced_length": (
        lambda x: qb.scan(lambda c, i: (c, c), x, length=x),
        qb.DtypeError,
        ("length", "while_loop"),
    ),
    "negative_length": (
        lambda x: qb.scan(lambda c, i: (c, c), x, length=-1),
        qb.ShapeError,
        ("length", "-1"),
    ),
    "zero_length": (
        lambda x: qb.scan(lambda c, i: (c, c), x, length=0),
        qb.ShapeError,
        ("length", "at least 1"),
    ),
    "no_pair": (lambda x: qb.scan(lambda c, i: c, x, length=3), qb.DtypeError, ("scan", "pair")),
    "other_sizes": (
        lambda x: qb.scan(lambda c, a: (c, c), x, (A([1.0, 2.0]), A([1.0, 2.0, 3.0]))),
        qb.ShapeError,
        ("leading", "2", "3"),
    ),
    "other_length": (
        lambda x: qb.scan(lambda c, a: (c, c), x, A([1.0, 2.0]), length=3),
        qb.ShapeError,
        ("3", "2"),
    ),
    "scalar_xs": (lambda x: qb.scan(lambda c, a: (c, c), x, x), qb.ShapeError, ("xs", "axis")),
    "numbers_as_xs": (
        lambda x: qb.scan(lambda c, a: (c, c), x, [1.0, 2.0]),
        qb.DtypeError,
        ("xs", "quabla.array"),
    ),
    "no_length": (lambda x: qb.scan(lambda c, i: (c, c), x), qb.DtypeError, ("xs", "length")),
    "length_as_xs": (lambda x: qb.scan(lambda c, i: (c, c), x, 3), qb.DtypeError, ("length=",)),
    "no_scan_function": (lambda x: qb.scan(None, x, length=2), qb.DtypeError, ("f must be a function",)),
    "string": (lambda x: qb.fori_loop(0, 3, lambda i, c: c, "a"), qb.DtypeError, ("fori_loop", "str")),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes(name: str) -> None:
    f, kind, words = ERRORS[name]
    with pytest.raises(kind) as caught:
        qb.jit(f)(A(1.0))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_mistakes_on_concrete_arrays() -> None:
    with pytest.raises(qb.DtypeError, match="pair"):
        qb.scan(lambda c, i: c, A([1.0, 2.0]), length=3)
    with pytest.raises(qb.DtypeError, match="body_fun must be a function"):
        qb.fori_loop(0, 3, 5, A(1.0))
    with pytest.raises(qb.DtypeError, match="upper must be an int"):
        qb.fori_loop(0, 3.0, lambda i, c: c, A(1.0))
    assert qb.fori_loop(0, np.int64(3), lambda i, c: c * 2.0, A(1.0)).item() == 8.0


def test_a_carry_that_escapes() -> None:
    kept: list[Any] = []
    qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: (kept.append(c), c)[1], x))(A(1.0))
    with pytest.raises(qb.TracerError, match="escaped"):
        kept[0] + 1.0
