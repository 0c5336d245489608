"""Operators and methods of arrays, eager and traced, and what a traced value refuses."""

from __future__ import annotations

import copy
import inspect
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quabla as qb
from quabla.arrays.tracer import trace

MATRICES = hnp.arrays(np.float64, (2, 3), elements=st.floats(-10, 10, allow_subnormal=False))
NUMBERS = st.floats(-10, 10, allow_subnormal=False) | st.integers(-10, 10)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
BINARY = [*ARITHMETIC, operator.lt, operator.le, operator.gt, operator.ge]


def traced(f: Callable[..., Any], *arrays: Any) -> Any:
    """What `f` gives on traced values with the elements of `arrays`: the recorded program, run node by node."""
    tensors = [qb.asarray(a) for a in arrays]
    program, captures = trace(lambda *xs: (f(*xs),), [t.aval for t in tensors])
    assert not captures
    values = dict(zip(program.inputs, [t.numpy() for t in tensors], strict=True))
    with np.errstate(all="ignore"):
        for node in program.nodes:
            out = node.op.evaluate(*[values[v] for v in node.inputs], **node.params)
            values.update(zip(node.outputs, out if node.op.multiple else (out,), strict=True))
    return values[program.outputs[0]]


def in_trace(f: Callable[[Any], Any], shape: Any = (2,)) -> Any:
    """What `f` gives, or raises, on a traced value."""
    seen = []
    trace(lambda x: (seen.append(f(x)), (x,))[1], [qb.ShapeDtype(shape)])
    return seen[0]


def same(got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got), expected)
    assert np.asarray(got).dtype == np.asarray(expected).dtype


# --- operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", BINARY)
@given(a=MATRICES, b=MATRICES, number=NUMBERS)
def test_binary_operators(op: Any, a: np.ndarray, b: np.ndarray, number: float) -> None:
    x, y = qb.array(a), qb.array(b)
    with np.errstate(all="ignore"):
        for left, right, expected in (
            (x, y, op(a, b)),
            (x, number, op(a, number)),
            (number, x, op(number, a)),
        ):
            got = op(left, right)
            assert type(got) is qb.Tensor
            same(got, expected)
        same(traced(op, a, b), op(a, b))
        same(traced(lambda v: op(v, number), a), op(a, number))
        same(traced(lambda v: op(number, v), a), op(number, a))


@pytest.mark.parametrize("op", [*BINARY, operator.matmul, operator.pow])
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.bool_])
def test_numpy_on_either_side_gives_a_tensor(op: Any, dtype: Any) -> None:
    a = np.array([[1.5, 2.0], [0.5, 3.0]])
    b = np.array([[1, 0], [2, 1]]).astype(dtype)
    t = qb.array(a)
    if op is operator.pow and dtype is np.bool_:
        for call in (lambda: op(b, t), lambda: op(t, b)):
            with pytest.raises(TypeError, match="bool"):
                call()
        return
    as_floats = b.astype(float)
    for got, expected in ((op(b, t), op(as_floats, a)), (op(t, b), op(a, as_floats))):
        assert type(got) is qb.Tensor
        same(got, expected)


@pytest.mark.parametrize("scalar", [np.float64(2), np.int64(2), np.int8(2), np.array(2.0)])
def test_numpy_scalars_on_either_side(scalar: Any) -> None:
    t = qb.array([1.0, 2.0])
    for got, expected in ((scalar * t, [2.0, 4.0]), (t * scalar, [2.0, 4.0]), (scalar - t, [1.0, 0.0])):
        assert type(got) is qb.Tensor and got.tolist() == expected


def test_numpy_integers_adopt_the_dtype_and_floats_insist() -> None:
    t = qb.ones(2, qb.float32)
    assert (t * np.int64(2)).dtype is (np.int64(2) * t).dtype is qb.float32
    assert (np.float32(2) * t).dtype is qb.float32
    assert (
        (np.float64(2) * t).dtype is (t * np.float64(2)).dtype is qb.mul(t, np.float64(2)).dtype is qb.float32
    )
    single = np.ones(2, np.float32)
    for call in (lambda: single[0] * qb.ones(2), lambda: qb.ones(2) * single, lambda: t * np.ones(2)):
        with pytest.raises(TypeError, match="astype"):
            call()


