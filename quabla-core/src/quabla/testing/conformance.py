"""The conformance suite, a module of pytest tests.

    pytest --pyargs quabla.testing.conformance --quabla-device=NAME

runs it on a device; without the option it runs on every device that is there, and on the reference backend. The first
part holds the ops themselves to their laws (`table.py`); the second compares what a device computes with the reference
backend, op by op and for programs of many ops; the third is what `Executable` promises.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from quabla.backends import registry
from quabla.dtypes import float32, float64
from quabla.errors import DtypeError, QuablaError, ShapeError, UnsupportedOperationError
from quabla.ir.op import Refused
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype
from quabla.testing import table
from quabla.testing.composites import Composite, composites
from quabla.testing.numeric import MismatchError, assert_close
from quabla.testing.table import BATCH, Case, run_reference, tensors
from quabla.transforms import batch, forward, reverse

# Where IEEE 754 and NumPy leave the sign of a zero open.
UNSIGNED_ZERO = frozenset({"maximum", "minimum", "relu"})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `check` and `case` of the table, and `device` with its programs, to the tests that ask for them."""
    names = metafunc.fixturenames
    if "check" in names:
        pairs = [(c, case) for case in table.cases() for c in table.CHECKS if table.applies(c, case)]
        metafunc.parametrize(("check", "case"), pairs, ids=[f"{c}-{case}" for c, case in pairs])
    if "device" not in names:
        return
    devices = metafunc.config.getoption("--quabla-device", default=None) or [*registry.devices(), "reference"]
    metafunc.parametrize("device", list(dict.fromkeys(devices)))
    if "value_case" in names:
        metafunc.parametrize("value_case", list(table.cases()), ids=str)
    if "derived_case" in names:
        metafunc.parametrize("derived_case", list(table.cases(dtypes=(float64,))), ids=str)
    if "composite" in names:
        metafunc.parametrize("composite", list(composites()), ids=str)


# --- the ops ----------------------------------------------------------------------------------------------------------


def test_every_op_is_in_the_table() -> None:
    """An op without samples is an op without tests."""
    assert table.without_samples() == []


def test_op(check: str, case: Case) -> None:
    """Every op, on every sample, keeps every law."""
    table.CHECKS[check](case)


def test_empty_types_do_not_exist() -> None:
    """No op can be asked about arrays without elements: there is no type for them."""
    with pytest.raises(ShapeError, match="empty arrays are not supported"):
        ShapeDtype((3, 0))


# --- what a device computes -------------------------------------------------------------------------------------------


def compiled(program: Program, device: str) -> Any:
    """A program compiled for a device; the test is skipped where the device says that it lacks an op or a dtype.

    What the device refuses must be missing among its capabilities, and the error must say which op, and where.
    """
    backend, name = registry.backend_for(device)
    can = backend.capabilities
    ops = {node.op.name for node in program.nodes}
    used = {v.aval.dtype.name for node in program.nodes for v in (*node.inputs, *node.outputs)}
    used |= {a.dtype.name for a in program.in_avals}
    foreign = used - set(can.dtypes)
    if ops <= set(can.ops) and not foreign:
        return backend.compile(backend.lower(program, name))
    with pytest.raises(QuablaError) as refused:
        backend.lower(program, name)
    if not foreign:
        assert isinstance(refused.value, UnsupportedOperationError)
        assert refused.value.op in ops - set(can.ops)
        assert refused.value.device == name
    return pytest.skip(f"{device} does not have {', '.join(sorted((ops - set(can.ops)) | foreign))}")


def epsilon(device: str, arrays: list[np.ndarray]) -> float:
    """The spacing of numbers near 1 in the precision that a device computes with."""
    backend, _ = registry.backend_for(device)
    exact = backend.capabilities.native_float64 and not any(a.dtype == np.float32 for a in arrays)
    return float(np.finfo(np.float64 if exact else np.float32).eps)


