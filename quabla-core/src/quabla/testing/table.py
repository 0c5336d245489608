"""The conformance table: every op, on every sample that its record gives, through every rule that it has.

A check takes a `Case` and raises where the op breaks a law. It knows no op by name, so a new record is under test at
once. The laws of derivatives are checked on programs of one node: first derivatives on the op's program, second ones by
the same functions on the programs that the transforms made from it.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.arrays.tracer import bind, trace
from quabla.backends.reference import build
from quabla.dtypes import _BY_NUMPY, dtype, float32, float64
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import OPS, Each, Op, Refused, Sample
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype, aval_of
from quabla.testing.numeric import (
    MismatchError,
    assert_close,
    assert_dot_identity,
    central_difference,
    random_like,
)
from quabla.transforms import batch, forward, reverse

__all__ = [
    "CHECKS", "SOURCES", "Case", "applies", "cases", "check", "check_batch", "check_derivative", "check_rules_agree",
    "check_second_derivative", "check_singular_points", "check_transpose", "check_types", "check_value",
    "other_operands", "run_reference", "tensors", "types_of", "without_samples",
]  # fmt: skip

# Ops without operands: nothing to sample, nothing to differentiate. They occur in the programs of `composites.py`.
SOURCES = frozenset({"full", "constant"})

STEP = 2e-4  # truncation and rounding of a fourth-order difference in float64 are both near 1e-12 here
BATCH = 7  # no sample has this extent, so no axis is taken for another


@dataclass(frozen=True)
class Case:
    """An op on one of its samples, in one floating dtype."""

    op: Op
    sample: Sample
    dtype: dtype

    def __str__(self) -> str:
        return f"{self.op.name}-{self.sample.name}-{self.dtype}"

    @property
    def rng(self) -> Any:
        """Random numbers of this case, the same on every run."""
        return np.random.default_rng(zlib.crc32(f"{self.op.name} {self.sample.name}".encode()))

    def operands(self) -> list[np.ndarray]:
        """The operands, floating ones in the dtype of the case: small integers and truth values, if it is no float."""
        made = [np.asarray(x) for x in self.sample.make(self.rng)]
        return [_in(x, self.dtype) if x.dtype.kind == "f" else x for x in made]

    def program(self, avals: Sequence[ShapeDtype] | None = None) -> Program:
        """The program of the op alone."""
        params = self.sample.params

        def run(*xs: Any) -> Any:
            out = bind(self.op, xs, params)
            return out if self.op.multiple else [out]

        return trace(run, types_of(self.operands()) if avals is None else avals)[0]


def _in(x: np.ndarray, d: dtype) -> np.ndarray:
    if d.kind == "f":
        return x.astype(d.numpy)
    finite = np.nan_to_num(x, nan=3.0, posinf=3.0, neginf=-3.0)  # as in sorted lines, NaN comes last
    return np.asarray(np.rint(finite.clip(-3.0, 3.0) * 3.0) if d.kind == "i" else finite > 0.0, d.numpy)


def cases(dtypes: Sequence[dtype] = (float64, float32), smooth: bool | None = None) -> Iterator[Case]:
    """Every op on every sample.

    Args:
        dtypes: in which dtypes. A sample without floating operands comes once.
        smooth: only samples that are smooth, or only those that are not; both if None.
    """
    for op in list(OPS.values()):
        for sample in op.samples() if op.samples is not None else ():
            if smooth is None or sample.smooth == smooth:
                floating = any(np.asarray(x).dtype.kind == "f" for x in sample.make(np.random.default_rng(0)))
                for d in dtypes if floating else dtypes[:1]:
                    if sample.only in (None, d):
                        yield Case(op, sample, d)


def without_samples() -> list[str]:
    """The ops that the table does not reach."""
    return [
        op.name
        for op in OPS.values()
        if op.name not in SOURCES and (op.samples is None or not list(op.samples()))
    ]


def types_of(arrays: Sequence[np.ndarray]) -> list[ShapeDtype]:
    """The types of NumPy arrays."""
    return [aval_of(a.shape, _BY_NUMPY[a.dtype]) for a in arrays]


def tensors(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """NumPy arrays as Tensors, copied."""
    return [wrap_as(np.array(a, order="C"), t) for a, t in zip(arrays, types_of(arrays), strict=True)]


def run_reference(program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a program by definition."""
    return [t.numpy() for t in build(program)(*tensors(arrays))]


