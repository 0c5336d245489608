"""One op has several spellings: a function, an operator, its reflected form, a method; eager or traced. All agree."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

NUMBERS: dict[str, Any] = {"number": 2, "fraction": 2.5, "truth": True}
NUMPY: dict[str, Any] = {
    "numpy_bools": np.array([True, False]),
    "numpy_floats": np.array([1.5, 0.5]),
    "numpy_singles": np.array([1.5, 0.5], np.float32),
    "numpy_integers": np.array([3, 2]),
    "numpy_truth": np.True_,
    "numpy_number": np.float64(2.5),
}
ARRAYS: dict[str, Any] = {
    "floats": qb.array([1.5, 2.0]),
    "singles": qb.array([1.5, 2.0], dtype=qb.float32),
    "integers": qb.array([3.0, 2.0]).astype(qb.int64),
    "bools": qb.array([True, False]),
    "view": qb.array([1.5, 9.0, 2.0]).slice(0, 0, 2, 2),
}
OPERANDS = {**NUMBERS, **NUMPY, **ARRAYS}
# The function, its operator, its method.
SPELLINGS: dict[str, tuple[Callable[[Any, Any], Any] | None, str | None]] = {
    "add": (operator.add, "add"),
    "sub": (operator.sub, "sub"),
    "mul": (operator.mul, "mul"),
    "div": (operator.truediv, "div"),
    "power": (operator.pow, "powi"),
    "mod": (operator.mod, None),
    "remainder": (operator.mod, None),
    "floor_divide": (operator.floordiv, None),
    "divmod": (divmod, None),
    "matmul": (operator.matmul, "matmul"),
    "less": (operator.lt, "less"),
    "less_equal": (operator.le, "less_equal"),
    "greater": (operator.gt, "greater"),
    "greater_equal": (operator.ge, "greater_equal"),
    "logical_and": (operator.and_, "logical_and"),
    "logical_or": (operator.or_, "logical_or"),
    "maximum": (None, "maximum"),
    "minimum": (None, "minimum"),
    "fmod": (None, None),
    "hypot": (None, None),
    "arctan2": (None, None),
    "logaddexp": (None, None),
}
ARITHMETIC = [n for n in SPELLINGS if not n.startswith(("less", "greater", "logical", "matmul"))]


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    """The dtype and elements of a result, or the class of the error and what it says before the user's line."""
    try:
        found = f(*args)
    except qb.QuablaError as error:
        return type(error), str(error).split(" (at ")[0]
    parts = found if isinstance(found, tuple) else (found,)
    assert all(isinstance(p, qb.Tensor) for p in parts)
    return [(p.dtype, p.tolist()) for p in parts]


def traced_by(f: Callable[..., Any]) -> Callable[..., Any]:
    return qb.jit(f, device="reference")  # nothing to compile


def told(found: Any) -> Any:
    """What must agree: everything of a result, and of an error its class; operators name themselves by their symbol."""
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_one_op_agree(name: str) -> None:
    function: Any = getattr(qb, name)
    symbol, method = SPELLINGS[name]
    for (a, x), (b, y) in itertools.product(OPERANDS.items(), OPERANDS.items()):
        if a not in ARRAYS and b not in ARRAYS:
            continue  # Python and NumPy decide what their own operators mean
        expected = outcome(function, x, y)
        where = (name, a, b)
        if symbol is not None:
            assert _near(told(outcome(symbol, x, y)), told(expected)), where
        if method is not None and a in ARRAYS:
            assert _near(told(outcome(getattr(x, method), y)), told(expected)), where
        if a in ARRAYS and b in ARRAYS:
            # Traced, on both sides and on one side with the other one as a constant.
            traced = [
                outcome(traced_by(lambda x, y: function(x, y)), x, y),
                outcome(traced_by(lambda x, y=y: function(x, y)), x),
                outcome(traced_by(lambda y, x=x: function(x, y)), y),
            ]
            if symbol is not None:
                traced.append(outcome(traced_by(lambda x, y: symbol(x, y)), x, y))
        elif a in NUMBERS:
            traced = [outcome(traced_by(lambda y, x=x: function(x, y)), y)]
            if symbol is not None:
                traced.append(outcome(traced_by(lambda y, x=x: symbol(x, y)), y))
        elif b in NUMBERS:
            traced = [outcome(traced_by(lambda x, y=y: function(x, y)), x)]
            if symbol is not None:
                traced.append(outcome(traced_by(lambda x, y=y: symbol(x, y)), x))
        else:
            continue  # a traced value refuses operands of NumPy
        for found in traced:
            assert _near(told(found), told(expected)), (where, found, expected)


