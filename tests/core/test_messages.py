"""Mistakes that newcomers make. The message alone must be enough to mend the program.

Each mistake stands here as a user would write it, with the class of the error and the words that carry the cure: the
function at fault, the shapes, dtypes or argument path, what to write instead, and inside traced functions the line of
the user. Each is tried by itself and, where it can happen there, within jit(grad(...)), vmap and a loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

F = Callable[..., Any]
HERE = re.compile(r"\(at .*test_messages\.py, line \d+: (.*)\)$")


def message(kind: type[Exception], mistake: F) -> str:
    """What a mistake says; the class must be exactly that which is promised, or a subclass."""
    with pytest.raises(kind) as caught:
        mistake()
    return str(caught.value)


def tells(text: str, *words: str) -> None:
    """Each of the words stands in the text."""
    missing = [w for w in words if w not in text]
    assert not missing, f"{missing} not in: {text}"


def line_of(text: str) -> str:
    """The user's source line that a message names."""
    found = HERE.search(text)
    assert found, f"no line in: {text}"
    return found.group(1)


# --- shapes and dtypes, inside every transform ------------------------------------------------------------------------


def ones(*shape: int) -> Any:
    return qb.ones(shape)


def add_other_length(x: Any) -> Any:
    y = ones(4)
    return x + y


def multiply_untransposed(x: Any) -> Any:
    w = qb.stack([x, x])
    return ones(2, 2) @ qb.swapaxes(w, 0, 1)


def multiply_other_length(x: Any) -> Any:
    return ones(3, 2) @ x


def reshape_too_small(x: Any) -> Any:
    return x.reshape(4, 2)


def reshape_no_multiple(x: Any) -> Any:
    return qb.reshape(x, (2, -1))


def concat_other_width(x: Any) -> Any:
    rows = qb.stack([x, x])
    return qb.concat([rows, ones(3, 5)])


def concat_without_a_list(x: Any) -> Any:
    return qb.concat(x, ones(3))


def stack_other_length(x: Any) -> Any:
    return qb.stack([x, ones(4)])


def sum_over_a_missing_axis(x: Any) -> Any:
    return qb.sum(x, axis=1)


def mix_precisions(x: Any) -> Any:
    scale = qb.array([1.0, 2.0, 3.0], dtype=qb.float32)
    return x * scale


def condition_that_is_no_bool(x: Any) -> Any:
    return qb.where(x, x, 0.0)


def set_an_element(x: Any) -> Any:
    x[0] = 1.0
    return x


OPERATIONS: list[tuple[F, type[Exception], tuple[str, ...], str]] = [
    (
        add_other_length,
        qb.ShapeError,
        ("add", "(3,) and (4,)", "axis -1 has 3 and 4", "x[:, None]"),
        "return x + y",
    ),
    (
        multiply_untransposed,
        qb.ShapeError,
        ("matmul", "(2, 2) and (3, 2)", "last axis of the first has 2", "second has 3", "second transposed"),
        "return ones(2, 2) @ qb.swapaxes(w, 0, 1)",
    ),
    (
        multiply_other_length,
        qb.ShapeError,
        ("matmul", "(3, 2) and (3,)", "has 2", "has 3", "first transposed", "swapaxes"),
        "return ones(3, 2) @ x",
    ),
    (
        reshape_too_small,
        qb.ShapeError,
        ("reshape", "(3,)", "3 elements", "(4, 2) with 8", "-1"),
        "return x.reshape(4, 2)",
    ),
    (
        reshape_no_multiple,
        qb.ShapeError,
        ("reshape", "(3,)", "(2, -1)", "3 is no multiple of 2"),
        "return qb.reshape(x, (2, -1))",
    ),
    (
        concat_other_width,
        qb.ShapeError,
        ("concat", "(2, 3), (3, 5)", "except along axis 0", "axis 1 has 3 and 5"),
        "return qb.concat([rows, ones(3, 5)])",
    ),
    (
        concat_without_a_list,
        qb.ShapeError,
        ("concat", "takes a list or tuple", "concat([x, y])"),
        "return qb.concat(x, ones(3))",
    ),
    (
        stack_other_length,
        qb.ShapeError,
        ("stack", "(3,), (4,)", "quabla.concat"),
        "return qb.stack([x, ones(4)])",
    ),
    (sum_over_a_missing_axis, qb.ShapeError, ("sum", "axis 1", "1 dimension"), "return qb.sum(x, axis=1)"),
    (
        mix_precisions,
        qb.DtypeError,
        ("mul", "float64[3] and float32[3]", "do not mix", "x.astype(quabla.float64)"),
        "return x * scale",
    ),
    (
        condition_that_is_no_bool,
        qb.DtypeError,
        ("where", "must be bool", "float64[3]", "quabla.not_equal(condition, 0.0)"),
        "return qb.where(x, x, 0.0)",
    ),
    (set_an_element, TypeError, ("immutable", "float64[3]", "quabla.where"), "x[0] = 1.0"),
]

