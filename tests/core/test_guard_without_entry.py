"""Guards of devices without native code: a later call goes straight to the executable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.transforms import dispatch

X, Y = qb.array([1.0, 2.0]), qb.array([[3.0]])

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one": (lambda x: x * 2.0, (X,)),
    "pair": (lambda x, y: (x + y, y), (X, Y)),
    "nested": (lambda p, x: {"out": [p["w"] * x, None], "n": (x, x)}, ({"w": Y, "b": [X]}, X)),
    "static": (lambda x, n: x * n, (X, 3)),
    "nothing": (lambda x: (), (X,)),
    "number": (lambda x: (x, 2.0), (X,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_later_call_takes_nothing_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fun, args = FUNCTIONS[name]
    f = qb.jit(fun, device="reference")
    first = f(*args)

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the call was taken apart")

    monkeypatch.setattr(dispatch, "take_apart", never)
    again = f(*args)
    assert qb.tree.flatten(first)[1] == qb.tree.flatten(again)[1]
    for a, b in zip(qb.tree.flatten(first)[0], qb.tree.flatten(again)[0], strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_other_arguments_find_the_long_way() -> None:
    f = qb.jit(lambda x: qb.sum(x), device="reference")
    assert f(X).item() == 3.0
    assert f(Y).item() == 3.0 and f(x=X).item() == 3.0 and f(X).item() == 3.0


def test_a_guard_is_no_line_of_the_user() -> None:
    # A warning is addressed to the first frame that is not of this package.
    f = qb.jit(lambda x: x + 1.0, device="reference")
    f(X)
    assert f.cache.guard.__globals__["__name__"] == dispatch.__name__
