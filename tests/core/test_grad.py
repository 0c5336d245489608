"""`grad` and `value_and_grad`: values against closed forms, mpmath and central differences; arguments, trees, aux."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quabla as qb

A = qb.array


class Pair(NamedTuple):
    w: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    w: Any
    b: Any


def central(f: Callable[[np.ndarray], float], x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function of one NumPy array."""
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[i] = h
        out[i] = (f(x + e) - f(x - e)) / (2 * h)
    return out


# --- values -----------------------------------------------------------------------------------------------------------

FUNCTIONS: list[tuple[str, Any, Any]] = [
    ("sin", lambda x: qb.sin(x), mpmath.sin),
    ("exp_of_sin", lambda x: qb.exp(qb.sin(x)), lambda x: mpmath.exp(mpmath.sin(x))),
    ("tanh_of_square", lambda x: qb.tanh(x * x), lambda x: mpmath.tanh(x * x)),
    ("quotient", lambda x: qb.cos(x) / (1.0 + x * x), lambda x: mpmath.cos(x) / (1 + x * x)),
    ("power", lambda x: (1.5 + x * x) ** 2.5, lambda x: (1.5 + x * x) ** mpmath.mpf(2.5)),
    ("integer_power", lambda x: x**5 - 3.0 * x**2, lambda x: x**5 - 3 * x**2),
    (
        "log_sqrt",
        lambda x: qb.log(2.0 + x) * qb.sqrt(3.0 + x),
        lambda x: mpmath.log(2 + x) * mpmath.sqrt(3 + x),
    ),
    ("softplus", lambda x: qb.softplus(2.0 * x), lambda x: mpmath.log(1 + mpmath.exp(2 * x))),
]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("name, ours, exact", FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_derivatives_of_any_order_are_those_of_mpmath(name: str, ours: Any, exact: Any, order: int) -> None:
    derivative = ours
    for _ in range(order):
        derivative = qb.grad(derivative)
    with mpmath.workdps(40):
        expected = [float(mpmath.diff(exact, mpmath.mpf(x), order)) for x in (-0.7, 0.4, 1.3)]
    found = [derivative(x).item() for x in (-0.7, 0.4, 1.3)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_second_derivative_of_a_sine() -> None:
    w, x = 1.2, 0.3
    u_xx = qb.grad(qb.grad(lambda x: qb.sin(x * w)))
    assert u_xx(x).item() == pytest.approx(-(w**2) * np.sin(w * x), rel=1e-15)


def test_gradient_of_an_array_function_is_that_of_differences() -> None:
    rng = np.random.default_rng(0)
    x, m = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))
    g = qb.grad(lambda x: qb.sum(qb.tanh(x @ A(m)) ** 2) + qb.mean(qb.exp(x[:, 1])))(A(x))
    expected = central(lambda v: (np.tanh(v @ m) ** 2).sum() + np.exp(v[:, 1]).mean(), x)
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3))
def test_value_and_grad_agree_with_their_parts(x: float, y: float) -> None:
    value, (gx, gy) = BOTH(A(x), A(y))
    assert value.item() == pytest.approx(np.sin(x) * y + x, rel=1e-14, abs=1e-15)
    assert gx.item() == pytest.approx(np.cos(x) * y + 1.0, rel=1e-14, abs=1e-15)
    assert gy.item() == pytest.approx(np.sin(x), rel=1e-14, abs=1e-15)


BOTH = qb.value_and_grad(lambda x, y: qb.sin(x) * y + x, argnums=(0, 1))


def test_every_argument_of_a_product_in_turn() -> None:
    # A derivative that reaches each factor by a path of its own costs no more than the product.
    def product(*args: Any) -> Any:
        out = args[0]
        for a in args[1:]:
            out = out * a
        return out

    values = [1.0 + 0.1 * i for i in range(10)]
    for i in range(10):
        expected = np.prod(values) / values[i]
        assert qb.grad(product, argnums=i)(*values).item() == pytest.approx(expected, rel=1e-14)


