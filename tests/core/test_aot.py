"""Ahead of time: `lower`, what it shows and refuses, `compile`; `Compiler`, `Program` and `Executable` by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.backends.capabilities import BackendCapabilities
from quabla.backends.hookspec import hookimpl
from quabla.backends.loading import Source, installed
from quabla.backends.reference import ReferenceBackend
from quabla.backends.registry import override
from quabla.errors import ShapeError

A = qb.array
S = qb.ShapeDtype


# --- lower ------------------------------------------------------------------------------------------------------------


def test_lowering_runs_nothing_and_takes_types_or_arrays() -> None:
    calls = []

    def f(p: Any, x: Any, n: int = 2) -> Any:
        calls.append(1)
        return {"y": p["w"] * x**n, "n": n}

    f_ = qb.jit(f, static_argnames="n")
    by_type = f_.lower({"w": S(())}, S((2,)), n=3)
    by_array = f_.lower({"w": A(1.0)}, A([1.0, 2.0]), n=3)
    assert by_type.as_text() == by_array.as_text() == str(by_type.program)
    assert len(calls) == 2
    out = by_type.compile()({"w": A(2.0)}, A([1.0, 3.0]), n=3)
    assert len(calls) == 2
    np.testing.assert_array_equal(out["y"].numpy(), [2.0, 54.0])
    assert out["n"].item() == 3.0


def test_names_are_paths_of_the_arguments() -> None:
    lowered = qb.jit(lambda params, *, scale: params["layers"][0]["w"] * scale).lower(
        {"layers": [{"w": S((2,), "float32")}]}, scale=S((), "float32")
    )
    assert lowered.program.input_names == ("params/layers/0/w", "scale")
    assert lowered.program.output_shapes == [[2]]
    assert lowered.in_avals == (S((2,), "float32"), S((), "float32"))
    assert lowered.out_avals == (S((2,), "float32"),)
    assert lowered.as_text().splitlines()[1] == "  input params/layers/0/w: float32[2]"


@pytest.mark.cpu
def test_what_the_device_makes_of_it() -> None:
    lowered = qb.jit(lambda x: qb.sin(x) * 2.0).lower(S((100,)))
    costs = lowered.costs()
    assert costs is not None and (costs.kernels, costs.moved) == (1, 1600)
    assert "define" in lowered.as_device_text()
    assert qb.jit(lambda x: x, device="reference").lower(S(())).costs() is None


def test_transforms_are_lowered_through_jit() -> None:
    loss = lambda w, x: qb.sum(qb.tanh(x @ w))
    lowered = qb.jit(qb.value_and_grad(loss)).lower(S((3,)), S((4, 3)))
    w, x = A([0.1, 0.2, 0.3]), A(np.arange(12.0).reshape(4, 3) / 10)
    value, gradient = lowered.compile()(w, x)
    z = x.numpy() @ w.numpy()
    np.testing.assert_allclose(value.item(), np.tanh(z).sum(), rtol=1e-14)
    np.testing.assert_allclose(gradient.numpy(), x.numpy().T @ (1 - np.tanh(z) ** 2), rtol=1e-13)


def test_results_without_inputs_and_with_duplicates() -> None:
    compiled = qb.jit(lambda: (A([1.0, 2.0]), 3.0)).lower().compile()
    a, b = compiled()
    assert (a.tolist(), b.item()) == ([1.0, 2.0], 3.0)
    x, y = qb.jit(lambda x: (x, x)).lower(S((2,))).compile()(A([1.0, 2.0]))
    assert x.tolist() == y.tolist() == [1.0, 2.0]


def test_auxiliary_values_that_are_no_arrays_come_back() -> None:
    f = qb.jit(qb.value_and_grad(lambda x: (x * x, "note"), has_aux=True)).lower(S(())).compile()
    (value, aux), gradient = f(A(3.0))
    assert (value.item(), aux, gradient.item()) == (9.0, "note", 6.0)


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (
            (A([1.0, 2.0, 3.0]), A(1.0)),
            qb.ShapeError,
            r"compiled for \(float64\[2\], float64\[\]\), called with \(float64\[3\]",
        ),
        ((A([1.0, 2.0], "float32"), A(1.0)), qb.DtypeError, r"float32\[2\]"),
        ((A([1.0, 2.0]), 1.0), qb.DtypeError, r"called with \(float64\[2\], 1\.0\)"),
        ((A([1.0, 2.0]),), qb.DtypeError, r"called with \(float64\[2\]\)"),
        (([A([1.0, 2.0])], A(1.0)), qb.DtypeError, r"called with \(\[float64\[2\]\]"),
    ],
)
def test_another_signature_is_an_error(args: Any, error: type[Exception], words: str) -> None:
    compiled = qb.jit(lambda x, s: x * s).lower(S((2,)), S(())).compile()
    with pytest.raises(error, match=words) as info:
        compiled(*args)
    assert isinstance(info.value, ValueError)
    assert "lower it again" in str(info.value)


def test_numbers_are_arrays_where_a_transform_differentiates() -> None:
    compiled = qb.jit(qb.grad(lambda x: x**3)).lower(2.0).compile()
    assert (compiled(2.0).item(), compiled(3.0).item()) == (12.0, 27.0)


def test_weak_and_strong_arrays_are_the_same_to_a_compiled_function() -> None:
    weak = A(3.0)
    compiled = qb.jit(lambda x: x + 1.0).lower(S((), "float64", True)).compile()
    assert compiled(weak).item() == 4.0


def test_a_compiled_function_refuses_traced_values() -> None:
    compiled = qb.jit(lambda x: x * 2.0).lower(S(())).compile()
    with pytest.raises(qb.TracerError, match="call the function itself"):
        qb.grad(lambda x: compiled(x))(1.0)


def test_lowering_a_closure_over_traced_values_is_refused() -> None:
    def outer(x: Any) -> Any:
        qb.jit(lambda y: x * y).lower(S(()))
        return x

    with pytest.raises(qb.TracerError, match="pass them as arguments"):
        qb.jit(outer)(A(1.0))


# --- refusals of devices, at lower time -------------------------------------------------------------------------------


def test_an_absent_device_is_refused_at_lower() -> None:
    lower = qb.jit(lambda x: x, device="nosuch:1").lower
    with pytest.raises(qb.UnsupportedOperationError, match="nosuch") as info:
        lower(S((2,)))
    assert info.value.device == "nosuch:1"


class Single(ReferenceBackend):
    """A device that computes in float32 and knows no sine."""

    platform = "single"

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(dtypes=("float32", "float64"), ops=("add", "mul"), native_float64=False)

    def lower(self, program: Any, device: str) -> Any:
        for node in program.nodes:
            if node.op.name == "sin":
                raise qb.UnsupportedOperationError(
                    f"sin: device {device!r} has none", op="sin", device=device
                )
        return super().lower(program, device)

    def compile(self, lowered: Any) -> Any:
        compiled_programs.append(lowered.program)
        return super().compile(lowered)


compiled_programs: list[Any] = []


class Other(Single):
    platform = "other"


class Plugin:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    @hookimpl
    def quabla_backend(self) -> Any:
        return self.backend()


@pytest.fixture
def with_single() -> Iterator[None]:
    compiled_programs.clear()
    plugins = [Source(b.platform, lambda b=b: Plugin(b), "test", "0") for b in (Single, Other)]  # type: ignore[misc]
    with override([*installed(), *plugins]):
        yield


def test_an_unsupported_op_is_refused_at_lower_and_nothing_is_compiled(with_single: Any) -> None:
    with pytest.raises(qb.UnsupportedOperationError) as info:
        qb.jit(lambda x: qb.sin(x), device="single").lower(S((2,), "float32"))
    assert (info.value.op, info.value.device) == ("sin", "single")
    qb.jit(lambda x: x + x, device="single").lower(S((2,), "float32"))
    assert not compiled_programs


def test_float64_on_a_device_of_float32_warns_once_per_function(with_single: Any) -> None:
    f = qb.jit(lambda x: x + x, device="single")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f(A([1.0, 2.0], "float32"))
        assert not caught
        f(A([1.0, 2.0]))
        f(A([1.0, 2.0, 3.0]))
        f.lower(S((5,)))
    assert [w.category for w in caught] == [UserWarning]
    assert re.search(r"'single' computes float64 in float32.*float32", str(caught[0].message))
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="float64"):
        qb.jit(lambda x: x * x, device="single").lower(S((5,)))


def _plan(dtype: str) -> None:
    trainer = qb.optim.Trainer(lambda w: w + w, A(1.0, dtype), qb.optim.SGD(A(0.1, dtype)), device="single")
    trainer.step()


WAYS: dict[str, Callable[[str], Any]] = {
    "jit": lambda d: qb.jit(lambda x: x + x, device="single")(A([1.0], d)),
    "lower": lambda d: qb.jit(lambda x: x + x, device="single").lower(S((2,), d)).compile()(A([1.0, 2.0], d)),
    "program": lambda d: (
        qb.jit(lambda x: x + x, device="single")
        .lower(S((2,), d))
        .program.compile("single")({"x": A([1.0, 2.0], d)})
    ),
    "compiler": lambda d: qb.Compiler().trace(lambda x: x + x, [("x", (2,), d)]).compile("single"),
    "trainer": _plan,
}


@pytest.mark.parametrize("way", WAYS)
def test_float64_in_float32_is_said_once_on_every_way_to_the_device(with_single: Any, way: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WAYS[way]("float32")
        assert not caught
        WAYS[way]("float64")
    assert {w.category for w in caught} == {UserWarning} and len(caught) == 1
    assert re.search(r"'single' computes float64 in float32.*float32", str(caught[0].message))
    assert caught[0].filename == __file__


def _twice(run: Callable[[str], Any]) -> list[str]:
    """The devices that warnings name while `run` has each of them twice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for device in ("single", "other", "single", "other"):
            run(device)
    return re.findall(r"device '(\w+)' computes float64", " ".join(str(w.message) for w in caught))


