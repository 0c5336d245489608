"""Range and accuracy in situations that users of libraries like this one have met, each tested for its whole kind.

Where another file tests a situation it is not repeated here:

| situation | test |
|---|---|
| float32 means and sums of many elements, the divisor of a long mean | `test_ops_statistics` |
| float32 running sums | `test_ops_cumulative: test_single_precision_is_accumulated_in_double` |
| norms whose squares overflow or underflow | `test_ops_reduce: test_norm_neither_overflows_nor_underflows` |
| inverse hyperbolic sine on the negative side; slopes far out | `test_ops_math`, `test_cases_derivatives` |
| ranges whose ends are further apart than the largest number | `test_creation: test_linspace_over_the_whole_range` |
| the first of a stack of linear systems has the bits of it alone | `test_linalg` |
| every number comes in and goes out with all its bits | `test_convert` |
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

mpmath = pytest.importorskip("mpmath")

F = Callable[..., Any]
A = qb.array
INF, NAN = math.inf, math.nan
DTYPES = [qb.float64, qb.float32]


def bits(x: Any) -> bytes:
    """The elements as they lie in memory, which tell -0.0 from 0.0."""
    return np.asarray(x).tobytes()


# --- subnormal numbers ------------------------------------------------------------------------------------------------

TINY = {qb.float64: [5e-324, 1e-310, -1e-315, 2.2e-308], qb.float32: [1e-45, 1e-40, -1e-42, 1.1e-38]}
SUBNORMAL: list[tuple[str, F, F]] = [
    ("times one", lambda x: x * 1.0, lambda x: x),
    ("plus zero", lambda x: x + 0.0, lambda x: x),
    ("negative", lambda x: -x, lambda x: -x),
    ("doubled", lambda x: x + x, lambda x: 2 * x),
    ("halved twice and back", lambda x: x * 4.0 * 0.25, lambda x: x),
    ("quotient", lambda x: x / 1.0, lambda x: x),
    ("abs", qb.abs, abs),
    ("sqrt of abs", lambda x: qb.sqrt(qb.abs(x)), lambda x: mpmath.sqrt(abs(x))),
    ("log of abs", lambda x: qb.log(qb.abs(x)), lambda x: mpmath.log(abs(x))),
    ("log1p", qb.log1p, mpmath.log1p),
    ("arcsinh", qb.arcsinh, mpmath.asinh),
    ("arctanh", qb.arctanh, mpmath.atanh),
    ("erf", qb.erf, mpmath.erf),
    ("expm1", qb.expm1, mpmath.expm1),
    ("sin", qb.sin, mpmath.sin),
    ("tanh", qb.tanh, mpmath.tanh),
    ("maximum with zero", lambda x: qb.maximum(x, 0.0), lambda x: max(x, 0)),
    ("where it is positive", lambda x: qb.where(x > 0.0, x, 1.0), lambda x: x if x > 0 else 1),
    ("cbrt", qb.cbrt, lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x))),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(("f", "exact"), [s[1:] for s in SUBNORMAL], ids=[s[0] for s in SUBNORMAL])
def test_subnormal_numbers_are_numbers(f: F, exact: F, compiled: bool, dtype: Any) -> None:
    x = np.array(TINY[dtype] * 5, dtype.numpy)  # longer than a vector register
    got = np.asarray((qb.jit(f) if compiled else f)(A(x)))
    assert got.dtype == dtype.numpy
    with mpmath.workdps(60):
        expected = np.array([float(exact(mpmath.mpf(float(v)))) for v in x]).astype(dtype.numpy)
    smallest = float(np.finfo(dtype.numpy).smallest_subnormal)
    np.testing.assert_allclose(got, expected, rtol=4 * float(np.finfo(dtype.numpy).eps), atol=smallest)
    assert ((got == 0.0) == (expected == 0.0)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_products_and_gradients_of_subnormal_numbers(dtype: Any) -> None:
    t = TINY[dtype][1]
    x = qb.full((3, 5), t, dtype=dtype)
    for f in (
        lambda x: qb.sum(x),
        lambda x: qb.sum(x @ qb.ones((5, 1), dtype=dtype)),
        lambda x: qb.norm(x) * math.sqrt(15),
    ):
        for g in (f, qb.jit(f)):
            assert g(x).item() == pytest.approx(15 * float(np.asarray(x)[0, 0]), rel=1e-4)
    slope = qb.jit(qb.grad(lambda v: qb.sum(v * x)))(qb.ones((3, 5), dtype=dtype))
    assert bits(slope) == bits(x)


def control_word() -> int:
    """The SSE control and status register of this thread, without its status flags."""
    code = bytes.fromhex("0fae1f8b07c3")  # stmxcsr [rdi]; mov eax, [rdi]; ret
    if not hasattr(control_word, "entry"):
        import mmap

        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        control_word.memory = memory  # type: ignore[attr-defined]
        control_word.entry = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)(address)  # type: ignore[attr-defined]
    word = ctypes.c_uint32()
    control_word.entry(ctypes.addressof(word))  # type: ignore[attr-defined]
    return word.value & ~0x3F


def sees_subnormals() -> bool:
    """Whether this thread computes with subnormal numbers (neither flushes results nor takes operands for zero)."""
    tiny = np.full(9, 5e-324)
    return bool(
        (tiny * 1.0 == 5e-324).all() and (np.full(9, 1e-300) * 1e-10 > 0.0).all() and 5e-324 * 1.0 > 0.0
    )


def work() -> None:
    """Compile and run kernels of every kind: elementwise, a reduction, a product, a factor, a loop."""
    x = A(np.full((4, 4), 1e-200) + np.eye(4))

    def f(x: Any) -> Any:
        y = qb.exp(x) @ x + qb.solve(x, x)
        return qb.fori_loop(0, 3, lambda i, c: c * 0.5 + qb.sum(qb.cholesky(x @ x.T)), qb.sum(y))

    qb.jit(qb.value_and_grad(f))(x)


def test_the_mode_of_the_callers_thread_is_not_touched() -> None:
    found: list[bool] = []

    def thread() -> None:
        before = sees_subnormals()
        work()
        found.append(before and sees_subnormals())

    work()
    assert sees_subnormals()
    for _ in range(2):
        other = threading.Thread(target=thread)
        other.start()
        other.join(60)
    assert found == [True, True]


def test_the_control_register_stays_as_it_was() -> None:
    import platform
    import sys

    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        pytest.skip("the register is that of x86, and the calling convention that of Linux")
    try:
        before = control_word()
    except (OSError, ValueError) as error:
        pytest.skip(f"no memory may be executed here: {error}")
    assert before & 0x8040 == 0  # neither flush-to-zero nor denormals-are-zero
    work()
    assert control_word() == before


# --- Python numbers keep their digits, arrays their dtype -------------------------------------------------------------

WITH_NUMBER: list[tuple[str, F, F]] = [
    ("x * c", lambda x, c: x * c, lambda x, c: x * c),
    ("c * x", lambda x, c: c * x, lambda x, c: c * x),
    ("x + c", lambda x, c: x + c, lambda x, c: x + c),
    ("c - x", lambda x, c: c - x, lambda x, c: c - x),
    ("x / c", lambda x, c: x / c, lambda x, c: x / c),
    ("maximum", lambda x, c: qb.maximum(x, c), np.maximum),
    ("minimum", lambda x, c: qb.minimum(c, x), lambda x, c: np.minimum(c, x)),
    ("where", lambda x, c: qb.where(x > 1.0, x, c), lambda x, c: np.where(x > 1.0, x, c).astype(x.dtype)),
    ("clip", lambda x, c: qb.clip(x, c, 2 * c), lambda x, c: np.clip(x, c, 2 * c)),
    ("power", lambda x, c: qb.power(x, c), np.power),
    ("full_like", lambda x, c: qb.full_like(x, c), np.full_like),
    ("pad", lambda x, c: qb.pad(x, 1, constant_values=c), lambda x, c: np.pad(x, 1, constant_values=c)),
    ("stack", lambda x, c: qb.stack([x[0], c]), lambda x, c: np.stack([x[0], x.dtype.type(c)])),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("f", "numpys"), [w[1:] for w in WITH_NUMBER], ids=[w[0] for w in WITH_NUMBER])
def test_python_numbers_are_exact_and_adopt_the_dtype(f: F, numpys: F, dtype: Any) -> None:
    """0.1 is the nearest number of the array's own dtype: never one that went through float32 on its way."""
    x = np.array([0.5, 1.0, 3.0], dtype.numpy)
    for c in (0.1, 1e-300 if dtype is qb.float64 else 1e-30, 1 / 3):
        with np.errstate(all="ignore"):
            expected = numpys(x, dtype.numpy.type(c))
        g = lambda x, c=c: f(x, c)
        got = [g(A(x)), qb.jit(g)(A(x)), qb.checkpoint(g)(A(x)), *qb.vmap(g)(A(np.stack([x, x])))]
        for y in got:
            assert y.dtype is dtype
            np.testing.assert_allclose(np.asarray(y), expected, rtol=4.0 * np.finfo(dtype.numpy).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tenth_is_a_tenth(dtype: Any) -> None:
    one = qb.ones((), dtype=dtype)
    tenth = float(dtype.numpy.type(0.1))
    for f in (
        lambda x: x * 0.1,
        lambda x: qb.where(x > 2.0, x, 0.1),
        lambda x: qb.minimum(x, 0.1),
        lambda x: x - 1.0 + 0.1,
    ):
        assert f(one).item() == qb.jit(f)(one).item() == tenth
        assert f(one).dtype is qb.jit(f)(one).dtype is dtype
    assert qb.full((1,), 0.1).tolist() == [0.1]
    assert qb.jit(lambda: qb.full((1,), 0.1))().tolist() == [0.1]
    assert qb.grad(lambda x: x * 0.1)(one).item() == tenth


def test_a_number_that_meets_a_number_stays_exact_until_it_meets_an_array() -> None:
    x = qb.ones((2,), dtype=qb.float32)
    f = lambda x: x * (0.1 + 0.2) - qb.array(0.5, dtype=qb.float32)
    assert f(x).dtype is qb.jit(f)(x).dtype is qb.float32
    g = qb.jit(lambda x, s: x * s)
    assert g(x, 0.1).dtype is qb.float32
    assert g(qb.ones(2), 0.1).tolist() == [0.1, 0.1]


# --- IEEE arithmetic in compiled kernels ------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e308, -1e308, 5e-324, 0.1]
STRICT: list[tuple[str, F, F]] = [
    ("x - x", lambda x, y: x - x, lambda x, y: x - x),
    ("x + 0.0", lambda x, y: x + 0.0, lambda x, y: x + 0.0),
    ("x - 0.0", lambda x, y: x - 0.0, lambda x, y: x - 0.0),
    ("0.0 * x", lambda x, y: 0.0 * x, lambda x, y: 0.0 * x),
    ("x / x", lambda x, y: x / x, lambda x, y: x / x),
    ("-x", lambda x, y: -x, lambda x, y: -x),
    ("0.0 - x", lambda x, y: 0.0 - x, lambda x, y: 0.0 - x),
    ("x + y - y", lambda x, y: x + y - y, lambda x, y: x + y - y),
    ("x * y / y", lambda x, y: x * y / y, lambda x, y: x * y / y),
    ("1 / (1 / x)", lambda x, y: 1.0 / (1.0 / x), lambda x, y: 1.0 / (1.0 / x)),
    ("(x + 1e16) - 1e16", lambda x, y: (x + 1e16) - 1e16, lambda x, y: (x + 1e16) - 1e16),
    ("isnan", lambda x, y: qb.isnan(x - y), lambda x, y: np.isnan(x - y)),
    ("isinf", lambda x, y: qb.isinf(x * y), lambda x, y: np.isinf(x * y)),
    ("isfinite", lambda x, y: qb.isfinite(x + y), lambda x, y: np.isfinite(x + y)),
    ("x == x", lambda x, y: qb.equal(x, x), lambda x, y: np.equal(x, x)),
    ("x != x", lambda x, y: qb.not_equal(x, x), lambda x, y: np.not_equal(x, x)),
    ("x < y", lambda x, y: x < y, lambda x, y: x < y),
    ("not x < y", lambda x, y: qb.logical_not(x < y), lambda x, y: ~(x < y)),
    ("maximum", lambda x, y: qb.maximum(x, y) + 0.0, lambda x, y: np.maximum(x, y) + 0.0),
    ("where", lambda x, y: qb.where(x < y, x, y), lambda x, y: np.where(x < y, x, y)),
    ("abs", lambda x, y: qb.abs(x), lambda x, y: np.abs(x)),
    ("sqrt", lambda x, y: qb.sqrt(x), lambda x, y: np.sqrt(x)),
    ("copy of a sign", lambda x, y: qb.where(1.0 / x < 0.0, -qb.abs(y), qb.abs(y)),
     lambda x, y: np.where(1.0 / x < 0.0, -np.abs(y), np.abs(y))),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("f", "numpys"), [s[1:] for s in STRICT], ids=[s[0] for s in STRICT])
def test_compiled_arithmetic_is_ieees(f: F, numpys: F, dtype: Any) -> None:
    """No sum is reassociated, no quotient replaced, no NaN assumed away, no sign of a zero lost."""
    with np.errstate(all="ignore"):
        x, y = (a.ravel().astype(dtype) for a in np.meshgrid(SPECIAL, SPECIAL))
        expected = numpys(x, y)
        for n in (1, 3, len(x)):  # scalars, the rest of a vector loop, and the loop itself
            got = np.asarray(qb.jit(f)(A(x[:n]), A(y[:n])))
            np.testing.assert_array_equal(got, expected[:n])
            numbers = ~np.isnan(expected[:n])
            np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[:n][numbers]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 1001])
