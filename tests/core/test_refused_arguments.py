"""What does not fit beside an array: a typed error that begins with the function that the user called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

X = qb.array(np.arange(1.0, 7.0).reshape(2, 3))
V = qb.array([1.0, 2.0, 3.0])
NARROW = X.astype(qb.float32)
WIDE_POSITIONS = qb.array([1, 2], dtype=qb.int64)
SQUARE = qb.array([[2.0, 1.0], [1.0, 3.0]])
HUGE = 10**30

# (name in the message, class, call of one array)
REFUSED: list[tuple[str, type[Exception], Callable[[Any], Any]]] = [
    ("clip", qb.DtypeError, lambda x: qb.clip(x, NARROW, None)),
    ("clip", qb.DtypeError, lambda x: qb.clip(x, None, NARROW)),
    ("clip", qb.DtypeError, lambda x: x.clip("a")),
    ("clip", qb.ShapeError, lambda x: qb.clip(x, 0.0, qb.ones(2))),
    ("clip", qb.ShapeError, lambda x: qb.clip(x, qb.ones(2), qb.ones(5))),
    ("diff", qb.DtypeError, lambda x: qb.diff(x, prepend=NARROW)),
    ("diff", qb.ShapeError, lambda x: qb.diff(x, append=V)),
    ("full", qb.ShapeError, lambda x: qb.full((2, 2), x)),
    ("full", qb.ShapeError, lambda x: qb.full(3, x)),
    ("full_like", qb.ShapeError, lambda x: qb.full_like(V, x)),
    ("interp", qb.DtypeError, lambda x: qb.interp(2, WIDE_POSITIONS, WIDE_POSITIONS)),
    ("nan_to_num", qb.DtypeError, lambda x: qb.nan_to_num(x, nan=NARROW)),
    ("nan_to_num", qb.ShapeError, lambda x: qb.nan_to_num(x, posinf=qb.ones(2))),
    ("nansum", qb.ShapeError, lambda x: qb.nansum(x, axis=5)),
    ("nanmean", qb.ShapeError, lambda x: qb.nanmean(x, axis=(0, 0))),
    ("trapezoid", qb.DtypeError, lambda x: qb.trapezoid(x, NARROW)),
    ("trapezoid", qb.DtypeError, lambda x: qb.trapezoid(x, dx=NARROW)),
    ("trapezoid", qb.ShapeError, lambda x: qb.trapezoid(x, dx=qb.ones(5))),
    ("tensordot", qb.ShapeError, lambda x: qb.tensordot(x, x, axes=1.5)),
    ("tensordot", qb.ShapeError, lambda x: qb.tensordot(x, x, axes=None)),
    ("cho_solve", qb.ShapeError, lambda x: qb.linalg.cho_solve(x, x)),
    ("cho_solve", qb.DtypeError, lambda x: qb.linalg.cho_solve(SQUARE, NARROW)),
    ("cho_solve", qb.ShapeError, lambda x: qb.linalg.cho_solve(SQUARE, V)),
    ("pad", qb.ShapeError, lambda x: qb.pad(x, HUGE)),
    ("pad", qb.ShapeError, lambda x: qb.pad(x, 2**31)),
    ("pad", qb.ShapeError, lambda x: qb.pad(x, ((0, HUGE), (0, 0)), mode="edge")),
    ("diag", qb.ShapeError, lambda x: qb.diag(x[0], HUGE)),
    ("linspace", qb.ShapeError, lambda x: qb.linspace(0.0, 1.0, HUGE)),
    ("arange", qb.DtypeError, lambda x: qb.arange(memoryview(b"12"))),
    ("scan", qb.DtypeError, lambda x: qb.scan(lambda c, v: (c, v), 0.0, x, operands=1)),
    ("scan", qb.DtypeError, lambda x: qb.scan(lambda c, v: (c, v), 0.0, x, operands=x)),
    ("fori_loop", qb.DtypeError, lambda x: qb.fori_loop(0, 3, lambda i, c: c, x, operands=x)),
    ("while_loop", qb.DtypeError, lambda x: qb.while_loop(lambda c: c < 1.0, lambda c: c + x, 0.0, operands=1.0)),
    ("checkpoint", qb.DtypeError, lambda x: qb.checkpoint(qb.sin, static_argnums=None)),
    ("checkpoint", qb.DtypeError, lambda x: qb.checkpoint(qb.sin, static_argnums=(0.5,))),
    ("checkpoint", qb.DtypeError, lambda x: qb.checkpoint(qb.sin, static_argnums=V)),
    ("hessian", qb.DtypeError, lambda x: qb.hessian(x)),
    ("vjp", qb.DtypeError, lambda x: qb.vjp(qb.sin, "a")),
    ("jvp", qb.DtypeError, lambda x: qb.jvp(qb.sin, ("a",), ("a",))),
    ("grad", qb.DtypeError, lambda x: qb.grad(x)),
    ("jacobian", qb.DtypeError, lambda x: qb.jacobian(x)),
    ("vmap", qb.DtypeError, lambda x: qb.vmap(x)),
    ("jit", qb.DtypeError, lambda x: qb.jit(x)),
]  # fmt: skip


@pytest.mark.parametrize("way", ["eager", "traced"])
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_the_function_that_was_called_is_named(case: Any, way: str) -> None:
    name, error, call = case
    with pytest.raises(error, match=rf"^{name}\b") as caught:
        if way == "eager":
            call(X)
        else:
            qb.jit(lambda x: [call(x), x][1])(X)
    assert isinstance(caught.value, qb.QuablaError)


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "maximum", "less", "equal", "div", "floor_divide", "power"]
)
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, HUGE])
def test_integers_beyond_int64_beside_positions(name: str, number: int) -> None:
    f = getattr(qb, name)
    for call in (lambda i: f(i, number), lambda i: f(number, i), lambda i: qb.where(i > 1, i, number)):
        with pytest.raises(qb.DtypeError, match=r"beyond the range of int64|floating operand"):
            call(WIDE_POSITIONS)
        with pytest.raises(qb.DtypeError, match=r"beyond the range of int64|floating operand"):
            qb.jit(call)(WIDE_POSITIONS)


def test_integers_within_int64_beside_positions() -> None:
    assert (WIDE_POSITIONS - 2**62).tolist() == [1 - 2**62, 2 - 2**62]
    assert (WIDE_POSITIONS < 2**63 - 1).tolist() == [True, True]


def test_static_positions_of_a_checkpoint_may_be_any_collection_of_ints() -> None:
    for positions in (1, (1,), [1], {1}, frozenset({1}), range(1, 2)):
        f = qb.checkpoint(lambda x, n: x**n, static_argnums=positions)
        assert qb.grad(f)(3.0, 2).item() == 6.0


@pytest.mark.parametrize("k", [-HUGE, -3, -2, 0, 2, 3, 4, HUGE])
def test_triangles_beyond_the_corners(k: int) -> None:
    for name in ("tril", "triu"):
        expected = getattr(np, name)(X.numpy(), int(np.clip(k, -9, 9)))
        np.testing.assert_array_equal(getattr(qb, name)(X, k).numpy(), expected)