def test_each_device_is_named_once_per_function(with_single: Any) -> None:
    f = lambda x: x + x
    program = qb.Compiler().trace(f, [("x", (2,))])
    lowered = qb.jit(f, device="single").lower(S((2,), "float32"))
    jitted = {device: qb.jit(f, device=device) for device in ("single", "other")}

    def everything(device: str) -> None:
        jitted[device](A([1.0, 2.0]))
        jitted[device](A([1.0, 2.0, 3.0]))
        jitted[device].lower(S((2,))).compile()(A([1.0, 2.0]))

    assert _twice(lambda device: program.compile(device)({"x": A([1.0, 2.0])})) == ["single", "other"]
    assert _twice(everything) == ["single", "other"]
    assert _twice(lambda device: lowered.program.compile(device)) == []


@pytest.mark.cpu
def test_a_program_warns_once_and_its_default_device_never(with_single: Any) -> None:
    program = qb.Compiler().trace(lambda x: x + x, [("x", (2,))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program.compile()
        assert not caught
        program.compile("single")
        program.compile("single")
    assert len(caught) == 1


@pytest.mark.cpu
def test_float64_on_the_cpu_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qb.jit(lambda x: x + x, device="cpu")(A([1.0, 2.0]))


# --- static_argnames --------------------------------------------------------------------------------------------------


def test_static_arguments_by_name_however_they_are_passed() -> None:
    seen = []

    def f(x: Any, mode: str, n: int = 2) -> Any:
        seen.append((mode, n))
        return x * n if mode == "times" else x + n

    g = qb.jit(f, static_argnames=("mode", "n"))
    assert g(A(3.0), "times").item() == 6.0
    assert g(A(3.0), mode="times").item() == 6.0
    assert g(A(3.0), "plus", 5).item() == g(A(3.0), mode="plus", n=5).item() == 8.0
    by_number = qb.jit(f, static_argnums=(1, -1))
    assert by_number(A(3.0), mode="times", n=4).item() == 12.0
    assert {m for m, _ in seen} == {"times", "plus"}


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"static_argnames": "y"}, "names 'y'.*parameters of f are x, n"),
        ({"static_argnames": 1}, "static_argnames must be"),
        ({"static_argnums": 2}, "out of range.*2 positional"),
        ({"static_argnums": "n"}, "static_argnums must be"),
    ],
)
def test_static_arguments_that_are_not_there(kwargs: Any, words: str) -> None:
    def f(x: Any, n: int) -> Any:
        return x * n

    with pytest.raises(qb.DtypeError, match=words):
        qb.jit(f, **kwargs)