@given(a=hnp.arrays(np.bool_, (2, 3)), b=hnp.arrays(np.bool_, (3,)))
def test_logical_operators(a: np.ndarray, b: np.ndarray) -> None:
    x, y = qb.array(a), qb.array(b)
    same(x & y, a & b)
    same(x | y, a | b)
    same(~x, ~a)
    same(b & x, b & a)
    same(x | True, a | True)
    same(False | x, False | a)
    same(traced(lambda u, v: (u & v) | ~u, a, b), (a & b) | ~a)
    with pytest.raises(TypeError, match="logical_and"):
        qb.ones(2) & qb.ones(2)


@given(MATRICES)
def test_unary_operators(a: np.ndarray) -> None:
    for op in (operator.neg, operator.pos, operator.abs):
        same(op(qb.array(a)), op(a))
        same(traced(op, a), op(a))


@pytest.mark.parametrize("p", [0, 1, 2, 3, 7, -1, -2, 0.5, 2.0, -1.5])
def test_powers(p: Any) -> None:
    a = np.array([0.25, 1.0, 2.0, 3.5])
    for got in (qb.array(a) ** p, traced(lambda x: x**p, a), qb.array(a).powi(p)):
        np.testing.assert_allclose(np.asarray(got), a ** np.float64(p), rtol=1e-15)
    for got in (p ** qb.array(a), traced(lambda x: p**x, a)):
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(np.asarray(got), np.float64(p) ** a, rtol=1e-15)
    same(qb.array(a) ** qb.array(2.0), a**2.0)


def test_which_power_is_recorded() -> None:
    def ops(f: Any) -> set[str]:
        program, _ = trace(lambda x: (f(x),), [qb.ShapeDtype((2,))])
        return {node.op.name for node in program.nodes}

    assert ops(lambda x: x**3) == {"integer_power"}
    assert ops(lambda x: x**1) == set()
    for exponent in (3.0, -1, -2):
        assert "power" in ops(lambda x, p=exponent: x**p)
    assert "power" in ops(lambda x: x**x) and "power" in ops(lambda x: 2**x)


@pytest.mark.parametrize(
    "call", [lambda x: x**True, lambda x: True**x, lambda x: x ** (x > 0), lambda x: (x > 0) ** 2]
)
def test_powers_of_bools_are_refused(call: Any) -> None:
    with pytest.raises(TypeError, match=r"power.*bool"):
        call(qb.ones(2))
    with pytest.raises(TypeError, match=r"power.*bool"):
        in_trace(call)


@pytest.mark.parametrize("shapes", [((2,), (2,)), ((3, 2), (2,)), ((3,), (3, 2)), ((4, 3, 2), (2, 3))])
def test_matmul_of_all_ranks(shapes: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s) for s in shapes)
    for got in (qb.array(a) @ qb.array(b), qb.array(a).matmul(qb.array(b)), a @ qb.array(b), qb.array(a) @ b):
        np.testing.assert_allclose(got.numpy(), a @ b, rtol=1e-14)
    np.testing.assert_allclose(traced(operator.matmul, a, b), a @ b, rtol=1e-14)


@given(st.data())
def test_indexing_follows_numpy(data: Any) -> None:
    a = np.arange(24.0).reshape(2, 3, 4)
    key = data.draw(hnp.basic_indices(a.shape, allow_newaxis=True))
    if a[key].size == 0:
        with pytest.raises(ValueError, match="empty"):
            qb.array(a)[key]
        return
    same(qb.array(a)[key], a[key])
    same(traced(lambda x: x[key], a), a[key])


@pytest.mark.parametrize("bad", ["a", None, [1.0, 2.0], (1.0, 2.0), {}, 1j, b"a"])
@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.pow, operator.lt, operator.matmul])
def test_hopeless_operands_are_refused_clearly(op: Any, bad: Any) -> None:
    for call in (lambda x: op(x, bad), lambda x: op(bad, x)):
        for run in (lambda f: f(qb.ones(2)), in_trace):
            with pytest.raises(TypeError, match="not an operand") as caught:
                run(call)
            if isinstance(bad, list | tuple):
                assert "quabla.asarray" in str(caught.value)


@pytest.mark.parametrize("bad", [10**400, -(10**400)])
@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.lt])
def test_integers_that_no_float_reaches_are_refused(op: Any, bad: int) -> None:
    for call in (lambda x: op(x, bad), lambda x: op(bad, x)):
        for run in (lambda f: f(qb.ones(2)), in_trace):
            with pytest.raises(qb.DtypeError, match="1329 bits is beyond the range of float64"):
                run(call)


