"""Every op on every sample of its record, in every dtype that it takes, alone and under every transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from quabla.dtypes import bool_, dtype, float32, float64, int64
from quabla.errors import DtypeError
from quabla.ir.op import Refused
from quabla.ir.program import Program
from quabla.testing import table
from quabla.testing.checks import Check
from quabla.testing.numeric import MismatchError, assert_close
from quabla.testing.table import BATCH, Case, other_operands, run_reference, types_of
from quabla.testing.target import TOLERANCES, Target
from quabla.transforms import batch, forward, reverse

__all__ = ["composite_check", "op_checks"]

# Where IEEE 754 and NumPy leave the sign of a zero open.
UNSIGNED_ZERO = frozenset({"maximum", "minimum", "relu"})

Transform = Callable[[Program], Program]


def op_checks() -> Iterator[Check]:
    """The checks of all ops."""
    for case in (*table.cases((float64, float32)), *_discrete()):
        yield _check(case, "value", partial(_value, case))
        if isinstance(case.op.jvp, Refused):
            if case.op.reverse is not None and _floats(case):
                yield _check(case, "vjp", partial(_derived, case, "vjp", reverse.vjp))
        elif _floats(case):
            weaker = [("jvp", forward.jvp), ("vjp", reverse.vjp)]
            implied = tuple(_check(case, name, partial(_derived, case, name, f)) for name, f in weaker)
            whole = partial(_derived, case, "second derivative", lambda p: forward.jvp(reverse.vjp(p)))
            yield _check(case, "second derivative", whole, implied)
        if not isinstance(case.op.batch, Refused):
            yield _check(case, "vmap", partial(_batched, case))


def _discrete() -> Iterator[Case]:
    """The samples with integers or bools in the place of floating numbers, for the ops that take them."""
    for d in (int64, bool_):
        for case in table.cases((d,)):
            if any(np.asarray(x).dtype.kind == "f" for x in case.sample.make(case.rng)) and _takes(case):
                yield case


def _takes(case: Case) -> bool:
    try:
        case.op.infer(*types_of(case.operands()), **case.sample.params)
    except DtypeError:
        return False
    return True


def _floats(case: Case) -> bool:
    return case.dtype.kind == "f" and any(x.dtype.kind == "f" for x in case.operands())


def _check(case: Case, transform: str, test: Any, implies: tuple[Check, ...] = ()) -> Check:
    return Check("op", case.op.name, case.sample.name, str(case.dtype), transform, test, implies)


def _compare(
    what: str, target: Target, program: Program, x: list[np.ndarray], kind: str, unit: Sequence[Any] = ()
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Hold what a device computes to the reference; returns both."""
    x = target.held(x)
    expected = target.held(run_reference(program, x))
    got = target.run(program, x)
    eps, allowed = target.eps([*x, *expected, *unit]), TOLERANCES[kind]
    assert_close(f"{what} on {target.device}", got, expected, allowed.each * eps, allowed.largest * eps)
    return got, expected


def _value(case: Case, target: Target) -> None:
    """An op alone, special values included."""
    elementwise = case.op.family == "elementwise"
    kind = "elementwise" if elementwise else "value"
    got, expected = _compare(str(case), target, case.program(), case.operands(), kind)
    if elementwise and case.op.name not in UNSIGNED_ZERO:
        for a, b in zip(got, expected, strict=True):
            if a.dtype.kind == "f" and (wrong := (b == 0) & (np.signbit(a) != np.signbit(b))).any():
                at = np.argwhere(wrong)[0]
                raise MismatchError(f"{case} on {target.device}: the sign of zero differs at {at}")


def _derived(case: Case, name: str, transform: Transform, target: Target) -> None:
    """A derivative, with the value in the same program."""
    program = transform(case.program())
    rng, x = case.rng, case.operands()
    x += [rng.normal(size=a.shape).astype(a.dtype.numpy) for a in program.in_avals[len(x) :]]
    _compare(f"{name} of {case}", target, program, x, "derivative")


def _batched(case: Case, target: Target) -> None:
    """The op mapped over all operands."""
    x = case.operands()
    program = batch.vmap(case.program(), [True] * len(x), BATCH)[0]
    lanes = [x, *(other_operands(case, k) for k in range(1, BATCH))]
    stacked = [np.stack(each) for each in zip(*lanes, strict=True)]
    _compare(f"{case} mapped", target, program, stacked, "batch")


def composite_check(composite: Any) -> Check:
    """The check of a program of many ops."""

    def test(target: Target) -> None:
        _compare(str(composite), target, composite.program(), composite.operands(), "program")

    d: dtype = composite.dtype
    return Check("program", composite.name, "", str(d), "value", test)
