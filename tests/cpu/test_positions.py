"""Routines that move data by position, natively, against their definition: awkward extents, all dtypes and widths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind, trace
from quabla.backends.reference import build as reference
from quabla.ir.op import OPS
from quabla_cpu.backend import CpuBackend, build

WIDTHS = (16, 32, 64)
DTYPES = (np.float64, np.float32, np.int64, np.bool_)
EXTENTS = (1, 2, 3, 7, 8, 16, 17, 35, 64, 100)


def run(function: Any, *arrays: Any, width: int | None = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results on the CPU and by definition."""
    tensors = [wrap(np.array(a)) for a in arrays]
    program, _ = trace(function, [t.aval for t in tensors])
    got = build(CpuBackend().lower(program, "cpu"), width)(*tensors)
    return [x.numpy() for x in got], [x.numpy() for x in reference(program)(*tensors)]


def same(function: Any, *arrays: Any, width: int | None = None) -> None:
    """Check that both give the same bits."""
    for got, want in zip(*run(function, *arrays, width=width), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        if want.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def of(name: str, **params: Any) -> Any:
    return lambda *xs: (bind(OPS[name], xs, params),)


def numbers(rng: Any, shape: Any, kind: Any) -> np.ndarray:
    if kind is np.bool_:
        return rng.random(shape) < 0.5
    return (rng.normal(size=shape) * 9).astype(kind)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", DTYPES, ids=lambda d: d.__name__)
def test_gather_rows_of_every_extent(kind: Any, width: int) -> None:
    rng = np.random.default_rng(0)
    for extent in EXTENTS:
        i = rng.integers(-8, 9, 6)  # some out of range
        same(of("gather", axis=0, batch=0), numbers(rng, (5, extent), kind), i, width=width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", DTYPES[:3], ids=lambda d: d.__name__)
def test_scatter_add_adds_each_element_once(kind: Any, width: int) -> None:
    # Vectors and what is left of them: an element of a row added twice would show.
    rng = np.random.default_rng(1)
    for extent in EXTENTS:
        u, i = numbers(rng, (40, extent), kind), rng.integers(-5, 7, 40)
        same(of("scatter_add", extent=4, axis=0, batch=0), u, i, width=width)


@pytest.mark.parametrize(
    ("x", "i", "axis", "batch"),
    [
        ((3, 4), (2,), 1, 0), ((2, 3, 4), (2, 5), 2, 1), ((2, 3, 4, 2), (2, 3, 5), 2, 2), ((2, 3, 4, 2), (2, 5), 2, 1),
        ((4,), (), 0, 0),
    ],
)  # fmt: skip
def test_sets_of_positions(x: tuple[int, ...], i: tuple[int, ...], axis: int, batch: int) -> None:
    rng = np.random.default_rng(2)
    positions = rng.integers(-6, 6, i)
    same(of("gather", axis=axis, batch=batch), rng.normal(size=x), positions)
    u = (*x[:axis], *i[batch:], *x[axis + 1 :])
    same(of("scatter_add", extent=x[axis], axis=axis, batch=batch), rng.normal(size=u), positions)


def test_scatter_add_into_memory_that_was_used_before() -> None:
    # The block of results is not zero when a call begins; a step that runs again must not add to what it left.
    x, i = np.arange(6.0), np.array([0, 0, 1, 3, 3, 3])
    tensors = [wrap(x), wrap(i)]
    program, _ = trace(of("scatter_add", extent=5, axis=0, batch=0), [t.aval for t in tensors])
    executable = build(CpuBackend().lower(program, "cpu"))
    first = executable(*tensors)[0].numpy().copy()
    for _ in range(3):
        np.testing.assert_array_equal(executable(*tensors)[0].numpy(), first)
    loop = qb.jit(
        lambda x: qb.fori_loop(0, 4, lambda k, c: qb.grad(lambda c: qb.sum(c[[0, 0, 2]] * x[:3]))(c), x)
    )
    assert loop(qb.array(x)).tolist() == [1.0, 0.0, 2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100, 129, 1000, 4097])
def test_argsort_of_every_length(n: int, kind: Any) -> None:
    rng = np.random.default_rng(n)
    same(of("argsort"), numbers(rng, (3, n), kind))
    same(of("argsort"), (rng.integers(0, 3, (2, n))).astype(kind))  # ties: the order is stable
    for line in (np.arange(n), np.arange(n)[::-1], np.zeros(n)):
        same(of("argsort"), line.astype(kind))


@pytest.mark.parametrize("kind", DTYPES[:2], ids=lambda d: d.__name__)
def test_argsort_of_special_values(kind: Any) -> None:
    tiny, large = np.finfo(kind).smallest_subnormal, np.finfo(kind).max
    values = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, large, -large, 1.0, -1.0]
    rng = np.random.default_rng(3)
    same(of("argsort"), rng.choice(np.array(values, kind), (20, 90)))
    same(of("argsort"), np.array([-(2**63), 2**63 - 1, 0, -1, 2**63 - 1]))


