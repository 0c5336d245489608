"""Computing with what is stacked part by part, and storing what lies around a result next to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.backends.reference import build
from quabla.lowering.fuse import fuse
from quabla.lowering.loops import Load, Store
from quabla.lowering.passes import simplify
from quabla.lowering.stacks import by_parts
from quabla.ops.structure import concatenate, pad, permute, strided_slice
from tests.core.test_lowering import interpret, names, traced


def planned(function, *arrays):
    """The plan of a function, after its numbers were found to be those of the definition, to the last bit."""
    program = traced(function, *[a.shape for a in arrays])
    plan = fuse(simplify(program, pointwise=(by_parts,)))
    for got, want in zip(interpret(plan, *arrays), build(program)(*map(qb.array, arrays)), strict=True):
        np.testing.assert_array_equal(got, want.numpy())
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want.numpy()))
    return plan


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def stacked(s, axis):
    """A right-hand side that takes a state apart and stacks its derivative."""
    x, y, z = (s[:, i] if axis else s[i] for i in range(3))
    return qb.stack([y - x, x * (2.0 - z) - y, x * y - z], axis=axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_step_of_a_system_of_equations_is_one_kernel(rng, axis):
    def heun(s):
        k = stacked(s, axis)
        return (s + 0.5 * (k + stacked(s + 0.25 * k, axis)),)

    plan = planned(heun, rng.normal(size=(9, 3) if axis else (3, 9)))
    (kernel,) = plan.steps
    assert kernel.domain == (9,) and plan.workspace == 0
    assert len([e for e in kernel.body if isinstance(e, Load)]) == 3
    assert len([e for e in kernel.body if isinstance(e, Store)]) == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: concatenate((qb.sin(x), y), 1) * concatenate((y, x), 1),  # other extents
        lambda x, y: concatenate((qb.sin(x), x), 1) * permute(concatenate((y[:2].T, y[2:].T), 1), (1, 0)),
        lambda x, y: concatenate((x, y), 1) * qb.sin(concatenate((x, y), 1) + 1.0) + concatenate((x, x, x), 1),
        lambda x, y: concatenate((x, x), 1) + qb.sin(qb.concat([y[:, :2], y[:, 1:3]], axis=1)),
    ],
)  # fmt: skip
def test_parts_that_do_not_match(rng, function):
    planned(lambda x, y: (function(x, y),), rng.normal(size=(4, 2)), rng.normal(size=(4, 4)))


def test_what_is_computed_as_a_whole_stays_whole():
    """A part of it would have to be read from memory, which it is not in yet."""

    def f(x, y):
        return (concatenate((x, x), 1) * qb.sin(y),)

    program = simplify(traced(f, (8, 2), (8, 4)), pointwise=(by_parts,))
    assert names(program) == ["concat", "sin", "mul"]
    assert names(simplify(traced(lambda x: (concatenate((x, x), 0) * 2.0,), (3,)), pointwise=(by_parts,))) == [
        "concat", "full", "mul"
    ]  # fmt: skip


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(-3, 3),
)
def test_slices_of_stacks_are_numpys(extents, start, stop, step):
    n = sum(extents)
    start, stop = start % n, stop % (n + 1)
    if step == 0 or not len(range(start, stop, step)):
        return
    arrays = [np.random.default_rng(i).normal(size=(2, e)) for i, e in enumerate(extents)]
    function = lambda *xs: (strided_slice(concatenate(xs, 1), (0, start), (2, stop), (1, step)) * 2.0,)
    (got,) = interpret(fuse(simplify(traced(function, *[a.shape for a in arrays]))), *arrays)
    np.testing.assert_array_equal(got, np.concatenate(arrays, 1)[:, start:stop:step] * 2.0)


@settings(deadline=None)
@given(st.data())
def test_zeros_around_a_result_are_stored_next_to_it(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    low, high = (
        tuple(data.draw(st.lists(st.integers(0, 2), min_size=len(shape), max_size=len(shape)))) for _ in "ab"
    )
    array = np.random.default_rng(1).normal(size=shape)
    function = lambda x: (pad(qb.exp(x) * 2.0, low, high, (0,) * len(shape)),)
    plan = planned(function, array)
    assert plan.workspace == 0
    written = [e for step in plan.steps for e in step.body if isinstance(e, Store)]
    assert {e.buffer.kind for e in written} == {"output"}
    assert sum(int(np.prod(s.domain)) for s in plan.steps for e in s.body if isinstance(e, Store)) == int(
        np.prod([n + a + b for n, a, b in zip(shape, low, high, strict=True)])
    )


def test_zeros_around_what_is_not_a_result_in_its_own_order(rng):
    x = rng.normal(size=(3, 4))

    def f(x):
        y = qb.exp(x)
        turned = pad(permute(y, (1, 0)), (1, 0), (0, 2), (0, 0))
        part = pad(y[1:, :2], (1, 1), (1, 1), (0, 0))
        cut = pad(y, (1, 1), (1, 1), (0, 0))[2:, 1:]
        both = pad(y, (1, 1), (1, 1), (0, 0))
        return turned, part, cut, both, y, qb.sum(both, 0), pad(x, (1, 1), (0, 0), (0, 0))

    program = traced(f, x.shape)
    plan = fuse(simplify(program))
    for got, want in zip(interpret(plan, x), build(program)(qb.array(x)), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-14)
