"""matmul, einsum and their relatives against NumPy, over ranks, broadcasting and notations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quabla.arrays.tensor import Tensor, wrap
from quabla.errors import DtypeError, ShapeError
from quabla.ops import matmul as ops


def sample(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def tensor(x: np.ndarray) -> Tensor:
    return wrap(np.array(x))


def check(ours: Any, expected: Any) -> None:
    assert ours.shape == np.shape(expected)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((1, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (1, 3, 4)),
        ((1, 2, 3), (1, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((6, 5, 2, 3), (5, 3, 4)),
        ((6, 5, 2, 3), (6, 1, 3, 4)),
        ((1, 1, 3), (5, 3, 1)),
        ((2, 1), (1, 4)),
        ((1,), (1,)),
    ],
)
def test_matmul_of_all_ranks(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = sample(*left), sample(*right, seed=1)
    check(ops.matmul(tensor(x), tensor(y)), x @ y)


@pytest.mark.parametrize(
    ("left", "right"),
    [((), (2, 3)), ((4,), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((2, 3, 4), (5, 4, 6))],
)
def test_dot_inner_outer(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = sample(*left), sample(*right, seed=1)
    check(ops.dot(tensor(x), tensor(y)), np.dot(x, y))
    check(ops.outer(tensor(x), tensor(y)), np.outer(x, y))
    if left and right:
        y = np.moveaxis(y, -2 if y.ndim > 1 else -1, -1)
    check(ops.inner(tensor(x), tensor(y)), np.inner(x, y))


@pytest.mark.parametrize("axes", [0, 1, 2, ((1, 2), (1, 0)), (2, 0), ([-1], [0])])
def test_tensordot(axes: Any) -> None:
    x = sample(2, 4, 4) if axes == 2 else sample(2, 3, 4)
    y = sample(4, 4, 5) if axes == 2 else sample(4, 3, 5)
    check(ops.tensordot(tensor(x), tensor(y), axes), np.tensordot(x, y, axes))


EXTENTS = {"i": 2, "j": 3, "k": 4, "l": 5, "A": 3, "m": 2}

EINSUMS = [
    "ij,jk->ik",
    "ij,jk",
    "ji,jk->ki",
    "ij->ji",
    "ji",
    "ij->",
    "ij->i",
    "ii->i",
    "ii",
    "iij->ji",
    "iji->j",
    "jiij->ji",
    "iii->i",
    "ii,ij->j",
    "i,i->i",
    "i,j->ij",
    "i,j->ji",
    "ij,ij->",
    "ij,ij->ij",
    "ij,ji->i",
    "kij,kjl->kil",
    "ijk,jk,k->i",
    "ij,jk,kl->il",
    "ij,jk,kl,li->",
    "ij,j,ij,k->ki",
    "jA,Ai",
    "ij , jk -> ik",
    "ijk,ilk->jl",
    "i,j,k,l->lkji",
    "ij,kl->",
    "->",
    ",->",
    "ij,->ij",
    "ij,k->j",
]


@pytest.mark.parametrize("subscripts", EINSUMS)
def test_einsum(subscripts: str) -> None:
    terms = subscripts.replace(" ", "").split("->")[0].split(",")
    xs = [sample(*(EXTENTS[c] for c in term), seed=i) for i, term in enumerate(terms)]
    check(ops.einsum(subscripts, *map(tensor, xs)), np.einsum(subscripts, *xs))


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("...ij,...jk->...ik", [(6, 2, 3), (6, 3, 4)]),
        ("...ij,...jk->...ik", [(6, 1, 2, 3), (5, 3, 4)]),
        ("...ij,jk", [(6, 2, 3), (3, 4)]),
        ("i...,i...", [(2, 3, 5), (2, 1, 5)]),
        ("i...j->j...i", [(2, 5, 6, 3)]),
        ("...ii->...i", [(5, 3, 3)]),
        ("...i", [(4, 5, 2)]),
        ("...,...", [(), (3,)]),
        ("a...b,b...", [(2, 4, 5, 3), (3, 5)]),
        ("...a,...b->ba...", [(4, 2), (3,)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,ij->ij", [(2, 1), (2, 3)]),
        ("ii,i", [(3, 3), (1,)]),
        ("ij,j->", [(2, 1), (3,)]),
        ("i,i,i->i", [(1,), (3,), (1,)]),
    ],
)
def test_einsum_broadcasts(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    xs = [sample(*shape, seed=i) for i, shape in enumerate(shapes)]
    check(ops.einsum(subscripts, *map(tensor, xs)), np.einsum(subscripts, *xs))


def test_einsum_with_lists_of_axes() -> None:
    x, y = sample(2, 3), sample(3, 4)
    check(ops.einsum(tensor(x), [0, 1], tensor(y), [1, 2], [2, 0]), np.einsum(x, [0, 1], y, [1, 2], [2, 0]))
    check(ops.einsum(tensor(x), [0, 1], tensor(y), [1, 2]), np.einsum(x, [0, 1], y, [1, 2]))
    check(ops.einsum(tensor(x), [0, ...], [..., 0]), np.einsum(x, [0, ...], [..., 0]))


@st.composite
def random_einsum(draw: Any) -> tuple[str, list[np.ndarray]]:
    extents = {c: draw(st.integers(1, 3)) for c in "abcde"}
    terms = draw(st.lists(st.text("abcde", min_size=0, max_size=4), min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    out = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    return ",".join(terms) + "->" + out, [
        sample(*(extents[c] for c in t), seed=i) for i, t in enumerate(terms)
    ]


@settings(max_examples=150, deadline=None)
@given(random_einsum())
def test_random_einsums(case: tuple[str, list[np.ndarray]]) -> None:
    subscripts, xs = case
    check(ops.einsum(subscripts, *map(tensor, xs)), np.einsum(subscripts, *xs))


def test_float32_products_stay_float32() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert ops.matmul(tensor(x), tensor(x.T)).numpy().dtype == np.float32
    np.testing.assert_array_equal(ops.matmul(tensor(x), tensor(x.T)).numpy(), x @ x.T)


def t(*shape: int) -> Tensor:
    return wrap(np.ones(shape))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.matmul(t(2, 3), t(4, 5)), ["matmul", "(2, 3)", "(4, 5)", "3 elements", "4"]),
        (lambda: ops.matmul(t(3), t(4)), ["matmul", "(3,)", "(4,)"]),
        (lambda: ops.matmul(t(3), 2.0), ["matmul", "scalar", "*"]),
        (lambda: ops.matmul(t(5, 2, 3), t(4, 3, 2)), ["matmul", "(5, 2, 3)", "broadcast", "5 and 4"]),
        (lambda: ops.dot(t(2, 3), t(2, 3)), ["dot", "(2, 3)", "axis 1", "axis 0"]),
        (lambda: ops.inner(t(2, 3), t(3, 2)), ["inner", "(2, 3)", "(3, 2)"]),
        (lambda: ops.tensordot(t(2, 3), t(3, 2), 2), ["tensordot", "(2, 3)", "axis 0"]),
        (lambda: ops.tensordot(t(2, 3), t(3, 2), 3), ["tensordot", "3 axes"]),
        (lambda: ops.einsum("ij,jk", t(2, 3), t(4, 5)), ["einsum", "'j'", "3 and 4", "(2, 3)"]),
        (lambda: ops.einsum("ij", t(2, 3), t(4, 5)), ["einsum", "1 term for 2 operands"]),
        (lambda: ops.einsum("ijk", t(2, 3)), ["einsum", "'ijk'", "operand 0", "2 dimensions"]),
        (lambda: ops.einsum("ij->ik", t(2, 3)), ["einsum", "'k'", "no operand"]),
        (lambda: ops.einsum("ij->ii", t(2, 3)), ["einsum", "'i' twice"]),
        (lambda: ops.einsum("ii", t(2, 3)), ["einsum", "'i'", "2 and 3"]),
        (lambda: ops.einsum("...i->i", t(2, 3)), ["einsum", "'...'"]),
        (lambda: ops.einsum("i1", t(2, 3)), ["einsum", "only letters"]),
        (lambda: ops.einsum("i->j->k", t(2)), ["einsum", "only letters"]),
        (lambda: ops.einsum(t(2), t(2)), ["einsum", "expected subscripts"]),
    ],
)
def test_errors_say_what_came_and_what_fits(call: Any, words: list[str]) -> None:
    with pytest.raises(ShapeError) as raised:
        call()
    for word in words:
        assert word in str(raised.value)


def test_dtypes() -> None:
    with pytest.raises(DtypeError, match=r"matmul: .*float32.*float64"):
        ops.matmul(wrap(np.ones((2, 2), np.float32)), t(2, 2))
    with pytest.raises(DtypeError, match=r"einsum: .*bool"):
        ops.einsum("i,i", wrap(np.ones(2, bool)), wrap(np.ones(2, bool)))
