"""Derivatives where there is none, or more than one: each is a promise, kept in forward and reverse mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

F = Callable[..., Any]

FIRST: list[tuple[str, F, float, float]] = [
    ("abs at 0", qb.abs, 0.0, 0.0),
    ("sign", qb.sign, 2.0, 0.0),
    ("relu at 0", qb.relu, 0.0, 0.0),
    ("sqrt at 0", qb.sqrt, 0.0, 0.0),
    ("maximum at a tie", lambda x: qb.maximum(x, 1.0), 1.0, 0.5),
    ("minimum at a tie", lambda x: qb.minimum(x, 1.0), 1.0, 0.5),
    ("x**0.5 at 0 like sqrt", lambda x: x**0.5, 0.0, 0.0),
    ("x**1.0 at 0", lambda x: x**1.0, 0.0, 1.0),
    ("x**2.0 at 0", lambda x: x**2.0, 0.0, 0.0),
    ("x**0 at 0", lambda x: x**0, 0.0, 0.0),
    ("x**0.0 at 0", lambda x: x**0.0, 0.0, 0.0),
    ("x**-1.0 at 2", lambda x: x**-1.0, 2.0, -0.25),
    ("0**x", lambda x: qb.power(0.0, x), 2.0, 0.0),
    ("negative base, in the exponent", lambda x: qb.power(-2.0, x), 2.0, 0.0),
    ("norm at 0", lambda x: qb.norm(qb.stack([x, 0.0 * x])), 0.0, 0.0),
    ("stop_gradient", lambda x: x * qb.stop_gradient(x), 3.0, 3.0),
    (
        "where hides what is infinite",
        lambda x: qb.where(x > 0.0, qb.sqrt(qb.where(x > 0.0, x, 1.0)), 0.0),
        0.0,
        0.0,
    ),
    ("softplus far out", qb.softplus, 1000.0, 1.0),
    ("sigmoid far out", qb.sigmoid, -1000.0, 0.0),
]


@pytest.mark.parametrize(("fun", "at", "expected"), [c[1:] for c in FIRST], ids=[c[0] for c in FIRST])
def test_first_derivatives(fun: F, at: float, expected: float) -> None:
    x = qb.array(at)
    assert qb.grad(fun)(x).item() == expected
    assert qb.jvp(fun, (x,), (qb.array(1.0),))[1].item() == expected


SECOND: list[tuple[str, F, float, float]] = [
    ("x**2.0 at 0", lambda x: x**2.0, 0.0, 2.0),
    ("x**2 at 0", lambda x: x**2, 0.0, 2.0),
    ("x**3.0 at 0", lambda x: x**3.0, 0.0, 0.0),
    ("x**0.5 at 0 stays finite", lambda x: x**0.5, 0.0, 0.0),
    ("sqrt at 0 stays finite", qb.sqrt, 0.0, 0.0),
    ("abs at 0", qb.abs, 0.0, 0.0),
    ("norm of one number", lambda x: qb.norm(qb.stack([x, x])), 3.0, 0.0),
]


@pytest.mark.parametrize(("fun", "at", "expected"), [c[1:] for c in SECOND], ids=[c[0] for c in SECOND])
def test_second_derivatives(fun: F, at: float, expected: float) -> None:
    x = qb.array(at)
    assert qb.grad(qb.grad(fun))(x).item() == pytest.approx(expected, abs=1e-15)
    assert qb.jvp(qb.grad(fun), (x,), (qb.array(1.0),))[1].item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("fun", [qb.max, qb.min], ids=["max", "min"])
def test_ties_share_evenly(fun: F) -> None:
    x = qb.array([[2.0, 2.0, 2.0], [1.0, 5.0, 3.0]])
    got = qb.grad(lambda a: qb.sum(fun(a, axis=1)))(x).tolist()
    assert got[0] == [1.0 / 3.0] * 3
    assert sorted(got[1]) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("factor", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_the_gradient_of_a_norm_is_a_unit_vector_at_all_magnitudes(factor: float) -> None:
    x = np.array([3.0, -4.0, 12.0])
    np.testing.assert_allclose(qb.grad(qb.norm)(qb.array(x * factor)).numpy(), x / 13.0, rtol=1e-14)


def test_the_hessian_of_a_norm() -> None:
    x = np.array([3.0, -4.0, 12.0])
    u = x / 13.0
    np.testing.assert_allclose(
        qb.hessian(qb.norm)(qb.array(x)).numpy(), (np.eye(3) - np.outer(u, u)) / 13.0, rtol=1e-12, atol=1e-16
    )


def test_special_values_follow_numpy() -> None:
    assert math.isnan(qb.max(qb.array([math.nan, 1.0])).item())
    assert math.isnan(qb.maximum(qb.array(math.nan), 1.0).item())
    assert qb.power(qb.array(0.0), 0.0).item() == 1.0
    assert math.isnan(qb.power(qb.array(-8.0), 1.0 / 3.0).item())
    assert qb.norm(qb.array([math.inf, 1.0])).item() == math.inf
