"""A backend of few ops runs the whole table by what the other ops consist of, and refuses what none reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import bind, trace
from quabla.backends import registry
from quabla.backends.capabilities import BackendCapabilities
from quabla.backends.hookspec import hookimpl
from quabla.backends.loading import Source
from quabla.backends.reference import ReferenceBackend, build
from quabla.backends.support import dtypes_in, ops_in, require
from quabla.decompose import lowered_to, reachable
from quabla.decompose.replace import DEFINITIONS, in_terms_of
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import OPS
from quabla.ir.program import Program
from quabla.testing import suite
from quabla.testing.table import cases, run_reference, tensors

FEW = """full constant add mul div exp log sin cos sqrt power arctan2 erf erfc floor fmod where astype equal less
logical_and logical_not reshape transpose broadcast slice pad reduce_sum reduce_max reduce_all gather
scatter_add triangular_solve cholesky eliminate cond scan while""".split()


class Minimal(ReferenceBackend):
    """A backend that has few ops and evaluates nothing else."""

    platform = "minimal"

    def __init__(self, ops: Any = FEW, dtypes: Any = ("float64", "float32", "bool", "int64")) -> None:
        self.ops = frozenset(ops)
        self.can = BackendCapabilities(dtypes=dtypes, ops=reachable(self.ops, dtypes), native_float64=True)

    @property
    def capabilities(self) -> BackendCapabilities:
        return self.can

    def lower(self, program: Program, device: str) -> Any:
        require(program, self.can, device)
        made = lowered_to(program, self.ops, device, self.can.dtypes)
        assert ops_in(made) <= self.ops and dtypes_in(made) <= set(self.can.dtypes)
        return super().lower(made, device)


@contextmanager
def installed(backend: Any) -> Iterator[None]:
    plugin = SimpleNamespace(quabla_backend=hookimpl(lambda: backend))
    with registry.override([Source("minimal", lambda: plugin, "minimal", "1.0")]):
        yield


def graph(f: Any, *avals: Any) -> Program:
    return qb.jit(f, device="reference").lower(*avals).program.graph


S = qb.ShapeDtype

# --- what is reached --------------------------------------------------------------------------------------------------


def test_few_ops_reach_the_whole_table() -> None:
    assert len(FEW) == len(set(FEW)) < 40 and set(reachable(FEW)) == set(OPS)


def test_what_is_reached_follows_from_what_is_there() -> None:
    assert "cumsum" not in reachable([n for n in FEW if n != "scan"])
    without = set(OPS) - set(reachable([n for n in FEW if n not in ("exp", "power")]))
    assert {"exp", "power", "exp2", "expm1", "tanh", "sigmoid"} <= without and "tan" not in without
    # Sums in float64 stand in the definition of a running sum, so float32 alone does not reach it.
    assert "cumsum" not in reachable(FEW, ("float32", "bool", "int64"))
    assert "cumsum" in reachable([*FEW, "cumsum"], ("float32", "bool", "int64"))


@pytest.mark.parametrize("only", ["op value", "promise", "function", "training Adam"])
def test_few_ops_run_the_suite(only: str) -> None:
    with installed(Minimal()):
        report = suite.examine("minimal", only)
    assert report.conforms and report.counts["supported"] == len(report.verdicts), report.as_text()


@pytest.mark.slow
def test_few_ops_run_the_suite_under_all_transforms() -> None:
    with installed(Minimal()):
        report = suite.examine("minimal", "op")
    assert report.conforms and report.counts["supported"] == len(report.verdicts), report.as_text()


def test_a_backend_of_arithmetic_refuses_the_rest_correctly() -> None:
    ops = ("full", "constant", "add", "mul", "less", "equal", "where", "logical_and", "logical_not", "broadcast",
           "reshape", "reduce_sum")  # fmt: skip
    with installed(Minimal(ops)):
        for only in ("op value float64", "function value", "promise", "training SGD"):
            report = suite.examine("minimal", only)
            assert report.conforms, report.as_text()
    assert {"sub", "neg", "abs", "maximum", "isnan", "greater"} <= set(reachable(ops))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "ops", "op"),
    [
        (lambda x: qb.tanh(x), {"full", "add", "mul"}, "tanh"),
        (lambda x: qb.log1p(x) + 1.0, {"full", "add", "log"}, "log1p"),
        (lambda x: qb.cond(x > 0.0, qb.sin, lambda y: y, x), {"full", "greater", "cond"}, "sin"),
        (lambda x: qb.cond(x > 0.0, qb.sin, qb.sinh, x), {*FEW} - {"exp"}, "sinh"),
        (lambda x: qb.fori_loop(0, 3, lambda i, c: qb.cosh(c), x), {*FEW} - {"exp"}, "cosh"),
        (lambda x: qb.fori_loop(0, 3, lambda i, c: c * 2.0, x), {*FEW} - {"scan"}, "scan"),
        (lambda x: qb.checkpoint(lambda y: qb.erf(y))(x), {*FEW} - {"erf"}, "erf"),
    ],
)
def test_a_refusal_names_the_op_of_the_user_and_the_device(f: Any, ops: set[str], op: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=op) as caught:
        lowered_to(graph(f, S(())), ops, "abacus")
    assert (caught.value.op, caught.value.device) == (op, "abacus")


def test_no_definition_brings_in_a_dtype_that_is_not_there() -> None:
    program = graph(qb.cumsum, S((3,), "float32"))
    lowered_to(program, FEW, "abacus")
    with pytest.raises(UnsupportedOperationError) as caught:
        lowered_to(program, FEW, "abacus", ("float32", "bool", "int64"))
    assert (caught.value.op, caught.value.device) == ("cumsum", "abacus")


def test_an_unknown_op_is_kept_where_nobody_asks() -> None:
    """The form for other compilers decides by itself what to say of it."""
    program = graph(lambda x: qb.tanh(qb.erf(x)), S(()))
    assert ops_in(in_terms_of(program, {"tanh"})) == {"tanh", "erf"}


def test_a_program_of_known_ops_stays_what_it_is() -> None:
    program = graph(lambda x: qb.sin(x) * x, S((3,)))
    assert lowered_to(program, {"sin", "mul"}, "abacus") is program


# --- the definitions --------------------------------------------------------------------------------------------------


def test_no_definition_leads_back_to_itself() -> None:
    """Without any op, all ends in ops that have no definition."""
    defined = {*DEFINITIONS, *(n for n, op in OPS.items() if op.decompose)}
    seen = set()
    for case in cases():
        left = ops_in(in_terms_of(case.program(), frozenset()))
        assert not left & defined, case
        seen.add(case.op.name)
    assert seen >= defined


def test_no_op_is_defined_twice() -> None:
    assert set(DEFINITIONS) <= set(OPS)
    assert not {n for n in DEFINITIONS if OPS[n].decompose is not None}


# Where a definition subtracts numbers that are nearly equal, or squares what overflows, unless it takes care.
HARD = {
    "tanh": [1e-300, 1e-9, -1e-5, 0.5, 19.0, -25.0, 800.0],
    "sinh": [1e-300, -1e-9, 0.3, 0.99999, 1.00001, 30.0, 709.9, -710.4],
    "cosh": [1e-9, 0.5, -40.0, 710.4],
    "expm1": [1e-300, -1e-17, 3e-9, -1e-3, 0.7, -50.0, 700.0],
    "log1p": [1e-300, -1e-17, 3e-9, -0.999999, 0.7, 1e16, 1e300],
    "arcsinh": [1e-300, -1e-9, 0.3, 9e8, 1.1e9, -1e300],
    "arccosh": [1.0 + 2.0**-52, 1.0 + 1e-9, 1.5, 9e8, 1.1e9, 1e300],
    "arctanh": [1e-300, -1e-9, 0.4, -0.999999999, 1.0 - 2.0**-53],
    "arcsin": [1e-300, 1e-9, 0.5, -0.999999999, 1.0],
    "arccos": [1e-9, 0.5, -0.999999999, 1.0 - 2.0**-53],
    "cbrt": [1e-300, -8.0, 1e9, 1e300, -0.1],
    "sigmoid": [-700.0, -30.0, -1e-9, 0.2, 40.0],
    "softplus": [-700.0, -30.0, -1e-9, 0.2, 40.0],
    "log2": [1.0 + 2.0**-52, 0.1, 8.0, 1e300],
    "log10": [1.0 + 2.0**-52, 0.1, 1000.0, 1e300],
    "exp2": [-1000.5, 1e-9, 0.3, 1000.7],
    "tan": [1e-9, 1.5707963, -3.0, 1e6],
}
MPMATH: dict[str, Any] = {
    "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh, "arcsin": mpmath.asin,
    "arccos": mpmath.acos, "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "exp2": lambda x: mpmath.power(2, x),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)), "log2": lambda x: mpmath.log(x, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", list(HARD))
def test_definitions_are_right_to_a_few_units_in_the_last_place(name: str) -> None:
    x = np.array(HARD[name])
    program, _ = trace(lambda v: [bind(OPS[name], (v,), {})], [S(x.shape)])
    (got,) = run_reference(lowered_to(program, FEW, "abacus"), [x])
    with mpmath.workdps(60):
        exact = MPMATH.get(name) or getattr(mpmath, name)
        errors = [
            abs((mpmath.mpf(float(g)) - exact(mpmath.mpf(float(v)))) / np.spacing(abs(g)))
            for g, v in zip(got, x, strict=True)
        ]
    assert max(errors) < 5, [float(e) for e in errors]


@pytest.mark.parametrize("n", [1, 2, 9])
def test_sorting_by_counting_is_stable(n: int) -> None:
    x = np.random.default_rng(n).integers(0, 3, (4, n)).astype(float)
    x[1, ::2] = np.nan
    program = graph(lambda v: qb.argsort(v), S(x.shape))
    made = lowered_to(program, FEW, "abacus")
    (got,) = build(made)(*tensors([x]))
    np.testing.assert_array_equal(got.numpy(), np.argsort(x, axis=-1, kind="stable"))


def test_definitions_of_regions_run_what_they_hold() -> None:
    program = graph(qb.grad(lambda x: qb.checkpoint(lambda y: qb.tanh(y) * y)(x)), S(()))
    made = lowered_to(program, FEW, "abacus")
    assert "checkpoint" in ops_in(program) and "checkpoint" not in ops_in(made)
    np.testing.assert_allclose(
        run_reference(made, [np.array(0.7)])[0], np.tanh(0.7) + 0.7 / np.cosh(0.7) ** 2, rtol=1e-14
    )
