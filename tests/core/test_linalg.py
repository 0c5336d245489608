"""Linear algebra against NumPy, mpmath and JAX: values, derivatives, batches, and matrices that have no answer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.errors import DtypeError, ShapeError, UnsupportedOperationError
from quabla.testing.numeric import central_difference
from quabla.transforms import batch, reverse

la = qb.linalg
DEVICES = ("eager", "cpu", "reference")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def regular(*shape: int, seed: int = 0) -> np.ndarray:
    """Matrices with a condition number that does not matter."""
    return normal(*shape, seed=seed) / np.sqrt(shape[-1]) + 2.0 * np.eye(shape[-1])[::-1]


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    m = normal(*shape, seed=seed)
    return m @ m.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])


def run(device: str, f: Callable[..., Any], *arrays: Any) -> Any:
    given = [qb.array(a) for a in arrays]
    return (
        f(*given) if device == "eager" else qb.jit(lambda *xs: f(*xs), device=device)(*given)
    )  # caches of its own


def close(got: Any, expected: Any, rtol: float = 1e-11) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=rtol, atol=rtol * max(1.0, np.abs(expected).max()))


# --- values and shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 17, 60])
def test_values(n: int, dtype: Any, device: str) -> None:
    a, b, p = (x.astype(dtype) for x in (regular(n, n), normal(n, 3), positive(n, n)))
    wide = [x.astype(np.float64) for x in (a, b, p)]
    tolerance = 200 * float(np.finfo(dtype).eps)
    cases = [
        (la.solve, (a, b), np.linalg.solve(wide[0], wide[1])),
        (la.solve, (a, b[:, 0]), np.linalg.solve(wide[0], wide[1][:, 0])),
        (la.cholesky, (p,), np.linalg.cholesky(wide[2])),
        (la.det, (a,), np.linalg.det(wide[0])),
        (la.inv, (a,), np.linalg.inv(wide[0])),
        (lambda x: la.slogdet(x)[0], (-a,), np.linalg.slogdet(-wide[0])[0]),
        (lambda x: la.slogdet(x)[1], (-a,), np.linalg.slogdet(-wide[0])[1]),
    ]
    for lower, trans in itertools.product((False, True), (0, 1)):
        t = np.tril(wide[2]) if lower else np.triu(wide[2])
        solved = np.linalg.solve(t.T if trans else t, wide[1])
        f = functools.partial(la.triangular_solve, lower=lower, trans=trans)
        cases.append((f, (p, b), solved))
    for f, given, expected in cases:
        got = run(device, f, *given)
        assert got.numpy().dtype == dtype
        close(got, expected, tolerance)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 3), (3,)), ((3, 3), (3, 2)), ((4, 3, 3), (3,)), ((4, 3, 3), (3, 2)), ((4, 3, 3), (4, 3, 2)),
        ((3, 3), (5, 3, 2)), ((1, 3, 3), (5, 3, 2)), ((4, 1, 3, 3), (5, 3, 2)), ((4, 1, 3, 3), (4, 5, 3, 1)),
        ((4, 5, 3, 3), (1, 5, 3, 2)), ((1, 5, 3, 3), (4, 1, 3, 2)), ((2, 2, 2, 2), (2,)), ((1, 1), (1,)),
        ((1, 5, 3, 3), (4, 5, 3, 2)), ((3, 1, 5, 1, 2, 2), (4, 5, 6, 2, 3)),
    ],
)  # fmt: skip
def test_shapes_are_those_of_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = regular(*a), normal(*b, seed=1)
    close(la.solve(qb.array(x), qb.array(y)), np.linalg.solve(x, y))


def test_a_matrix_is_a_right_hand_side_of_columns() -> None:
    """Only one-dimensional arrays are vectors, as in NumPy 2."""
    stack, ones = regular(2, 2, 2), np.ones((2, 2))
    close(la.solve(qb.array(stack), qb.array(ones)), np.linalg.solve(stack, ones))


@pytest.mark.cpu
def test_solution_is_backward_stable() -> None:
    """The residual of a badly conditioned system is small although the solution is not accurate (Hilbert's matrix)."""
    n = 10
    a = 1.0 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    b = a @ np.ones(n)
    for device in DEVICES:
        x = run(device, la.solve, a, b).numpy()
        assert np.abs(a @ x - b).max() < 1e-15 * n


def test_against_many_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    a, b = regular(6, 6, seed=3), normal(6, seed=4)
    with mpmath.workdps(40):
        exact = mpmath.lu_solve(mpmath.matrix(a.tolist()), mpmath.matrix(b.tolist()))
        det = mpmath.det(mpmath.matrix(a.tolist()))
        close(la.solve(qb.array(a), qb.array(b)), [float(v) for v in exact], 1e-14)
        close(la.det(qb.array(a)), float(det), 1e-14)


def test_slogdet_neither_overflows_nor_underflows() -> None:
    for scale in (1e-200, 1e200):
        sign, log = la.slogdet(qb.array(-scale * np.eye(3)))
        assert sign.item() == -1.0
        np.testing.assert_allclose(log.item(), 3.0 * np.log(scale), rtol=1e-15)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("large", [1e25, 1e200, 1e300])
def test_products_of_a_determinant_leave_the_range_on_the_way(large: float, dtype: Any, device: str) -> None:
    if dtype is np.float32:
        large = min(large, 1e25)
    for factors, exact in (
        ([large, large, 1 / large, 1 / large, -3.0], -3.0),
        ([1 / large, 1 / large, large, 2.0, large], 2.0),
        ([large] * 20, np.inf),
        ([1 / large] * 20, 0.0),
        ([large] * 9 + [1 / large] * 9 + [0.5], 0.5),
        ([large] * 9 + [0.0], 0.0),
    ):
        tolerance = 1e-12 if dtype is np.float64 else 2e-5
        np.testing.assert_allclose(
            run(device, la.det, np.diag(factors).astype(dtype)).item(), exact, rtol=tolerance
        )


def test_cho_solve() -> None:
    p, b = positive(2, 5, 5), normal(2, 5, 3)
    close(la.cho_solve(la.cholesky(qb.array(p)), qb.array(b)), np.linalg.solve(p, b))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, 1, 2, 3, 2.5, 0.5, -1, 0, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vector_norms(ord: Any, axis: int, keepdims: bool) -> None:
    x = normal(3, 4, 5)
    close(la.norm(qb.array(x), ord, axis, keepdims), np.linalg.norm(x, ord, axis, keepdims))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, "fro", 1, -1, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [(0, 1), (1, 0), (0, -1), (2, 1)])
