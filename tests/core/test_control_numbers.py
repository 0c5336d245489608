"""Numbers in branches and carries: concrete arrays and a trace make the same of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

F32 = qb.float32

# Each is a function of one array, which decides nothing: with a traced one the region is an operation, with a concrete
# one it is Python.
REGIONS: dict[str, Callable[[Any], Any]] = {
    "branch_number": lambda x: qb.cond(x > 0.0, lambda: 1, lambda: 2),
    "branch_operand": lambda x: qb.cond(x > 0.0, lambda a: a, lambda a: a, 3.0),
    "branch_tree": lambda x: qb.cond(x > 0.0, lambda: {"a": 1.0, "b": (True, x)}, lambda: {"a": 2.0, "b": (False, x)}),
    "branch_numpy": lambda x: qb.cond(x > 0.0, lambda: np.arange(3), lambda: np.zeros(3)),
    "loop_untouched": lambda x: qb.fori_loop(0, 3, lambda i, c: (c[0] + x, c[1]), (x, 1))[1],
    "loop_number": lambda x: qb.fori_loop(0, 3, lambda i, c: (c[0] + x, 5), (x, 1))[1],
    "loop_adopts": lambda x: qb.fori_loop(0, 3, lambda i, c: c * x, 2),
    "loop_keeps": lambda x: qb.fori_loop(0, 2, lambda i, c: (1.0, c[0]), (x, x)),
    "loop_of_none": lambda x: qb.fori_loop(0, 0, lambda i, c: c + x, 2),
    "loop_numpy": lambda x: qb.fori_loop(0, 2, lambda i, c: (c[0] + 1, c[1] * x), (np.arange(2.0), x))[0],
    "scan_untouched": lambda x: qb.scan(lambda c, i: (c, c[1] * x), (0, 2.0), length=2),
    "scan_number": lambda x: qb.scan(lambda c, i: ((c[0] * x, 4), 1), (x, 1.0), length=2),
    "scan_unrolled": lambda x: qb.scan(lambda c, i: (c + i, x), 0, length=3, unroll=True),
    "while_untouched": lambda x: qb.while_loop(lambda c: c[0] < 9.0, lambda c: (c[0] + x, c[1]), (x, 7))[1],
    "while_of_none": lambda x: qb.while_loop(lambda c: c[0] < 0.0, lambda c: c, (x, 7), max_steps=3),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [qb.float64, F32])
@pytest.mark.parametrize("name", REGIONS)
def test_concrete_and_traced_agree(name: str, dtype: Any) -> None:
    f, x = REGIONS[name], qb.array(2.5, dtype)
    (now, structure), (later, other) = (qb.tree.flatten(g(x)) for g in (f, qb.jit(f)))
    assert structure == other
    for a, b in zip(now, later, strict=True):
        assert type(a) is type(b) is qb.Tensor and a.dtype is b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_values_of_numbers() -> None:
    assert qb.fori_loop(0, 4, lambda i, c: c * 2, 1).item() == 16.0
    assert qb.while_loop(lambda c: c < 10, lambda c: c * 2, 1).item() == 16.0
    carry, ys = qb.scan(lambda c, i: (c + 1, c), 0, length=3)
    assert carry.item() == 3.0 and ys.tolist() == [0.0, 1.0, 2.0]
    assert qb.cond(True, lambda: (1, "label", None), lambda: 2)[1:] == ("label", None)


def test_a_known_predicate_calls_one_branch() -> None:
    def refuse() -> Any:
        raise AssertionError("the other branch was called")

    x = qb.array(2.0)
    assert qb.cond(x > 0.0, lambda: x, refuse).item() == qb.cond(False, refuse, lambda: x).item() == 2.0
    assert qb.jit(lambda z: qb.cond(x > 0.0, lambda: z, refuse))(x).item() == 2.0
    factorial = lambda n: qb.cond(n < 1.5, lambda: 1.0, lambda: n * factorial(n - 1.0))
    assert factorial(qb.array(5.0)).item() == 120.0


@pytest.mark.parametrize("number", [1, 1.5])
def test_a_number_of_a_branch_adopts_the_dtype_that_it_meets(number: Any) -> None:
    x = qb.array([2.0, 3.0], F32)
    f = lambda x: qb.cond(x[0] > 0.0, lambda: number, lambda: x[0])
    assert f(x).dtype is qb.float64 and qb.jit(f)(x).dtype is F32
    for g in (lambda x: f(x) * x, lambda x: x + f(x)):
        assert g(x).dtype is qb.jit(g)(x).dtype is F32
        np.testing.assert_array_equal(g(x).numpy(), qb.jit(g)(x).numpy())


STRUCTURES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "more": (lambda c: c, lambda c: (c, c)),
    "fewer": (lambda c: (c, c), lambda c: c),
    "nothing": (lambda c: c, lambda c: None),
    "something": (lambda c: None, lambda c: c),
    "other_keys": (lambda c: {"a": c}, lambda c: {"b": c}),
    "other_kind": (lambda c: (c, c), lambda c: [c, c]),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("name", STRUCTURES)
def test_steps_of_a_scan_return_one_structure(name: str, unroll: bool, reverse: bool) -> None:
    def loop(init: Any) -> Any:
        steps = iter(STRUCTURES[name])
        return qb.scan(lambda c, i: (c, next(steps)(c)), init, length=2, unroll=unroll, reverse=reverse)

    with pytest.raises(qb.ShapeError, match=r"scan: .* must return results of one structure"):
        loop(1.0)
    if unroll:
        with pytest.raises(qb.ShapeError, match=r"scan: .* must return results of one structure"):
            qb.jit(loop)(1.0 * qb.ones(2))