@pytest.mark.parametrize("kind", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side: str, kind: Any) -> None:
    rng = np.random.default_rng(4)
    for n in EXTENTS:
        lines = np.sort(rng.integers(-5, 6, (3, n)).astype(kind), axis=-1)
        same(of("searchsorted", side=side, batch=1), lines, rng.integers(-7, 8, (3, 20)).astype(kind))
    if kind in DTYPES[:2]:
        special = np.array([-np.inf, -0.0, 0.0, 1.0, np.inf, np.nan, np.nan], kind)
        same(of("searchsorted", side=side, batch=0), special, special[::-1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "recurrence"])
@pytest.mark.parametrize("kind", DTYPES[:3], ids=lambda d: d.__name__)
def test_running_ops(kind: Any, name: str, width: int) -> None:
    rng = np.random.default_rng(5)
    count = 2 if name == "recurrence" else 1
    for shape, axis in (((1,), 0), ((9,), 0), ((2, 5, 3), 1), ((4, 37), 0), ((4, 37), 1), ((2, 3, 16), 1)):
        for reverse in (False, True):
            xs = [numbers(rng, shape, kind) for _ in range(count)]
            same(of(name, axis=axis, reverse=reverse), *xs, width=width)


def test_operands_that_are_views_or_constants() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(4, 6))
    same(
        lambda v: (
            qb.sort(v.T[::-1], axis=0),
            qb.cumsum(v.T, 1),
            v.T[[2, 0]],
            qb.take(v[1:, ::2], [2, 1], 1),
        ),
        x,
    )
    same(
        lambda v: (qb.cumsum(qb.ones(5)) + v[0, 0], qb.sort(qb.zeros(3)) * v[0, 0], qb.ones((3, 2))[[0, 0]]),
        x,
    )
    table = qb.array(rng.normal(size=(500, 3)))  # too large to be part of the code
    same(lambda v: (table[qb.argsort(v[0])], v[0][qb.argmax(table[:6], 0)]), x)


def test_routines_between_kernels_and_in_regions() -> None:
    def step(c: Any, row: Any) -> Any:
        order = qb.argsort(qb.sin(row))
        c = qb.tanh(c[order]) + qb.cumsum(row) * qb.exp(-c)
        return c, qb.max(c) * row[qb.argmax(c)]

    def f(x: Any) -> Any:
        carry, ys = qb.scan(step, x[0], x)
        return qb.sum(carry * qb.interp(ys[0], qb.arange(4), x[1, :4])) + qb.sum(ys)

    x = np.random.default_rng(7).normal(size=(3, 6))
    for g in (f, qb.grad(f), qb.vmap(qb.grad(f)), qb.hessian(f)):
        arg = np.stack([x, x[::-1]]) if isinstance(g, type(qb.vmap(f))) and g.kind == "vmap" else x
        got, want = qb.jit(g)(qb.array(arg)), qb.jit(g, device="reference")(qb.array(arg))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-13)


def test_the_same_bits_on_every_run() -> None:
    x = np.random.default_rng(8).normal(size=5000)
    f = qb.jit(lambda x: (qb.sort(x), qb.cumsum(x), qb.grad(lambda x: qb.sum(x[qb.abs(x) * 900.0] ** 2))(x)))
    first = [a.numpy().tobytes() for a in f(qb.array(x))]
    for _ in range(3):
        assert [a.numpy().tobytes() for a in f(qb.array(x))] == first


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", ["left", "right"])
def test_long_searches_and_gathers_are_shared_among_threads(side: str, threads: int) -> None:
    """Long enough to be divided, with rests: NaN, infinities and equal elements among them."""
    rng = np.random.default_rng(5)
    before = qb.get_num_threads()
    qb.set_num_threads(threads)
    try:
        for n in (1, 2, 5, 1000, 1023):
            line = np.sort(np.round(rng.standard_normal(n), 1))
            line[n - n // 10 :] = np.nan
            wanted = np.round(rng.standard_normal(100_003), 1)
            wanted[::7], wanted[1::11], wanted[3::13] = np.nan, np.inf, -np.inf
            same(of("searchsorted", side=side, batch=0), line, wanted)
        i = rng.integers(-60, 60, 200_001)
        for shape in ((50,), (50, 3), (50, 40)):
            for kind in DTYPES:
                same(of("gather", axis=0, batch=0), numbers(rng, shape, kind), i)
    finally:
        qb.set_num_threads(before)


@pytest.mark.parametrize("kind", DTYPES, ids=lambda d: d.__name__)
def test_searches_in_lines_of_every_length(kind: Any) -> None:
    rng = np.random.default_rng(6)
    for n in (1, 2, 3, 4, 7, 8, 9, 31, 64, 65):
        line = np.sort(numbers(rng, (3, n), kind), axis=-1)
        for count in (1, 7, 8, 17):
            wanted = np.concatenate([line[:, : count // 2], numbers(rng, (3, count), kind)], axis=1)
            for side in ("left", "right"):
                same(of("searchsorted", side=side, batch=1), line, wanted)