def test_mixed_second_derivatives_commute() -> None:
    f = lambda x, y: qb.sin(x * y) * qb.exp(y)
    xy = qb.grad(qb.grad(f, argnums=1), argnums=0)(0.7, 0.4).item()
    yx = qb.grad(qb.grad(f, argnums=0), argnums=1)(0.7, 0.4).item()
    with mpmath.workdps(30):
        exact = float(mpmath.diff(lambda x, y: mpmath.sin(x * y) * mpmath.exp(y), (0.7, 0.4), (1, 1)))
    assert xy == pytest.approx(exact, rel=1e-14)
    assert yx == pytest.approx(exact, rel=1e-14)


# --- argnums ----------------------------------------------------------------------------------------------------------


def three(x: Any, y: Any, z: Any) -> Any:
    return x * 2.0 + y * 3.0 + z * 5.0


ARGNUMS: list[tuple[Any, Any]] = [
    (0, 2.0), (2, 5.0), (-1, 5.0), (-3, 2.0), ((1,), (3.0,)), ((2, 0), (5.0, 2.0)), ((-1, 0), (5.0, 2.0)),
    ([1], (3.0,)),
]  # fmt: skip


@pytest.mark.parametrize("argnums, expected", ARGNUMS)
def test_argnums(argnums: Any, expected: Any) -> None:
    for args in [(1.0, 1.0, 1.0), (A(1.0), A(1.0), A(1.0))]:
        found = qb.grad(three, argnums=argnums)(*args)
        if isinstance(expected, tuple):
            assert type(found) is tuple
            assert tuple(g.item() for g in found) == expected
        else:
            assert found.item() == expected


@pytest.mark.parametrize("argnums", [(0, 0), (0, -3), (1, 2, -1)])
def test_argnums_that_name_an_argument_twice_are_refused(argnums: Any) -> None:
    with pytest.raises(qb.ShapeError, match="twice"):
        qb.grad(three, argnums=argnums)(1.0, 1.0, 1.0)


@pytest.mark.parametrize("argnums", [3, -4, (0, 7)])
def test_argnums_out_of_range_are_refused(argnums: Any) -> None:
    with pytest.raises(ValueError, match="three was called with 3 positional arguments"):
        qb.grad(three, argnums=argnums)(1.0, 1.0, 1.0)


@pytest.mark.parametrize("argnums", [True, 0.0, "x", (), (0, "y"), None])
def test_argnums_of_other_types_are_refused(argnums: Any) -> None:
    with pytest.raises(qb.DtypeError, match="argnums must be an int or a tuple of ints"):
        qb.grad(three, argnums=argnums)


def test_a_keyword_argument_is_not_differentiated_by_position() -> None:
    assert qb.grad(lambda x, y: x * y)(2.0, y=3.0).item() == 3.0
    assert qb.grad(lambda x, *, y: x * y["a"])(A(2.0), y={"a": A(7.0)}).item() == 7.0
    with pytest.raises(qb.ShapeError, match="must be positional"):
        qb.grad(lambda x: x)(x=2.0)


# --- Python numbers ---------------------------------------------------------------------------------------------------


def test_a_number_is_differentiated_where_argnums_point_and_static_elsewhere() -> None:
    seen: list[Any] = []

    def f(x: Any, n: Any) -> Any:
        seen.append((type(x), n))
        return x**n

    assert qb.grad(f)(2.0, 3).item() == 12.0
    assert qb.jit(qb.grad(f))(2.0, 3).item() == 12.0
    assert all(kind is qb.TraceTensor and n == 3 and type(n) is int for kind, n in seen)


@pytest.mark.parametrize("argnums", [1, -1, (0, 1), (0, -1)])
def test_numbers_in_differentiated_positions_do_not_retrace(argnums: Any) -> None:
    traces: list[int] = []

    def f(x: Any, y: Any) -> Any:
        traces.append(1)
        return x * y

    g = qb.grad(f, argnums=argnums)
    for i in range(20):
        g(A(2.0) if argnums in (1, -1) else 2.0 + i, 1.0 + i)
    assert len(traces) == 1


