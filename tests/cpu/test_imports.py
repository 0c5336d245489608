"""The code generator imports what the program at hand needs: a process that compiles one program waits for no more."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from quabla_cpu import routines, vectormath

LARGE = ("gemm", "product", "spans", "sums", "pool", "pool_code")
SPECIAL = {f"quabla_cpu.{name}" for name in (*routines.MODULES.values(), "tiny", *LARGE)}
FUNCTIONS = {f"quabla_cpu.vectormath.{name}" for name in (*vectormath.MODULES.values(), "float32", "single")}

PROBE = """
import json, sys
import quabla as qb

x = qb.array([[2.0, 0.25, 0.5], [0.25, 3.0, 0.75], [0.5, 0.75, 4.0]])
EXPRESSION
print(json.dumps([name for name in sys.modules if name.startswith("quabla_cpu.")]))
"""


@pytest.fixture
def imported(run_python, tmp_path, monkeypatch):
    """What a process imports that compiles an expression with nothing on disk."""
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path))

    def imports(expression):
        out = run_python(PROBE.replace("EXPRESSION", f"qb.jit(lambda x: {expression})(x)")).stdout
        return set(json.loads(out)) & (SPECIAL | FUNCTIONS)

    return imports


@pytest.mark.parametrize(
    ("expression", "needed"),
    [
        ("qb.sum(x * x + 1.0)", set()),
        ("x @ x", {"gemm", "product"}),
        ("qb.sum(qb.tanh(x))", {"vectormath.exponential", "vectormath.tanh"}),
        ("qb.sort(x)", {"sorting", "positions"}),
        ("qb.cumsum(x, axis=0)", {"running", "positions"}),
        ("qb.cholesky(x)", {"lapack", "tiny"}),
        (
            "qb.broadcast_to(x[0], (200_000, 3)) + 1.0",
            {"spans", "sums", "gemm", "product", "pool", "pool_code"},
        ),
        ("qb.while_loop(lambda y: y[0, 0] < 9.0, lambda y: y + y, x)", {"regions"}),
    ],
)
def test_a_program_imports_the_routines_and_functions_that_it_has(imported, expression, needed):
    assert imported(expression) == {f"quabla_cpu.{name}" for name in needed}


def test_the_table_of_routines_says_where_they_are():
    for module in routines.MODULES.values():
        import_module(f"quabla_cpu.{module}")
    assert routines.ROUTINES.keys() == routines.MODULES.keys()
    for name, found in routines.ROUTINES.items():
        assert found.write.__module__ == f"quabla_cpu.{routines.MODULES[name]}", name


def test_the_table_of_functions_says_where_they_are():
    for name, module in vectormath.MODULES.items():
        function = getattr(import_module(f"quabla_cpu.vectormath.{module}"), name)
        assert function.__module__ == f"quabla_cpu.vectormath.{module}", name


def test_asking_what_the_cpu_can_do_imports_no_routine(run_python):
    code = (
        "import sys, quabla as qb\n"
        "from quabla_cpu.lower import knows\n"
        f"print(all(map(knows, {sorted(routines.MODULES)})), sorted({SPECIAL} & set(sys.modules)))"
    )
    assert run_python(code).stdout.strip() == "True []"
