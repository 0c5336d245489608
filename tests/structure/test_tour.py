"""The tour of the core runs, says the truth about the real code, agrees with it, and stays short."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import quabla as qb

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "docs" / "tour.py"

# Where the real thing is.
REAL = {
    "quabla.shapes": "ShapeDtype aval_of",
    "quabla.ir.op": "Op Jointly Each OPS define",
    "quabla.ir.program": "Value Node Program prune",
    "quabla.arrays.tensor": "Tensor",
    "quabla.arrays.tracer": "TraceTensor Frame innermost bind trace",
    "quabla.arrays.convert": "asarray",
    "quabla.ops.methods": "Methods",
    "quabla.ops.structure": "broadcast sum_over lead broadcast_op reduce_sum_op",
    "quabla.ops.elementwise": "elementwise add_op neg_op mul_op sin_op cos_op tanh_op sin cos tanh",
    "quabla.ops.reduce": "sum",
    "quabla.ops.apply": "apply",
    "quabla.transforms.forward": "apply_jvp jvp_values",
    "quabla.transforms.reverse": "accumulate pullback transpose_nodes vjp_values",
    "quabla.transforms.batch": "batch_values",
    "quabla.transforms.staging": "stage target inline",
    "quabla.transforms.transform": "Transform",
    "quabla.transforms.derivatives": "grad",
    "quabla.transforms.vmap": "vmap",
    "quabla.transforms.jit": "jit",
}
NAMES = [(module, name) for module, names in REAL.items() for name in names.split()]

# The tour traces on types alone and makes ops by fewer rules.
OTHER_PARAMETERS = {"stage", "elementwise", "define", "tanh", "sin", "cos"}


def load() -> ModuleType:
    """The tour as a module."""
    spec = importlib.util.spec_from_file_location("tour", TOUR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tour"] = module  # its dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["tour"]
    return module


tour: Any = load()


@pytest.mark.parametrize("check", tour.CHECKS, ids=lambda check: check.__name__)
def test_it_checks_itself(check: Callable[[], None]) -> None:
    check()


def test_it_runs_as_a_program(run_python: Any) -> None:
    done = run_python(f"import runpy; runpy.run_path({str(TOUR)!r}, run_name='__main__')")
    assert done.stdout.count("check_") == len(tour.CHECKS)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_names_are_those_of_the_real_code(module: str, name: str) -> None:
    mine, real = getattr(tour, name), getattr(importlib.import_module(module), name)
    assert inspect.isclass(mine) == inspect.isclass(real) and callable(mine) == callable(real)
    if inspect.isfunction(mine) and inspect.isfunction(real) and name not in OTHER_PARAMETERS:
        given, wanted = list(inspect.signature(mine).parameters), list(inspect.signature(real).parameters)
        assert given == wanted[: len(given)]


def test_fields_are_those_of_the_real_code() -> None:
    for mine, real in ((tour.Op, qb.ir.op.Op), (tour.Program, qb.ir.program.Program)):
        assert set(mine.__dataclass_fields__) <= set(real.__dataclass_fields__)
    for method in ("placeholder", "emit", "full", "lift"):
        mine, real = getattr(tour.Frame, method), getattr(qb.arrays.tracer.Frame, method)
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(real).parameters)


def test_the_files_that_it_names_exist() -> None:
    named = {
        word.rstrip(",.;:)")
        for word in TOUR.read_text("utf-8").split()
        if word.startswith("quabla/") and word.rstrip(",.;:)").endswith(".py")
    }
    missing = [name for name in named if not (ROOT / "quabla-core" / "src" / name).is_file()]
    assert len(named) >= 10 and not missing


def test_ops_mean_what_the_real_ones_mean() -> None:
    assert len(tour.OPS) == 10
    assert set(tour.OPS) <= set(qb.ir.op.OPS)


def test_it_computes_what_the_real_code_computes() -> None:
    rng = np.random.default_rng(7)
    w, b, v = rng.normal(size=(3, 5))
    xs = rng.uniform(-1.0, 1.0, 6)

    def u(x: Any, w: Any, b: Any, v: Any) -> Any:
        return qb.sum(v * qb.tanh(x * w + b))

    def loss(w: Any, b: Any, v: Any, xs: Any) -> Any:
        r = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None, None, None))(xs, w, b, v) + xs
        return qb.sum(r * r)

    for argnums in range(4):
        mine = tour.grad(tour.loss, argnums)(w, b, v, xs).array
        arrays = [qb.array(a) for a in (w, b, v, xs)]
        real = qb.jit(qb.grad(loss, argnums), device="reference")(*arrays).numpy()
        np.testing.assert_allclose(mine, real, rtol=1e-12, atol=1e-13)


def code_lines(source: str) -> Iterator[int]:
    """The numbers of the lines that hold code: neither blank nor comment nor docstring."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    line_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and line_start:
            continue
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            yield from range(token.start[0], token.end[0] + 1)
        line_start = token.type in skipped


def test_it_is_short() -> None:
    """If it has to grow, the core got complicated."""
    assert len(set(code_lines("# no\n\ndef f():\n    '''no\n    no'''\n    return '''yes\nyes'''\n"))) == 3
    core, mark, _ = TOUR.read_text("utf-8").partition("# --- 12. It works")
    assert mark and len(set(code_lines(core))) <= 335