def test_transforms_pass_the_positions_of_numbers_outwards() -> None:
    f = lambda x, y: x * x * y
    for g in (qb.jit(qb.grad(f, argnums=(0, -1))), qb.grad(qb.jit(f), argnums=(0, -1))):
        for i in range(12):  # more than max_traces
            assert [v.item() for v in g(3.0, 1.0 + i)] == [6.0 * (1.0 + i), 9.0]


def test_python_bools_in_a_differentiated_tree_are_truth_values() -> None:
    g = qb.grad(lambda p: qb.where(p["on"], p["x"] * 2.0, 0.0))
    assert g({"x": 3.0, "on": True})["x"].item() == 2.0
    assert g({"x": 3.0, "on": False})["x"].item() == 0.0
    assert g({"x": 3.0, "on": False})["on"] is None


# --- trees ------------------------------------------------------------------------------------------------------------

TREES: list[tuple[str, Any]] = [
    ("tuple", (A([1.0, 2.0]), A(3.0))),
    ("list", [A([1.0, 2.0]), A(3.0)]),
    ("dict", {"w": A([1.0, 2.0]), "b": A(3.0)}),
    ("ordered", OrderedDict([("w", A([1.0, 2.0])), ("b", A(3.0))])),
    ("named", Pair(A([1.0, 2.0]), A(3.0))),
    ("dataclass", Layer(A([1.0, 2.0]), A(3.0))),
    ("nested", {"layers": [Pair(A([1.0, 2.0]), A(3.0)), (Layer(A([4.0]), None),)], "none": None}),
    ("default", defaultdict(list, {"w": A([1.0, 2.0])})),
]


@pytest.mark.parametrize("name, tree", TREES, ids=[t[0] for t in TREES])
def test_the_gradient_is_a_tree_like_the_argument(name: str, tree: Any) -> None:
    def loss(p: Any) -> Any:
        return sum((qb.sum(x * x) for x in qb.tree.flatten(p)[0]), start=0.0)

    for g in (qb.grad(loss)(tree), qb.jit(qb.grad(loss))(tree), qb.value_and_grad(loss)(tree)[1]):
        leaves, treedef = qb.tree.flatten(tree)
        found, found_def = qb.tree.flatten(g)
        assert treedef == found_def
        assert type(g) is type(tree)
        for x, dx in zip(leaves, found, strict=True):
            np.testing.assert_array_equal(dx.numpy(), 2.0 * x.numpy())
    if isinstance(tree, dict):
        assert list(g) == list(tree)  # the caller's order of keys


def test_bool_leaves_have_the_gradient_none() -> None:
    p = {"x": A([1.0, -2.0]), "mask": A([True, False])}
    g = qb.grad(lambda p: qb.sum(qb.where(p["mask"], p["x"], 0.0) ** 2))(p)
    assert g["mask"] is None
    assert g["x"].tolist() == [2.0, 0.0]
    both = qb.grad(lambda x, m: qb.sum(qb.where(m, x, 0.0)), argnums=(0, 1))(p["x"], p["mask"])
    assert both[0].tolist() == [1.0, 0.0]
    assert both[1] is None


def test_an_argument_that_is_not_used_has_gradient_zero() -> None:
    g = qb.grad(lambda p, q: qb.sum(p["a"]), argnums=(0, 1))(
        {"a": A([1.0, 2.0]), "b": A([[3.0]])}, A([1.0], "float32")
    )
    assert g[0]["a"].tolist() == [1.0, 1.0]
    assert g[0]["b"].tolist() == [[0.0]]
    assert g[1].tolist() == [0.0]
    assert g[1].dtype is qb.float32


def test_a_constant_loss_has_gradient_zero() -> None:
    assert qb.grad(lambda x: 3.0)(A([1.0, 2.0])).tolist() == [0.0, 0.0]
    assert qb.grad(lambda x: A(3.0))(2.0).item() == 0.0
    value, g = qb.value_and_grad(lambda x: 3)(A(2.0))
    assert (value.item(), g.item()) == (3.0, 0.0)


def test_the_identity_has_gradient_one() -> None:
    value, g = qb.value_and_grad(lambda x: x)(A(2.0))
    assert (value.item(), g.item()) == (2.0, 1.0)
    assert qb.grad(qb.grad(lambda x: x))(2.0).item() == 0.0


