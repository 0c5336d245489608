"""The benchmark program measures, draws its table and judges its goals."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"


@pytest.fixture(scope="module")
def program() -> Any:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("benchmarks_run", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(find_spec("quabla_cpu") is None, reason="quabla-cpu is not installed")
def test_it_measures_every_row(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUABLA_BENCH")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    works = ["readme", "readme_after", "trainer", "pinn_trainer", "import", "tracing", "hessian"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--rounds=1", "--seconds=0.01", "--json=numbers.json", "--rows", *works],
        cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text("utf-8"))["results"]["quabla"]
    assert set(numbers) == set(works)
    assert not any("error" in row for row in numbers.values())
    assert all(value > 0 for row in numbers.values() for value in row.values() if isinstance(value, float))
    assert "| README problem, trainer.step()" in done.stdout


def test_the_best_of_all_rounds_counts(program: Any) -> None:
    best: dict[str, Any] = {}
    program.merge(best, {"readme": {"us": 3.0, "first_ms": 9.0, "version": "1"}})
    program.merge(best, {"readme": {"us": 4.0, "first_ms": 8.0, "version": "1"}})
    assert best == {"readme": {"us": 3.0, "first_ms": 8.0, "version": "1"}}


def test_goals_are_judged_against_the_best_peer_or_the_one_that_is_named(program: Any) -> None:
    rows = [
        program.Row("step", "a", "us", "µs", goal=0.5),
        program.Row("first", "a", "first_ms", "ms", goal=0.5, against="jax"),
        program.Row("import", "import", "ms", "ms", bound=150.0),
    ]
    results = {
        "quabla": {"a": {"us": 3.0, "first_ms": 20.0}, "import": {"ms": 149.0}},
        "jax": {"a": {"us": 10.0, "first_ms": 50.0}},
        "older": {"a": {"us": 7.0, "first_ms": 1.0}},
    }
    lines, met = program.table(results, rows)
    assert met and [line[4] for line in lines[1:]] == ["0.43", "0.40 of jax", ""]
    results["older"]["a"]["us"] = 5.9
    lines, met = program.table(results, rows)
    assert not met and lines[1][-1] == "≤ 0.50, missed"
    results["quabla"]["import"]["ms"] = 151.0
    lines, met = program.table({"quabla": results["quabla"]}, rows)
    assert not met and lines[1] == ["step", "3.00 µs", ""] and lines[3][-1] == "≤ 150 ms, missed"
    text = program.markdown(lines).splitlines()
    assert len({len(line) for line in text}) == 1
