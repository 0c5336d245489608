"""Products on the CPU: thin ones as sums, others in tiles, all against NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.lowering.loops import Product
from quabla.ops.matmul import dot_general
from quabla.ops.structure import broadcast, permute, strided_slice
from quabla_cpu import gemm
from quabla_cpu.assemble import compile_program
from quabla_cpu.backend import CpuBackend, build
from quabla_cpu.codegen import ENTRY, generate

WIDTHS = (16, 32, 64)


def run(function, *arrays, width=None):
    tensors = [qb.array(x) for x in arrays]
    program, _ = trace(lambda *xs: (function(*xs),), [t.aval for t in tensors])
    return build(CpuBackend().lower(program, "cpu"), width)(*tensors)[0].numpy()


def products(function, *avals):
    """The products that are left after lowering."""
    program, _ = trace(lambda *xs: (function(*xs),), avals)
    return [s for s in CpuBackend().lower(program, "cpu").plan.steps if isinstance(s, Product)]


def check(function, expected, *arrays, width=None):
    got = run(function, *arrays, width=width)
    want = expected(*[a.astype(np.float64) for a in arrays])
    eps = np.finfo(got.dtype).eps
    assert got.shape == want.shape and got.dtype == arrays[0].dtype
    np.testing.assert_allclose(got, want, rtol=300 * eps, atol=300 * eps * np.abs(want).max())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("left", ["mk", "km"])
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (2, 2, 2), (64, 16, 16), (16, 64, 16), (3, 5, 7), (9, 17, 8), (2, 33, 100), (41, 3, 5),
        (1, 6, 9), (9, 6, 1), (8, 1, 8),
    ],
)  # fmt: skip
def test_matrices_in_every_layout(m, k, n, left, right, dtype, width):
    rng = np.random.default_rng(m + 10 * k + 100 * n)
    sizes = {"m": m, "k": k, "n": n}
    x = rng.normal(size=[sizes[a] for a in left]).astype(dtype)
    y = rng.normal(size=[sizes[a] for a in right]).astype(dtype)
    contract = ((left.index("k"),), (right.index("k"),))
    check(
        lambda x, y: dot_general(x, y, contract),
        lambda x, y: np.einsum(f"{left},{right}->mn", x, y),
        x,
        y,
        width=width,
    )


def test_batches_of_large_products():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 140, 160)), rng.normal(size=(3, 160, 180))
    check(lambda x, y: dot_general(x, y, ((2,), (1,)), ((0,), (0,))), np.matmul, x, y)


def test_large_products_without_unit_strides():
    """Every other column, rows from the last to the first."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(180, 320)), rng.normal(size=(160, 280))
    check(
        lambda x, y: strided_slice(x, (0, 0), (180, 320), (1, 2)) @ strided_slice(y, (159, 0), (-1, 280), (-1, 2)),
        lambda x, y: x[:, ::2] @ y[::-1, ::2],
        x, y,
    )  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_axes_may_be_paired(data):
    labels = "abcdef"
    extents = {a: data.draw(st.sampled_from([1, 2, 3, 5, 8, 9])) for a in labels}
    left = data.draw(st.lists(st.sampled_from(labels), min_size=1, max_size=4, unique=True))
    right = data.draw(st.lists(st.sampled_from(labels), min_size=1, max_size=4, unique=True))
    shared = [a for a in left if a in right]
    batch = [a for a in shared if data.draw(st.booleans())]
    contract = [a for a in shared if a not in batch]
    free = [a for a in left if a not in shared], [a for a in right if a not in shared]
    out = [*batch, *free[0], *free[1]]
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    rng = np.random.default_rng(3)
    x = rng.normal(size=[extents[a] for a in left]).astype(dtype)
    y = rng.normal(size=[extents[a] for a in right]).astype(dtype)
    pair = tuple([tuple([side.index(a) for a in contract]) for side in (left, right)])
    both = tuple([tuple([side.index(a) for a in batch]) for side in (left, right)])
    check(
        lambda x, y: dot_general(x, y, pair, both),
        lambda x, y: np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x, y),
        x, y, width=data.draw(st.sampled_from(WIDTHS)),
    )  # fmt: skip


def test_thin_products_become_kernels():
    """Outer products and products with a vector are fused: no product is left."""
    av = qb.ShapeDtype
    assert not products(lambda x, w: x @ w, av((64, 1)), av((1, 16)))
    assert not products(lambda x, w: x @ w, av((64, 16)), av((16, 1)))
    assert not products(lambda x, w: x @ w, av((16,)), av((16, 5)))
    assert len(products(lambda x, w: x @ w, av((64, 16)), av((16, 16)))) == 1


