"""Sums of constants are computed while compiling only where no order of the terms could show."""

from __future__ import annotations

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.lowering.passes import simplify


@pytest.mark.parametrize(
    ("terms", "folded"),
    [
        (np.eye(5), True),
        (np.arange(60.0).reshape(6, 10), True),
        (np.array([[0.5, 0.25, 3.0], [1.0, 2.0, -4.0]]), True),
        (np.array([[2.0**52, 1.0]]), True),
        (np.array([[2.0**53, 1.0]]), False),
        (np.array([[1.0, 0.1, 0.2], [3.0, 0.7, 0.6]]), False),
        (np.array([[np.inf, 1.0]]), False),
    ],
)
def test_sums_of_constants(terms: np.ndarray, folded: bool) -> None:
    def function(x: qb.Tensor) -> tuple[qb.Tensor]:
        lifted = x.frame.lift(qb.array(terms))  # type: ignore[attr-defined]
        return (x + qb.sum(lifted, axis=1),)

    program, _ = trace(function, [qb.ones((len(terms),)).aval])
    ops = [node.op.name for node in simplify(program).nodes]
    assert ("reduce_sum" not in ops) == folded