def test_logic_takes_truth_values_only() -> None:
    for call in (lambda: qb.ones(2) & qb.ones(2), lambda: qb.logical_not(qb.ones(2))):
        with pytest.raises(
            qb.DtypeError, match=r"bool operands, got float64\[2\]; compare, as in quabla.not_equal"
        ):
            call()


@pytest.mark.parametrize("arguments", [(), ([1.0],), ([[1.0, 2.0]],)])
def test_the_class_makes_no_arrays_of_data_alone(arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"quabla\.array"):
        qb.Tensor(*arguments)


def test_other_classes_may_answer() -> None:
    class Other:
        def __radd__(self, other: Any) -> str:
            return "radd"

        def __rmatmul__(self, other: Any) -> str:
            return "rmatmul"

        def __gt__(self, other: Any) -> str:
            return "gt"

    for x in (qb.ones(2), qb.ones(2).slice(0, 0, 1)):
        assert (x + Other(), x @ Other(), x < Other()) == ("radd", "rmatmul", "gt")
    assert in_trace(lambda x: (x + Other(), x < Other())) == ("radd", "gt")
    with pytest.raises(TypeError, match="unsupported operand"):
        qb.ones(2) - Other()
    with pytest.raises(TypeError, match="unsupported operand"):
        qb.ones(2) - object()


# --- methods ----------------------------------------------------------------------------------------------------------

UNARY = "abs sign neg exp sin cos tanh relu sigmoid softplus stop_gradient isnan isinf isfinite ravel squeeze tril triu"


@pytest.mark.parametrize("name", [*UNARY.split(), "log", "sqrt", "transpose"])
def test_unary_methods_are_the_functions(name: str) -> None:
    a = np.array([[0.5, 2.0], [3.0, 0.25]])
    expected = getattr(qb, name)(qb.array(a))
    for x in (qb.array(a), qb.array(a).slice(0, 0, 2)):
        same(getattr(x, name)(), expected.numpy())
    same(traced(lambda v: getattr(v, name)(), a), expected.numpy())


PAIRS = "add sub mul div maximum minimum equal not_equal less less_equal greater greater_equal"


@pytest.mark.parametrize("name", PAIRS.split())
def test_binary_methods_are_the_functions(name: str) -> None:
    a, b = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    for other in (b, 2.0):
        expected = getattr(qb, name)(qb.array(a), qb.asarray(other))
        same(getattr(qb.array(a), name)(qb.array(b) if other is b else other), expected.numpy())
    same(traced(lambda x, y: getattr(x, name)(y), a, b), getattr(qb, name)(qb.array(a), qb.array(b)).numpy())


@pytest.mark.parametrize("name", "sum mean max min norm any all".split())
@pytest.mark.parametrize(
    ("axis", "keepdims"), [(None, False), (0, False), (-1, True), ((0, 2), False), (None, True)]
)
def test_reductions_are_the_functions(name: str, axis: Any, keepdims: bool) -> None:
    a = np.random.default_rng(0).normal(size=(2, 3, 4))
    if name in ("any", "all"):
        a = a > 0
    expected = getattr(qb, name)(qb.array(a), axis=axis, keepdims=keepdims).numpy()
    same(getattr(qb.array(a), name)(axis, keepdims), expected)
    same(getattr(qb.array(a), name)(axis=axis, keepdims=keepdims), expected)
    same(traced(lambda x: getattr(x, name)(axis, keepdims=keepdims), a), expected)


def test_shape_methods() -> None:
    a = np.arange(6.0).reshape(1, 2, 3)
    for f in (
        lambda x: x.reshape(3, 2), lambda x: x.reshape((3, 2)), lambda x: x.reshape([3, -1]), lambda x: x.reshape(-1),
        lambda x: x.T, lambda x: x.transpose(), lambda x: x.transpose(2, 0, 1), lambda x: x.transpose((2, 0, 1)),
        lambda x: x.ravel(), lambda x: x.squeeze(), lambda x: x.squeeze(0),
    ):  # fmt: skip
        same(f(qb.array(a)), f(a))
        same(traced(f, a), f(a))
    for f in (lambda x: x.broadcast_to(4, 2, 3), lambda x: x.broadcast_to((4, 2, 3))):
        same(f(qb.array(a)), np.broadcast_to(a, (4, 2, 3)))
    assert qb.array(a).astype(qb.float32).dtype is qb.array(a).astype("float32").dtype is qb.float32
    same(traced(lambda x: x.slice(2, 0, 2, step=2), a), a[:, :, ::2])