def floating(values: Sequence[Any]) -> list[Any]:
    """Those of some arrays or types that are floating."""
    return [v for v in values if v.dtype.kind == "f"]


def pullback_of(program: Program, wanted: Sequence[bool]) -> Program:
    """The program with inputs (primals, cotangents) and outputs (cotangents of the wanted inputs)."""
    seeds = floating(program.out_avals)

    def run(*args: Any) -> list[Any]:
        frame = args[0].frame
        n = len(program.inputs)
        _, backward = reverse.vjp_values(frame, program, args[:n], wanted)
        rest = iter(args[n:])
        cts = backward([next(rest) if a.dtype.kind == "f" else None for a in program.out_avals])
        return [
            frame.full(0, a) if ct is None else ct
            for a, ct, w in zip(program.in_avals, cts, wanted, strict=True)
            if w
        ]

    return trace(run, [*program.in_avals, *seeds])[0]


# --- laws of programs -------------------------------------------------------------------------------------------------


def forward_agrees_with_differences(what: str, program: Program, x: Sequence[np.ndarray], rng: Any) -> None:
    """Check the JVP of a program against central differences of the program."""
    tangents = [random_like(rng, a) if a.dtype.kind == "f" else None for a in x]
    moved = run_reference(forward.jvp(program), [*x, *(t for t in tangents if t is not None)])
    outs = [i for i, a in enumerate(program.out_avals) if a.dtype.kind == "f"]

    def f(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = run_reference(program, arrays)
        return [values[i] for i in outs]

    expected = central_difference(f, x, tangents, STEP)
    assert_close(f"{what}: JVP against differences", moved[len(program.outputs) :], expected, 1e-8, 1e-8)
    # One operand at a time, the others' tangents None: no rule may lean on all of them.
    for i, a in enumerate(x):
        if a.dtype.kind == "f":
            alone = [t if j == i else None for j, t in enumerate(tangents)]
            expected = central_difference(f, x, alone, STEP)
            given = [t if t is None or j == i else np.zeros_like(t) for j, t in enumerate(tangents)]
            got = run_reference(forward.jvp(program), [*x, *(t for t in given if t is not None)])
            assert_close(f"{what}: JVP in operand {i}", got[len(program.outputs) :], expected, 1e-8, 1e-8)
            direction = tangents[i]
            assert direction is not None
            sparse = run_reference(_jvp_in(program, i), [*x, direction])
            what_of = f"{what}: JVP in operand {i} with the other tangents None"
            assert_close(what_of, sparse, got[len(program.outputs) :], 1e-12, 1e-12)


def _jvp_in(program: Program, i: int) -> Program:
    """The tangents of the floating outputs when input `i` alone moves."""

    def run(*args: Any) -> list[Any]:
        frame = args[0].frame
        tangents = [args[-1] if j == i else None for j in range(len(program.inputs))]
        outs, moved = forward.jvp_values(frame, program, args[:-1], tangents)
        return [
            frame.full(0, o.aval) if t is None else t
            for o, t in zip(outs, moved, strict=True)
            if o.dtype.kind == "f"
        ]

    return trace(run, [*program.in_avals, program.in_avals[i]])[0]


def reverse_transposes_forward(what: str, program: Program, x: Sequence[np.ndarray], rng: Any) -> None:
    """Check the VJP of a program against its JVP, for all floating inputs together and for each alone."""
    n = len(program.outputs)
    tangents = [random_like(rng, a) for a in floating(x)]
    outs = run_reference(forward.jvp(program), [*x, *tangents])
    cts = [random_like(rng, a) for a in floating(outs[:n])]
    wanted = [a.dtype.kind == "f" for a in x]
    grads = run_reference(pullback_of(program, wanted), [*x, *cts])
    assert_dot_identity(f"{what}: VJP against JVP", cts, outs[n:], grads, tangents, 1e-12)
    at = [i for i, w in enumerate(wanted) if w]
    if len(at) > 1:
        for k, i in enumerate(at):
            alone = run_reference(pullback_of(program, [j == i for j in range(len(x))]), [*x, *cts])
            assert_close(f"{what}: VJP wanted for operand {i} alone", alone, [grads[k]], 1e-12, 1e-12)


# --- checks of one case -----------------------------------------------------------------------------------------------


def _differentiable(case: Case) -> bool:
    """Whether there is a derivative to check; a refusal is checked to be one."""
    x = case.operands()
    program = case.program()
    if not floating(x) or not floating(program.out_avals):
        return False
    if isinstance(case.op.jvp, Refused):
        try:
            forward.jvp(program)
        except UnsupportedOperationError as refused:
            if case.op.jvp.why not in str(refused) or refused.op != case.op.name:
                raise MismatchError(
                    f"{case}: the refusal must name the op and say why, it says {refused}"
                ) from None
            return False
        raise MismatchError(f"{case}: the jvp is refused, but was made")
    return True


def check_value(case: Case) -> None:
    """`evaluate` gives what `infer` promises, and running the program gives the same."""
    x = case.operands()
    expected = case.op.out_type(tuple(types_of(x)), case.sample.params)
    with np.errstate(all="ignore"):
        out = case.op.evaluate(*x, **case.sample.params)
    outs, avals = (out, expected) if case.op.multiple else ((out,), (expected,))
    for o, a in zip(outs, avals, strict=True):
        if np.shape(o) != a.shape or np.asarray(o).dtype != a.dtype.numpy:
            raise MismatchError(f"{case}: evaluate gives {np.asarray(o).dtype}{np.shape(o)}, infer says {a}")
    assert_close(f"{case}: value", run_reference(case.program(), x), [np.asarray(o) for o in outs], 0.0, 0.0)


def check_types(case: Case) -> None:
    """Tangents have the types of their primals, cotangents likewise, and batches lead with their extent."""
    program = case.program()
    expect: list[tuple[str, Sequence[ShapeDtype], Sequence[ShapeDtype]]] = []
    if _differentiable(case):
        n = len(program.outputs)
        expect.append(("tangent", forward.jvp(program).out_avals[n:], floating(program.out_avals)))
        expect.append(("cotangent", reverse.vjp(program).out_avals[n:], floating(program.in_avals)))
    if not isinstance(case.op.batch, Refused):
        mapped = [True] * len(program.inputs)
        batched, _ = batch.vmap(program, mapped, BATCH)
        expect.append(
            ("batch", batched.out_avals, [aval_of((BATCH, *a.shape), a.dtype) for a in program.out_avals])
        )
    for what, got, wanted in expect:
        if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in wanted]:
            raise MismatchError(f"{case}: {what}s have types {list(got)}, expected {list(wanted)}")


