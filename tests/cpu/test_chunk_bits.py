"""Lanes in chunks have the bits of the whole batch, also where each sums up thousands of terms.

How many lanes there are decides how work is divided among threads. It must not decide how a sum is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.lowering.loops import Kernel, Panel, Product
from tests.cpu.panel_programs import lowered, panels_of

pytestmark = pytest.mark.cpu

Array = Any


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = qb.get_num_threads()
    yield
    qb.set_num_threads(before)


def weights(*shape: int, dtype: str) -> Array:
    rng = np.random.default_rng(shape)
    return qb.array((rng.normal(size=shape) / shape[0] ** 0.5).astype(dtype))


def programs(k: int, dtype: str) -> dict[str, tuple[Callable[[Array], Array], tuple[int, ...]]]:
    """Functions of one example, and its shape: each has a sum of `k` terms in it."""
    w, narrow = weights(k, 7, dtype=dtype), weights(7, 5, dtype=dtype)
    return {
        "row times matrix": (lambda x: x @ w, (k,)),
        "matrix times column": (lambda x: w.T @ x, (k,)),
        "rows times matrix": (lambda x: x @ w, (3, k)),
        "own products": (lambda x: x.T @ qb.sin(x), (k, 3)),
        "columns times matrix": (lambda x: x.T @ w, (k, 3)),
        "einsum": (lambda x: qb.einsum("ki,kj->ij", x, w), (k, 2)),
        "sum": (lambda x: qb.sum(qb.sin(x)), (k,)),
        "sum of rows": (lambda x: qb.sum(x * x, axis=0), (k, 6)),
        "sum of columns": (lambda x: qb.sum(qb.exp(-x * x), axis=1), (6, k)),
        "mean of all": (lambda x: qb.mean(qb.sin(x) ** 2), (k, 3)),
        "dot": (lambda x: qb.dot(x, qb.cos(x)), (k,)),
        "norm": (qb.norm, (k,)),
        "softmax": (qb.softmax, (k,)),
        "logsumexp": (lambda x: qb.logsumexp(x, axis=0), (k, 4)),
        "layers": (lambda x: qb.tanh(qb.tanh(x @ w) @ narrow), (k,)),
        "own network": (lambda p: qb.mean((qb.tanh(w @ p) @ narrow[:5, :1]) ** 2), (7, 5)),
        "gradient of own network": (qb.grad(lambda p: qb.mean(qb.tanh(qb.tanh(w @ p) @ narrow[:5]) ** 2)), (7, 5)),
        "gradient": (qb.grad(lambda x: qb.sum(qb.tanh(x @ w) ** 2) + qb.norm(x)), (k,)),
        "two rows of a jacobian": (qb.jacobian(lambda x: qb.stack([qb.sum(qb.sin(x) * x), qb.mean(x**3)])), (k,)),
        "hessian": (qb.hessian(lambda p: qb.sum(qb.tanh(w @ p) ** 2)), (7,)),
        "columns of what is shared": (lambda x: qb.vmap(lambda v: qb.sum(qb.sin(v * x)), in_axes=1)(w), (k,)),
        "loop": (lambda x: qb.fori_loop(0, 2, lambda i, c: c + qb.sum(qb.sin(c * x)), qb.sum(x)), (k,)),
    }  # fmt: skip


NAMES = sorted(programs(8, "float64"))


def same_bits(
    f: Callable[[Array], Array], x: Array, chunk: int, number: int, in_axes: int = 0, out_axes: int = 0
) -> np.ndarray:
    axes = {"in_axes": in_axes, "out_axes": out_axes}
    qb.set_num_threads(number)
    whole = qb.jit(qb.vmap(lambda x: f(x), **axes))(x).numpy()
    qb.set_num_threads(3 - number)
    part = qb.jit(qb.vmap(lambda x: f(x), **axes, chunk_size=chunk))(x).numpy()
    np.testing.assert_array_equal(part, whole)
    return part


@settings(max_examples=100)
@given(st.data())
def test_any_chunk_of_any_program_has_the_bits_of_the_whole(data: st.DataObject) -> None:
    k = data.draw(st.sampled_from([128, 200, 512, 777, 1024, 2000, 4096, 9000]), "terms")
    dtype = data.draw(st.sampled_from(["float64", "float32"]), "dtype")
    f, shape = programs(k, dtype)[data.draw(st.sampled_from(NAMES), "program")]
    lanes = data.draw(st.sampled_from([2, 3, 5, 8, 13, 33, 64, 150, 300]), "lanes")
    assume(lanes * np.prod(shape) < 1e6)
    x = qb.array(np.random.default_rng(lanes).normal(size=(lanes, *shape)).astype(dtype))
    out = data.draw(st.sampled_from([0, -1]), "out_axes")
    same_bits(f, x, data.draw(st.integers(1, lanes), "chunk"), data.draw(st.sampled_from([1, 2])), 0, out)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["row times matrix", "own products", "sum", "sum of rows", "mean of all"])
def test_work_that_is_divided_as_a_whole_and_not_in_chunks(name: str, dtype: str) -> None:
    f, shape = programs(4000, dtype)[name]
    x = np.random.default_rng(0).normal(size=(150, *shape)).astype(dtype)
    whole = lowered(lambda x: (qb.vmap(f)(x),), x)
    assert panels_of(whole)
    got = same_bits(f, qb.array(x), 2, 2)
    alone = np.stack([f(qb.array(row)).numpy() for row in x[:3]])  # by NumPy
    bound = 1e-10 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(got[:3], alone, rtol=bound, atol=bound)


@settings(max_examples=40)
@given(st.data())
def test_lanes_on_any_axis(data: st.DataObject) -> None:
    """Where lanes are on a later axis, a sum over the first one may be shared from hundreds of terms on; not below."""
    k = data.draw(st.sampled_from([9, 40, 100]), "terms")
    dtype = data.draw(st.sampled_from(["float64", "float32"]), "dtype")
    f, shape = programs(k, dtype)[data.draw(st.sampled_from(NAMES), "program")]
    lanes = data.draw(st.sampled_from([2, 3, 8, 13, 33, 64]), "lanes")
    axis = data.draw(st.integers(0, len(shape)), "in_axes")
    full = (*shape[:axis], lanes, *shape[axis:])
    x = qb.array(np.random.default_rng(lanes).normal(size=full).astype(dtype))
    same_bits(f, x, data.draw(st.integers(1, lanes), "chunk"), data.draw(st.sampled_from([1, 2])), axis)


def summed_apart(low: Any) -> bool:
    """Whether spans sum up parts of a sum."""
    return any(panel.parts for panel in panels_of(low))


LONG = np.random.default_rng(0).normal(size=(60_000, 6))


@pytest.mark.parametrize(
    ("f", "apart"),
    [
        (lambda x: x.T @ x, True),  # terms outside
        (lambda x: qb.sum(qb.sin(x), axis=0), True),
        (lambda x: qb.mean(x**2), True),
        (lambda x: qb.transpose(x) @ qb.sin(x), True),
        (lambda x: qb.sum(qb.sin(qb.reshape(x, (6, 60_000))), axis=1), False),  # terms inside, as those of lanes
        (lambda x: qb.reshape(x, (6, 60_000)) @ x, False),
        (lambda x: qb.sum(qb.reshape(x, (6, 10_000, 6)), axis=1), False),
        (lambda x: qb.einsum("bki,bkj->bij", qb.reshape(x, (6, 10_000, 6)), qb.reshape(x, (6, 10_000, 6))), False),
    ],
)  # fmt: skip
def test_threads_share_a_sum_whose_terms_are_outside(f: Callable[[Array], Array], apart: bool) -> None:
    low = lowered(lambda x: (f(x),), LONG)
    assert summed_apart(low) == apart


def test_few_long_rows_are_divided() -> None:
    def threads_of(shape: tuple[int, ...]) -> int:
        low = lowered(lambda x: (qb.sum(qb.sin(x), axis=1),), np.zeros(shape))
        return max([panel.spans for panel in panels_of(low)], default=1)

    assert threads_of((4, 100_000)) == 2
    assert threads_of((16, 100_000)) == 8
    assert threads_of((16, 1_000)) == 1  # little work


@pytest.mark.parametrize("rows", [4, 9, 17])
def test_few_long_rows_have_the_same_sums(rows: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 60_000))
    low = lowered(lambda x: (qb.sum(x * x, axis=1), qb.max(x, axis=1)), x)
    assert any(isinstance(step, (Kernel, Product, Panel)) for step in low.plan.steps)
    total, largest = qb.jit(lambda x: (qb.sum(x * x, axis=1), qb.max(x, axis=1)))(qb.array(x))
    np.testing.assert_allclose(total.numpy(), (x * x).sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(largest.numpy(), x.max(axis=1))


def test_a_loop_over_chunks_reads_no_copies_of_views() -> None:
    w = qb.ShapeDtype((50, 3))
    f = lambda x, w: qb.sum(qb.sin(x * w.T[0]) + qb.broadcast_to(w[0, 0], (50,)) + 1.0)
    step = qb.jit(qb.vmap(f, in_axes=(0, None), chunk_size=2))
    before, body = step.lower(qb.ShapeDtype((6, 50)), w).as_text().split("scan(")
    body = body.split("return")[0]
    for view in ("full(", "transpose(", "slice("):
        assert view in body, view
    assert "w: float64[50,3]" in before
