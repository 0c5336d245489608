"""Faults of a plugin while it lowers, compiles and runs: typed, with its name; and nothing in the way otherwise."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import shared, wrap_as
from quabla.arrays.tracer import trace
from quabla.backends import registry
from quabla.backends.guard import GuardedBackend
from quabla.backends.hookspec import hookimpl
from quabla.backends.loading import Source
from quabla.backends.protocol import Backend, Executable, Lowered, NativeEntry, TrainingPlan
from quabla.backends.reference import ReferenceBackend
from quabla.shapes import aval_of

AVAL = qb.ShapeDtype((2,))
PROGRAM, _ = trace(lambda x: (qb.tanh(x),), [AVAL])
STEP, _ = trace(lambda w, x: (w - x, qb.sum(w * x)), [AVAL, AVAL])
X = qb.array([1.0, 2.0])


class Faulty(ReferenceBackend):
    """A backend that fails where it is told to."""

    platform = "faulty"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def answer(self, where: str, otherwise: Any) -> Any:
        given = self.answers.get(where, otherwise)
        if isinstance(given, BaseException):
            raise given
        return given

    @property
    def capabilities(self) -> Any:
        return self.answer("capabilities", super().capabilities)

    def lower(self, program: Any, device: str) -> Any:
        return self.answer("lower", super().lower(program, device))

    def compile(self, lowered: Any) -> Any:
        made = super().compile(lowered)
        if "run" in self.answers:
            run = lambda *inputs: self.answer("run", None)
            return SimpleExecutable(made.in_avals, made.out_avals, run)
        return self.answer("compile", made)

    def training_plan(self, program: Any, device: str, state: Any, data: Any) -> Any:
        return self.answer("training_plan", super().training_plan(program, device, state, data))


class SimpleExecutable:
    def __init__(self, in_avals: Any, out_avals: Any, run: Any, entry: Any = None) -> None:
        self.in_avals, self.out_avals, self.run, self.entry = in_avals, out_avals, run, entry

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)


NO_OUTPUT = NativeEntry(lambda packed: None, lambda *pointers: b"", (), (), 16, 0)


def plan_with(**others: Any) -> Any:
    """A training plan that works, but for what is given."""
    methods: dict[str, Any] = {
        "step": lambda: None, "run": lambda n: None, "state": lambda: (X,), "set_state": lambda s: None,
        "loss": lambda: qb.array(1.0), "replace": lambda i, x: None,
    }  # fmt: skip
    return SimpleNamespace(**{**methods, **others})


def guarded(**answers: Any) -> GuardedBackend:
    """The backend as the registry hands it out."""
    plugin = SimpleNamespace(quabla_backend=hookimpl(lambda: Faulty(**answers)))
    with registry.override([Source("faulty", lambda: plugin, "acme-faulty", "4.2")]):
        return registry.backend_for("faulty")[0]


def use(backend: GuardedBackend) -> None:
    """Everything that a program meets."""
    lowered = backend.lower(PROGRAM, "faulty")
    assert backend.as_text(lowered)
    backend.compile(lowered)(X)
    plan = backend.training_plan(STEP, "faulty", [X], [X])
    plan.step()
    assert plan.state() and plan.loss() is not None
    assert backend.capabilities


def test_all_is_well() -> None:
    backend = guarded()
    use(backend)
    assert backend.devices() == ("faulty",)
    assert isinstance(backend, Backend)
    lowered = backend.lower(PROGRAM, "faulty")
    assert isinstance(lowered, Lowered) and isinstance(backend.compile(lowered), Executable)
    assert isinstance(backend.training_plan(STEP, "faulty", [X], [X]), TrainingPlan)


@pytest.mark.parametrize("where", ["lower", "compile", "run", "training_plan", "capabilities"])
def test_an_untyped_error_names_the_plugin_and_the_cause(where: str) -> None:
    backend = guarded(**{where: ZeroDivisionError("oops")})
    with pytest.raises(
        qb.BackendError, match=r"'faulty' of acme-faulty 4\.2.*ZeroDivisionError: oops"
    ) as caught:
        use(backend)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.plugin == "'faulty' of acme-faulty 4.2"


@pytest.mark.parametrize("where", ["lower", "compile", "run", "training_plan", "capabilities"])
def test_the_whole_chain_of_causes_is_kept(where: str) -> None:
    try:
        try:
            raise OSError("no such file")
        except OSError as first:
            raise ImportError("no driver") from first
    except ImportError as second:
        chained = second
    with pytest.raises(qb.BackendError, match="ImportError: no driver") as caught:
        use(guarded(**{where: chained}))
    assert caught.value.__cause__ is chained and isinstance(chained.__cause__, OSError)


@pytest.mark.parametrize("where", ["lower", "compile", "run", "training_plan", "capabilities"])
def test_a_plugin_cannot_end_the_program_nor_blame_nobody(where: str) -> None:
    for error in (SystemExit(3), qb.BackendError("please report this")):
        with pytest.raises(qb.BackendError, match=r"acme-faulty 4\.2") as caught:
            use(guarded(**{where: error}))
        assert caught.value.__cause__ is error and caught.value.plugin == "'faulty' of acme-faulty 4.2"


@pytest.mark.parametrize("where", ["lower", "compile", "run", "training_plan", "capabilities"])
@pytest.mark.parametrize(
    "error", [qb.ShapeError("shapes"), MemoryError("full"), KeyboardInterrupt(), GeneratorExit()]
)
def test_typed_errors_and_those_of_the_machine_pass_unchanged(where: str, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        use(guarded(**{where: error}))
    assert caught.value is error


class UnprintableError(Exception):
    """An error whose text is another error."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("where", ["lower", "compile", "run", "training_plan", "capabilities"])