def check_derivative(case: Case) -> None:
    """The JVP agrees with central differences."""
    if _differentiable(case):
        forward_agrees_with_differences(str(case), case.program(), case.operands(), case.rng)


def check_transpose(case: Case) -> None:
    """The VJP is the transpose of the JVP."""
    if _differentiable(case):
        reverse_transposes_forward(str(case), case.program(), case.operands(), case.rng)


def check_second_derivative(case: Case) -> None:
    """The JVP of the JVP and of the VJP agree with differences, and the VJPs of both are their transposes."""
    if not _differentiable(case):
        return
    x, rng = case.operands(), case.rng
    program = case.program()
    once = forward.jvp(program), [*x, *(random_like(rng, a) for a in floating(x))]
    back = (
        reverse.vjp(program),
        [*x, *(random_like(rng, np.empty(a.shape)) for a in floating(program.out_avals))],
    )
    for name, (derived, operands) in (("JVP", once), ("VJP", back)):
        forward_agrees_with_differences(f"{case}, {name}", derived, operands, rng)
        reverse_transposes_forward(f"{case}, {name}", derived, operands, rng)


def check_rules_agree(case: Case) -> None:
    """Where an op has both `transpose` and `vjp`, they are the same map."""
    op, params = case.op, case.sample.params
    if op.transpose is None or op.vjp is None or op.multiple:
        return
    x = case.operands()
    program = case.program()
    ct = random_like(case.rng, np.empty(program.out_avals[0].shape))
    linear = op.linear.operands if isinstance(op.linear, Each) else range(len(x))
    wanted = [a.dtype.kind == "f" and i in linear for i, a in enumerate(x)]
    rule = op.transpose

    def run(*args: Any) -> list[Any]:
        return [c for c, w in zip(rule(args[-1], args[:-1], wanted, **params), wanted, strict=True) if w]

    transposed = trace(run, [*program.in_avals, program.out_avals[0]])[0]
    expected = run_reference(pullback_of(program, wanted), [*x, ct])
    assert_close(
        f"{case}: transpose against vjp", run_reference(transposed, [*x, ct]), expected, 1e-12, 1e-12
    )


