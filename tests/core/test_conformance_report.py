"""The conformance suite finds what is wrong, knows a correct refusal from an incorrect one, and says both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import wrap_as
from quabla.arrays.tracer import trace
from quabla.backends import registry
from quabla.backends.capabilities import CONTROL_FLOW, LINALG, BackendCapabilities
from quabla.backends.generic_plan import GenericTrainingPlan
from quabla.backends.hookspec import hookimpl
from quabla.backends.loading import Source
from quabla.backends.reference import ReferenceBackend, ReferenceExecutable, build
from quabla.backends.support import dtypes_in, ops_in, require
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import OPS
from quabla.testing import command, suite
from quabla.testing.checks_functions import optimizers
from quabla.testing.report import REFUSED, SUPPORTED, WRONG, Report, Verdict
from tests.core.test_conformance import PLUGIN, _environment


class Toy(ReferenceBackend):
    """A backend that lacks what it is told to lack, and otherwise is the reference."""

    platform = "toy"

    def __init__(
        self, lacks: frozenset[str] = frozenset(), dtypes: Any = ("float64", "float32", "bool", "int64")
    ) -> None:
        self.can = BackendCapabilities(
            dtypes=dtypes, ops=tuple(sorted(set(OPS) - lacks)), native_float64=True, determinism="bitwise"
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self.can

    def lower(self, program: Any, device: str) -> Any:
        require(program, self.can, device)
        return super().lower(program, device)


@contextmanager
def installed(backend: Any) -> Iterator[None]:
    plugin = SimpleNamespace(quabla_backend=hookimpl(lambda: backend))
    with registry.override([Source("toy", lambda: plugin, "toys", "1.0")]):
        yield


def examine(backend: Any, only: str) -> Report:
    with installed(backend):
        return suite.examine("toy", only)


# --- what is right ----------------------------------------------------------------------------------------------------


def test_a_backend_that_has_all_conforms() -> None:
    for only in ("promise", "function scan float64", "training", "op where"):
        report = examine(Toy(), only)
        assert report.conforms and not report.counts[REFUSED], report.as_text()


@pytest.mark.parametrize(
    ("lacks", "dtypes", "only"),
    [
        (LINALG, ("float64", "float32", "bool", "int64"), "op solve"),
        (LINALG, ("float64", "float32", "bool", "int64"), "function linear_system"),
        (CONTROL_FLOW, ("float64", "float32", "bool", "int64"), "function loops_and_branches"),
        (CONTROL_FLOW, ("float64", "float32", "bool", "int64"), "op scan"),
        (frozenset({"tanh"}), ("float64", "float32", "bool", "int64"), "training SGD"),
        (frozenset(), ("float32", "bool", "int64"), "op tanh float64"),
        (frozenset(), ("float32", "bool", "int64"), "function cond float64"),
        (frozenset(), ("float64", "bool", "int64"), "op add float32"),
        (frozenset(), ("float64", "float32", "int64"), "op less"),
        (frozenset(), ("float64", "float32", "bool"), "op argmax"),
    ],
)
def test_what_the_capabilities_leave_out_is_refused_correctly(lacks: Any, dtypes: Any, only: str) -> None:
    report = examine(Toy(lacks, dtypes), only)
    assert report.conforms and not report.counts[SUPPORTED] and report.counts[REFUSED] > 0, report.as_text()


def test_a_backend_of_float32_alone_keeps_its_promises() -> None:
    report = examine(Toy(dtypes=("float32", "bool", "int64")), "promise")
    assert report.conforms and report.counts[SUPPORTED] == len(report.verdicts)


def test_an_op_is_refused_inside_branches_and_loops() -> None:
    def f(x: Any) -> Any:
        return qb.fori_loop(0, 3, lambda i, c: qb.cond(c > 0.0, qb.sin, qb.cosh, c), x)

    with (
        installed(Toy(frozenset({"cosh"}))),
        pytest.raises(UnsupportedOperationError, match="cosh") as caught,
    ):
        qb.jit(f, device="toy").lower(qb.array(1.0))
    assert (caught.value.op, caught.value.device) == ("cosh", "toy")


def test_an_input_of_a_foreign_dtype_is_refused_though_nothing_is_done_with_it() -> None:
    program, _ = trace(lambda x, i: (x,), [qb.ShapeDtype(()), qb.ShapeDtype((3,), "int64")])
    backend = Toy(dtypes=("float64", "bool"))
    with pytest.raises(
        UnsupportedOperationError, match=r"takes no int64, and an input is int64\[3\]"
    ) as caught:
        backend.lower(program, "toy")
    assert (caught.value.op, caught.value.device) == (None, "toy")
    assert dtypes_in(program) == {"float64", "int64"} and ops_in(program) == set()


# --- what is wrong ----------------------------------------------------------------------------------------------------


class Broken(Toy):
    """A backend with one fault."""

    def __init__(self, **faults: Callable[..., Any]) -> None:
        super().__init__(frozenset({"arccosh"}))
        self.faults = faults

    def lower(self, program: Any, device: str) -> Any:
        if "lower" in self.faults:
            return self.faults["lower"](super().lower, program, device)
        return super().lower(program, device)

    def compile(self, lowered: Any) -> Any:
        return self.faults.get("compile", build)(lowered.program)

    def training_plan(self, program: Any, device: str, state: Any, data: Any) -> Any:
        plan = GenericTrainingPlan(self.compile(self.lower(program, device)), state, data)
        return self.faults["plan"](plan) if "plan" in self.faults else plan


class Wrapped:
    """An executable whose call is another."""

    entry = None

    def __init__(self, program: Any, call: Callable[[Any, Any], Any]) -> None:
        self.inner: ReferenceExecutable = build(program)
        self.in_avals, self.out_avals, self.call = self.inner.in_avals, self.inner.out_avals, call

    def __call__(self, *inputs: Any) -> Any:
        return self.call(self.inner, inputs)


def calls(call: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda program: Wrapped(program, call)


def without_device(lower: Any, program: Any, device: str) -> Any:
    try:
        return lower(program, device)
    except UnsupportedOperationError as error:
        error.device = None
        raise


def with_another_op(lower: Any, program: Any, device: str) -> Any:
    try:
        return lower(program, device)
    except UnsupportedOperationError as error:
        error.op = "something"
        raise


def untyped(lower: Any, program: Any, device: str) -> Any:
    try:
        return lower(program, device)
    except UnsupportedOperationError as error:
        raise ValueError("no") from error


def changed(t: Any, f: Callable[[np.ndarray], np.ndarray]) -> Any:
    array = np.ascontiguousarray(f(t.numpy().copy()))
    return wrap_as(array, qb.array(array).aval if array.dtype.kind == "f" else t.aval)


def sixteen_units(x: np.ndarray) -> np.ndarray:
    return x * (1.0 + 16.0 * np.finfo(x.dtype).eps) if x.dtype.kind == "f" else x


def accepted(lower: Any, program: Any, device: str) -> Any:
    return ReferenceBackend().lower(program, device)


def handed_back(executable: Any, xs: Any) -> Any:
    return tuple(xs[0] if t.aval == xs[0].aval else t for t in executable(*xs))


def resized(executable: Any, xs: Any) -> Any:
    """Makes inputs fit, whatever they are."""
    return executable(
        *[
            changed(x, lambda a, v=v: np.resize(a, v.shape).astype(v.dtype.numpy))  # type: ignore[misc]
            for x, v in zip((*xs, *xs), executable.in_avals, strict=False)
        ]
    )


class Slow:
    """A plan whose step forgets to move every fifth time."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.count = plan, 0
        self.run, self.state, self.set_state = plan.run, plan.state, plan.set_state
        self.loss, self.replace = plan.loss, plan.replace

    def step(self) -> None:
        self.count += 1
        if self.count % 5:
            self.plan.step()


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a result that is off by 16 units": (
        {"compile": calls(lambda e, xs: tuple(changed(t, sixteen_units) for t in e(*xs)))}, "op exp value", "expected"
    ),
    "a sign of zero": (
        {"compile": calls(lambda e, xs: tuple(changed(t, np.abs) for t in e(*xs)))}, "op neg value", "differ"
    ),
    "an input handed back": ({"compile": calls(handed_back)}, "promise results_own_their_memory", ""),
    "no check of inputs": (
        {"compile": calls(resized)}, "promise wrong_inputs_are_typed_errors", "was accepted"
    ),
    "what it lacks is accepted": ({"lower": accepted}, "op arccosh", "lacks arccosh"),
    "a refusal without a device": ({"lower": without_device}, "op arccosh", "device=None"),
    "a refusal of another op": ({"lower": with_another_op}, "op arccosh", "op='something'"),
    "a refusal of another type": ({"lower": untyped}, "op arccosh", "has to refuse that with"),
    "a step that is left out": ({"plan": Slow}, "training step float64", "expected"),
    "an error at run time": (
        {"compile": calls(lambda e, xs: xs[99])}, "function cond value float64", "IndexError: tuple index"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_fault_is_found(fault: str) -> None:
    faults, only, text = FAULTS[fault]
    backend = Broken(**faults)
    if only.startswith("training"):
        backend.can = BackendCapabilities(dtypes=backend.can.dtypes, ops=tuple(OPS), native_float64=True)
    report = examine(backend, only)
    assert not report.conforms, report.as_text()
    assert any(text in v.detail for v in report.verdicts if v.outcome == WRONG), report.as_text()


def test_a_fault_of_one_derivative_is_told_from_the_others() -> None:
    """Checks that share a program are tried one by one where it fails."""

    def third_result_is_wrong(e: Any, xs: Any) -> Any:
        outs = e(*xs)
        return outs if len(outs) < 4 else (*outs[:3], changed(outs[3], lambda a: a + 1.0))

    report = examine(Broken(compile=calls(third_result_is_wrong)), "op exp float64")
    outcomes = {v.transform: v.outcome for v in report.verdicts if v.sample == report.verdicts[0].sample}
    assert outcomes == {
        "value": SUPPORTED, "jvp": SUPPORTED, "vjp": SUPPORTED, "second derivative": WRONG, "vmap": SUPPORTED
    }  # fmt: skip


def test_ctrl_c_ends_the_suite() -> None:
    def interrupted(e: Any, xs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(Broken(compile=calls(interrupted)), "op exp value")


# --- the suite --------------------------------------------------------------------------------------------------------


def test_items_have_names_of_their_own_and_cover_every_op() -> None:
    checks = list(suite.checks())
    names = [str(c) for c in checks]
    assert len({(c.group, n) for c, n in zip(checks, names, strict=True)}) == len(checks)
    ops = {c.subject for c in checks if c.group == "op"}
    assert ops == {name for name, op in OPS.items() if op.samples is not None}
    assert {c.dtype for c in checks if c.group == "op"} == {"float64", "float32", "bool", "int64"}
    assert {c.subject for c in checks if c.group == "training"} >= {"Adam", "SGD"}


def test_every_optimiser_is_trained_with() -> None:
    classes = {n for n in qb.optim.__all__ if hasattr(getattr(qb.optim, n), "update")} - {"Optimizer"}
    assert classes == set(optimizers())


@pytest.mark.cpu
@pytest.mark.slow
def test_the_cpu_is_examined_in_reasonable_time() -> None:
    start = time.process_time()
    report = suite.examine("cpu")
    assert report.conforms, report.as_text()
    assert time.process_time() - start < 90.0


# --- reports ----------------------------------------------------------------------------------------------------------

VERDICTS = (
    Verdict("op", "solve", "wide", "float64", "value", SUPPORTED, "", 0.5),
    Verdict("op", "det", "3x3", "float64", "jvp", REFUSED, "no det on <toy>", 0.25),
    Verdict("function", "scan", "", "float32", "grad", WRONG, "1.0, expected 2.0", 0.25),
)


@pytest.fixture
def report() -> Report:
    return Report("toy", "'toy' of toys 1.0", {"dtypes": ["float64"]}, VERDICTS)


def test_the_text_counts_and_lists(report: Report) -> None:
    lines = report.as_text().splitlines()
    assert lines[0] == "Conformance of device 'toy', brought by 'toy' of toys 1.0"
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines[2:7]]
    assert cells == [
        ["supported", "refused correctly", "wrong"],
        ["op value", "1", "0", "0"],
        ["op jvp", "0", "1", "0"],
        ["function grad", "0", "0", "1"],
        ["all", "1", "1", "1"],
    ]
    assert "  function scan float32 grad: 1.0, expected 2.0" in lines
    assert "  op det (1 items): no det on <toy>" in lines
    assert lines[-1] == "toy does not conform: 3 items in 1 s"
    assert replace(report, verdicts=VERDICTS[:2]).as_text().splitlines()[-1].startswith("toy conforms")


def test_nothing_examined_is_no_conformance(report: Report) -> None:
    assert not replace(report, verdicts=()).conforms


def test_json_holds_every_item(report: Report) -> None:
    read = json.loads(report.as_json())
    assert read["counts"] == {SUPPORTED: 1, REFUSED: 1, WRONG: 1} and not read["conforms"]
    assert [tuple(item.values()) for item in read["items"]] == [tuple(vars(v).values()) for v in VERDICTS]
    assert read["device"] == "toy" and read["capabilities"] == {"dtypes": ["float64"]}
    assert read["tolerances"]["elementwise"] == {"each": 8.0, "largest": 0.0}


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["td"]:
            self.cells.append(data)


def test_the_page_is_well_formed_and_escapes(report: Report) -> None:
    page = _Cells()
    page.feed(report.as_html())
    assert page.open == []
    at = page.cells.index("function scan float32 grad")
    assert page.cells[at : at + 3] == ["function scan float32 grad", WRONG, "1.0, expected 2.0"]
    assert "no det on <toy>" in page.cells and "<toy>" not in report.as_html()


# --- the command and the plugin ---------------------------------------------------------------------------------------


def test_the_command_writes_reports_and_tells_by_its_status(tmp_path: Path, capsys: Any) -> None:
    files = [tmp_path / "a" / "r.json", tmp_path / "r.html"]
    given = ["--device=toy", "--only", "op tanh float64", "--json", str(files[0]), "--html", str(files[1])]
    with installed(Toy(frozenset({"tanh"}))):
        assert command.main(given) == 0
    assert "toy conforms" in capsys.readouterr().out
    assert json.loads(files[0].read_text("utf-8"))["counts"][REFUSED] > 0
    assert "Device toy conforms" in files[1].read_text("utf-8")
    with installed(Broken(compile=calls(lambda e, xs: xs[99]))):
        assert command.main(given) == 1
    assert "toy does not conform" in capsys.readouterr().out


def test_the_command_names_what_is_not_there(capsys: Any) -> None:
    assert command.main(["--device=abacus"]) == 2
    assert "there is no device 'abacus'" in capsys.readouterr().err
    assert command.main(["--device=reference", "--only=op nonsense"]) == 2
    assert "op nonsense" in capsys.readouterr().err


def pytest_on(tmp_path: Path, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, "--pyargs", "quabla.testing.conformance",
         "-p", "no:cacheprovider", "-k", "test_conforms and op-tanh", *arguments],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_pytest_writes_reports(tmp_path: Path) -> None:
    done = pytest_on(
        tmp_path, "--quabla-device=reference", "--quabla-report=r.json", "--quabla-report=r.html"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert read["conforms"] and {i["subject"] for i in read["items"]} == {"tanh"}
    assert (tmp_path / "r.html").is_file()


def test_a_report_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, "--quabla-device=reference", "--quabla-report=r.pdf")
    assert done.returncode == 4 and "r.pdf must end in one of .json, .html, .txt" in done.stderr


def test_capabilities_agree_with_themselves() -> None:
    ops = tuple(OPS)
    can = BackendCapabilities(dtypes=("float64",), ops=ops, native_float64=True)
    assert can.regions and set(can.linalg) == LINALG
    for wrong in ({"regions": False}, {"linalg": ()}, {"ops": ("add",), "regions": True}):
        with pytest.raises(ValueError, match="does not agree with ops"):
            BackendCapabilities(**{"dtypes": ("float64",), "ops": ops, "native_float64": True, **wrong})


@pytest.mark.parametrize(
    ("ops", "text"), [(("sine", "flop"), "called flop, sine"), (("add",), "named twice")]
)
def test_names_of_ops_that_promise_nothing_are_wrong(ops: tuple[str, ...], text: str) -> None:
    backend = Toy()
    backend.can = backend.can.model_copy(update={"ops": (*backend.can.ops, *ops)})
    (verdict,) = examine(backend, "capabilities_are_true").verdicts
    assert verdict.outcome == WRONG and text in verdict.detail, verdict


def test_the_lists_of_kinds_of_ops_are_complete() -> None:
    """Every op of the files on linear algebra is in one list, every region with programs of its own in the other."""
    files = ("linalg", "factor", "determinant", "spectral")
    assert set(OPS) >= LINALG | CONTROL_FLOW
    for name, op in OPS.items():
        if op.samples is not None and op.infer.__module__.removeprefix("quabla.ops.") in files:
            assert name in LINALG, f"add {name} to LINALG in backends/capabilities.py"
        if op.family == "region" and op.decompose is None and name != "checkpoint":
            assert name in CONTROL_FLOW, f"add {name} to CONTROL_FLOW in backends/capabilities.py"
