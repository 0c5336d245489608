"""What a traced value refuses, traced values that escape, and exceptions that pass through a trace."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import LIVE, frames

A = qb.array

TRANSFORMS: list[tuple[str, Callable[[Any], Any]]] = [
    ("jit", lambda f: qb.jit(f)(A(1.0))),
    ("grad", lambda f: qb.grad(f)(1.0)),
    ("jit_grad", lambda f: qb.jit(qb.grad(f))(1.0)),
    ("vmap", lambda f: qb.vmap(f)(A([1.0, 2.0]))),
    ("jvp", lambda f: qb.jvp(f, (1.0,), (1.0,))),
    ("vjp", lambda f: qb.vjp(f, 1.0)),
    ("hessian", lambda f: qb.hessian(f)(1.0)),
    ("nested", lambda f: qb.grad(lambda x: qb.grad(f)(x) * x)(1.0)),
]

# What needs the elements of x, and a part of the cure that the error names.
NEEDS_ELEMENTS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("if", lambda x: x if x > 0.0 else -x, "quabla.where"),
    ("while", lambda x: list(iter(lambda: bool(x < 10.0), False)), "quabla.where"),
    ("and", lambda x: x > 0.0 and x, "quabla.where"),
    ("not", lambda x: x * (not x), "quabla.where"),
    ("chained", lambda x: x if 0.0 < x < 1.0 else 0.0, "quabla.where"),
    ("float", lambda x: float(x), "quabla functions"),
    ("int", lambda x: int(x), "quabla functions"),
    ("complex", lambda x: complex(x), "quabla functions"),
    ("round", lambda x: round(x), ""),
    ("math", lambda x: math.sin(x), "quabla functions"),
    ("range", lambda x: sum(range(x)), "static_argnums"),
    ("list_index", lambda x: [1.0, 2.0][x], "static_argnums"),
    ("format", lambda x: f"{x:.3f}", ""),
    ("item", lambda x: x.item(), "quabla functions"),
    ("tolist", lambda x: x.tolist(), "quabla functions"),
    ("numpy", lambda x: x.numpy(), "quabla functions"),
    ("asarray", lambda x: np.asarray(x), "quabla"),
    ("np_sin", lambda x: np.sin(x), "quabla"),
    ("np_sum", lambda x: np.sum(x), "quabla"),
    ("np_where", lambda x: np.where(x > 0.0, x, 0.0), "quabla"),
    ("np_operand", lambda x: np.ones(2) * x, "asarray"),
    ("operand_np", lambda x: x * np.ones(2), "asarray"),
    ("np_scalar", lambda x: np.float64(2.0) * x, "asarray"),
    ("list_of_traced", lambda x: qb.array([x, x]), "quabla.stack"),
    ("in", lambda x: 1.0 in x, "quabla.equal"),
    ("sorted", lambda x: sorted([x, x * 2.0])[0], "quabla.where"),
    ("max", lambda x: max(x, 0.0), "quabla.where"),
    ("pickle", lambda x: pickle.dumps(x), ""),
    ("shape", lambda x: qb.zeros(x), ""),
]


@pytest.mark.parametrize("transform", [t[1] for t in TRANSFORMS], ids=[t[0] for t in TRANSFORMS])
@pytest.mark.parametrize("what, f, cure", NEEDS_ELEMENTS, ids=[n[0] for n in NEEDS_ELEMENTS])
def test_what_needs_elements(what: str, f: Callable[[Any], Any], cure: str, transform: Any) -> None:
    with pytest.raises(qb.TracerError) as caught:
        transform(f)
    message = str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert cure in message
    assert "traced value" in message
    assert "test_tracing_errors.py, line" in message
    assert not frames()
    assert not LIVE


def test_what_needs_no_elements_works() -> None:
    def f(x: Any) -> Any:
        assert x.shape == (2, 3) and x.ndim == 2 and x.size == 6 and len(x) == 2 and x.dtype is qb.float64
        assert isinstance(x, qb.Array)
        assert "float64[2,3]" in repr(x) and "float64[2,3]" in f"{x}"
        assert copy.copy(x) is x and copy.deepcopy([x])[0] is x
        a, b = x
        hash(x), {x: 1}
        return qb.sum(a * b)

    assert qb.jit(f)(qb.ones((2, 3))).item() == 3.0


def test_static_conditions_are_free() -> None:
    f = qb.jit(lambda x, flag: x * 2.0 if flag and x.ndim == 0 else x)
    assert (f(A(1.0), True).item(), f(A(1.0), False).item()) == (2.0, 1.0)


# --- escapes ----------------------------------------------------------------------------------------------------------


def leak(transform: Any = qb.jit) -> Any:
    kept: list[Any] = []
    transform(lambda x: kept.append(x) or x)(A(1.0))
    return kept[0]


USES: list[tuple[str, Callable[[Any], Any]]] = [
    ("alone", lambda t: t + 1.0),
    ("itself", lambda t: t * t),
    ("unary", lambda t: qb.sin(t)),
    ("negative", lambda t: -t),
    ("with_array", lambda t: A([1.0]) * t),
    ("power", lambda t: t**2),
    ("index", lambda t: t[None]),
    ("stack", lambda t: qb.stack([t, A(1.0)])),
    ("where", lambda t: qb.where(A(True), t, 0.0)),
    ("broadcast", lambda t: qb.broadcast_to(t, (2,))),
    ("matmul", lambda t: qb.matmul(qb.ones((2, 2)), qb.broadcast_to(t, (2,)))),
    ("closure", lambda t: qb.jit(lambda x: x * t)(A(1.0))),
    ("returned", lambda t: qb.jit(lambda x: t)(A(1.0))),
    ("aux", lambda t: qb.grad(lambda x: (x, t), has_aux=True)(1.0)),
    ("argument", lambda t: qb.jit(lambda x: x)(t)),
    ("argument_of_grad", lambda t: qb.grad(lambda x: x)(t)),
    ("argument_of_vmap", lambda t: qb.vmap(lambda x, t: x, in_axes=(0, None))(A([1.0]), t)),
    ("tangent", lambda t: qb.jvp(lambda x: x, (A(1.0),), (t,))),
    ("cotangent", lambda t: qb.vjp(lambda x: x, A(1.0))[1](t)),
    ("inner_trace", lambda t: qb.grad(lambda x: qb.grad(lambda y: y * x)(1.0) * t)(2.0)),
]


@pytest.mark.parametrize("transform", [qb.jit, qb.grad, qb.hessian], ids=["jit", "grad", "hessian"])
@pytest.mark.parametrize("use", [u[1] for u in USES], ids=[u[0] for u in USES])
def test_a_value_that_escaped(use: Callable[[Any], Any], transform: Any) -> None:
    kept = leak(transform)
    with pytest.raises(qb.TracerError, match="escaped its trace") as caught:
        use(kept)
    assert "float64[]" in str(caught.value)
    assert "test_tracing_errors.py" in str(caught.value)
    assert not frames()


def test_a_value_of_a_finished_inner_trace() -> None:
    def f(x: Any) -> Any:
        kept: list[Any] = []
        qb.grad(lambda t: kept.append(t * 2.0) or t)(x)
        return kept[0] * x

    with pytest.raises(qb.TracerError, match="escaped"):
        qb.grad(f)(1.0)


def test_a_pullback_may_be_called_after_its_primals_but_not_after_their_trace() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        value, pullback = qb.vjp(qb.sin, x)
        kept.append(pullback)
        return value

    qb.grad(f)(1.0)
    with pytest.raises(qb.TracerError, match="escaped"):
        kept[0](1.0)


def test_a_value_used_in_another_thread() -> None:
    found: list[Any] = []

    def f(x: Any) -> Any:
        def work() -> None:
            try:
                found.append(qb.grad(lambda t: t * x)(3.0))
            except qb.TracerError as error:
                found.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        worker.join(30)
        return x

    qb.grad(f)(1.0)
    assert isinstance(found[0], qb.TracerError)
    assert "thread" in str(found[0])


# --- exceptions -------------------------------------------------------------------------------------------------------


class BoomError(Exception):
    pass


def boom(x: Any) -> Any:
    raise BoomError("from the user's function")


@pytest.mark.parametrize("transform", [t[1] for t in TRANSFORMS], ids=[t[0] for t in TRANSFORMS])
def test_an_exception_passes_through_and_leaves_no_trace_open(transform: Any) -> None:
    with pytest.raises(BoomError, match="from the user's function"):
        transform(boom)
    assert not frames()
    assert not LIVE
    assert qb.grad(lambda x: x * x)(3.0).item() == 6.0
    assert type(A(1.0) * 2.0) is qb.Tensor


def test_an_exception_caught_within_a_trace_leaves_the_outer_one_intact() -> None:
    def f(x: Any) -> Any:
        with pytest.raises(BoomError):
            qb.grad(boom)(x)
        assert len(frames()) == 1
        return x * x

    assert qb.jit(f)(A(3.0)).item() == 9.0


def test_errors_of_ordinary_operations_inside_transforms_are_those_outside() -> None:
    cases: list[Callable[[Any], Any]] = [
        lambda x: x + qb.ones(4),
        lambda x: qb.matmul(qb.ones((2, 3)), qb.ones((2, 3))) * x[0],
        lambda x: qb.reshape(x, (4, 2)),
        lambda x: qb.concat([qb.stack([x, x]), qb.ones((3, 5))]),
        lambda x: x[7],
        lambda x: qb.sum(x, axis=3),
        lambda x: x + qb.ones((3,), "float32"),
        lambda x: qb.where(x, x, x),
    ]
    for case in cases:
        with pytest.raises(Exception) as outside:
            case(qb.ones(3))
        for inside in (
            qb.jit(case),
            qb.grad(lambda x, case=case: qb.sum(case(x))),
            qb.jit(qb.jacobian(case)),
        ):
            with pytest.raises(type(outside.value)) as caught:
                inside(qb.ones(3))
            assert str(caught.value).split(" (at ")[0] == str(outside.value).split(" (at ")[0]


def test_results_that_are_no_arrays() -> None:
    for f, kind in [
        (lambda x: "s", "a str"),
        (lambda x: {"a": [x, object()]}, "an object at a/1"),
        (lambda x: (v for v in [x]), "a generator"),
        (lambda x: {x}, "a set"),
        (lambda x: len, "a builtin_function_or_method"),
        (lambda x: np.array(["a"]), "an ndarray"),
        (lambda x: np.zeros(0), "an ndarray"),
        (lambda x: 1j, "a complex"),
    ]:
        for transform in (qb.jit(f), qb.vmap(f), qb.jacobian(f), lambda x, f=f: qb.jvp(f, (x,), (x,))):
            with pytest.raises(qb.DtypeError, match=f"<lambda>.*returned {kind}"):
                transform(A([1.0]))