def check_batch(case: Case) -> None:
    """The batching rule gives what a loop over the examples gives, for every choice of mapped operands."""
    program, first = case.program(), case.operands()
    if isinstance(case.op.batch, Refused):
        return
    others = [other_operands(case, k) for k in range(1, BATCH)]
    examples = [first, *others]
    for mapped in itertools.product((False, True), repeat=len(first)):
        if not any(mapped):
            continue
        stacked = [np.stack([e[i] for e in examples]) if m else first[i] for i, m in enumerate(mapped)]
        batched, over = batch.vmap(program, mapped, BATCH)
        if not all(over):
            raise MismatchError(f"{case}: the batching rule gives unmapped results")
        loop = [
            run_reference(program, [e[i] if m else first[i] for i, m in enumerate(mapped)]) for e in examples
        ]
        expected = [np.stack(results) for results in zip(*loop, strict=True)]
        tolerance = 1e-13 if case.dtype is float64 else 1e-5
        assert_close(
            f"{case}: mapped {mapped}", run_reference(batched, stacked), expected, tolerance, tolerance
        )


def other_operands(case: Case, k: int) -> list[np.ndarray]:
    """Operands like those of the sample, and different: other random numbers, or the same elements in another order.

    The first of several stays in order: it may be sorted, and the op rely on it.
    """
    first = case.operands()
    made = [np.asarray(x) for x in case.sample.make(np.random.default_rng([k, 1]))]
    fixed = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(made, first, strict=True))
    if fixed:
        made = [a if i == 0 and len(made) > 1 else np.roll(a, k) for i, a in enumerate(made)]
    return [_in(a, case.dtype) if a.dtype.kind == "f" else a for a in made]


def check_singular_points(case: Case) -> None:
    """Where all values are finite, so are first and second derivatives, and forward and reverse mode agree.

    Elementwise ops are looked at element by element; they agree on NaN and infinities as well. At a kink the derivative
    lies between those of the two sides.
    """
    if not _differentiable(case):
        return
    x, program = case.operands(), case.program()
    n = len(program.outputs)
    tangents = [np.ones_like(a) for a in floating(x)]
    values, moved = _halves(run_reference(forward.jvp(program), [*x, *tangents]), n)
    values = floating(values)
    cts = [np.ones_like(v) for v in values]
    wanted = [a.dtype.kind == "f" for a in x]
    grads = run_reference(pullback_of(program, wanted), [*x, *cts])
    if case.op.family == "elementwise":
        for k, i in enumerate(i for i, w in enumerate(wanted) if w):
            (alone,) = run_reference(_jvp_in(program, i), [*x, tangents[k]])
            tolerance = 1e-12 if alone.dtype == grads[k].dtype else 1e-6  # float32 after a cast
            alone = alone.astype(grads[k].dtype)
            assert_close(
                f"{case}: reverse and forward mode in operand {i}", [grads[k]], [alone], tolerance, 0.0
            )
        finite = np.logical_and.reduce([np.isfinite(a) for a in (*floating(x), *values)])
    else:
        finite = np.array(all(np.isfinite(a).all() for a in (*floating(x), *values)))
        if finite:
            assert_dot_identity(f"{case}: VJP against JVP", cts, moved, grads, tangents, 1e-12)
    _between_its_sides(case, program, x, tangents, finite)
    twice = run_reference(forward.jvp(forward.jvp(program)), [*x, *tangents, *tangents, *tangents])
    back = run_reference(forward.jvp(reverse.vjp(program)), [*x, *cts, *tangents, *cts])
    for what, arrays in (
        ("first", moved),
        ("first", grads),
        ("second", floating(twice)),
        ("second", floating(back)),
    ):
        for a in arrays:
            where = finite if a.shape == finite.shape else np.broadcast_to(finite.all(), a.shape)
            if not np.isfinite(a[where]).all():
                raise MismatchError(f"{case}: the value is finite where the {what} derivative is not: {a}")