def run(executable: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Call an executable with NumPy arrays."""
    return [t.numpy() for t in executable(*tensors(arrays))]


def test_value_on_device(device: str, value_case: Case) -> None:
    """An op alone, in both dtypes, special values included."""
    case = value_case
    program, x = case.program(), case.operands()
    expected = run_reference(program, x)
    got = run(compiled(program, device), x)
    eps = epsilon(device, [*x, *expected])
    elementwise = case.op.family == "elementwise"
    rtol, atol = (8 * eps, 0.0) if elementwise else (0.0, 32 * eps)
    assert_close(f"{case} on {device}", got, expected, rtol, atol)
    if elementwise and case.op.name not in UNSIGNED_ZERO:
        for a, b in zip(got, expected, strict=True):
            if a.dtype.kind == "f" and (wrong := (b == 0) & (np.signbit(a) != np.signbit(b))).any():
                raise MismatchError(
                    f"{case} on {device}: the sign of zero differs at {np.argwhere(wrong)[0]}"
                )


def test_derivatives_on_device(device: str, derived_case: Case) -> None:
    """Value, cotangents, and the tangents of both, in one program."""
    case = derived_case
    if isinstance(case.op.jvp, Refused):
        pytest.skip(case.op.jvp.why)
    program = forward.jvp(reverse.vjp(case.program()))
    rng = case.rng
    x = case.operands()
    x += [rng.normal(size=a.shape).astype(a.dtype.numpy) for a in program.in_avals[len(x) :]]
    expected = run_reference(program, x)
    got = run(compiled(program, device), x)
    assert_close(
        f"derivatives of {case} on {device}", got, expected, 0.0, 256 * epsilon(device, [*x, *expected])
    )


def test_batch_on_device(device: str, derived_case: Case) -> None:
    """The op mapped over all operands."""
    case = derived_case
    if isinstance(case.op.batch, Refused):
        pytest.skip(case.op.batch.why)
    x = case.operands()
    program = batch.vmap(case.program(), [True] * len(x), BATCH)[0]
    stacked = [np.stack([np.roll(a, k) for k in range(BATCH)]) for a in x]
    expected = run_reference(program, stacked)
    got = run(compiled(program, device), stacked)
    eps = epsilon(device, [*x, *expected])
    assert_close(f"{case} mapped on {device}", got, expected, 8 * eps, 32 * eps)


def test_composite_on_device(device: str, composite: Composite) -> None:
    """Programs of many ops."""
    program, x = composite.program(), composite.operands()
    expected = run_reference(program, x)
    got = run(compiled(program, device), x)
    eps = epsilon(device, [*x, *expected])
    assert_close(f"{composite} on {device}", got, expected, 1e3 * eps, 1e3 * eps)


# --- what an executable promises --------------------------------------------------------------------------------------


def _one(name: str, d: Any = float64) -> Composite:
    return next(c for c in composites((d,)) if c.name == name)


def test_results_own_their_memory(device: str) -> None:
    """A later call, with other inputs, changes no earlier result, and no call changes its inputs."""
    composite = _one("edges")
    executable = compiled(composite.program(), device)
    x = composite.operands()
    given = tensors(x)
    first = executable(*given)
    before = [t.numpy().copy() for t in first]
    executable(*tensors([a + 1.0 for a in x]))
    assert_close(f"results kept on {device}", [t.numpy() for t in first], before, 0.0, 0.0)
    assert_close(f"inputs on {device}", [t.numpy() for t in given], x, 0.0, 0.0)
    shared = {t.address for t in first} & {t.address for t in given}
    assert not shared, "a result shares the memory of an input"


def test_results_are_the_same_on_every_call(device: str) -> None:
    """Where the capabilities promise the same bits, the bits are the same."""
    if registry.backend_for(device)[0].capabilities.determinism != "bitwise":
        pytest.skip(f"{device} promises no equal bits")
    for name in ("model_gradient", "long_sum", "reductions"):
        composite = _one(name)
        executable = compiled(composite.program(), device)
        first, *others = [run(executable, composite.operands()) for _ in range(3)]
        again = run(compiled(composite.program(), device), composite.operands())
        for other in (*others, again):
            assert [a.tobytes() for a in first] == [a.tobytes() for a in other]


def test_many_threads_may_call(device: str) -> None:
    """Threads that call one executable at once, each with its own inputs, get their own results."""
    composite = _one("model_gradient")
    program = composite.program()
    executable = compiled(program, device)
    inputs = [[a * (1.0 + 0.1 * k) for a in composite.operands()] for k in range(4)]
    expected = [run(executable, x) for x in inputs]
    wrong: list[Any] = []
    start = threading.Barrier(len(inputs))

    def work(k: int) -> None:
        try:
            start.wait()
            for _ in range(100):
                assert_close(f"thread {k} on {device}", run(executable, inputs[k]), expected[k], 1e-12, 1e-12)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        raise wrong[0]


def test_wrong_inputs_are_typed_errors(device: str) -> None:
    """Never a crash, never a number from memory that is not there."""
    composite = _one("chain7")
    executable = compiled(composite.program(), device)
    x, y = tensors(composite.operands())
    (other,) = tensors([np.ones(8)])
    (narrow,) = tensors([np.ones(7, np.float32)])
    with pytest.raises(ShapeError):
        executable(x, other)
    with pytest.raises(DtypeError):
        executable(x, narrow)
    with pytest.raises(ShapeError):
        executable(x)
    with pytest.raises(ShapeError):
        executable(x, y, y)


def test_a_program_can_be_read(device: str) -> None:
    """What was lowered has a readable form that names what it computes."""
    backend, name = registry.backend_for(device)
    program = _one("chain7").program()
    compiled(program, device)
    text = backend.lower(program, name).as_text()
    assert text.strip()


def test_capabilities_are_data(device: str) -> None:
    """The device is among those of its backend, and what it can do is said in known words."""
    backend, name = registry.backend_for(device)
    can = backend.capabilities
    assert name in backend.devices()
    assert name.split(":")[0] == backend.platform
    assert {d.name for d in (float64, float32)} & set(can.dtypes)
    assert len(set(can.ops)) == len(can.ops)
