"""What `Executable`, `Lowered` and `Backend` promise beside numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.dtypes import float32, float64
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import OPS
from quabla.testing.checks import Check
from quabla.testing.composites import Composite, composites
from quabla.testing.numeric import MismatchError, assert_close
from quabla.testing.table import tensors
from quabla.testing.target import Target

__all__ = ["promise_checks"]


def promise_checks() -> Iterator[Check]:
    """The checks of all promises."""
    for test in (
        capabilities_are_true, a_program_can_be_read, results_own_their_memory, results_are_the_same_on_every_call,
        many_threads_may_call, wrong_inputs_are_typed_errors, devices_are_named,
    ):  # fmt: skip
        yield Check("promise", test.__name__, "", "", "", test)


def _one(target: Target, name: str) -> Composite:
    """A program, or a simpler one for a device that lacks something for it: all devices are held to the promises."""
    d = float64 if "float64" in target.can.dtypes else float32
    found = {c.name: c for c in composites((d,))}
    return found["arithmetic"] if target.lacks(found[name].program()) else found[name]


def _run(executable: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [t.numpy() for t in executable(*tensors(arrays))]


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise MismatchError(what)


def capabilities_are_true(target: Target) -> None:
    """A floating dtype is there, and each op is named once, by a name that there is."""
    _demand(bool({"float64", "float32"} & set(target.can.dtypes)), "there is neither float64 nor float32")
    _demand(len(set(target.can.ops)) == len(target.can.ops), "an op is named twice")
    unknown = sorted(set(target.can.ops).difference(OPS))
    _demand(not unknown, f"there is no op called {', '.join(unknown)}")


def devices_are_named(target: Target) -> None:
    """The device is among those of its backend, and its name begins with the platform."""
    _demand(target.device in target.backend.devices(), f"devices() does not have {target.device!r}")
    _demand(
        target.device.split(":")[0] == target.backend.platform, "the name does not begin with the platform"
    )


def a_program_can_be_read(target: Target) -> None:
    """What was lowered has a readable form, and knows its program and device."""
    program = _one(target, "chain7").program()
    target.compiled(program)
    lowered = target.backend.lower(program, target.device)
    _demand(bool(lowered.as_text().strip()), "as_text() is empty")
    _demand(lowered.device == target.device, f"device is {lowered.device!r}")
    same = lowered.program.in_avals == program.in_avals and lowered.program.out_avals == program.out_avals
    _demand(same, "program has other inputs or outputs")


def results_own_their_memory(target: Target) -> None:
    """A later call, with other inputs, changes no earlier result, and no call changes its inputs."""
    composite = _one(target, "edges")
    executable = target.compiled(composite.program())
    x = composite.operands()
    given = tensors(x)
    first = executable(*given)
    before = [t.numpy().copy() for t in first]
    executable(*tensors([a + 1.0 for a in x]))
    assert_close(f"results kept on {target.device}", [t.numpy() for t in first], before, 0.0, 0.0)
    assert_close(f"inputs on {target.device}", [t.numpy() for t in given], x, 0.0, 0.0)
    _demand(
        not {t.address for t in first} & {t.address for t in given}, "a result shares the memory of an input"
    )
    _demand(len({t.address for t in first}) == len(first), "two results share their memory")


def results_are_the_same_on_every_call(target: Target) -> None:
    """Where the capabilities promise the same bits, the bits are the same."""
    if target.can.determinism != "bitwise":
        return
    for name in ("model_gradient", "long_sum", "reductions"):
        composite = _one(target, name)
        executable = target.compiled(composite.program())
        runs = [_run(executable, composite.operands()) for _ in range(3)]
        runs.append(_run(target.compiled(composite.program()), composite.operands()))
        bits = [[a.tobytes() for a in each] for each in runs]
        _demand(all(each == bits[0] for each in bits), f"{name}: other bits on another call")


def many_threads_may_call(target: Target) -> None:
    """Threads that call one executable at once, each with its own inputs, get their own results."""
    composite = _one(target, "model_gradient")
    executable = target.compiled(composite.program())
    inputs = [[a * (1.0 + 0.1 * k) for a in composite.operands()] for k in range(4)]
    expected = [_run(executable, x) for x in inputs]
    tolerance = 1e3 * target.eps(expected[0])
    wrong: list[BaseException] = []
    start = threading.Barrier(len(inputs))

    def work(k: int) -> None:
        try:
            start.wait()
            for _ in range(100):
                got = _run(executable, inputs[k])
                assert_close(f"thread {k} on {target.device}", got, expected[k], tolerance, tolerance)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        raise wrong[0]


def wrong_inputs_are_typed_errors(target: Target) -> None:
    """Never a crash, never a number from memory that is not there."""
    composite = _one(target, "chain7")
    executable = target.compiled(composite.program())
    d = composite.dtype
    x, y = tensors(composite.operands())
    (longer,) = tensors([np.ones(8, d.numpy)])
    (foreign,) = tensors([np.ones(7, np.float32 if d is float64 else np.float64)])
    _raises(ShapeError, "an input of another shape", lambda: executable(x, longer))
    _raises(DtypeError, "an input of another dtype", lambda: executable(x, foreign))
    _raises(ShapeError, "one input too few", lambda: executable(x))
    _raises(ShapeError, "one input too many", lambda: executable(x, y, y))


def _raises(wanted: type[Exception], what: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except wanted:
        return
    except Exception as error:
        raise MismatchError(
            f"{what} raised {type(error).__name__}, not {wanted.__name__}: {error}"
        ) from error
    raise MismatchError(f"{what} was accepted; {wanted.__name__} is wanted")