def test_matrix_norms(ord: Any, axis: Any, keepdims: bool) -> None:
    x = normal(3, 4, 5)
    close(la.norm(qb.array(x), ord, axis, keepdims), np.linalg.norm(x, ord, axis, keepdims))


def test_norms_without_an_axis() -> None:
    x = normal(3, 4)
    close(la.norm(qb.array(x)), np.linalg.norm(x))
    close(la.norm(qb.array(normal(2, 3, 4))), np.linalg.norm(normal(2, 3, 4)))
    close(la.norm(qb.array(x), 1), np.linalg.norm(x, 1))
    close(la.norm(qb.array(x[0]), 3), np.linalg.norm(x[0], 3))
    close(qb.grad(la.norm)(qb.zeros(3)), np.zeros(3))


# --- matrices without an answer ---------------------------------------------------------------------------------------

SINGULAR = [
    np.zeros((1, 1)), np.array([[1.0, 2.0], [2.0, 4.0]]), np.diag([1.0, 0.0, 2.0, 3.0, 4.0]), np.zeros((5, 5)),
    np.ones((6, 6)),
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a", SINGULAR, ids=lambda a: str(a.shape))
def test_singular_systems_have_no_solution(a: np.ndarray, device: str) -> None:
    n = len(a)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.solve(a, np.ones(n))
    for b in (np.ones(n), np.ones((n, 3))):
        assert np.isnan(run(device, la.solve, a, b).numpy()).all()
    assert np.isnan(run(device, la.inv, a).numpy()).all()
    assert run(device, la.det, a).item() == 0.0
    sign, log = run(device, la.slogdet, a)
    assert sign.item() == 0.0 and log.item() == -np.inf
    stack = np.stack([np.eye(n), a, 2.0 * np.eye(n)])
    got = run(device, la.solve, stack, np.ones((n, 2))).numpy()
    assert np.isnan(got[1]).all() and (got[0] == 1.0).all() and (got[2] == 0.5).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [3, 7])