def test_one_array_in_two_places_is_two_arguments() -> None:
    x = A(3.0)
    gx, gy = qb.grad(lambda x, y: x * x * y, argnums=(0, 1))(x, x)
    assert (gx.item(), gy.item()) == (18.0, 9.0)


def test_numpy_arguments_are_arrays() -> None:
    for x in (np.array([1.0, 2.0]), [1.0, 2.0], (1, 2)):
        g = qb.grad(lambda x: qb.sum(qb.stack(list(x)) ** 3))(x)
        np.testing.assert_array_equal(np.stack([np.asarray(v) for v in g]), [3.0, 12.0])
    assert qb.grad(lambda x: x * x)(np.float64(3.0)).item() == 6.0
    assert qb.grad(lambda x: x * x)(np.int64(3)).item() == 6.0
    assert qb.grad(lambda x: x * x)(np.float32(3.0)).dtype is qb.float32


# --- aux --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "aux", ["text", None, (), {"n": 3, "rate": 0.5, "on": True}, ["a", None, ("b",)], len], ids=repr
)
def test_aux_that_is_no_array_passes_through(aux: Any) -> None:
    f = lambda x: (x * x, aux)
    for transform in (qb.grad(f, has_aux=True), qb.jit(qb.grad(f, has_aux=True))):
        for _ in range(2):
            g, found = transform(3.0)
            assert g.item() == 6.0
            assert found == aux
            assert type(found) is type(aux)
    (value, found), g = qb.value_and_grad(f, has_aux=True)(3.0)
    assert (value.item(), g.item(), found) == (9.0, 6.0, aux)


def test_aux_numbers_keep_their_python_type() -> None:
    _, aux = qb.grad(lambda x: (x, {"n": 3, "rate": 0.5, "on": True}), has_aux=True)(1.0)
    assert [type(aux[k]) for k in ("n", "rate", "on")] == [int, float, bool]


def test_aux_arrays_are_concrete_and_not_differentiated() -> None:
    f = lambda x: (qb.sum(x * x), {"y": x * 10.0, "first": x[0], "tag": "t"})
    g, aux = qb.grad(f, has_aux=True)(A([1.0, 2.0]))
    assert g.tolist() == [2.0, 4.0]
    assert type(aux["y"]) is qb.Tensor
    assert aux["y"].tolist() == [10.0, 20.0]
    assert aux["first"].item() == 1.0
    assert aux["tag"] == "t"


def test_aux_of_a_nested_gradient() -> None:
    inner = qb.grad(lambda x: (x**3, {"y": x * 2.0, "tag": "t"}), has_aux=True)
    g, aux = qb.grad(inner, has_aux=True)(2.0)
    assert (g.item(), aux["y"].item(), aux["tag"]) == (12.0, 4.0, "t")


def test_aux_under_vmap() -> None:
    g, aux = qb.vmap(qb.grad(lambda x: (x * x, (x * 10.0, "tag", None)), has_aux=True))(A([1.0, 2.0]))
    assert g.tolist() == [2.0, 4.0]
    assert aux[0].tolist() == [10.0, 20.0]
    assert aux[1:] == ("tag", None)


def test_aux_may_hold_a_value_of_an_enclosing_trace() -> None:
    def outer(w: Any) -> Any:
        g, aux = qb.grad(lambda x: (x * w, w * w), has_aux=True)(0.5)
        return g * aux

    assert qb.grad(outer)(2.0).item() == pytest.approx(12.0, rel=1e-15)


@pytest.mark.parametrize(
    "result", [lambda x: x, lambda x: (x,), lambda x: (x, x, x), lambda x: {"a": x, "b": x}]
)
def test_forgetting_the_pair_is_an_error_that_says_so(result: Any) -> None:
    for transform in (qb.grad, qb.value_and_grad):
        with pytest.raises(qb.DtypeError, match=r"must return a pair \(value, aux\)"):
            transform(result, has_aux=True)(1.0)


# --- dtypes -----------------------------------------------------------------------------------------------------------