INSIDE: dict[str, Callable[[F], Any]] = {
    "jit": lambda f: qb.jit(f)(ones(3)),
    "jit_grad": lambda f: qb.jit(qb.grad(lambda x: qb.sum(f(x))))(ones(3)),
    "hessian": lambda f: qb.hessian(lambda x: qb.sum(f(x)))(ones(3)),
    "vmap": lambda f: qb.vmap(f)(ones(7, 3)),
    "grad_of_vmap": lambda f: qb.grad(lambda x: qb.sum(qb.vmap(f)(x)))(ones(7, 3)),
    "loop": lambda f: qb.jit(lambda x: qb.fori_loop(0, 2, lambda i, c: c + qb.sum(f(x)), 0.0))(ones(3)),
    "branch": lambda f: qb.jit(lambda x: qb.cond(x[0] > 0.0, lambda x: qb.sum(f(x)), lambda x: 0.0, x))(
        ones(3)
    ),
    "lower": lambda f: qb.jit(f).lower(ones(3)),
    "checkpoint": lambda f: qb.grad(lambda x: qb.sum(qb.checkpoint(f)(x)))(ones(3)),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize(("f", "kind", "words", "line"), OPERATIONS, ids=[o[0].__name__ for o in OPERATIONS])
def test_operations_inside_traced_functions(f: F, kind: Any, words: Any, line: str, inside: str) -> None:
    text = message(kind, lambda: INSIDE[inside](f))
    tells(text, *words)
    assert line_of(text) == line


@pytest.mark.parametrize(("f", "kind", "words", "line"), OPERATIONS, ids=[o[0].__name__ for o in OPERATIONS])
def test_operations_on_concrete_arrays(f: F, kind: Any, words: Any, line: str) -> None:
    tells(message(kind, lambda: f(ones(3))), *words)


def test_the_line_is_the_innermost_of_the_users_and_named_once() -> None:
    text = message(qb.ShapeError, lambda: qb.jit(lambda x: qb.jit(lambda y: add_other_length(y))(x))(ones(3)))
    assert line_of(text) == "return x + y"
    assert text.count("(at ") == 1


def test_an_error_caught_inside_a_traced_function_has_the_words_too() -> None:
    def f(x: Any) -> Any:
        try:
            return x + ones(4)
        except qb.ShapeError as error:
            tells(str(error), "(3,) and (4,)")
            return x

    assert qb.jit(f)(ones(3)).shape == (3,)


def test_errors_of_the_user_pass_unchanged() -> None:
    class OwnError(Exception):
        pass

    def f(x: Any) -> Any:
        raise OwnError("mine")

    assert message(OwnError, lambda: qb.jit(qb.grad(f))(ones(3))) == "mine"


# --- traced values where numbers are needed ---------------------------------------------------------------------------


def branch_on_a_value(x: Any) -> Any:
    return x if x > 0.0 else -x


def loop_on_a_value(x: Any) -> Any:
    while x < 10.0:
        x = x * 2.0
    return x


def function_of_numpy(x: Any) -> Any:
    return np.exp(x)


def operand_of_numpy(x: Any) -> Any:
    return x * np.ones(2)


def function_of_math(x: Any) -> Any:
    return math.sin(x)


def number_of_a_value(x: Any) -> Any:
    return float(x) ** 2


def range_of_a_value(x: Any) -> Any:
    return sum(range(x))


def print_with_digits(x: Any) -> Any:
    return f"{x:.2f}"


TRACED: list[tuple[F, tuple[str, ...], str]] = [
    (branch_on_a_value, ("if", "bool[]", "quabla.where", "quabla.cond"), "return x if x > 0.0 else -x"),
    (loop_on_a_value, ("while", "bool[]", "quabla.where"), "while x < 10.0:"),
    (function_of_numpy, ("numpy.exp", "float64[]", "function of quabla"), "return np.exp(x)"),
    (operand_of_numpy, ("NumPy operand", "quabla.asarray"), "return x * np.ones(2)"),
    (function_of_math, ("function of math", "quabla functions"), "return math.sin(x)"),
    (number_of_a_value, ("float()", "float64[]", "return it from the function"), "return float(x) ** 2"),
    (range_of_a_value, ("range", "static_argnums", "Python int"), "return sum(range(x))"),
    (print_with_digits, ("'.2f'", "float64[]", "return it"), 'return f"{x:.2f}"'),
]


@pytest.mark.parametrize("transform", ["jit", "grad", "hessian"])
@pytest.mark.parametrize(("f", "words", "line"), TRACED, ids=[t[0].__name__ for t in TRACED])
def test_traced_values_where_numbers_are_needed(f: F, words: Any, line: str, transform: str) -> None:
    text = message(qb.TracerError, lambda: getattr(qb, transform)(f)(qb.array(1.0)))
    tells(text, "traced value", *words)
    assert line_of(text) == line


KEPT: dict[str, Any] = {}


def test_a_traced_value_kept_in_a_global() -> None:
    def f(x: Any) -> Any:
        KEPT["last"] = qb.sin(x)
        return x

    qb.jit(f)(ones(3))
    text = message(qb.TracerError, lambda: KEPT["last"] + 1.0)
    tells(text, "float64[3]", "escaped its trace", "global", "Return it from the function")
    assert "KEPT" in line_of(text)
    KEPT.clear()


# --- losses and auxiliary results -------------------------------------------------------------------------------------


def per_sample(w: Any) -> Any:
    return w * w


def loss_and_metrics(w: Any) -> Any:
    return qb.sum(w * w), {"accuracy": 0.5}


def loss_alone(w: Any) -> Any:
    return qb.sum(w * w)


def loss_without_return(w: Any) -> None:
    qb.sum(w)


def test_losses_that_are_no_scalars() -> None:
    for transform in ("grad", "value_and_grad"):
        of = getattr(qb, transform)
        text = message(qb.ShapeError, lambda of=of: of(per_sample)(ones(3)))
        tells(text, transform, "per_sample", "float64[3]", "quabla.sum", "quabla.mean", "quabla.jacobian")
        text = message(qb.DtypeError, lambda of=of: of(loss_and_metrics)(ones(3)))
        tells(text, transform, "loss_and_metrics", "tuple of 2", "has_aux=True", "(value, aux)")
        text = message(qb.DtypeError, lambda of=of: of(loss_alone, has_aux=True)(ones(3)))
        tells(text, transform, "loss_alone", "has_aux=True", "pair (value, aux)", "float64[]")
        text = message(qb.DtypeError, lambda of=of: of(loss_without_return)(ones(3)))
        tells(text, transform, "loss_without_return", "None", "return statement")


def test_arguments_that_cannot_be_differentiated() -> None:
    tells(
        message(qb.ShapeError, lambda: qb.grad(loss_alone, argnums=1)(ones(3))),
        "argnums 1", "out of range", "loss_alone", "1 positional",
    )  # fmt: skip
    tells(message(qb.ShapeError, lambda: qb.grad(loss_alone)(w=ones(3))), "argnums 0", "must be positional")
    tells(
        message(qb.DtypeError, lambda: qb.grad(loss_alone)("w.npy")), "argument w is a str", "arrays, numbers"
    )
    tells(message(qb.DtypeError, lambda: qb.grad(ones(3))), "must be a function", "float64[3]")


# --- maps -------------------------------------------------------------------------------------------------------------


def predict(params: Any, x: Any) -> Any:
    return x * qb.sum(params["w"]) + qb.sum(params["b"])


PARAMS = {"w": np.ones((10, 4)), "b": np.ones(10)}


def test_axes_of_maps() -> None:
    text = message(qb.ShapeError, lambda: qb.vmap(predict)(PARAMS, ones(7)))
    tells(
        text,
        "vmap",
        "params/w",
        "float64[10,4] has 10 along axis 0",
        "params/b",
        "x of type float64[7] has 7",
        "None",
    )
    text = message(qb.ShapeError, lambda: qb.vmap(predict, in_axes=(0, 1))(PARAMS, ones(10, 2)))
    tells(text, "params/w", "x of type float64[10,2] has 2 along axis 1", "in_axes")
    text = message(qb.ShapeError, lambda: qb.vmap(predict, in_axes=(0,))(PARAMS, ones(10)))
    tells(text, "in_axes has 1 entries", "predict", "2 positional arguments")
    text = message(qb.ShapeError, lambda: qb.vmap(predict, in_axes=(None, 3))(PARAMS, ones(10)))
    tells(text, "argument x", "float64[10]", "no axis 3", "None in in_axes")
    text = message(qb.DtypeError, lambda: qb.vmap(lambda p: p, in_axes={"w": 0, "b": None})(PARAMS))
    tells(text, "in_axes must be an int, or a tuple with one entry per argument", "in_axes=(axes,)")
    text = message(qb.ShapeError, lambda: qb.vmap(lambda x: x, out_axes=2)(ones(10)))
    tells(text, "out_axes 2", "out of range", "float64[10]")


def test_numbers_are_not_mapped() -> None:
    text = message(qb.DtypeError, lambda: qb.vmap(lambda x, s: x * s, in_axes=(0, 0))(ones(3), 2.0))
    tells(text, "vmap", "argument s", "2.0", "cannot be mapped", "in_axes=(0, None)", "pass an array")
    text = message(qb.DtypeError, lambda: qb.vmap(lambda x, s: x * s)(ones(3), 2.0))
    tells(text, "vmap", "argument s", "2.0", "cannot be mapped", "in_axes=(0, None)")
    text = message(qb.DtypeError, lambda: qb.vmap(lambda x, p: x * p["s"])(ones(3), {"w": ones(3), "s": 2.0}))
    tells(text, "argument p/s", "in_axes=(0, {'w': 0, 's': None})")
    text = message(qb.DtypeError, lambda: qb.vmap(loss_alone)(3))
    tells(text, "vmap", "loss_alone", "argument w", "3", "static", "in_axes")
    text = message(qb.ShapeError, lambda: qb.vmap(loss_alone, in_axes=(None,))(3))
    tells(text, "vmap", "loss_alone", "none", "in_axes", "Python numbers are static")
    text = message(qb.ShapeError, lambda: qb.vmap(loss_alone)(qb.array(2.0)))
    tells(text, "argument w", "float64[]", "no axis 0")


# --- loops and branches -----------------------------------------------------------------------------------------------


def grow(i: Any, c: Any) -> Any:
    return qb.concat([c, c])


def narrow(i: Any, c: Any) -> Any:
    return c.astype(qb.float32)


def wrap(i: Any, c: Any) -> Any:
    return {"state": c}


@pytest.mark.parametrize("traced", [False, True], ids=["concrete", "jit"])
def test_carries_that_change(traced: bool) -> None:
    def run(loop: F) -> F:
        return (lambda: qb.jit(loop)(ones(3))) if traced else (lambda: loop(ones(3)))

    changes: list[tuple[F, type[Exception], tuple[str, ...]]] = [
        (grow, qb.ShapeError, ("keep its shape", "grow", "float64[3]", "float64[6]", "initial carry")),
        (narrow, qb.DtypeError, ("keep its dtype", "narrow", "float64[3]", "float32[3]", "astype")),
        (wrap, qb.ShapeError, ("wrap", "structure that it takes, one array", "{'state': array}")),
    ]
    for step, kind, words in changes:
        text = message(kind, run(lambda x, step=step: qb.fori_loop(0, 3, step, x)))
        tells(text, "fori_loop", *words)

        def body(c: Any, x: Any, step: F = step) -> Any:
            return step(0, c), x

        text = message(kind, run(lambda x, body=body: qb.scan(body, x, ones(4))))
        tells(text, "scan", *[w for w in words if w != step.__name__], "body")
        text = message(
            kind,
            run(lambda x, step=step: qb.while_loop(lambda c: True, lambda c: step(0, c), x, max_steps=3)),
        )
        tells(text, "while_loop", *[w for w in words if w != step.__name__])
        if traced:
            line_of(text)


@pytest.mark.parametrize("traced", [False, True], ids=["concrete", "jit"])
def test_steps_and_lengths(traced: bool) -> None:
    def said(kind: type[Exception], f: F) -> str:
        return message(kind, (lambda: qb.jit(f)(ones(3))) if traced else (lambda: f(ones(3))))

    tells(said(qb.DtypeError, lambda x: qb.scan(lambda c, y: c + y, 0.0, x)), "scan", "pair (carry, result)")
    tells(said(qb.ShapeError, lambda x: qb.scan(lambda c, i: (c, c), x, length=-1)), "scan", "length", "-1")
    tells(
        said(qb.ShapeError, lambda x: qb.scan(lambda c, i: (c, c), x, length=0)), "scan", "length", "no steps"
    )
    tells(
        said(qb.ShapeError, lambda x: qb.scan(lambda c, y: (c, y), 0.0, x, length=4)),
        "scan",
        "length 4",
        "got 3",
    )
    tells(said(qb.DtypeError, lambda x: qb.scan(lambda c, i: (c, c), x)), "scan", "no xs", "length")
    tells(
        said(qb.DtypeError, lambda x: qb.while_loop(lambda c: c, lambda c: c, qb.sum(x))),
        "while_loop",
        "bool",
        "quabla.not_equal",
    )
    tells(
        said(qb.ShapeError, lambda x: qb.while_loop(lambda c: c > 0.0, lambda c: c, x)),
        "bool[3]",
        "quabla.any",
    )
    tells(
        said(qb.DtypeError, lambda x: qb.cond(qb.sum(x), loss_alone, loss_alone, x)),
        "cond",
        "must be bool",
        "quabla.not_equal",
    )
    tells(
        said(qb.ShapeError, lambda x: qb.cond(x > 0.0, loss_alone, loss_alone, x)),
        "cond",
        "bool[3]",
        "quabla.where",
    )


def test_a_number_of_steps_that_is_traced() -> None:
    text = message(
        qb.DtypeError, lambda: qb.jit(lambda n: qb.scan(lambda c, i: (c, i), 0.0, length=n))(qb.array(3.0))
    )
    tells(text, "scan", "length", "Python int", "quabla.fori_loop", "quabla.while_loop")
    assert "length=n" in line_of(text)


def test_branches_that_differ() -> None:
    def choose(on_true: F, on_false: F) -> F:
        return lambda: qb.jit(lambda x: qb.cond(x[0] > 0.0, on_true, on_false, x))(ones(3))

    text = message(qb.ShapeError, choose(per_sample, loss_alone))
    tells(
        text,
        "cond",
        "true_fun (per_sample) returns float64[3]",
        "false_fun (loss_alone) float64[]",
        "must agree",
    )
    text = message(qb.ShapeError, choose(loss_and_metrics, loss_alone))
    tells(text, "cond", "loss_and_metrics", "loss_alone", "(array, {'accuracy': array})", "the same")
    text = message(qb.DtypeError, choose(per_sample, lambda x: x.astype(qb.float32)))
    tells(text, "cond", "float64[3]", "float32[3]", "astype")
    assert "choose" in line_of(text) or "qb.cond" in line_of(text)


# --- tangents and cotangents ------------------------------------------------------------------------------------------


def pair(x: Any) -> Any:
    return {"value": x * 2.0, "square": x * x}


def test_tangents_that_do_not_fit() -> None:
    text = message(qb.ShapeError, lambda: qb.jvp(per_sample, (ones(3),), (ones(4),)))
    tells(text, "jvp", "tangent", "float64[3]", "float64[4]", "like its primal")
    text = message(qb.DtypeError, lambda: qb.jvp(per_sample, ones(3), ones(3)))
    tells(text, "jvp", "tuples", "per_sample", "jvp(f, (x,), (t,))")
    text = message(qb.ShapeError, lambda: qb.jvp(per_sample, (ones(3),), (ones(3), ones(3))))
    tells(text, "jvp", "1 primals", "2 tangents", "per_sample")


def test_cotangents_that_do_not_fit() -> None:
    _, pullback = qb.vjp(pair, ones(3))
    text = message(TypeError, lambda: pullback(ones(3)))
    tells(text, "vjp", "structure of the value", "{'value': array, 'square': array}")
    text = message(ValueError, lambda: pullback({"value": ones(3), "square": ones(2)}))
    tells(text, "vjp", "square", "float64[3]", "float64[2]")


# --- compiled calls ---------------------------------------------------------------------------------------------------


def scaled(x: Any, s: Any) -> Any:
    return x * s


def test_static_arguments_that_do_not_hash() -> None:
    text = message(qb.DtypeError, lambda: qb.jit(scaled, static_argnums=1)(ones(3), [1, 2]))
    tells(text, "jit(scaled)", "static argument 1", "a list", "not hashable", "tuple", "frozen dataclass")
    text = message(qb.DtypeError, lambda: qb.jit(scaled, static_argnames="s")(ones(3), s={"a": 1}))
    tells(text, "jit(scaled)", "static argument", "a dict", "not hashable")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu", "tpu"])
def test_a_device_that_is_absent(device: str) -> None:
    for call in (lambda f: f(ones(3)), lambda f: f.lower(ones(3))):
        text = message(
            qb.UnsupportedOperationError, lambda call=call: call(qb.jit(per_sample, device=device))
        )
        tells(text, f"no device {device!r}", "Devices here")
    if device.startswith("cuda"):
        tells(text, "quabla-cuda")


def test_a_number_that_changes_with_every_call() -> None:
    f = qb.jit(lambda x, s: x * s)
    text = message(qb.RetraceLimitError, lambda: [f(ones(3), 0.5 * i) for i in range(20)])
    tells(
        text,
        "8 signatures",
        "(float64[3], 0.5)",
        "now called with\n  (float64[3], 4.0)",
        "quabla.array(s)",
        "max_traces",
    )


def test_a_shape_that_changes_with_every_call() -> None:
    f = qb.jit(lambda x: x * 2.0)
    text = message(qb.RetraceLimitError, lambda: [f(ones(n)) for n in range(1, 20)])
    tells(text, "8 signatures", "(float64[8])", "now called with\n  (float64[9])", "pad", "max_traces")


@pytest.mark.parametrize("wrapped", [False, True], ids=["decorated", "within"])
def test_recursion_on_a_traced_value(wrapped: bool) -> None:
    def factorial(n: Any) -> Any:
        return qb.where(n < 1.0, 1.0, n * (qb.jit(factorial) if wrapped else compiled)(n - 1.0))

    compiled = qb.jit(factorial)
    text = message(RecursionError, lambda: compiled(qb.array(3.0)))
    tells(text, "factorial calls itself without end", "traced", "Python number", "quabla.while_loop")
    assert "n * (qb.jit(factorial)" in line_of(text)
    assert qb.jit(lambda x: x + 1.0)(qb.array(1.0)).item() == 2.0


def test_recursion_elsewhere_is_reported_as_it_is() -> None:
    def deep(n: int) -> Any:
        raise RecursionError("of my own making")

    assert message(RecursionError, lambda: qb.jit(lambda x: deep(0))(ones(3))) == "of my own making"


# --- arrays that are none ---------------------------------------------------------------------------------------------


def test_empty_arrays() -> None:
    tells(message(qb.ShapeError, lambda: qb.array([])), "array", "empty list", "at least 1")
    tells(message(qb.ShapeError, lambda: qb.zeros((2, 0))), "zeros", "(2, 0)", "at least 1")
    tells(message(qb.ShapeError, lambda: qb.asarray(np.zeros((0, 3)))), "asarray", "(0, 3)", "at least 1")
    text = message(qb.ShapeError, lambda: qb.jit(scaled)(np.ones(3), s=np.zeros((0, 3))))
    tells(text, "jit(scaled)", "argument s", "(0, 3)")
    text = message(qb.ShapeError, lambda: qb.arange(5)[5:5])
    tells(text, "5:5", "selects nothing", "axis 0 with 5 elements")


def test_lists_where_arrays_were_meant() -> None:
    tells(
        message(qb.ShapeError, lambda: qb.array([[1, 2], [3]])),
        "array",
        "ragged",
        "[1]",
        "list of 1",
        "list of 2",
    )
    for f in (qb.sum, qb.sin, qb.cholesky, lambda x: ones(2) + x, lambda x: qb.matmul(ones(2), x)):
        tells(message(qb.DtypeError, lambda f=f: f([1.0, 2.0])), "a list is not an operand", "quabla.asarray")
    text = message(qb.DtypeError, lambda: qb.array(["a", "b"]))
    tells(text, "array", "'a'", "str")
    text = message(qb.DtypeError, lambda: qb.array(np.ones(3, np.float16)))
    tells(text, "array", "float16", "a.astype(numpy.float32)")


def test_an_integer_where_an_array_was_meant() -> None:
    tells(
        message(qb.ShapeError, lambda: qb.matmul(3, ones(3))),
        "matmul",
        "rank 1 or more",
        "float64[]",
        "scalar with *",
    )
    tells(message(qb.ShapeError, lambda: qb.solve(3, ones(3))), "solve", "square matrices", "()")
    tells(message(qb.ShapeError, lambda: qb.stack(3)), "stack", "list or tuple", "one int")
    tells(
        message(qb.ShapeError, lambda: qb.scan(lambda c, x: (c, x), 0.0, qb.array(3))), "scan", "leading axis"
    )
    tells(message(qb.DtypeError, lambda: qb.scan(lambda c, x: (c, x), 0.0, 3)), "scan", "length=")
    tells(message(qb.DtypeError, lambda: qb.ones(2, 3)), "ones", "one tuple", "ones((2, 3))")
    tells(message(TypeError, lambda: len(qb.array(3))), "len()", "rank 0")


def test_elements_that_are_not_there() -> None:
    tells(message(IndexError, lambda: ones(3)[5]), "index 5", "axis 0 with 3 elements", "float64[3]")
    tells(message(ValueError, lambda: bool(ones(3))), "ambiguous", "float64[3]", ".any()", ".all()")
    tells(message(ValueError, lambda: float(ones(3))), "float()", "float64[3]", "indexing")
    text = message(qb.TracerError, lambda: qb.jit(lambda x: x[x > 0.0])(ones(3)))
    tells(text, "mask", "bool[3]", "where(mask, x, other)")
