"""Bounds that bound nothing are left out of a program, and only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace

A = qb.array
SPECIAL = np.array([-np.inf, -2.0, -0.0, 0.0, 5e-324, 0.5, np.inf, np.nan])
F = Callable[[Any], Any]

NEVER: dict[str, F] = {
    "abs": qb.abs, "sqrt": qb.sqrt, "exp": qb.exp, "square": lambda x: x * x, "even power": lambda x: x**4,
    "sigmoid": qb.sigmoid, "relu": qb.relu, "sum": lambda x: qb.abs(x) + qb.exp(x), "quotient": lambda x: x**2 / 3.0,
    "choice": lambda x: qb.where(x > 1.0, 2.0, qb.abs(x)), "larger": lambda x: qb.maximum(x, qb.abs(x)),
    "smaller": lambda x: qb.minimum(qb.abs(x), 3.0), "norms": lambda x: qb.norm(qb.stack([x, x]), axis=0),
    "repeated": lambda x: qb.broadcast_to(qb.abs(x)[None, :], (2, x.shape[0])), "tanh": lambda x: qb.tanh(x * x),
    "magnitude": lambda x: x * qb.sign(x),
}  # fmt: skip

SOMETIMES: dict[str, F] = {
    "itself": lambda x: x + 0.0, "product": lambda x: x * qb.abs(x), "odd power": lambda x: x**3, "sin": qb.sin,
    "difference": lambda x: qb.abs(x) - 1.0, "choice": lambda x: qb.where(x > 1.0, x, qb.abs(x)), "log": qb.log,
    "negative": lambda x: -qb.abs(x), "smaller": lambda x: qb.minimum(qb.abs(x), x), "sign": qb.sign,
    "negative factor": lambda x: qb.abs(x) * -2.0, "sum": lambda x: qb.cumsum(x), "tanh": qb.tanh,
}  # fmt: skip

BOUNDED: dict[str, F] = {
    "relu": qb.relu, "abs": qb.abs, "maximum": lambda v: qb.maximum(v, 0.0), "array": lambda v: qb.maximum(v, A(0.0)),
    "from the left": lambda v: qb.maximum(-1, v), "clip": lambda v: qb.clip(v, 0.0, None),
}  # fmt: skip


def ops(f: F) -> list[str]:
    return [node.op.name for node in trace(lambda x: [f(x)], [qb.ShapeDtype((8,))])[0].nodes]


@pytest.mark.parametrize("bounded", BOUNDED.values(), ids=BOUNDED)
@pytest.mark.parametrize("f", NEVER.values(), ids=NEVER)
def test_what_cannot_be_negative_needs_no_bound(f: F, bounded: F) -> None:
    assert ops(lambda x: bounded(f(x))) == ops(f)
    same = (qb.jit(lambda x: bounded(f(x)))(A(SPECIAL)), bounded(f(A(SPECIAL))))
    np.testing.assert_allclose(*map(np.asarray, same), rtol=1e-14)


@pytest.mark.parametrize("bounded", BOUNDED.values(), ids=BOUNDED)
@pytest.mark.parametrize("f", SOMETIMES.values(), ids=SOMETIMES)
def test_what_may_be_negative_keeps_its_bound(f: F, bounded: F) -> None:
    assert len(ops(lambda x: bounded(f(x)))) > len(ops(f))
    same = (qb.jit(lambda x: bounded(f(x)))(A(SPECIAL)), bounded(f(A(SPECIAL))))
    np.testing.assert_allclose(*map(np.asarray, same), rtol=1e-14)


@pytest.mark.parametrize(
    "bound",
    [0.5, A(1e-300), A([0.0] * 7 + [1.0]), A(np.zeros((2, 8))), A(np.nan), lambda x: x[0], lambda x: 0.0 * x],
    ids=["number", "array", "one element", "more elements", "nan", "variable", "expression"],
)
def test_other_bounds_stay(bound: Any) -> None:
    of = bound if callable(bound) else lambda x: bound
    f = lambda x: qb.maximum(qb.abs(x), of(x))
    assert "maximum" in ops(f)
    np.testing.assert_array_equal(np.asarray(qb.jit(f)(A(SPECIAL))), np.asarray(f(A(SPECIAL))))


def test_dtypes_are_still_told_apart() -> None:
    f = lambda x: qb.maximum(qb.abs(x), A(0.0, dtype=qb.float32))
    with pytest.raises(qb.DtypeError, match="float32"):
        qb.jit(f)(A([1.0]))


def test_first_derivatives_are_what_they_were() -> None:
    """At 0 each function has its convention, with and without a bound that is none."""
    for f in (qb.abs, lambda x: x * x, lambda x: qb.sqrt(x * x), qb.relu):
        for bounded in BOUNDED.values():
            got = qb.grad(lambda x, b=bounded, f=f: qb.sum(b(f(x))))(A([-2.0, 0.0, 3.0]))
            assert np.array_equal(
                np.asarray(got), np.asarray(qb.grad(lambda x, f=f: qb.sum(f(x)))(A([-2.0, 0.0, 3.0])))
            )


@pytest.mark.parametrize("half", [A(0.5), A([0.5] * 5), np.float64(0.5)], ids=["scalar", "array", "numpy"])
def test_a_half_as_a_constant_exponent_is_a_root(half: Any) -> None:
    x = A([4.0, 0.0, -1.0, -np.inf, np.inf])
    f = lambda x: qb.power(x, half)
    assert "sqrt" in ops(lambda x: f(x[:5])) and "power" not in ops(lambda x: f(x[:5]))
    np.testing.assert_array_equal(np.asarray(qb.jit(f)(x)), [2.0, 0.0, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(np.asarray(f(x)), [2.0, 0.0, np.nan, np.inf, np.inf])


def test_other_exponents_and_shapes_are_powers() -> None:
    assert "power" in ops(lambda x: qb.power(x, A([0.5] * 7 + [0.25])))
    rows = qb.jit(lambda x: qb.power(x, A([0.5, 0.5])))(A([[4.0], [9.0]]))
    assert rows.tolist() == [[2.0, 2.0], [3.0, 3.0]]