def test_float32_stays_float32() -> None:
    x = A([0.5, -1.5], "float32")
    f = lambda x: qb.sum(qb.sin(x) * 2.0 + x**3 * 0.1 + qb.where(x > 0.0, x, 0.3 * x) + x / 7 + 2**x)
    value, g = qb.value_and_grad(f)(x)
    assert value.dtype is qb.float32
    assert g.dtype is qb.float32
    assert qb.grad(lambda x: qb.sum(qb.grad(f)(x) ** 2))(x).dtype is qb.float32
    wide = qb.grad(f)(qb.astype(x, qb.float64))
    np.testing.assert_allclose(g.numpy(), wide.numpy(), rtol=1e-6)


def test_a_float32_part_of_a_float64_function_gives_float64_gradients() -> None:
    def f(x: Any) -> Any:
        return qb.sum(qb.astype(qb.sin(qb.astype(x, qb.float32)), qb.float64) * x)

    x = np.array([0.5, 1.5])
    g = qb.grad(f)(A(x))
    assert g.dtype is qb.float64
    np.testing.assert_allclose(g.numpy(), np.sin(x) + x * np.cos(x), rtol=1e-6)


def test_gradients_of_arguments_of_two_dtypes_keep_each_its_own() -> None:
    f = lambda x, y: qb.sum(x * x) + qb.astype(qb.sum(y * y), qb.float64)
    gx, gy = qb.grad(f, argnums=(0, 1))(A([1.0, 2.0]), A([3.0], "float32"))
    assert (gx.dtype, gy.dtype) == (qb.float64, qb.float32)
    assert gy.tolist() == [6.0]


def test_mixing_dtypes_inside_a_function_names_both_and_the_remedy() -> None:
    with pytest.raises(qb.DtypeError, match=r"(?s)float32.*float64.*astype"):
        qb.grad(lambda x: qb.sum(x * A([1.0, 2.0])))(A([1.0, 2.0], "float32"))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f, error, match",
    [
        (lambda x: x, ValueError, r"float64\[2\].*quabla.sum or quabla.mean"),
        (lambda x: x[:1], ValueError, r"scalar \(shape \(\)\).*float64\[1\]"),
        (lambda x: qb.any(x > 0.0), TypeError, r"floating scalar.*bool\[\]"),
        (lambda x: None, TypeError, "None .is its return statement missing"),
        (lambda x: (qb.sum(x), 1.0), TypeError, "must return one scalar.*a tuple of 2"),
        (lambda x: [qb.sum(x)], TypeError, "must return one scalar.*a list of 1"),
        (lambda x: {"loss": qb.sum(x)}, TypeError, "must return one scalar.*a dict"),
        (lambda x: "loss", TypeError, "returned a str"),
    ],
)
def test_a_loss_that_is_no_floating_scalar(f: Any, error: Any, match: str) -> None:
    for g in (qb.grad(f), qb.value_and_grad(f), qb.jit(qb.grad(f)), qb.hessian(f)):
        with pytest.raises(error, match=f"(?s){match}") as caught:
            g(A([1.0, 2.0]))
        assert isinstance(caught.value, qb.QuablaError)
        assert "<lambda>" in str(caught.value)
    with pytest.raises(qb.DtypeError, match="has_aux=True"):
        qb.grad(lambda x: (qb.sum(x), 1.0))(A([1.0, 2.0]))


@pytest.mark.parametrize("fun", [3, None, A(1.0), "sin"])
def test_what_is_no_function_is_refused_at_once(fun: Any) -> None:
    for transform in (qb.grad, qb.value_and_grad, qb.jit, qb.vmap, qb.jacobian, qb.hessian):
        with pytest.raises(TypeError, match="must be a function"):
            transform(fun)