def _near(found: Any, expected: Any) -> bool:
    if not isinstance(found, list) or not isinstance(expected, list):
        return bool(found == expected)
    return len(found) == len(expected) and all(
        f[0] is e[0] and np.allclose(f[1], e[1], rtol=1e-6, equal_nan=True)
        for f, e in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("name", ARITHMETIC)
def test_bools_in_arithmetic(name: str) -> None:
    """Bools alone are refused, in the name of the function; beside floats they promote, except in powers."""
    function: Any = getattr(qb, name)
    bools = [x for n, x in OPERANDS.items() if n in ("bools", "truth", "numpy_bools", "numpy_truth")]
    for x, y in itertools.product(bools, bools):
        with pytest.raises(qb.DtypeError, match=rf"^({name}|floor_divide|mod): takes floating"):
            function(x, y)
    for x, y in itertools.product(bools, [ARRAYS["floats"], ARRAYS["singles"], ARRAYS["view"]]):
        for pair in ((x, y), (y, x)):
            if name == "power":
                with pytest.raises(qb.DtypeError, match=r"^power: takes floating operands, got a bool"):
                    function(*pair)
                continue
            found = function(*pair)
            for part in found if isinstance(found, tuple) else (found,):
                assert part.dtype is y.dtype


@pytest.mark.parametrize("name", ["hypot", "floor_divide", "divmod", "fmod", "arctan2", "logaddexp", "power"])
def test_functions_of_floats_refuse_integers_in_their_own_name(name: str) -> None:
    with pytest.raises(qb.DtypeError, match=f"^{name}: takes .*int64"):
        getattr(qb, name)(ARRAYS["integers"], 2)


# --- decorators with options ------------------------------------------------------------------------------------------


def test_transforms_of_what_stands_below_them() -> None:
    @qb.jit(device="reference", static_argnums=1, max_traces=1)
    def times(x: Any, n: int) -> Any:
        return x * n

    @qb.grad(argnums=1)
    def slope(x: Any, y: Any) -> Any:
        return x * y**2

    @qb.value_and_grad(argnums=(0, 1), has_aux=True)
    def both(x: Any, y: Any) -> Any:
        return x * y, "label"

    @qb.jacobian(argnums=1, has_aux=True, chunk_size=2)
    def block(x: Any, y: Any) -> Any:
        return x * y, "label"

    @qb.hessian(argnums=1, has_aux=True)
    def curve(x: Any, y: Any) -> Any:
        return x * y**2, "label"

    for of, expected in ((block, 2.0), (curve, 4.0)):
        derivative, aux = of(2.0, 5.0)
        assert (derivative.item(), aux) == (expected, "label")
    assert times(qb.array(2.0), 3).item() == 6.0
    with pytest.raises(qb.RetraceLimitError):
        times(qb.array(2.0), 4)
    assert slope(2.0, 3.0).item() == 12.0
    (value, aux), (dx, dy) = both(2.0, 5.0)
    assert (value.item(), aux, dx.item(), dy.item()) == (10.0, "label", 5.0, 2.0)


@pytest.mark.parametrize("transform", [qb.jit, qb.grad, qb.value_and_grad, qb.jacobian, qb.hessian])
def test_none_is_no_function(transform: Any) -> None:
    with pytest.raises(TypeError, match="function"):
        transform(None)