def test_methods_explain_themselves() -> None:
    for cls in (qb.Tensor, qb.TraceTensor):
        for name, member in inspect.getmembers(cls):
            if callable(member) and not name.startswith("_") and cls is qb.Tensor:
                assert inspect.getdoc(member), name
                assert member.__name__ == name
    assert "keepdims" in inspect.signature(qb.Tensor.sum).parameters


# --- what a traced value refuses --------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (bool, r"quabla\.where.*quabla\.cond"),
    (lambda x: 1 if x else 0, r"quabla\.where.*quabla\.cond"),
    (lambda x: x > 0 and x < 1, r"quabla\.where"),
    (float, "float"),
    (math.sin, "math"),
    (int, "int"),
    (complex, "complex"),
    (round, "round"),
    (lambda x: f"{x:.2f}", "format"),
    (operator.index, "static_argnums"),
    (range, "static_argnums"),
    (lambda x: [1, 2][x], "static_argnums"),
    (lambda x: 1.0 in x, r"quabla\.any"),
    (lambda x: x.item(), "item"),
    (lambda x: x.tolist(), "tolist"),
    (lambda x: x.to_flat_list(), "to_flat_list"),
    (lambda x: x.numpy(), "numpy"),
    (np.asarray, r"quabla\.asarray.*quabla\.stack"),
    (lambda x: np.array([x, x]), r"quabla\.stack"),
    (np.sin, r"numpy\.sin.*quabla\.asarray"),
    (lambda x: np.sum(x, axis=0), r"numpy\.sum.*quabla\.asarray"),
    (lambda x: np.concatenate([x, x]), r"numpy\.concatenate.*quabla\.asarray"),
    (lambda x: np.ones(2) * x, r"quabla\.asarray"),
    (lambda x: x * np.ones(2), r"quabla\.asarray"),
    (lambda x: x @ np.ones(2), r"quabla\.asarray"),
    (lambda x: np.ones(2) < x, r"quabla\.asarray"),
    (lambda x: np.float64(2) * x, r"quabla\.asarray"),
    (lambda x: np.float32(2) - x, r"quabla\.asarray"),
    (lambda x: x - np.float32(2), r"quabla\.asarray"),
    (np.from_dlpack, "DLPack"),
    (pickle.dumps, "pickl"),
]


@pytest.mark.parametrize(("call", "remedy"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_traced_values_refuse_what_needs_elements(call: Any, remedy: str) -> None:
    with pytest.raises(qb.TracerError, match=remedy) as caught:
        in_trace(call, ())
    assert isinstance(caught.value, TypeError)
    assert "[]" in str(caught.value)


def test_the_message_names_the_users_line() -> None:
    def model(x: Any) -> Any:
        if x > 0:  # this very line
            return x
        return -x

    with pytest.raises(qb.TracerError, match=r"test_methods\.py, line \d+: if x > 0:  # this very line\)"):
        qb.grad(model)(1.0)
    with pytest.raises(qb.TracerError, match=r"test_methods\.py, line \d+: .*np\.mean"):
        qb.grad(lambda x: np.mean(x))(1.0)


def test_what_a_traced_value_allows() -> None:
    def f(x: Any) -> Any:
        assert repr(x) == "TraceTensor(float64[3,2])" and f"{x}" == repr(x)
        assert copy.deepcopy([x])[0] is x and copy.copy(x) is x
        assert (len(x), x.shape, x.ndim, x.size, x.dtype) == (3, (3, 2), 2, 6, qb.float64)
        assert x == x and (x == x + 1.0) is False and x != 1.0 and x in [x]
        assert +x is x
        a, b, c = x
        assert a.shape == (2,)
        return sum(row.sum() for row in x) + (a * b * c).sum()

    out = qb.grad(f)(qb.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    np.testing.assert_allclose(out.numpy(), [[16.0, 25.0], [6.0, 13.0], [4.0, 9.0]])


def test_float64_and_integer_scalars_of_numpy_are_python_numbers_on_the_right() -> None:
    assert qb.grad(lambda x: x * np.float64(2.5))(1.0).item() == 2.5
    assert qb.grad(lambda x: qb.sum(x) / np.prod(x.shape))(qb.ones((2, 2))).tolist() == [
        [0.25, 0.25],
        [0.25, 0.25],
    ]
    program, _ = trace(lambda x: (x ** np.int64(3),), [qb.ShapeDtype(())])
    assert [node.op.name for node in program.nodes] == ["integer_power"]
