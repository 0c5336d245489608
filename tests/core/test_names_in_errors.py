"""A message begins with the function that the user called, whatever the function is made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
X = A(np.arange(1.0, 5.0).reshape(2, 2))
I = X.astype(qb.int64)

# Other names of one op, which is what complains.
ALIASES = {
    "atan2": "arctan2",
    "dot": "dot_general",
    "inner": "dot_general",
    "matmul": "dot_general",
    "tensordot": "dot_general",
    "remainder": "mod",
    "square": "integer_power",
    "solve_triangular": "triangular_solve",
}


def _functions() -> dict[str, tuple[Callable[..., Any], int]]:
    """The functions of arrays alone, and how many each takes."""
    found = {}
    for module in (qb, qb.linalg):
        for name in module.__all__:
            f = getattr(module, name)
            if not inspect.isfunction(f) or not inspect.unwrap(f).__module__.startswith(
                ("quabla.ops", "quabla.linalg")
            ):
                continue
            parameters = inspect.signature(f).parameters.values()
            if any(p.kind is p.VAR_POSITIONAL for p in parameters):
                continue
            count = sum(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters)
            try:
                f(*[X] * count)
            except qb.errors.QuablaError:
                continue  # it takes something else than square matrices
            found[f"{module.__name__}.{name}"] = f, count
    return found


FUNCTIONS = _functions()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_refusal_of_integers_names_the_function(name: str) -> None:
    f, count = FUNCTIONS[name]
    called = name.rpartition(".")[2]
    try:
        f(*[I] * count)
    except qb.DtypeError as error:
        assert str(error).startswith(f"{ALIASES.get(called, called)}: "), error
        assert "astype" in str(error)


def test_most_functions_are_looked_at() -> None:
    assert len(FUNCTIONS) > 90
    assert {f"quabla.{n}" for n in "mean var std norm softmax logsumexp gelu tril".split()} < FUNCTIONS.keys()


@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles_of_integers_and_truth_values(name: str) -> None:
    f, expected = getattr(qb, name), getattr(np, name)
    for x in (I, I > 2, X, X.astype(qb.float32)):
        y = f(x)
        assert y.dtype is x.dtype
        np.testing.assert_array_equal(y.numpy(), expected(x.numpy()))
        np.testing.assert_array_equal(qb.jit(f)(x).numpy(), expected(x.numpy()))


WITH_DTYPE: dict[str, Callable[[Any], Any]] = {
    "array": lambda d: qb.array([1.0, 2.0], dtype=d),
    "asarray": lambda d: qb.asarray(X, dtype=d),
    "zeros": lambda d: qb.zeros(2, dtype=d),
    "ones": lambda d: qb.ones((2, 3), d),
    "full": lambda d: qb.full((2,), 1.0, dtype=d),
    "zeros_like": lambda d: qb.zeros_like(X, dtype=d),
    "ones_like": lambda d: qb.ones_like(X, dtype=d),
    "full_like": lambda d: qb.full_like(X, 1.0, dtype=d),
    "arange": lambda d: qb.arange(0, 3, dtype=d),
    "linspace": lambda d: qb.linspace(0.0, 1.0, 3, dtype=d),
    "eye": lambda d: qb.eye(2, dtype=d),
    "astype": lambda d: qb.astype(X, d),
    "Tensor": lambda d: qb.Tensor((2,), [1.0, 2.0], dtype=d),
    "ShapeDtype": lambda d: qb.ShapeDtype((2,), d),
}
NO_DTYPES = [
    A(1.0),
    A([1.0, 2.0]),
    np.ones(2),
    np.float64(2.0),
    3,
    "foo",
    object(),
    np.float16,
    [1],
    {},
    complex,
]


@pytest.mark.parametrize("name", WITH_DTYPE)
def test_what_is_no_dtype_is_refused_by_the_function(name: str) -> None:
    for wrong in NO_DTYPES:
        with pytest.raises(qb.DtypeError, match=rf"^{name}: .*dtype"):
            WITH_DTYPE[name](wrong)


def test_the_method_and_a_traced_dtype() -> None:
    with pytest.raises(qb.DtypeError, match=r"^astype: the dtype is an array \(Tensor\); .* dtype=x.dtype"):
        X.astype(X)
    with pytest.raises(qb.DtypeError, match=r"^array: the dtype is an array \(TraceTensor\)"):
        qb.jit(lambda x: qb.array([1.0], dtype=x))(X)


def test_full_like_names_itself() -> None:
    with pytest.raises(TypeError, match=r"^full_like: give the value once, as in full_like\(x, value\)"):
        qb.full_like(X)


# --- stop_gradient ----------------------------------------------------------------------------------------------------


def test_stop_gradient_of_a_tree() -> None:
    tree = {"w": X, "b": [A([True, False]), (2.0, None)], "i": I}
    for run in (qb.stop_gradient, qb.jit(qb.stop_gradient)):
        out = run(tree)
        assert qb.tree.structure(out) == qb.tree.structure(tree)
        for y, x in zip(qb.tree.leaves(out), qb.tree.leaves(tree), strict=True):
            np.testing.assert_array_equal(y.numpy(), np.asarray(x))
    loss = lambda p: qb.sum(qb.stop_gradient(p)["w"] * p["w"]) + qb.sum(qb.stop_gradient((p, p))[1]["v"])
    slopes = qb.grad(loss)({"w": X, "v": X})
    assert (slopes["w"].tolist(), slopes["v"].tolist()) == (X.tolist(), qb.zeros((2, 2)).tolist())
    tangent = qb.jvp(lambda x: qb.stop_gradient([x, x * x]), (X,), (X,))[1]
    assert [t.tolist() for t in tangent] == [qb.zeros((2, 2)).tolist()] * 2
    assert qb.vmap(lambda x: qb.stop_gradient({"x": x}))(X)["x"].tolist() == X.tolist()


def test_stop_gradient_names_the_leaf_that_is_no_array() -> None:
    with pytest.raises(qb.DtypeError, match=r"^stop_gradient: the leaf at w/1: a str is not an operand"):
        qb.stop_gradient({"w": [X, "s"]})
    with pytest.raises(qb.DtypeError, match=r"^stop_gradient: a str is not an operand"):
        qb.stop_gradient("s")