@pytest.mark.parametrize(
    "argument, error, match",
    [
        ("mode", TypeError, "argument x is a str"),
        (object(), TypeError, "argument x is an object"),
        ({"a": [1.0, {2}]}, TypeError, "argument x/a/1 is a set"),
        (np.zeros((0, 3)), ValueError, r"argument x: the array is empty, its shape is \(0, 3\)"),
        (np.zeros(2, np.float16), TypeError, "argument x: dtype float16"),
        (np.zeros(2, complex), TypeError, "argument x: dtype complex128"),
        (np.zeros(2, ">f8"), TypeError, "argument x: .*byte order"),
        (np.array([None, 1.0]), TypeError, "argument x: dtype object"),
        ([np.zeros(2), np.array(["a"])], TypeError, "argument x/1: dtype"),
    ],
)
def test_an_argument_that_is_no_array_is_named(argument: Any, error: Any, match: str) -> None:
    f = lambda x: 1.0
    for transform in (qb.grad(f), qb.jit(f), qb.jit(qb.value_and_grad(f)), qb.jacobian(f)):
        with pytest.raises(error, match=match) as caught:
            transform(argument)
        assert isinstance(caught.value, qb.QuablaError)
        assert "<lambda>" in str(caught.value)


def test_functions_of_every_kind_can_be_transformed() -> None:
    import functools

    class Model:
        def __init__(self, w: float) -> None:
            self.w = w

        def loss(self, x: Any) -> Any:
            return self.w * x * x

        def __call__(self, x: Any) -> Any:
            return self.loss(x)

        @staticmethod
        def plain(x: Any) -> Any:
            return x * x * 3.0

    for f in (Model(3.0).loss, Model(3.0), Model.plain, functools.partial(lambda w, x: w * x * x, 3.0)):
        assert qb.grad(f)(2.0).item() == 12.0
    assert qb.grad(qb.sin)(0.0).item() == 1.0


def test_a_transformed_function_keeps_its_documentation() -> None:
    def energy(x: Any) -> Any:
        """The energy."""
        return x

    g = qb.grad(energy)
    assert g.__doc__ == "The energy."
    assert g.__wrapped__ is energy
    assert "energy" in repr(g)


# --- singular points --------------------------------------------------------------------------------------------------


def test_norm_of_rows_with_a_zero_row() -> None:
    s = lambda x: qb.sum(x * x, axis=1)
    f = lambda x: qb.sum(qb.where(s(x) > 0.0, qb.sqrt(s(x)), 0.0))
    g = qb.grad(f)(A([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(g.numpy(), [[1 / 5**0.5, 2 / 5**0.5], [0.6, 0.8], [0.0, 0.0]], rtol=1e-15)


def test_a_clamp_above_a_square_root() -> None:
    f = lambda p: qb.sum(qb.maximum(qb.sqrt(p[0] ** 2 + p[1] ** 2), 1e-10))
    assert qb.grad(f)(A([0.0, 0.0])).tolist() == [0.0, 0.0]


def test_both_forms_of_the_square_root_have_slope_zero_at_zero() -> None:
    assert qb.grad(qb.sqrt)(0.0).item() == 0.0
    assert qb.grad(lambda x: x**0.5)(0.0).item() == 0.0


def test_an_exponent_at_base_zero_twice() -> None:
    assert qb.grad(qb.grad(lambda y: qb.power(A(0.0), y)))(0.0).item() == 0.0


def test_a_negative_base_with_a_learnable_exponent() -> None:
    value, (dx, dy) = qb.value_and_grad(qb.power, argnums=(0, 1))(-2.0, 2.0)
    assert (value.item(), dx.item(), dy.item()) == (4.0, -4.0, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_maximum_has_one_gradient(dtype: str) -> None:
    # A maximum compared with a value that another kernel rounds otherwise would have none.
    g = qb.jit(qb.grad(lambda x: qb.max(qb.sin(x) * 1.1 + 0.3 * x)))
    rng = np.random.default_rng(3)
    for _ in range(100):
        assert np.count_nonzero(g(A(rng.normal(size=17), dtype)).numpy()) == 1


def test_broadcast_operands_are_summed_in_the_gradient() -> None:
    x = qb.ones((3, 3))
    assert qb.grad(lambda x: qb.sum((x + qb.ones((3, 3, 3))) ** 2))(x).tolist() == [[12.0] * 3] * 3
    gx, gy = qb.grad(lambda x, y: qb.sum(x * y), argnums=(0, 1))(A(2.0), A([1.0, 3.0]))
    assert (gx.shape, gx.item(), gy.tolist()) == ((), 4.0, [2.0, 2.0])