def _between_its_sides(
    case: Case, program: Program, x: Sequence[np.ndarray], tangents: Sequence[np.ndarray], finite: np.ndarray
) -> None:
    """Check that each directional derivative lies between the one-sided differences, where all that is finite.

    Not at jumps, where the differences grow with 1 / step, and not where a rule says that there is no derivative.
    """
    at = [i for i, a in enumerate(x) if a.dtype.kind == "f"]
    step = 1e-4
    moving = [i for i in at if _moves(program, i)]
    for chosen in [moving, *([i] for i in moving)]:
        t = [tangents[at.index(i)] if i in chosen else None for i in range(len(x))]
        given = [b if i in chosen else np.zeros_like(b) for i, b in zip(at, tangents, strict=True)]
        n = len(program.outputs)
        moved = run_reference(forward.jvp(program), [*x, *given])[n:]
        sides = []
        here = floating(run_reference(program, x))
        for h in (step, -step):
            there = floating(
                run_reference(program, [a if b is None else a + h * b for a, b in zip(x, t, strict=True)])
            )
            with np.errstate(invalid="ignore"):
                sides.append([(b - a) / h for a, b in zip(here, there, strict=True)])
        for got, left, right in zip(moved, *sides, strict=True):
            if got.dtype.name != case.dtype.name:
                continue  # the rounding of a cast is larger than the step
            low, high = np.fmin(left, right) - 1e-2, np.fmax(left, right) + 1e-2
            bounded = np.isfinite(left) & np.isfinite(right) & (np.abs(left) + np.abs(right) < 0.1 / step)
            bounded &= finite if finite.shape == got.shape else finite.all()
            if not ((low <= got) & (got <= high))[bounded].all():
                raise MismatchError(
                    f"{case}: the derivative in operands {chosen} is {got}, and the one-sided differences are {left} "
                    f"and {right}"
                )


def _moves(program: Program, i: int) -> bool:
    """Whether a rule says that the outputs depend on input `i`: whether their tangents are not None."""

    def run(*args: Any) -> list[Any]:
        tangents = [args[-1] if j == i else None for j in range(len(program.inputs))]
        moved = forward.jvp_values(args[0].frame, program, args[:-1], tangents)[1]
        return [t for t in moved if t is not None]

    return bool(trace(run, [*program.in_avals, program.in_avals[i]])[0].outputs)


def _halves(arrays: list[np.ndarray], n: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return arrays[:n], arrays[n:]


CHECKS = {
    "value": check_value,
    "types": check_types,
    "derivative": check_derivative,
    "transpose": check_transpose,
    "second_derivative": check_second_derivative,
    "rules_agree": check_rules_agree,
    "batch": check_batch,
    "singular_points": check_singular_points,
}
"""By name, every check of a case."""


def applies(name: str, case: Case) -> bool:
    """Whether a check is meaningful for a case: differences need smooth samples in float64."""
    if name in ("derivative", "transpose", "second_derivative", "rules_agree"):
        return case.sample.smooth and case.dtype is float64
    if name == "singular_points":
        return not case.sample.smooth and case.dtype is float64
    return True


def check(case: Case) -> None:
    """Every check that applies to a case, in order."""
    for name, function in CHECKS.items():
        if applies(name, case):
            function(case)