def test_reductions_of_infinities(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    for special in ([], [INF], [-INF], [NAN], [INF, -INF]):
        if len(special) > n:
            continue
        x = rng.normal(size=n).astype(dtype)
        x[rng.permutation(n)[: len(special)]] = special
        with np.errstate(all="ignore"):
            for name in ("sum", "mean", "max", "min"):
                got = qb.jit(lambda x, name=name: getattr(qb, name)(x))(A(x)).item()
                assert got == pytest.approx(
                    float(getattr(np, name)(x.astype(np.float64))), rel=1e-5, abs=1e-5, nan_ok=True
                )


# --- results do not depend on the company -----------------------------------------------------------------------------

ROWWISE: list[tuple[str, F]] = [
    ("elementwise", lambda r: qb.exp(qb.sin(r) * 1.3) / (1.0 + r * r)),
    ("sum", lambda r: qb.sum(qb.cos(r) * r, axis=-1)),
    ("norm", lambda r: qb.norm(r, axis=-1)),
    ("logsumexp", lambda r: qb.logsumexp(r, axis=-1)),
    ("softmax", lambda r: qb.softmax(r, axis=-1)),
    ("std", lambda r: qb.std(r, axis=-1)),
    ("cumsum", lambda r: qb.cumsum(r, axis=-1)),
    ("sort", lambda r: qb.sort(r, axis=-1)),
]


@pytest.mark.parametrize("f", [r[1] for r in ROWWISE], ids=[r[0] for r in ROWWISE])
def test_a_row_has_the_same_bits_in_every_batch(f: F) -> None:
    x = np.random.default_rng(4).normal(size=(9, 37))
    compiled = qb.jit(f, max_traces=20)
    alone = [bits(compiled(A(x[i : i + 1]))[0]) for i in range(9)]
    for n in (2, 3, 8, 9):
        together = compiled(A(x[:n]))
        assert [bits(together[i]) for i in range(n)] == alone[:n]


def test_the_same_call_has_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    x = A(rng.normal(size=(33, 17)))
    f = qb.jit(qb.value_and_grad(lambda x: qb.sum(qb.tanh(x @ x.T)) + qb.norm(x)))
    first = [bits(v) for v in f(x)]
    assert all([bits(v) for v in f(x)] == first for _ in range(5))