def test_a_static_argument_that_is_not_hashable() -> None:
    with pytest.raises(TypeError, match="static argument 'n' is a list"):
        qb.jit(lambda x, n: x, static_argnames="n")(A(1.0), n=[1])


# --- Compiler, Program, Executable ------------------------------------------------------------------------------------


def product() -> qb.Program:
    return qb.Compiler().trace(lambda x, y: qb.sum(qb.sin(x) * y), [("x", (3,)), ("y", (3,), "float64")])


X, Y = np.array([0.1, 0.2, 0.3]), np.array([1.0, -2.0, 3.0])


@pytest.mark.cpu
def test_tracing_and_running_by_name() -> None:
    program = product()
    assert (program.output_shape, program.output_shapes, repr(program)) == (
        [],
        [[]],
        "Program(output_shape=[])",
    )
    executable = program.compile("cpu")
    assert (executable.target, repr(executable)) == (
        "cpu",
        f"Executable(target=cpu, node_count={executable.node_count})",
    )
    got = executable({"y": A(Y), "x": A(X)})
    np.testing.assert_allclose(got.item(), (np.sin(X) * Y).sum(), rtol=1e-15)
    assert executable.evaluate({"x": A(X), "y": A(Y)}).item() == got.item()
    with pytest.raises(ShapeError, match="there is no input 'w', 'z'; the inputs are 'x', 'y'"):
        executable.evaluate({"w": A(1.0), "x": A(X), "y": A(Y), "z": A(1.0)})