def test_a_repeated_operand_is_not_copied():
    """A batch axis along which one operand is repeated becomes rows of one product."""
    (p,) = products(
        lambda x, w: dot_general(x, broadcast(w, (6, 4, 5), (1, 2)), ((2,), (1,)), ((0,), (0,))),
        qb.ShapeDtype((6, 3, 4)), qb.ShapeDtype((4, 5)),
    )  # fmt: skip
    assert p.batch == () and [a.extent for a in p.m] == [18]


def test_a_transposed_result_is_written_in_place():
    """transpose(x @ y) is the product of the transposed operands."""
    av = qb.ShapeDtype

    def f(x, y):
        return permute(x @ y, (1, 0))

    (p,) = products(f, av((6, 3)), av((3, 5)))
    assert [a.extent for a in p.m] == [5] and [a.extent for a in p.n] == [6]
    rng = np.random.default_rng(0)
    check(f, lambda x, y: (x @ y).T, rng.normal(size=(6, 3)), rng.normal(size=(3, 5)))


def test_products_are_the_same_bits_on_every_run():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 40)), rng.normal(size=(40, 30))
    assert len({run(lambda x, y: x @ y, x, y).tobytes() for _ in range(5)}) == 1


def test_special_values_in_products():
    x = np.array([[np.inf, 1.0, 0.0], [np.nan, 0.0, 2.0]])
    y = np.array([[1.0, -1.0], [2.0, 3.0], [0.0, np.inf]])
    with np.errstate(invalid="ignore"):
        want = x @ y
    np.testing.assert_array_equal(run(lambda x, y: x @ y, x, y), want)


def test_machines_that_do_not_multiply_and_add_at_once():
    """Without `fma` each term is rounded twice, as plain Python does."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 7)), rng.normal(size=(7, 6))
    tensors = [qb.array(x), qb.array(y)]
    program, _ = trace(lambda x, y: (x @ y,), [t.aval for t in tensors])
    plan = CpuBackend().lower(program, "cpu").plan
    generated = generate(plan, 16, fma=False)
    assert "llvm.fma" not in generated.text + "".join(module for _, module in generated.products)
    code = compile_program(generated)
    out = np.zeros(plan.out_nbytes // 8)
    table = np.array([*[t.address for t in tensors], out.ctypes.data, 0], np.uintp)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.library.address(ENTRY))(table.ctypes.data)
    want = np.zeros((5, 6))
    for k in range(7):  # NumPy's elementwise operations round once each
        want += np.multiply.outer(x[:, k], y[k])
    np.testing.assert_array_equal(out[:30].reshape(5, 6), want)


def test_products_of_one_form_are_compiled_once():
    x = qb.ShapeDtype((64, 16))
    w = qb.ShapeDtype((16, 16))
    program, _ = trace(lambda x, v, w: (qb.tanh(qb.tanh(x @ v) @ w) @ v,), [x, w, w])
    assert len(CpuBackend().lower(program, "cpu").generate().products) == 1


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("terms", [100, 600])
def test_vectors_that_are_not_contiguous(terms, step):
    """Packed, some terms at a time where all would be too many."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(19, terms)), rng.normal(size=(41, terms * step))
    check(
        lambda x, y: dot_general(x, strided_slice(y, (0, 0), y.shape, (1, step)), ((1,), (1,))),
        lambda x, y: x @ y[:, ::step].T,
        x, y,
    )  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("left", ["mk", "km"])
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(6, 3, 64), (7, 40, 65), (13, 600, 70), (64, 1100, 97), (70, 9, 6)]
)
def test_the_function_for_all_large_products(monkeypatch, m, k, n, left, right, dtype, width):
    """Called for small ones, too: whole tiles and tiles that overlap, one block of terms and several."""
    monkeypatch.setattr(gemm, "_LARGE", 1)
    monkeypatch.setattr(gemm, "_IN_PLACE", 0)
    rng = np.random.default_rng(m + k + n)
    sizes = {"m": m, "k": k, "n": n}
    x = rng.normal(size=[sizes[a] for a in left]).astype(dtype)
    y = rng.normal(size=[sizes[a] for a in right]).astype(dtype)
    contract = ((left.index("k"),), (right.index("k"),))
    check(
        lambda x, y: dot_general(x, y, contract),
        lambda x, y: np.einsum(f"{left},{right}->mn", x, y),
        x, y, width=width,
    )  # fmt: skip


def test_large_products_of_all_sizes_share_one_function():
    a, b, c = (qb.ShapeDtype((n, 128)) for n in (100, 200, 300))
    w = qb.ShapeDtype((128, 128))
    program, _ = trace(lambda a, b, c, w: (a @ w, b @ w, c @ w), [a, b, c, w])
    assert len(CpuBackend().lower(program, "cpu").generate().products) == 1
