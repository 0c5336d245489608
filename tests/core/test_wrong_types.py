"""What is no array, given to each public function in turn: a typed error that begins with the name of the function."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import quabla as qb

SQUARE = [[4.0, 1.0], [1.0, 3.0]]
NO_ARRAYS: dict[str, Any] = {
    "None": None,
    "a string": "a",
    "an object": object(),
    "a dict": {"a": 1.0},
    "a complex number": 1j,
    "float16": np.ones(2, np.float16),
    "complex elements": np.ones(2, complex),
    "objects": np.array([None]),
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
}

# Functions of functions, of programs and of the installation, and those whose first argument is no array.
OTHERS = {
    "checkpoint", "cond", "custom_jvp", "custom_vjp", "debug_nans", "devices", "dtype", "einsum", "fori_loop",
    "get_num_threads", "grad", "hessian", "jacobian", "jit", "jvp", "load_program", "meshgrid", "remat", "scan",
    "set_num_threads", "value_and_grad", "vjp", "vmap", "while_loop",
}  # fmt: skip
LISTS = ("concat", "stack")  # what is no list of arrays is an error of another class
OF_TREES = ("stop_gradient",)
ALIASES = {"atan2": "arctan2"}


def _arity(name: str) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(getattr(qb, name)).parameters.values()
    return max(1, sum(p.kind in kinds and p.default is p.empty for p in parameters))


SHADOWING = ("abs", "all", "any", "divmod", "max", "min", "round", "sum")
FUNCTIONS = sorted(
    n for n in (*qb.__all__, *SHADOWING) if inspect.isfunction(getattr(qb, n)) and n not in OTHERS
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_array_is_refused_by_name(name: str) -> None:
    rest = [qb.array(SQUARE)] * (_arity(name) - 1)
    if name in ("full", "full_like"):
        rest = [1.0]
    for what, wrong in NO_ARRAYS.items():
        if name in OF_TREES and what in ("None", "a dict"):
            continue
        with pytest.raises(qb.QuablaError) as caught:
            getattr(qb, name)(wrong, *rest)
        assert name in LISTS or isinstance(caught.value, TypeError), what
        assert str(caught.value).startswith(f"{ALIASES.get(name, name)}:"), (what, str(caught.value))


@pytest.mark.parametrize(
    "name",
    ["add", "arctan2", "div", "divmod", "floor_divide", "fmod", "hypot", "logaddexp", "maximum", "minimum", "mod",
     "mul", "power", "remainder", "sub"],
)  # fmt: skip
def test_shapes_that_do_not_broadcast_are_refused_by_the_name_that_was_called(name: str) -> None:
    with pytest.raises(qb.ShapeError) as caught:
        getattr(qb, name)(qb.ones(3), qb.ones(4))
    assert str(caught.value).startswith(f"{name}: shapes (3,) and (4,)")


@pytest.mark.parametrize("name", ["reciprocal", "square", "cbrt", "silu", "gelu", "exp2"])
def test_truth_values_are_no_operands_of_functions_of_one_number(name: str) -> None:
    for f in (getattr(qb, name), qb.jit(getattr(qb, name))):
        with pytest.raises(qb.DtypeError, match=f"^{name}: .*bool"):
            f(qb.array([True, False]))


def test_a_shape_may_be_an_array_of_integers_and_holds_nothing_else() -> None:
    x = qb.arange(6)
    assert qb.reshape(x, np.array([2, -1])).shape == (2, 3)
    assert qb.reshape(x, np.array(6)).shape == (6,)
    for wrong in (-1.0, (2.0, 3), np.ones(2), np.ones(2, complex), np.ones((1, 2), int), "6", None):
        with pytest.raises(qb.DtypeError, match=r"^reshape: a shape is"):
            qb.reshape(x, wrong)


def test_no_array_has_more_axes_than_numpy_can_hold() -> None:
    assert qb.ones((1,) * 64).ndim == np.ones((1,) * 64).ndim
    for make in (
        qb.ones,
        qb.zeros,
        qb.ShapeDtype,
        lambda s: qb.full(s, 1.0),
        lambda s: qb.ones(1).reshape(s),
    ):
        with pytest.raises(qb.ShapeError, match="at most 64 axes"):
            make((1,) * 65)
    with pytest.raises(qb.ShapeError, match=r"^eye: no memory"):
        qb.eye(10**40)
