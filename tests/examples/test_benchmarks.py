"""The benchmark program measures, draws its tables, judges its goals, and compares with a committed table."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quabla as qb

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("frameworks", "measure", "others", "rows", "run", "workloads")

needs_cpu = pytest.mark.skipif(find_spec("quabla_cpu") is None, reason="quabla-cpu is not installed")


@pytest.fixture(scope="module")
def programs() -> Any:
    """The modules of the folder, by name; they find each other as in a process that runs one of them."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program with this interpreter and without peers."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUABLA_BENCH")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), *arguments],
        cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


@needs_cpu
def test_it_measures_every_kind_of_row(tmp_path: Path) -> None:
    works = ["readme", "readme_after", "trainer", "import", "tracing", "hessian", "cumulative"]
    done = start(tmp_path, "--rounds=1", "--seconds=0.01", "--json=numbers.json", "--rows", *works)
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text("utf-8"))["results"]["quabla"]
    assert set(numbers) == set(works)
    assert not any("error" in row for row in numbers.values())
    assert all(value > 0 for row in numbers.values() for value in row.values() if isinstance(value, float))
    assert {"us", "first_ms", "cached_ms", "rss_mb"} < set(numbers["readme"])
    assert 10.0 < numbers["readme"]["rss_mb"] < 10_000.0
    assert "| README problem, trainer.step()" in done.stdout


def slope_and_difference(step: Any, arguments: Any, dtype: Any, h: float) -> tuple[float, float]:
    """The derivative along a direction of the first argument: by the gradient, and by a central difference."""
    first, *rest = arguments
    rng = np.random.default_rng(0)
    leaves, structure = qb.tree.flatten(first)
    directions = [rng.normal(size=leaf.shape) for leaf in leaves]

    def at(t: float) -> Any:
        moved = [
            (np.asarray(x, float) + t * d).astype(dtype) for x, d in zip(leaves, directions, strict=True)
        ]
        return step(qb.tree.unflatten(structure, [qb.asarray(x) for x in moved]), *rest)

    gradient = at(0.0)[1]
    slopes = qb.tree.flatten(gradient[0] if isinstance(gradient, tuple) else gradient)[0]
    along = sum(float(np.sum(np.asarray(g, float) * d)) for g, d in zip(slopes, directions, strict=True))
    return along, float(at(h)[0].item() - at(-h)[0].item()) / (2 * h)


@needs_cpu
def test_the_gradients_that_are_timed_agree_with_differences(programs: Any) -> None:
    fw, kept = programs["frameworks"].load_quabla(), []
    fw.jit = lambda f: lambda *arguments: kept.append((qb.jit(f), arguments))
    works = {**programs["workloads"].EIGHT, **programs["others"].OTHERS}
    for name in ("gemm", "hessian"):  # no gradients
        del works[name]
    for make in works.values():
        make(fw)()
    assert len(kept) == len(works) == 16
    for name, (step, arguments) in zip(works, kept, strict=True):
        dtype, h, rel = (np.float32, 1e-3, 2e-2) if "float32" in name else (np.float64, 1e-6, 1e-4)
        along, difference = slope_and_difference(step, arguments, dtype, h)
        assert along == pytest.approx(difference, rel=rel), name


def test_the_best_of_all_rounds_counts_and_an_error_only_where_nothing_was_measured(programs: Any) -> None:
    best: dict[str, Any] = {}
    merge = programs["run"].merge
    merge(best, {"readme": {"error": "took longer than 1 seconds", "work": "readme"}})
    assert best["readme"]["error"]
    merge(best, {"readme": {"us": 3.0, "first_ms": 9.0, "version": "1"}})
    merge(best, {"readme": {"us": 4.0, "first_ms": 8.0, "version": "1"}})
    merge(best, {"readme": {"error": "took longer than 1 seconds"}})
    assert best == {"readme": {"us": 3.0, "first_ms": 8.0, "version": "1", "work": "readme"}}


def judged() -> Any:
    """Numbers of three frameworks."""
    return {
        "quabla": {"a": {"us": 3.0, "first_ms": 20.0, "cached_ms": 4.0}, "import": {"ms": 149.0}},
        "jax": {"a": {"us": 10.0, "first_ms": 50.0}},
        "older": {"a": {"us": 7.0, "first_ms": 1.0}},
    }


def judged_rows(rows: Any) -> list[Any]:
    """A row of every kind."""
    return [
        rows.Row("step", "a", "us", "µs", rows.STEADY, goal=0.5),
        rows.Row("first", "a", "first_ms", "ms", goal=0.5, against="jax"),
        rows.Row("again", "a", "cached_ms", "ms", goal=0.1, against="jax", peer_key="first_ms"),
        rows.Row("import", "import", "ms", "ms", bound=150.0),
    ]