@pytest.mark.parametrize("trans", [0, 1])
def test_a_zero_on_a_triangular_diagonal(n: int, trans: int, device: str) -> None:
    a = np.tril(normal(n, n)) + 3.0 * np.eye(n)
    stack = np.stack([a, a])
    stack[1, 1, 1] = 0.0

    def f(a: Any, b: Any, unit: bool = False) -> Any:
        return la.triangular_solve(a, b, lower=True, trans=trans, unit_diagonal=unit)

    got = run(device, f, stack, np.ones((n, 2))).numpy()
    assert np.isnan(got[1]).all() and np.isfinite(got[0]).all()
    unit = run(device, lambda a, b: f(a, b, True), stack, np.ones((n, 2))).numpy()
    assert np.isfinite(unit).all() and (unit[0] == unit[1]).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 2, 4, 5, 40])
def test_what_is_not_positive_definite_has_no_factor(n: int, device: str) -> None:
    good = positive(n, n)
    late = good.copy()  # a NaN that only the last step meets
    late[-1, -1] = np.nan
    cases = [-good, good - 50.0 * np.eye(n), late, np.zeros((n, n)), np.full((n, n), np.nan)]
    if n > 1:
        cases += [
            np.where(np.arange(n * n).reshape(n, n) == n, np.nan, good),
            good * (1.0 - 2.0 * (np.eye(n)[-1] > 0)),
        ]
    for bad in cases:
        got = run(device, la.cholesky, np.stack([good, bad, good])).numpy()
        assert np.isnan(got[1]).all(), bad
        np.testing.assert_allclose(got[0], np.linalg.cholesky(good), rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(got[0], got[2])


@pytest.mark.parametrize("device", DEVICES)
def test_cholesky_takes_the_symmetric_part(device: str) -> None:
    p, skew = positive(5, 5), normal(5, 5, seed=2)
    skew -= skew.T
    close(run(device, la.cholesky, p + skew), np.linalg.cholesky(p))


# --- the bits of a stack ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 3, 4, 5, 6, 33])
def test_the_first_of_a_stack_has_the_bits_of_it_alone(n: int, device: str) -> None:
    a, b, p = regular(3, n, n), normal(3, n, 2), positive(3, n, n)
    for f, given in (
        (la.solve, (a, b)), (la.cholesky, (p,)), (la.det, (a,)), (la.inv, (a,)),
        (lambda x, y: la.triangular_solve(x, y, lower=True), (p, b)),
        (qb.grad(lambda x, y: qb.sum(la.solve(x, y) ** 2)), (a, b)),
    ):  # fmt: skip
        whole = run(device, f, *given).numpy()
        alone = run(device, f, *[x[0] for x in given]).numpy()
        pair = run(device, f, *[x[:1] for x in given]).numpy()
        np.testing.assert_array_equal(whole[0], alone)
        np.testing.assert_array_equal(whole[:1], pair)


# --- derivatives ------------------------------------------------------------------------------------------------------


def differences(f: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Check gradient and Hessian of a scalar function of one array against central differences."""
    (x,) = arrays
    value = qb.jit(f)
    gradient = qb.jit(qb.grad(f))
    got = gradient(qb.array(x)).numpy()
    hess = qb.jit(qb.hessian(f))(qb.array(x)).numpy()
    for at in np.ndindex(x.shape):
        t = np.zeros_like(x)
        t[at] = 1.0
        (d,) = central_difference(lambda v: [value(qb.array(v[0])).numpy()], [x], [t], 1e-3)
        np.testing.assert_allclose(got[at], d, rtol=1e-7, atol=1e-8)
        (d,) = central_difference(lambda v: [gradient(qb.array(v[0])).numpy()], [x], [t], 1e-3)
        np.testing.assert_allclose(hess[(..., *at)], d, rtol=1e-6, atol=1e-7)


C = qb.array(normal(4, 2, seed=8))
W = qb.array(normal(4, 4, seed=9))
SCALARS: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "solve": (lambda a: qb.sum(la.solve(a, C) ** 2), regular(4, 4)),
    "solve_both": (lambda a: qb.sum(la.solve(a, a @ a + C[:, :1]) ** 3), regular(4, 4)),
    "lower": (lambda a: qb.sum(la.triangular_solve(a, C, lower=True) ** 2), positive(4, 4)),
    "upper_transposed": (lambda a: qb.sum(la.triangular_solve(a, C, trans=1) ** 2), positive(4, 4)),
    "unit": (
        lambda a: qb.sum(la.triangular_solve(a, C, lower=True, unit_diagonal=True) ** 2),
        positive(4, 4),
    ),
    "cholesky": (lambda a: qb.sum(la.cholesky(a) * W), positive(4, 4)),
    "cho_solve": (lambda a: qb.sum(la.cho_solve(la.cholesky(a), C) ** 2), positive(4, 4)),
    "logdet_of_cholesky": (
        lambda a: 2.0 * qb.sum(qb.log(qb.einsum("ii->i", la.cholesky(a)))),
        positive(4, 4),
    ),
    "slogdet": (lambda a: la.slogdet(a)[1], regular(4, 4)),
    "det": (la.det, regular(4, 4)),
    "det_of_five": (la.det, regular(5, 5)),
    "det_of_three": (la.det, regular(3, 3)),
    "det_of_two": (la.det, regular(2, 2)),
    "inv": (lambda a: qb.sum(la.inv(a) * W), regular(4, 4)),
}


@pytest.mark.parametrize("name", SCALARS)
def test_gradients_and_hessians_against_differences(name: str) -> None:
    differences(*SCALARS[name])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_determinants_of_singular_matrices(n: int, lost: int) -> None:
    """A polynomial has derivatives everywhere: up to the third order at every rank that they can see."""
    if lost > n:
        pytest.skip("the rank is not negative")
    a = normal(n, n - lost, seed=1) @ normal(n - lost, n, seed=2)
    differences(la.det, a)
    # Along a line the determinant is a polynomial in t, whose coefficients follow from its values.
    t = np.cos(np.pi * (np.arange(n + 1) + 0.5) / (n + 1))
    line = normal(n, n, seed=5)
    exact = np.polynomial.Polynomial.fit(t, [np.linalg.det(a + s * line) for s in t], n).convert().coef

    def along(s: Any) -> Any:
        return la.det(qb.array(a) + s * qb.array(line))

    third = qb.grad(qb.grad(qb.grad(along)))(qb.array(0.0)).item()
    np.testing.assert_allclose(third, 6.0 * (exact[3] if n >= 3 else 0.0), rtol=1e-8, atol=1e-8)


def test_determinants_of_low_rank_have_no_low_derivatives() -> None:
    a = np.zeros((6, 6))
    a[0, 1] = 2.0
    for order in range(4):
        f: Any = lambda s: la.det(qb.array(a) + s * qb.array(normal(6, 6)))
        for _ in range(order):
            f = qb.grad(f)
        assert f(qb.array(0.0)).item() == pytest.approx(0.0, abs=1e-12)


def test_hessian_of_a_determinant_through_a_product() -> None:
    f = lambda x: la.det(x @ qb.array([[1.0, 0.0], [-1.0, 1.0]]))
    expected = np.zeros((2, 2, 2, 2))
    expected[0, 0, 1, 1] = expected[1, 1, 0, 0] = 1.0
    expected[0, 1, 1, 0] = expected[1, 0, 0, 1] = -1.0
    for h in (qb.hessian(f), qb.jit(qb.hessian(f))):
        close(h(qb.array([[1.0, 0.0], [1.0, 1.0]])), expected)


def test_gradient_of_log_det_through_cholesky_is_symmetric() -> None:
    f = SCALARS["logdet_of_cholesky"][0]
    for g in (qb.grad(f), qb.jit(qb.grad(f))):
        close(g(qb.array([[4.0, 1.0], [1.0, 3.0]])), np.array([[3.0, -1.0], [-1.0, 4.0]]) / 11.0)


def test_third_derivative_of_solve() -> None:
    # x(t) = 1 / (2 + t): the third derivative at 0 is -6 / 2**4.
    f = lambda t: la.solve(qb.reshape(2.0 + t, (1, 1)), qb.ones(1))[0]
    assert qb.grad(qb.grad(qb.grad(f)))(qb.array(0.0)).item() == pytest.approx(-6.0 / 16.0, rel=1e-12)


# --- vmap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (None, 1), (1, 2)])
def test_vmap_against_a_loop(axes: tuple[int | None, int | None]) -> None:
    n, m = 4, 6
    a, b = regular(m, n, n), normal(m, n, 3)
    given = [x[0] if at is None else np.moveaxis(x, 0, at) for x, at in zip((a, b), axes, strict=True)]
    for f in (
        la.solve,
        lambda x, y: la.triangular_solve(x + 3.0 * qb.eye(n), y, lower=True, trans=1),
        qb.grad(lambda x, y: qb.sum(la.solve(x, y) ** 2), argnums=1),
        qb.grad(lambda x, y: qb.sum(la.solve(x, y) ** 2)),
    ):
        expected = [
            f(
                *[qb.array(x if at is None else np.take(x, i, at)) for x, at in zip(given, axes, strict=True)]
            ).numpy()
            for i in range(m)
        ]
        for g in (qb.vmap(f, in_axes=axes), qb.jit(qb.vmap(f, in_axes=axes))):
            close(g(*map(qb.array, given)), np.stack(expected))


def test_vmap_of_factors_and_determinants() -> None:
    p = positive(5, 3, 4, 4)
    for f in (la.cholesky, la.det, lambda x: la.slogdet(x)[1], qb.hessian(lambda x: qb.sum(la.det(x)))):
        expected = np.stack([f(qb.array(x)).numpy() for x in p])
        close(qb.vmap(f)(qb.array(p)), expected)
        close(qb.vmap(f, in_axes=1)(qb.array(np.moveaxis(p, 0, 1))), expected)


def test_one_factorisation_serves_all_right_hand_sides() -> None:
    """A matrix that is not mapped is not repeated: the examples become columns, forwards and backwards."""
    program, _ = trace(lambda a, b: (la.solve(a, b),), [qb.ShapeDtype((5, 5)), qb.ShapeDtype((5,))])
    many = batch.vmap(program, [False, True], 7)[0]
    both = reverse.vjp(many)
    solves = [node for node in both.nodes if node.op.name == "solve"]
    assert [node.inputs[0].shape for node in solves] == [(5, 5)] * 2
    assert [node.inputs[1].shape for node in solves] == [(5, 7)] * 2
    shared, _ = trace(lambda a, b: (la.solve(a, b),), [qb.ShapeDtype((3, 1, 5, 5)), qb.ShapeDtype((4, 5, 2))])
    (solve,) = (node for node in shared.nodes if node.op.name == "solve")
    assert [v.shape for v in solve.inputs] == [(3, 5, 5), (3, 5, 8)]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "shapes", "words"),
    [
        (la.solve, [(2, 3), (2,)], ["solve", "square", "(2, 3)"]),
        (la.solve, [(3,), (3,)], ["solve", "square", "(3,)"]),
        (la.solve, [(1, 2, 2), (3, 2)], ["solve", "(1, 2, 2)", "(3, 2)", "2 rows", "3"]),
        (la.solve, [(2, 2), (3,)], ["solve", "(2, 2)", "(3,)"]),
        (la.solve, [(2, 2), ()], ["solve", "scalar"]),
        (la.solve, [(4, 2, 2), (3, 2, 1)], ["solve", "(4, 2, 2)", "(3, 2, 1)", "broadcast"]),
        (la.cholesky, [(2, 3)], ["cholesky", "square", "(2, 3)"]),
        (la.det, [(4,)], ["det", "square", "(4,)"]),
        (la.slogdet, [(2, 3, 4)], ["slogdet", "square", "(2, 3, 4)"]),
        (la.inv, [(2, 1)], ["inv", "square", "(2, 1)"]),
        (la.triangular_solve, [(2, 2), (5, 1)], ["triangular_solve", "(2, 2)", "(5, 1)"]),
        (lambda x: la.norm(x, 1), [(2, 2, 2)], ["norm", "axis"]),
        (lambda x: la.norm(x, "fro", 0), [(2, 2)], ["norm", "fro"]),
        (lambda x: la.norm(x, 3), [(2, 2)], ["norm", "3"]),
        (lambda x: la.triangular_solve(x, x, trans=2), [(2, 2)], ["triangular_solve", "trans", "2"]),
    ],
)  # fmt: skip
def test_wrong_shapes(f: Callable[..., Any], shapes: list[tuple[int, ...]], words: list[str]) -> None:
    for call in (f, qb.jit(f)):
        with pytest.raises(ShapeError) as error:
            call(*[qb.ones(s) for s in shapes])
        for word in words:
            assert word in str(error.value)


def test_wrong_types() -> None:
    with pytest.raises(DtypeError, match="do not mix"):
        la.solve(qb.eye(2), qb.ones(2, dtype=qb.float32))
    for f in (la.cholesky, la.det, la.inv, la.norm):
        with pytest.raises(DtypeError, match=r"bool"):
            f(qb.array([[True, False], [False, True]]))
    for order in (2, "nuc"):
        with pytest.raises(UnsupportedOperationError, match="singular values"):
            la.norm(qb.eye(2), order)


# --- against JAX ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["solve", "stack", "cholesky", "log_det", "det", "inv", "triangular"])
def test_derivatives_against_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    jnp = pytest.importorskip("jax.numpy")
    a, b = positive(2, 4, 4) + 0.1 * normal(2, 4, 4, seed=7), normal(4, 3)

    def make(m: Any) -> Any:
        symmetric = lambda x: x + m.swapaxes(x, -1, -2)
        low = {"lower": True}
        ours = m is qb
        triangular = la.triangular_solve if ours else jax.scipy.linalg.solve_triangular
        return {
            "solve": lambda x, y: m.linalg.solve(x[0], m.sin(y)),
            "stack": lambda x, y: m.linalg.solve(x, y * m.cos(x[:, :, :3])),
            "cholesky": lambda x, y: m.linalg.cholesky(symmetric(x)) @ y,
            "log_det": lambda x, y: m.linalg.slogdet(x)[1] * m.sum(y),
            "det": lambda x, y: m.linalg.det(x) * m.sum(y),
            "inv": lambda x, y: m.linalg.inv(x) @ y,
            "triangular": lambda x, y: triangular(x[0], y, **low),
        }[name]

    def scalar(m: Any) -> Any:
        f = make(m)
        return lambda x, y: m.sum(m.sin(f(x, y)))

    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        point, direction = (a, b), (a[::-1].copy(), b)
        theirs = jax.jvp(
            jax.grad(scalar(jnp), argnums=(0, 1)),
            tuple(map(jnp.asarray, point)),
            tuple(map(jnp.asarray, direction)),
        )
        ours = qb.jvp(
            qb.grad(scalar(qb), argnums=(0, 1)), tuple(map(qb.array, point)), tuple(map(qb.array, direction))
        )
        for got, expected in zip(ours, theirs, strict=True):
            for x, y in zip(got, expected, strict=True):
                close(x, np.asarray(y), 1e-10)
