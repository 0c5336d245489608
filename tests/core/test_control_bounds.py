"""Bounds of `fori_loop` that are arrays, known or traced, and `scan` from the end: against loops in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array


def body(i: Any, c: Any, *ops: Any) -> Any:
    return c * ops[0] + i if ops else c * 0.5 + i


def plain(low: int, high: int, x: float, *ops: float) -> float:
    for i in range(low, high):
        x = body(i, x, *ops)
    return x


BOUNDS = [(0, 5), (2, 6), (-3, 1), (3, 3), (4, 1), (-5, -2)]
KINDS: dict[str, Any] = {
    "int": int,
    "int32": np.int32,
    "uint8": lambda n: np.uint8(n) if n >= 0 else np.int8(n),
    "ndarray": lambda n: np.array(n),
    "float64": lambda n: A(float(n)),
    "float32": lambda n: A(float(n), "float32"),
    "int64": lambda n: A(float(n)).astype(qb.int64),
}
DEVICES = ["reference", pytest.param("cpu", marks=pytest.mark.cpu)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_every_kind(kind: str, bounds: tuple[int, int]) -> None:
    low, high = map(KINDS[kind], bounds)
    expected = plain(*bounds, 1.5)
    assert qb.fori_loop(low, high, body, 1.5).item() == expected
    assert qb.jit(lambda x: qb.fori_loop(low, high, body, x))(A(1.5)).item() == expected
    assert qb.grad(lambda x: qb.fori_loop(low, high, body, x))(1.5).item() == 0.5 ** len(range(*bounds))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("traced", ["lower", "upper", "both"])
@pytest.mark.parametrize("kind", ["float64", "float32", "int64"])
def test_traced_bounds(kind: str, traced: str, device: str) -> None:
    make = KINDS[kind]

    def f(low: Any, high: Any, x: Any, y: Any) -> Any:
        low = low if traced != "upper" else int(fixed[0])
        high = high if traced != "lower" else int(fixed[1])
        return qb.fori_loop(low, high, body, x, operands=(y,))

    for bounds in BOUNDS:
        fixed = bounds
        # A function of its own per pair, since the known bound is part of the program.
        got = qb.jit(lambda *args: f(*args), device=device)(*map(make, bounds), A(1.5), A(0.75))
        assert got.item() == pytest.approx(plain(*bounds, 1.5, 0.75), rel=1e-15)


@pytest.mark.cpu
def test_one_program_for_all_values_of_a_bound() -> None:
    f = qb.jit(lambda n, x: qb.fori_loop(0, n, body, x))
    assert [f(A(n), A(1.5)).item() for n in range(20)] == [plain(0, n, 1.5) for n in range(20)]
    assert len(f.cache.entries) == 1


def test_forward_mode_through_a_traced_bound() -> None:
    f = lambda n, x, y: qb.fori_loop(0, n, body, x, operands=(y,))
    for n in (0, 1, 4):
        value, tangent = qb.jvp(f, (A(n), A(1.5), A(0.7)), (A(3.0), A(1.0), A(-2.0)))
        h = 1e-6
        slope = (plain(0, n, 1.5 + h, 0.7 - 2 * h) - plain(0, n, 1.5 - h, 0.7 + 2 * h)) / (2 * h)
        assert value.item() == pytest.approx(plain(0, n, 1.5, 0.7), rel=1e-15)
        assert tangent.item() == pytest.approx(slope, abs=1e-8)  # the bound itself has no derivative
    # A loop from one argument to another, inside of a derivative: as often as the value says, with the index constant.
    g = lambda x: qb.fori_loop(0, x, lambda i, c: c + i, A(0.0))
    assert [t.item() for t in qb.jvp(g, (A(4.0),), (A(1.0),))] == [6.0, 0.0]
    blocks = (
        qb.jacobian(lambda x: f(A(3), x, x))(1.5),
        qb.jit(lambda n, x: qb.jacobian(lambda x: f(n, x, x))(x)),
    )
    assert blocks[1](A(3), A(1.5)).item() == pytest.approx(blocks[0].item(), rel=1e-14)


def test_reverse_mode_says_what_to_write_and_that_works() -> None:
    f = lambda n, x: qb.fori_loop(0, n, body, x)
    with pytest.raises(qb.UnsupportedOperationError, match=r"reverse mode.*fori_loop.*max_steps"):
        qb.grad(lambda n, x: qb.sum(f(n, x)), argnums=1)(A(3), A([1.0, 2.0]))
    loop = lambda n, x: qb.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1.0, body(*s)), (0.0, x), max_steps=10
    )
    assert qb.grad(lambda n, x: loop(n, x)[1], argnums=1)(A(3), A(1.5)).item() == 0.125


def test_a_bound_per_example() -> None:
    f = lambda low, high, x: qb.fori_loop(low, high, body, x)
    lows, highs, xs = [0, -2, 2, 5], [3, 7, 2, 1], [1.0, 2.0, 3.0, 4.0]
    expected = [plain(*args) for args in zip(lows, highs, xs, strict=True)]
    for run in (qb.vmap(f), qb.jit(qb.vmap(f)), qb.vmap(f, chunk_size=2)):
        np.testing.assert_allclose(run(A(lows), A(highs), A(xs)).numpy(), expected, rtol=1e-15)
    slopes = qb.vmap(lambda low, high, x: qb.jvp(lambda x: f(low, high, x), (x,), (1.0,))[1])
    steps = [len(range(a, b)) for a, b in zip(lows, highs, strict=True)]
    np.testing.assert_allclose(slopes(A(lows), A(highs), A(xs)).numpy(), 0.5 ** np.array(steps), rtol=1e-15)


def test_carries_of_a_loop_with_a_traced_bound() -> None:
    def f(n: Any, w: Any) -> Any:
        inner = lambda i, c: {"x": c["x"] * w + i, "n": c["n"] + 1, "ok": c["n"] > 1.5}
        return qb.fori_loop(0, n, inner, {"x": w, "n": 0, "ok": False})

    out = qb.jit(f)(A(3), A([1.0, 2.0], "float32"))
    x = np.array([1.0, 2.0], np.float32)
    for i in range(3):
        x = x * np.array([1.0, 2.0], np.float32) + i
    assert (out["x"].tolist(), out["n"].item(), out["ok"].item()) == (x.tolist(), 3.0, True)
    assert out["x"].dtype is qb.float32
    # What comes of numbers alone stays weak, as with bounds that are known.
    weak = qb.jit(lambda n, y: qb.fori_loop(0, n, lambda i, c: c * 2.0, 1.0) * y)
    assert weak(A(3), A([1.0], "float32")).dtype is qb.float32


def test_loops_within_loops_with_bounds_of_the_outer_one() -> None:
    def f(n: Any) -> Any:
        return qb.fori_loop(0, n, lambda i, c: qb.fori_loop(i, n, lambda j, d: d + i * j, c), 0.0)

    for n in range(6):
        assert qb.jit(f)(A(n)).item() == sum(i * j for i in range(n) for j in range(i, n))


@pytest.mark.parametrize(
    "bound, error, message",
    [
        (2.5, qb.DtypeError, "upper must be an int, got a float"),
        (True, qb.DtypeError, "upper must be an int, got True"),
        ("3", qb.DtypeError, "upper must be an int, got a str"),
        (A(2.5), qb.DtypeError, r"upper must be a whole number, got 2\.5"),
        (A(float("nan")), qb.DtypeError, "upper must be a whole number, got nan"),
        (A(float("inf")), qb.DtypeError, "upper must be a whole number, got inf"),
        (A(True), qb.DtypeError, r"upper must be a whole number, got bool\[\]"),
        (A([3.0]), qb.ShapeError, r"upper must be a scalar, got float64\[1\]"),
    ],
    ids=range(8),
)
def test_bounds_that_are_refused(bound: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^fori_loop: {message}"):
        qb.fori_loop(0, bound, body, 1.0)
    if "bool" in message or "scalar" in message:  # what the type alone says
        with pytest.raises(error, match=f"^fori_loop: {message}"):
            qb.jit(lambda n: qb.fori_loop(0, n, body, 1.0))(bound)


def test_what_a_traced_bound_does_not_do() -> None:
    with pytest.raises(qb.DtypeError, match=r"^fori_loop: with unroll=True the bounds must be known"):
        qb.jit(lambda n: qb.fori_loop(0, n, body, 1.0, unroll=True))(A(3))
    with pytest.raises(qb.DtypeError, match=r"^scan: length must be a Python int, got a traced value"):
        qb.jit(lambda n: qb.scan(lambda c, i: (c, c), 1.0, length=n))(A(3))
    with pytest.raises(qb.ShapeError, match=r"^fori_loop: the carry must keep its shape"):
        qb.jit(lambda n, x: qb.fori_loop(0, n, lambda i, c: qb.stack([c, c]), x))(A(3), A(1.0))
    assert qb.scan(lambda c, i: (c + i, c), 0.0, length=A(3))[0].item() == 3.0


# --- scan from the end ------------------------------------------------------------------------------------------------


def step(c: Any, x: Any, *ops: Any) -> Any:
    return c * 0.5 + x["a"] * x["b"][0], {"c": c * x["a"], "d": (x["b"] * c,)}


def backwards(init: float, a: Any, b: Any) -> tuple[float, Any, Any]:
    cs, ds = [], []
    for x, y in zip(a[::-1], b[::-1], strict=True):
        cs.append(init * x)
        ds.append(y * init)
        init = init * 0.5 + x * y[0]
    return init, np.stack(cs[::-1]), np.stack(ds[::-1])


@pytest.mark.parametrize("unroll", [False, True])
def test_scan_from_the_end(unroll: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=5), rng.normal(size=(5, 2))
    f = lambda c, a, b: qb.scan(step, c, {"a": a, "b": b}, reverse=True, unroll=unroll)
    carry, cs, ds = backwards(1.5, a, b)
    for run in (
        f,
        qb.jit(f),
        lambda c, a, b: qb.tree.map(lambda y: y[0], qb.vmap(f)(*(qb.stack([v, v]) for v in (c, a, b)))),
    ):
        state, ys = run(A(1.5), A(a), A(b))
        assert state.item() == pytest.approx(carry, rel=1e-14)
        np.testing.assert_allclose(ys["c"].numpy(), cs, rtol=1e-14)
        np.testing.assert_allclose(ys["d"][0].numpy(), ds, rtol=1e-14)


def test_derivatives_of_scan_from_the_end() -> None:
    rng = np.random.default_rng(2)
    x = A(rng.normal(size=4))

    def ours(x: Any, turned: bool) -> Any:
        f = lambda c, x: (qb.sin(c) * x, c * x)
        if turned:
            state, ys = qb.scan(f, x[0], qb.flip(x, 0))
            return state + qb.sum(qb.flip(ys, 0) * x)
        state, ys = qb.scan(f, x[0], x, reverse=True)
        return state + qb.sum(ys * x)

    for of in (qb.grad, qb.hessian, qb.jacobian):
        got, expected = (of(lambda x, t=t: ours(x, t))(x).numpy() for t in (False, True))
        np.testing.assert_allclose(got, expected, rtol=1e-13)
    h = 1e-6
    slope = [(ours(x + A(h * e), True) - ours(x - A(h * e), True)).item() / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(qb.grad(lambda x: ours(x, False))(x).numpy(), slope, rtol=1e-7)


@pytest.mark.parametrize("unroll", [False, True])
def test_step_indices_from_the_end(unroll: bool) -> None:
    f = lambda c, i: (c * 2.0 + i, i)
    scan = lambda c: qb.scan(f, c, length=4, reverse=True, unroll=unroll)
    expected = 1.0
    for i in (3, 2, 1, 0):
        expected = expected * 2.0 + i
    for run in (scan, qb.jit(scan)):
        state, ys = run(A(1.0))
        assert (state.item(), ys.tolist()) == (expected, [0.0, 1.0, 2.0, 3.0])
    narrow = qb.jit(lambda c: qb.scan(f, c, length=4, reverse=True))(A(1.0, "float32"))
    assert narrow[0].dtype is qb.float32 and narrow[0].item() == expected


def test_the_same_as_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    x = np.linspace(0.5, 1.5, 6)
    f = lambda c, x: (c * x + 1.0, c - x)
    state, ys = qb.scan(f, 0.3, A(x), reverse=True)
    other = jax.lax.scan(f, 0.3, jnp.array(x), reverse=True)
    np.testing.assert_allclose(state.numpy(), other[0], rtol=1e-14)
    np.testing.assert_allclose(ys.numpy(), other[1], rtol=1e-14)
    step = lambda i, c: c * 0.5 + i
    for n in (0, 1, 7):
        ours = qb.jit(lambda n: qb.jvp(lambda x: qb.fori_loop(0, n, step, x), (1.5,), (1.0,)))(A(n))
        theirs = jax.jit(lambda n: jax.jvp(lambda x: jax.lax.fori_loop(0, n, step, x), (1.5,), (1.0,)))(n)
        np.testing.assert_allclose([v.item() for v in ours], theirs, rtol=1e-14)


# --- loops without a bound where reverse mode needs no pullback of them -----------------------------------------------

ENDLESS: dict[str, Any] = {
    "stopped behind the loop": lambda m, stop, w, x: x * stop(w(x)),
    "stopped before the loop": lambda m, stop, w, x: x * w(stop(x)),
    "steps behind the loop": lambda m, stop, w, x: x * m.sign(w(x)),
    "compared": lambda m, stop, w, x: m.where(w(x) > 3.0, x * x, x),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_loops_without_a_bound_that_reverse_mode_does_not_pass_through(name: str) -> None:
    """As in JAX; the other element makes reverse mode the shorter way."""
    w = lambda x: qb.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, x)
    loss = lambda v: ENDLESS[name](qb, qb.stop_gradient, w, v[0]) + v[1]
    expected = {"stopped": 12.0, "steps": 1.0, "compared": 3.0}[name.split()[0]]
    for of in (qb.grad(loss), qb.jit(qb.grad(loss)), lambda v: qb.vmap(qb.grad(loss))(qb.stack([v, v]))[1]):
        assert of(A([1.5, 1.0])).tolist() == [expected, 1.0]
    with pytest.raises(qb.UnsupportedOperationError, match="reverse mode"):
        qb.grad(lambda v: loss(v) + w(v[0]))(A([1.5, 1.0]))


@pytest.mark.parametrize("name", ENDLESS)
def test_jax_passes_them_in_the_same_way(name: str) -> None:
    jax = pytest.importorskip("jax")
    w = lambda x: jax.lax.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, x)
    slope = jax.grad(lambda x: ENDLESS[name](jax.numpy, jax.lax.stop_gradient, w, x))(1.5)
    assert slope == {"stopped": 12.0, "steps": 1.0, "compared": 3.0}[name.split()[0]]


def test_a_bound_that_is_differentiated_has_derivative_zero() -> None:
    f = lambda x, n: x * x * qb.fori_loop(0, n, lambda i, c: c + 1.0, 0.0)
    assert [g.item() for g in qb.grad(f, argnums=(0, 1))(2.0, 3.0)] == [12.0, 0.0]