def test_an_error_without_text_is_contained_too(where: str) -> None:
    error = UnprintableError()
    with pytest.raises(qb.BackendError, match=r"acme-faulty 4\.2.*UnprintableError") as caught:
        use(guarded(**{where: error}))
    assert caught.value.__cause__ is error


class Touchy:
    """An object that cannot be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(f"device lost before {name}")


@pytest.mark.parametrize("where", ["lower", "compile", "training_plan"])
def test_an_attribute_that_raises_names_the_plugin(where: str) -> None:
    with pytest.raises(qb.BackendError, match=r"acme-faulty 4\.2.*Touchy: OSError: device lost"):
        use(guarded(**{where: Touchy()}))


@pytest.mark.parametrize("array", [np.zeros(7), np.zeros(()), np.zeros((1, 2)), np.zeros(2, np.float32)])
def test_an_array_of_another_type_cannot_pass_for_a_result(array: np.ndarray) -> None:
    run = lambda *inputs: (wrap_as(array, AVAL),)
    backend = guarded(compile=SimpleExecutable((AVAL,), (AVAL,), run))
    with pytest.raises(qb.BackendError, match=rf"acme-faulty 4\.2.*{array.dtype}.* is no float64\[2\]"):
        backend.compile(backend.lower(PROGRAM, "faulty"))(X)


@pytest.mark.parametrize(
    ("where", "junk", "text"),
    [
        ("lower", None, "NoneType as a lowered program; it lacks program, device, as_text"),
        ("compile", 42, "int as an executable; it lacks in_avals, out_avals, entry, __call__"),
        ("training_plan", object(), "as a training plan; it lacks step, run"),
        ("capabilities", {"ops": ("add",)}, "dict as its capabilities, where BackendCapabilities is wanted"),
        (
            "lower",
            SimpleNamespace(program=PROGRAM, device="faulty", as_text=lambda: 7),
            r"int for as_text\(\)",
        ),
        ("run", None, "NoneType of a program, where a tuple of Tensors is wanted"),
        ("run", [X], "list of a program, where a tuple of Tensors"),
        ("run", (), "0 results of a program, where 1 are wanted"),
        ("run", (X, X), "2 results of a program, where 1 are wanted"),
        ("run", (X.numpy(),), "ndarray as result 0 of a program, where a Tensor is wanted"),
        (
            "run",
            (qb.array([[1.0, 2.0]]),),
            r"float64\[1,2\] as result 0 of a program, where float64\[2\] is wanted",
        ),
        (
            "run",
            (qb.array([1.0, 2.0], dtype="float32"),),
            r"float32\[2\] as result 0 of a program, where float64\[2\]",
        ),
        ("compile", SimpleExecutable((), (AVAL,), None), r"whose in_avals are \(\)"),
        ("compile", SimpleExecutable((AVAL,), (AVAL, AVAL), None), "whose out_avals are"),
        (
            "compile",
            SimpleExecutable((AVAL,), (qb.ShapeDtype((3,)),), None),
            r"whose out_avals are \(float64\[3\]",
        ),
        ("compile", SimpleExecutable((AVAL,), None, None), "whose out_avals are None"),
        ("compile", SimpleExecutable((AVAL,), (AVAL,), None, "main"), "whose entry does not fit: 'main'"),
        ("compile", SimpleExecutable((AVAL,), (AVAL,), None, NO_OUTPUT), "whose entry does not fit"),
        ("training_plan", plan_with(step=None), "whose step cannot be called"),
        (
            "training_plan",
            plan_with(state=lambda: (X, X)),
            "2 results as the state of a training plan, where 1",
        ),
        ("training_plan", plan_with(state=lambda: (1.0,)), "float as result 0 as the state"),
        (
            "training_plan",
            plan_with(loss=lambda: X),
            r"float64\[2\] as the loss of a training plan, where float64\[\]",
        ),
        (
            "training_plan",
            plan_with(loss=lambda: 1.0),
            "float as the loss of a training plan, where a Tensor",
        ),
    ],
)
def test_junk_is_refused_where_it_appears(where: str, junk: Any, text: str) -> None:
    with pytest.raises(qb.BackendError, match=text):
        use(guarded(**{where: junk}))


def test_native_entries_and_native_steps_are_handed_through() -> None:
    entry = NativeEntry(lambda packed: None, lambda *pointers: b"", (), (0,), 16, 0)
    made = guarded(compile=SimpleExecutable((AVAL,), (AVAL,), None, entry))
    assert made.compile(made.lower(PROGRAM, "faulty")).entry is entry
    native = ctypes.CFUNCTYPE(None)(lambda: None)
    plan = SimpleNamespace(step=native, run=None, state=None, set_state=None, loss=None, replace=None)
    assert guarded(training_plan=plan).training_plan(STEP, "faulty", [X], [X]).step is native


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("step", ()), ("run", (3,)), ("state", ()), ("set_state", ([X],)), ("loss", ()), ("replace", (0, X))],
)
def test_every_method_of_a_plan_is_guarded(method: str, arguments: Any) -> None:
    def fail(*arguments: Any) -> Any:
        raise OSError("device lost")

    plan = SimpleNamespace(step=fail, run=fail, state=fail, set_state=fail, loss=fail, replace=fail)
    made = guarded(training_plan=plan).training_plan(STEP, "faulty", [X], [X])
    with pytest.raises(qb.BackendError, match=r"acme-faulty.*OSError: device lost"):
        getattr(made, method)(*arguments)


def test_the_user_of_jit_gets_the_typed_error() -> None:
    plugin = SimpleNamespace(quabla_backend=hookimpl(lambda: Faulty(run=ValueError("bad block size"))))
    with registry.override([Source("faulty", lambda: plugin, "acme-faulty", "4.2")]):
        with pytest.raises(qb.BackendError, match=r"acme-faulty.*bad block size"):
            qb.jit(qb.tanh, device="faulty")(X)


def test_wrong_results_reach_the_user_of_jit_as_typed_errors() -> None:
    for junk, text in (((qb.ones(3),), r"float64\[3\]"), ("text", "str"), ((1.0,), "float")):
        plugin = SimpleNamespace(quabla_backend=hookimpl(lambda junk=junk: Faulty(run=junk)))
        with registry.override([Source("faulty", lambda plugin=plugin: plugin, "acme-faulty", "4.2")]):
            with pytest.raises(qb.BackendError, match=rf"acme-faulty 4\.2.*{text}"):
                qb.jit(lambda x: qb.tanh(x), device="faulty")(X)


def test_a_result_may_say_of_weakness_what_it_likes() -> None:
    weak = shared(X, aval_of((2,), AVAL.dtype, weak=True))
    backend = guarded(run=(weak,))
    assert backend.compile(backend.lower(PROGRAM, "faulty"))(X) == (weak,)
