"""Python numbers in the containers that go into and come out of transformed functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb

A = qb.array


class Held(NamedTuple):
    x: Any
    n: Any


@dataclasses.dataclass
class Holder:
    x: Any
    n: Any


HOLDERS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda x, n: (x, n),
    "list": lambda x, n: [x, n],
    "dict": lambda x, n: {"x": x, "z": n},
    "named tuple": Held,
    "dataclass": Holder,
    "nested": lambda x, n: [Holder(x, {"n": n})],
}


@pytest.mark.parametrize("number", [3, True, 2.5])
@pytest.mark.parametrize("holder", HOLDERS)
def test_numbers_are_numbers_within_and_arrays_in_results(holder: str, number: Any) -> None:
    """The same for every container and transform; only an auxiliary result keeps a Python number."""
    given = HOLDERS[holder](A([1.0, 2.0]), number)
    seen: list[Any] = []

    def f(held: Any) -> Any:
        seen.append(qb.tree.leaves(held)[-1])
        return held

    for run in (
        qb.jit(f),
        qb.vmap(f, in_axes=(HOLDERS[holder](0, None),)),
        lambda h: qb.vjp(lambda x: f(HOLDERS[holder](x, number)), A([1.0, 2.0]))[0],
    ):
        out = run(given)
        assert qb.tree.structure(out) == qb.tree.structure(given)
        last = qb.tree.leaves(out)[-1]
        assert type(last) is qb.Tensor
        assert np.all(last.numpy() == number)
        assert last.dtype is (qb.bool_ if number is True else qb.float64)
    assert all(type(n) is type(number) and n == number for n in seen)
    aux = qb.grad(lambda x: (qb.sum(x), HOLDERS[holder](x, number)), has_aux=True)(A([1.0, 2.0]))[1]
    assert type(qb.tree.leaves(aux)[-1]) is type(number)
