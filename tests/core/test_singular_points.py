"""Second derivatives through a root of zero: right, or NaN where they cannot be known, and never a silent 0.

The values of `KNOWN` are those of the polynomial or the series that the function is near 0, worked out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace
from tests.core.test_kinks import forwards_first

F = Callable[..., Any]
A = qb.array
NAN, INF = math.nan, math.inf
I2 = np.eye(2)
ORIGIN = np.zeros(2)
N = qb.norm


def hessians(f: F, x: np.ndarray) -> list[np.ndarray]:
    """The second derivatives in all orders of modes, as they are, compiled and mapped."""
    v = A(x)
    rows = [A(t) for t in np.eye(x.size)]
    ahead = [np.asarray(qb.jvp(qb.grad(f), (v,), (t,))[1]) for t in rows]
    back = [np.asarray(qb.grad(lambda a, t=t: qb.sum(qb.grad(f)(a) * t))(v)) for t in rows]
    made = [qb.hessian(f)(v), qb.jit(qb.hessian(f))(v), qb.vmap(qb.hessian(f))(qb.stack([v, v]))[1]]
    return [*(np.asarray(m) for m in made), np.stack(ahead), np.stack(back), *forwards_first(f, v)]


def exp_of(r: Any) -> Any:
    """(1 + r) exp(-r), a smooth function of r**2 and r**3 near 0: 1 - r**2 / 2 + ..."""
    return (1.0 + r) * qb.exp(-r)


def once(f: F) -> F:
    """`f` in a loop of one step, into which nothing outside can see."""
    return lambda x: qb.scan(lambda c, _: (c, f(x)), 0.0, length=1)[1][0]


def far_away(r: Any) -> Any:
    for _ in range(15):
        r = r + 1.0 - 1.0
    return r


KNOWN: list[tuple[str, F, Any]] = [
    # kinks: nothing but the smooth part
    ("checkpoint", qb.checkpoint(N), 0.0 * I2),
    ("branch", lambda x: qb.cond(x[0] < 1.0, N, lambda x: x[0], x), 0.0 * I2),
    ("loop", lambda x: qb.fori_loop(0, 3, lambda i, c: c + N(x), 0.0), 0.0 * I2),
    ("far away", lambda x: far_away(N(x)), 0.0 * I2),
    ("clamp in a loop", lambda x: qb.fori_loop(0, 2, lambda i, c: c + qb.maximum(N(x), 1e-9), 0.0), 0.0 * I2),
    ("times a constant zero", lambda x: qb.sum(N(qb.stack([x, x]), axis=1) * A([0.0, 1.0])) ** 2, 2.0 * I2),
    ("huber in a loop", lambda x: qb.fori_loop(
        0, 2, lambda i, c: c + qb.where(N(x) < 1.0, 0.5 * N(x) ** 2, N(x) - 0.5), 0.0), 2.0 * I2),
    # smooth functions, within the region that has the root
    ("checkpoint of a square", qb.checkpoint(lambda x: N(x) ** 2), 2.0 * I2),
    ("checkpoint of a kernel", qb.checkpoint(lambda x: exp_of(N(x))), -I2),
    ("kernel in a branch", lambda x: qb.cond(x[0] < 1.0, lambda x: exp_of(N(x)), lambda x: x[0], x), -I2),
    ("kernel in a loop", lambda x: qb.fori_loop(0, 3, lambda i, c: c + exp_of(N(x)), 0.0), -3.0 * I2),
    ("kernels in a scan", lambda x: qb.sum(qb.scan(lambda c, s: (c, exp_of(N(s * x))), 0.0, A([1.0, 2.0]))[1]),
     -5.0 * I2),
    ("square of a kernel in a loop", lambda x: qb.fori_loop(0, 3, lambda i, c: c + exp_of(N(x)), 0.0) ** 2, -18.0 * I2),
    ("square of a checkpoint", lambda x: qb.checkpoint(N)(x) ** 2, 2.0 * I2),
    ("kernel of a checkpoint", lambda x: exp_of(qb.checkpoint(N)(x)), -I2),
    ("kernel of nested checkpoints", lambda x: exp_of(qb.checkpoint(qb.checkpoint(N))(x)), -I2),
    ("square of a checkpoint in a loop", lambda x: qb.fori_loop(0, 2, lambda i, c: c + qb.checkpoint(N)(x) ** 2, 0.0),
     4.0 * I2),
    ("squares of checkpoints in lanes", lambda x: qb.sum(qb.vmap(qb.checkpoint(N))(qb.stack([x, 2.0 * x])) ** 2),
     10.0 * I2),
    # several roots, each by itself
    ("kernels of rows", lambda x: qb.sum(exp_of(N(qb.stack([x, 2.0 * x]), axis=1))), -5.0 * I2),
    ("squares of rows", lambda x: qb.sum(N(qb.stack([x, 2.0 * x]), axis=1) ** 2.0), 10.0 * I2),
    ("product of kernels", lambda x: exp_of(N(x)) * exp_of(N(2.0 * x)), -5.0 * I2),
    ("logarithm of a sum of kernels", lambda x: qb.log(exp_of(N(x)) + exp_of(N(2.0 * x))), -2.5 * I2),
    # products that need no limit
    ("root times root", lambda x: qb.sqrt(qb.sum(x * x)) * qb.sqrt(qb.sum(x * x)), 2.0 * I2),
    ("three roots", lambda x: qb.sqrt(N(x)) * qb.sqrt(N(x)) * N(x), 2.0 * I2),
    ("half power, squared", lambda x: (qb.sum(x * x) ** 0.5) ** 2, 2.0 * I2),
    ("kernel of a half power", lambda x: exp_of(qb.sum(x * x) ** 0.5), -I2),
    ("half power in an array", lambda x: qb.power(qb.sum(x * x), A(0.5)) ** 2, 2.0 * I2),
    ("half powers", lambda x: qb.sum(qb.power(qb.sum(x * x), A([0.5, 0.5, 0.5])) ** 2), 6.0 * I2),
    # bounds that are none, since a root is not negative
    ("relu", lambda x: qb.relu(N(x)) ** 2, 2.0 * I2),
    ("relu of a product", lambda x: qb.relu(qb.tanh(2.0 * N(x))) ** 2, 8.0 * I2),
    ("kernel of relu", lambda x: exp_of(qb.relu(N(x))), -I2),
    ("relu times root", lambda x: qb.relu(N(x)) * N(x), 2.0 * I2),
    ("abs of a square", lambda x: qb.abs(qb.sum(x * x)), 2.0 * I2),
    ("maximum", lambda x: qb.maximum(N(x), 0.0) ** 2, 2.0 * I2),
    ("maximum from the left", lambda x: qb.maximum(A(0.0), qb.hypot(x[0], x[1])) ** 2, 2.0 * I2),
    ("maximum of rows", lambda x: qb.sum(qb.maximum(N(qb.stack([x, 2.0 * x]), axis=1), A([0.0, -1.0])) ** 2),
     10.0 * I2),
    ("clip", lambda x: qb.clip(N(x), 0.0, 10.0) ** 2, 2.0 * I2),
    ("relu in lanes", lambda x: qb.sum(qb.vmap(lambda v: qb.relu(N(v)) ** 2)(qb.stack([x, x]))), 4.0 * I2),
    ("relu in a loop", lambda x: qb.fori_loop(0, 2, lambda i, c: c + qb.relu(N(x)) ** 2, 0.0), 4.0 * I2),
]  # fmt: skip


@pytest.mark.parametrize(("f", "expected"), [k[1:] for k in KNOWN], ids=[k[0] for k in KNOWN])
def test_what_is_known(f: F, expected: np.ndarray) -> None:
    assert not np.asarray(qb.grad(f)(A(ORIGIN))).any()
    for h in hessians(f, ORIGIN):
        np.testing.assert_allclose(h, expected, rtol=1e-13, atol=1e-14)


UNKNOWN: list[tuple[str, F]] = [
    ("square of a branch", lambda x: qb.cond(x[0] < 1.0, N, lambda x: x[0], x) ** 2),
    ("square of a loop", lambda x: qb.fori_loop(0, 1, lambda i, c: N(x), 0.0) ** 2),
    ("square of a sum of many", lambda x: qb.sum(qb.scan(lambda c, _: (c, N(x)), 0.0, length=2)[1]) ** 2),
    ("kernel of a scan", lambda x: exp_of(once(N)(x))),
    ("kernel of nested regions", lambda x: exp_of(
        qb.checkpoint(lambda x: qb.fori_loop(0, 1, lambda i, c: N(x), 0.0))(x))),
    ("product of two", lambda x: N(x) * N(2.0 * x)),
    ("product with one in a region", lambda x: N(x) * once(N)(2.0 * x)),
    ("product within a region", lambda x: (lambda r: once(lambda x: r * N(x))(x))(N(2.0 * x))),
    ("product within a checkpoint", lambda x: qb.checkpoint(lambda x, r: r * N(x))(x, N(2.0 * x))),
    ("square of a sum of two", lambda x: (N(x) + N(2.0 * x)) ** 2),
    ("square of a sum of rows", lambda x: qb.sum(N(qb.stack([x, 2.0 * x]), axis=1)) ** 2),
    ("variance of norms", lambda x: qb.var(N(qb.stack([x, 2.0 * x, 4.0 * x]), axis=1))),
]  # fmt: skip


@pytest.mark.parametrize("f", [u[1] for u in UNKNOWN], ids=[u[0] for u in UNKNOWN])
def test_what_is_not_known_is_nan(f: F) -> None:
    assert not np.asarray(qb.grad(f)(A(ORIGIN))).any()
    for h in hessians(f, ORIGIN):
        assert np.isnan(np.diag(h)).all()
    # Away from 0 nothing is in doubt.
    x = np.array([0.3, -0.4])
    step = 1e-5
    ahead, behind = (np.stack([np.asarray(qb.grad(f)(A(x + s * step * t))) for t in I2]) for s in (1.0, -1.0))
    for h in hessians(f, x):
        np.testing.assert_allclose(h, (ahead - behind) / (2.0 * step), rtol=1e-6, atol=1e-7)


def test_a_square_far_from_its_root() -> None:
    """Reverse mode does not look that far; forward mode does."""
    for h in hessians(lambda x: far_away(N(x)) ** 2, ORIGIN):
        assert np.isnan(np.diag(h)).all() or np.array_equal(h, 2.0 * I2)


def test_the_gradient_beside_an_unknown_second_derivative_stays_what_it_is() -> None:
    value, tangent = qb.jvp(qb.grad(lambda x: once(N)(x) ** 2), (A(ORIGIN),), (A([1.0, 0.0]),))
    assert value.tolist() == [0.0, 0.0] and np.isnan(np.asarray(tangent)).all()
    by_x = qb.value_and_grad(lambda x: qb.sum(qb.grad(lambda x: once(N)(x) ** 2)(x)))
    value, gradient = by_x(A(ORIGIN))
    assert value.item() == 0.0 and np.isnan(np.asarray(gradient)).all()


def test_absolute_values_are_not_known_where_they_move_only() -> None:
    f = lambda x: qb.sum(once(qb.abs)(x) ** 2)
    for h in hessians(f, np.array([0.0, 3.0])):
        np.testing.assert_array_equal(h, [[NAN, 0.0], [0.0, 2.0]])
    inside = once(lambda x: qb.sum(exp_of(qb.abs(x))))
    for h in hessians(inside, ORIGIN):
        np.testing.assert_allclose(h, -I2, rtol=1e-14)


# --- branches that are not taken --------------------------------------------------------------------------------------


def lanes(inner: F, outer: F) -> F:
    """One lane takes `inner` on x, the other another branch; both start from x."""
    one = lambda p, b: qb.cond(p, inner, lambda b: b[0] * b[0], b)
    return lambda x: qb.sum(outer(qb.vmap(one)(A([True, False]), qb.stack([x, x]))))


NOT_TAKEN: list[tuple[str, F, np.ndarray]] = [
    ("kink in a lane", lanes(N, lambda r: r), np.diag([2.0, 0.0])),
    ("kernel in a lane", lanes(lambda b: exp_of(N(b)), lambda r: r), np.diag([1.0, -1.0])),
    ("lane behind a mask", lanes(N, lambda r: qb.where(A([False, True]), r**2, 0.0)), 0.0 * I2),
    ("shared operand", lambda x: qb.sum(qb.vmap(lambda p, b: qb.cond(p, lambda b: N(x - b), lambda b: b[0], b))(
        A([True, False, False]), A([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))), 0.0 * I2),
    ("mask", lambda x: qb.where(x[0] > 0.0, N(x) * N(2.0 * x), 3.0 * x[1] ** 2), np.diag([0.0, 6.0])),
    ("mask over a branch", lambda x: qb.where(
        x[0] > 0.0, qb.cond(x[1] < 1.0, N, lambda x: x[0], x) ** 2, 3.0 * x[1] ** 2), np.diag([0.0, 6.0])),
    ("branch", lambda x: qb.cond(x[0] > 0.0, lambda x: N(x) * N(2.0 * x), lambda x: x[1] ** 2, x), np.diag([0.0, 2.0])),
    ("lanes of other lengths", lambda x: qb.sum(qb.vmap(lambda n: qb.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1.0, c[1] + N(x)), (0.0, 0.0), max_steps=4)[1])(A([0.0, 1.0, 3.0]))),
     0.0 * I2),
]  # fmt: skip


@pytest.mark.parametrize(("f", "expected"), [n[1:] for n in NOT_TAKEN], ids=[n[0] for n in NOT_TAKEN])
def test_no_nan_comes_from_a_branch_that_is_not_taken(f: F, expected: np.ndarray) -> None:
    for h in hessians(f, ORIGIN):
        np.testing.assert_allclose(h, expected, rtol=1e-13, atol=1e-14)


def test_padding_that_does_not_count() -> None:
    """Pairs of equal points behind a mask, as in lists of neighbours that are filled up."""
    x = np.array([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])
    real = A([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    def energy(p: Any) -> Any:
        r = N(p[:, None, :] - p[None, :, :], axis=-1)
        return qb.sum(real * qb.exp(-r)) + qb.sum(qb.where(real > 0.0, r * r, 0.0)) ** 2

    two = lambda p: (lambda r: 2.0 * qb.exp(-r) + 4.0 * r**4)(N(p[0] - p[1]))
    got, expected = np.asarray(qb.hessian(energy)(A(x))), np.asarray(qb.hessian(two)(A(x)))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


# --- what forward mode alone says -------------------------------------------------------------------------------------


def test_a_tangent_of_a_tangent_at_zero() -> None:
    """By convention a kink stands still; what is smooth moves, be it computed without the root or with it."""
    x, t, u = A(ORIGIN), A([1.0, 2.0]), A([3.0, -0.5])
    twice = lambda f: qb.jvp(lambda v: qb.jvp(f, (v,), (t,))[1], (x,), (u,))[1].item()
    assert twice(N) == 0.0 and twice(lambda v: exp_of(N(v))) == -2.0
    assert twice(lambda v: N(v) ** 2) == twice(lambda v: N(v) * N(v)) == 4.0
    assert twice(lambda v: qb.cosh(N(v)) - N(v)) == 2.0


def test_jacobians_of_jacobians_of_more_results_than_arguments() -> None:
    """These are taken forwards, both times."""
    f = lambda x: qb.stack([qb.cosh(N(x)), N(x), exp_of(N(x)), qb.checkpoint(N)(x) ** 2, once(N)(x) ** 2])
    for through in (lambda g: g, qb.jit):
        got = np.asarray(through(qb.jacobian(qb.jacobian(f)))(A(ORIGIN)))
        expected = np.stack([I2, 0.0 * I2, -I2, 2.0 * I2, np.where(I2 > 0, NAN, 0.0)])
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_elements_that_vanish_among_others() -> None:
    """Each element of an array by itself, with one at 0, in float32, too."""
    x = np.array([0.0, 0.5, -2.0, 0.0])
    for dtype, rtol in ((qb.float64, 1e-14), (qb.float32, 1e-6)):
        v, one = A(x, dtype), A(np.ones(4), dtype)
        twice = lambda f, v=v, one=one: qb.jvp(lambda a: qb.jvp(f, (a,), (one,))[1], (v,), (one,))[1]
        got = twice(lambda a: qb.cosh(qb.abs(a)))
        assert got.dtype is dtype
        np.testing.assert_allclose(np.asarray(got), np.cosh(x), rtol=rtol)
        total = twice(lambda a: qb.sum(qb.log(qb.cosh(qb.abs(a)))))
        np.testing.assert_allclose(np.asarray(total), np.sum(np.cosh(x) ** -2.0), rtol=rtol)


def test_a_carry_that_meets_its_own_root_is_not_known() -> None:
    """The root is taken in one step of a loop and squared in the next."""
    f = lambda x: qb.fori_loop(0, 2, lambda i, c: qb.where(qb.equal(c, 7.0), N(x), c**2), 7.0)
    g = lambda x: qb.while_loop(lambda c: c[0] < 2.0, lambda c: (c[0] + 1.0, c[1] ** 2 + N(x)), (0.0, 0.0))[1]
    x, t = A(ORIGIN), A([1.0, 2.0])
    for h in (f, g):
        assert math.isnan(qb.jvp(lambda v, h=h: qb.jvp(h, (v,), (t,))[1], (x,), (t,))[1].item())


# --- cost -------------------------------------------------------------------------------------------------------------


def nodes(f: F) -> int:
    second = lambda x: [qb.jvp(qb.grad(f), (x,), (x,))[1]]
    return len(trace(second, [qb.ShapeDtype((4, 3))])[0].nodes)


def test_forward_mode_adds_nothing_without_a_root() -> None:
    """Nor to a first derivative with one: a mark costs what the product of tangent and slope does."""
    twice = lambda f: lambda x: [qb.jvp(lambda v: qb.jvp(f, (v,), (v,))[1], (x,), (x,))[1]]
    once_only = lambda f: lambda x: [qb.jvp(f, (x,), (x,))[1]]
    ops = lambda f: {node.op.name for node in trace(f, [qb.ShapeDtype((4, 3))])[0].nodes}
    assert not {"bend", "equal", "not_equal"} & ops(twice(lambda x: qb.sum(qb.exp(x) * qb.tanh(x))))
    assert not {"bend", "not_equal", "logical_or"} & ops(once_only(lambda x: qb.sum(exp_of(N(x, axis=1)))))
    first = trace(once_only(lambda x: qb.sum(qb.sqrt(x))), [qb.ShapeDtype((4, 3))])[0]
    assert [node.op.name for node in first.nodes].count("sqrt_tangent") == 1


def test_nothing_is_added_where_nothing_is_in_doubt() -> None:
    """A kernel of distances takes as many nodes as before, and a gradient knows nothing of all this."""
    f = lambda x: qb.sum(exp_of(N(x, axis=1)))
    assert nodes(f) <= 80
    gradient = trace(lambda x: [qb.grad(f)(x)], [qb.ShapeDtype((4, 3))])[0]
    assert not {"not_equal", "logical_or"} & {node.op.name for node in gradient.nodes}


def test_two_traces_give_one_program() -> None:
    f = lambda x: (N(x) + N(2.0 * x)) ** 2 * once(N)(x)
    shown = [str(trace(lambda x: [qb.hessian(f)(x)], [qb.ShapeDtype((2,))])[0]) for _ in range(3)]
    assert shown[0] == shown[1] == shown[2]


# --- NaN in, NaN out --------------------------------------------------------------------------------------------------

MISSING: list[tuple[str, F, list[float], list[float]]] = [
    ("max", qb.max, [1.0, NAN], [NAN, NAN]),
    ("min", qb.min, [NAN, 1.0], [NAN, NAN]),
    ("max along an axis", lambda x: qb.max(qb.reshape(x, (2, 2)), axis=1), [1.0, NAN, 2.0, 3.0], [NAN, NAN, 0.0, 1.0]),
    ("max of infinities", qb.max, [INF, INF, 1.0], [0.5, 0.5, 0.0]),
    ("min of infinities", qb.min, [INF, -INF, 1.0], [0.0, 1.0, 0.0]),
    ("relu", qb.relu, [NAN, 1.0, -1.0, 0.0, INF, -INF], [NAN, 1.0, 0.0, 0.0, 1.0, 0.0]),
    ("maximum", lambda x: qb.maximum(x, 1.0), [NAN, 1.0, 2.0, 0.0, INF, -INF], [NAN, 0.5, 1.0, 0.0, 1.0, 0.0]),
    ("minimum", lambda x: qb.minimum(1.0, x), [NAN, 1.0, 2.0, 0.0, INF, -INF], [NAN, 0.5, 0.0, 1.0, 0.0, 1.0]),
    ("maximum with NaN", lambda x: qb.maximum(x, NAN), [1.0, INF], [NAN, NAN]),
    ("clip", lambda x: qb.clip(x, 0.0, 1.0), [NAN, 0.5, 2.0], [NAN, 1.0, 0.0]),
    ("exponent", lambda y: qb.power(A([2.0, 0.0, -1.0, NAN, -1.0]), y), [NAN, NAN, NAN, 1.0, 2.0], [NAN] * 4 + [0.0]),
    ("base", lambda x: qb.power(x, 1.5), [NAN, 4.0], [NAN, 3.0]),
    ("abs", qb.abs, [NAN, -2.0, 0.0], [NAN, -1.0, 0.0]),
    ("sqrt", qb.sqrt, [NAN, 4.0, 0.0], [NAN, 0.25, 0.0]),
    ("behind a mask", lambda x: qb.where(qb.isnan(x), 0.0, qb.relu(qb.maximum(x, 0.5))),
     [NAN, 1.0, 0.0], [0.0, 1.0, 0.0]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32], ids=str)
@pytest.mark.parametrize(("f", "at", "expected"), [m[1:] for m in MISSING], ids=[m[0] for m in MISSING])
def test_nan_has_the_derivative_nan_in_both_modes(
    f: F, at: list[float], expected: list[float], dtype: Any
) -> None:
    x = A(at, dtype=dtype)
    if x.shape == (5,) and dtype is qb.float32:  # the exponents of bases in float64
        pytest.skip("one dtype is enough where the other operand has its own")
    total = lambda v: qb.sum(f(v))
    for back in (qb.grad(total), qb.jit(qb.grad(total))):
        got = back(x)
        assert got.dtype is dtype
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)
    ahead = [qb.jvp(f, (x,), (A(t, dtype=dtype),))[1] for t in np.eye(x.size)]
    if f(x).shape in ((), x.shape):  # else a direction meets a NaN that is not its own
        by_columns = np.stack([np.asarray(t) for t in ahead], axis=-1)
        own = np.diag(by_columns) if by_columns.ndim == 2 else by_columns
        np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_a_nan_cotangent_passes_a_root_of_zero() -> None:
    for f in (N, lambda x: qb.sqrt(qb.sum(x * x)), lambda x: qb.sum(qb.abs(x))):
        for through in (lambda g: g, qb.jit):
            got = through(qb.grad(lambda x, f=f: NAN * f(x)))(A(ORIGIN))
            assert np.isnan(np.asarray(got)).all()


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32])
@pytest.mark.parametrize("power", range(-300, 200, 10))
def test_a_squared_norm_has_its_derivatives_wherever_the_point_is(dtype: Any, power: int) -> None:
    size = 10.0 ** (
        power if dtype is qb.float64 else power / 10
    )  # the square overflows or underflows at either end
    v = A([[3.0 * size, -4.0 * size]], dtype)
    forms: list[F] = [
        lambda v: N(v) ** 2,
        lambda v: N(v) * N(v),
        lambda v: qb.square(N(v)),
        lambda v: qb.sum(N(v, axis=1) ** 2),
        lambda v: qb.sum(N(v, axis=1, keepdims=True) ** 2),
    ]
    for f in forms:
        hessian = np.asarray(qb.hessian(f)(v)).reshape(2, 2)
        assert np.array_equal(hessian, 2.0 * I2), (power, hessian)
        assert np.array_equal(np.asarray(qb.grad(f)(v)), 2.0 * np.asarray(v))
        tangent = qb.jvp(lambda a, f=f: qb.jvp(f, (a,), (qb.ones_like(a),))[1], (v,), (qb.ones_like(v),))[1]
        assert tangent.item() == 4.0


SQUARES: dict[str, Any] = {
    "norm": lambda v: qb.norm(v) ** 2,
    "hypot": lambda v: qb.hypot(v[0], v[1]) ** 2,
    "root": lambda v: qb.sqrt(v[0] ** 2 + v[1] ** 2) ** 2,
    "abs": lambda v: qb.sum(qb.abs(v) ** 2),
}


@pytest.mark.parametrize("at", [[0.0, 0.0], [1.0, -2.0]])
@pytest.mark.parametrize("name", SQUARES)
def test_squares_have_their_second_derivative_in_every_order_of_modes(name: str, at: list[float]) -> None:
    f, v, e = SQUARES[name], qb.array(at), np.eye(2)

    def along(g: Any, t: np.ndarray) -> Any:
        return lambda x: qb.jvp(g, (x,), (qb.array(t),))[1]

    orders = {
        "forward over forward": [[along(along(f, s), t)(v).item() for s in e] for t in e],
        "reverse over forward": [qb.grad(along(f, s))(v).tolist() for s in e],
        "forward over reverse": [along(qb.grad(f), t)(v).tolist() for t in e],
        "reverse over reverse": qb.jacobian(qb.grad(f))(v).tolist(),
    }
    for order, found in orders.items():
        np.testing.assert_allclose(found, 2.0 * e, atol=1e-12, err_msg=order)