@pytest.mark.parametrize("name", ["__quabla_capture/0", "__quabla_"])
def test_names_that_are_taken_by_quabla_are_refused(name: str) -> None:
    with pytest.raises(ShapeError, match=f"{name}.* reserved"):
        qb.Compiler().trace(lambda x: x, [(name, [2])])
    with pytest.raises(ShapeError, match=f"{name}.* reserved"):
        qb.Compiler().trace(qb.sum, [("x", [2])]).vjp(name)


def test_several_results_come_as_a_list() -> None:
    program = qb.Compiler().trace(lambda x: {"b": x + 1.0, "a": (x, x)}, [("x", [2])])
    out = program.compile()({"x": A([1.0, 2.0])})
    assert isinstance(out, list) and [o.tolist() for o in out] == [[1.0, 2.0], [1.0, 2.0], [2.0, 3.0]]
    with pytest.raises(qb.UnsupportedOperationError, match="output_shape"):
        _ = program.output_shape
    for derive in (lambda: program.jvp("x"), lambda: program.vjp("ct")):
        with pytest.raises(qb.UnsupportedOperationError, match="transform the function before"):
            derive()


@pytest.mark.cpu
def test_a_lowered_program_is_ordered() -> None:
    program = qb.jit(lambda p: (p["a"] + 1.0, {"z": p["b"]})).lower({"a": S((2,)), "b": S((2,))}).program
    out = program.compile("cpu")({"p/a": A([1.0, 2.0]), "p/b": A([3.0, 4.0])})
    assert [o.tolist() for o in out] == [[2.0, 3.0], [3.0, 4.0]]