def test_goals_are_judged_against_the_best_peer_or_the_one_that_is_named(programs: Any) -> None:
    rows, results = programs["rows"], judged()
    table = judged_rows(rows)
    assert rows.missed(results, table) == []
    assert [max(row.ratios(results).values()) for row in table[:3]] == pytest.approx([3 / 7, 0.4, 0.08])
    results["older"]["a"]["us"] = 5.9
    results["quabla"]["import"]["ms"] = 151.0
    results["quabla"]["a"]["cached_ms"] = 5.5
    assert [line.split(":")[0] for line in rows.missed(results, table)] == [
        "a.us", "a.cached_ms", "import.ms", "geometric mean",
    ]  # fmt: skip
    results["quabla"]["a"] = {"error": "ValueError: no"}
    assert "a.us: failed" in rows.missed(results, table)


def test_the_tables_say_what_was_missed(programs: Any) -> None:
    rows, results = programs["rows"], judged()
    results["older"]["a"]["us"] = 5.9
    steady = rows.tables(results, judged_rows(rows))[rows.STEADY]
    assert steady[1] == ["step", "3.00 µs", "10.0 µs", "5.90 µs", "0.51", "≤ 0.50, missed"]
    assert steady[2][-2:] == ["0.51", "≤ 0.50, missed"]
    text = rows.markdown(steady).splitlines()
    assert len({len(line) for line in text}) == 1
    alone = rows.tables({"quabla": results["quabla"]}, judged_rows(rows))[rows.STEADY]
    assert alone == [[rows.STEADY, "quabla", "goal"], ["step", "3.00 µs", ""]]


def test_the_mean_is_geometric_and_over_the_best_peers(programs: Any) -> None:
    rows = programs["rows"]
    results = {
        "quabla": {"a": {"us": 1.0}, "b": {"us": 8.0}},
        "jax": {"a": {"us": 4.0}, "b": {"us": 8.0}},
        "older": {"a": {"us": 100.0}, "b": {"us": 16.0}},
    }
    two = [rows.Row(work, work, "us", "µs", rows.STEADY) for work in "ab"]
    assert rows.mean_ratio(results, two) == pytest.approx(0.5)


def test_a_ratio_may_grow_by_a_fifth(programs: Any) -> None:
    rows = programs["rows"]
    old = {"a.us": {"jax": 0.5, "mlx": 0.9}, "b.us": {"jax": 1.0}}
    assert rows.regressed({"a.us": {"jax": 0.59}, "b.us": {"jax": 1.19}}, old) == []
    # The best peer of those that both tables have: what only one has says nothing.
    assert rows.regressed({"a.us": {"torch": 9.0}}, old) == []
    (line,) = rows.regressed({"a.us": {"jax": 0.61}, "b.us": {"jax": 1.0}}, old)
    assert line.startswith("a.us: 0.610")
    assert rows.compared({"a.us": {"torch": 9.0}, "b.us": {"jax": 1.0}}, old) == 1


@needs_cpu
def test_check_compares_ratios_with_a_table(programs: Any, tmp_path: Path) -> None:
    """Numbers of earlier runs, merged: no time is measured here."""
    earlier = {"results": {"quabla": {"readme": {"us": 1.0}}, "jax": {"readme": {"us": 8.0}}}}
    (tmp_path / "numbers.json").write_text(json.dumps(earlier), "utf-8")
    for ratio, status in ((0.12, 0), (0.1, 1)):
        (tmp_path / "table.json").write_text(json.dumps({"ratios": {"readme.us": {"jax": ratio}}}), "utf-8")
        done = start(tmp_path, "--rounds=0", "--merge", "numbers.json", "--check", "table.json", "--goals")
        assert done.returncode == status, done.stdout + done.stderr
        assert ("readme.us: 0.125" in done.stdout) == bool(status)


def test_the_committed_table_is_what_its_numbers_say(programs: Any) -> None:
    rows = programs["rows"]
    table = json.loads((BENCHMARKS / "table.json").read_text("utf-8"))
    again = rows.all_ratios(table["results"], rows.ROWS)
    assert {f"{work}.us" for work in programs["workloads"].EIGHT} <= set(again)
    assert {name: pytest.approx(ratios) for name, ratios in table["ratios"].items()} == again
    assert set(table["versions"]) == set(table["results"]) > {"quabla", "jax"}


def test_the_pages_show_the_committed_table(programs: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "pages.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