def test_derivatives_of_programs() -> None:
    program = product()
    inputs = {"x": A(X), "y": A(Y)}
    np.testing.assert_allclose(program.jvp("x").compile()(inputs).item(), (np.cos(X) * Y).sum(), rtol=1e-14)
    back = program.vjp("ct")
    assert set(back) == {"x", "y"}
    with_ct = {**inputs, "ct": A(2.0)}
    np.testing.assert_allclose(back["x"].compile()(with_ct).numpy(), 2 * np.cos(X) * Y, rtol=1e-14)
    np.testing.assert_allclose(back["y"].compile()(with_ct).numpy(), 2 * np.sin(X), rtol=1e-14)
    second = back["x"].vjp("ct2")["x"].compile()({**with_ct, "ct2": A(np.ones(3))})
    np.testing.assert_allclose(second.numpy(), -2 * np.sin(X) * Y, rtol=1e-14)
    with pytest.raises(ValueError, match="no input 'q'"):
        program.jvp("q")
    with pytest.raises(ValueError, match="'x' already exists"):
        program.vjp("x")


def test_a_program_is_a_function() -> None:
    program = product()
    np.testing.assert_allclose(program(A(X), A(Y)).item(), (np.sin(X) * Y).sum(), rtol=1e-15)
    np.testing.assert_allclose(qb.grad(program, argnums=1)(A(X), A(Y)).numpy(), np.sin(X), rtol=1e-14)
    many = qb.vmap(program, in_axes=(0, None))(A(np.stack([X, Y])), A(Y))
    np.testing.assert_allclose(many.numpy(), [(np.sin(X) * Y).sum(), (np.sin(Y) * Y).sum()], rtol=1e-14)
    with pytest.raises(ValueError, match="takes 2 arrays"):
        program(A(X))
    with pytest.raises(ValueError, match=r"input 'x' has shape \(2,\), expected \(3,\)"):
        program(A([1.0, 2.0]), A(Y))


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ({"x": A(X)}, ValueError, "missing input 'y'"),
        ({"x": A([1.0, 2.0]), "y": A(Y)}, ValueError, r"'x' has shape \(2,\), expected \(3,\)"),
        ({"x": A(X, "float32"), "y": A(Y)}, TypeError, r"'x' is float32\[3\], expected float64\[3\]"),
        ({"x": [1.0, 2.0, 3.0], "y": A(Y)}, TypeError, "asarray"),
        ([A(X), A(Y)], TypeError, "a dict of arrays by name, got a list"),
    ],
)
def test_wrong_inputs_by_name(inputs: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        product().compile()(inputs)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"x": (3,)}, "input_specs is a list"),
        ([("x",)], "an input spec is"),
        ([(1, (3,))], "an input spec is"),
        ([("x", (3,)), ("x", (3,))], "'x' already exists"),
        ([("", (3,)), ("y", (3,))], "not empty"),
        ([("x", (0,)), ("y", (3,))], "empty arrays"),
        ([("x", (3,), "float16"), ("y", (3,))], "float16"),
    ],
)
def test_wrong_specs(specs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        qb.Compiler().trace(lambda x, y: x * y, specs)


def test_what_a_traced_function_returns() -> None:
    trace = qb.Compiler().trace
    assert trace(lambda x: 3.0, [("x", (2,))]).compile()({"x": A([1.0, 2.0])}).item() == 3.0
    with pytest.raises(TypeError, match="returned a str"):
        trace(lambda x: "no", [("x", (2,))])
    with pytest.raises(TypeError, match="returns no array"):
        trace(lambda x: None, [("x", (2,))])


@pytest.mark.cpu
def test_capabilities() -> None:
    compiler = qb.Compiler()
    can = compiler.capabilities()
    assert can["cpu"] is True and can["reference"] is True
    assert compiler.capability("cpu") is True
    with pytest.raises(ValueError, match="nosuch"):
        compiler.capability("nosuch")
    with pytest.raises(qb.UnsupportedOperationError):
        product().compile("nosuch")
