"""Measure this library and, where their interpreters are named, others, in the same minutes on the same machine.

    python benchmarks/run.py
    python benchmarks/run.py --jax-python ../venv-jax/bin/python --torch-python ../venv-torch/bin/python
    python benchmarks/run.py --peer older=../venv-older/bin/python --rows readme trainer --json numbers.json

Every framework runs in processes of its own, several rounds of all frameworks in turn, and the best round counts.
`--peer` is an environment with another `quabla`. The variables QUABLA_BENCH_JAX, QUABLA_BENCH_TORCH and
QUABLA_BENCH_PEERS (NAME=PATH, with spaces between several) name interpreters, too. README.md explains the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OURS = "quabla"


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        title: what it is called.
        work: the workload that is run for it.
        key: which of the numbers that a run gives.
        unit: its unit.
        goal: how large our number may be, as a part of the best peer's.
        against: the one peer that the goal is about, where not all of them do the same work.
        bound: how large our number may be, in its unit.
    """

    title: str
    work: str
    key: str
    unit: str
    goal: float | None = None
    against: str | None = None
    bound: float | None = None


ROWS = (
    Row("README step, jit(value_and_grad)", "readme", "us", "µs", goal=1 / 3),
    # Against what compiles, too: an interpreter has nothing to do before its first call.
    Row("README step, first call", "readme", "first_ms", "ms", goal=1 / 3, against="jax"),
    Row(
        "README step, first call after that of another program",
        "readme_after",
        "first_ms",
        "ms",
        against="jax",
    ),
    Row("README step, first call, compiled by an earlier process", "readme", "cached_ms", "ms"),
    Row("README step, from before the import to the first result", "readme", "start_ms", "ms"),
    Row("README problem, trainer.step()", "trainer", "us", "µs", goal=1 / 10),
    Row("PINN 1-16-1, 64 points, step", "pinn", "us", "µs", goal=1 / 2),
    Row("PINN 1-16-1, first call", "pinn", "first_ms", "ms"),
    Row("PINN 1-16-1, trainer.step()", "pinn_trainer", "us", "µs"),
    Row("import", "import", "ms", "ms", bound=150.0),
    Row("tracing the PINN step, per node", "tracing", "us", "µs", bound=15.0),
    Row("MLP 784-256-128-10, batch 128, step", "mlp", "us", "µs"),
    Row("elementwise chain, 1e6 values", "chain", "us", "µs"),
    Row("matrix product 1024", "gemm", "us", "µs"),
    Row("Hessian 64 x 64", "hessian", "us", "µs"),
)


@dataclass(frozen=True)
class Contender:
    """A framework, the interpreter that has it, and a folder for bytecode where a checkout is not to be written to."""

    name: str
    framework: str
    python: str
    bytecode: str | None = None

    def run(self, arguments: list[str], cache: str) -> str:
        """What the interpreter prints, with the given folder for code compiled by earlier processes."""
        environment = dict(os.environ)
        if self.name != OURS:
            environment.pop("PYTHONPATH", None)  # ours must not stand in for theirs
        environment["QUABLA_CACHE_DIR"] = cache
        # As after an installation: modules are compiled to bytecode once, by the first round.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if self.bytecode is not None:
            environment["PYTHONPYCACHEPREFIX"] = self.bytecode
        done = subprocess.run(
            [self.python, *arguments], cwd=HERE, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{self.name}: {self.python} failed:\n{done.stderr}")
        return done.stdout


def one_round(contender: Contender, works: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    """All numbers of one framework, once."""
    found: dict[str, dict[str, Any]] = {}
    measured = [w for w in works if w != "import" and (w != "tracing" or contender.name in (OURS, "jax"))]
    for (
        work
    ) in measured:  # a process each, and no code compiled earlier: the first call is that of a new program
        with tempfile.TemporaryDirectory() as cache:
            arguments = ["measure.py", contender.framework, str(seconds), work]
            found[work] = json.loads(contender.run(arguments, cache))
            if contender.name == OURS and work == "readme":
                found[work]["cached_ms"] = json.loads(contender.run(arguments, cache)).get("first_ms")
    if "import" in works:
        code = f"import time; t = time.perf_counter(); import {contender.framework}; print(time.perf_counter() - t)"
        with tempfile.TemporaryDirectory() as cache:
            found["import"] = {"ms": min(float(contender.run(["-c", code], cache)) for _ in range(3)) * 1e3}
    return found


def merge(best: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> None:
    """Keep the smaller of all numbers."""
    for work, numbers in found.items():
        kept = best.setdefault(work, {})
        for key, value in numbers.items():
            if isinstance(value, float):
                kept[key] = min(value, kept.get(key, float("inf")))
            else:
                kept[key] = value


def table(results: dict[str, dict[str, dict[str, Any]]], rows: list[Row]) -> tuple[list[list[str]], bool]:
    """The lines of the table, and whether all goals are met."""
    peers = [name for name in results if name != OURS]
    lines, met = [["work", OURS, *peers, *(["of the best peer"] if peers else []), "goal"]], True
    for row in rows:
        values = {name: found.get(row.work, {}).get(row.key) for name, found in results.items()}
        ours = values[OURS]
        others = {name: v for name, v in values.items() if name != OURS and v is not None}
        if row.against:
            others = {name: v for name, v in others.items() if name == row.against}
        ratio = ours / min(others.values()) if ours is not None and others else None
        goal, passed = "", True
        if row.goal is not None and others:
            goal, passed = f"≤ {row.goal:.2f}", ratio is not None and ratio <= row.goal
        if row.bound is not None:
            goal, passed = f"≤ {row.bound:g} {row.unit}", ours is not None and ours <= row.bound
        met = met and passed
        cells = [_shown(values[name], row, results[name]) for name in (OURS, *peers)]
        ratios = (
            [f"{ratio:.2f}{f' of {row.against}' if row.against else ''}" if ratio is not None else ""]
            if peers
            else []
        )
        lines.append([row.title, *cells, *ratios, goal + ("" if passed else ", missed")])
    return lines, met


def _shown(value: float | None, row: Row, found: dict[str, dict[str, Any]]) -> str:
    if value is None:
        return "failed" if "error" in found.get(row.work, {}) else ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {row.unit}"


def markdown(lines: list[list[str]]) -> str:
    """The table as text that is also Markdown."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = ["-" * w for w in widths]
    return "\n".join(
        f"| {' | '.join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))} |"
        for line in (lines[0], rule, *lines[1:])
    )


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    name = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8")
        name = next(
            line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": name, "cores": cores, "system": platform.platform(), "python": platform.python_version()}


def contenders(options: argparse.Namespace, bytecode: str) -> list[Contender]:
    """Ours, and those whose interpreters are named by options or by the environment."""
    found = [Contender(OURS, OURS, sys.executable, bytecode)]
    for framework, python in (("jax", options.jax_python), ("torch", options.torch_python)):
        if python:
            found.append(Contender(framework, framework, os.path.abspath(python)))
    for given in options.peer:
        name, sign, python = given.partition("=")
        if not sign or name == OURS:
            sys.exit(f"--peer takes NAME=PATH with a name other than {OURS!r}, got {given!r}")
        found.append(Contender(name, "quabla", os.path.abspath(python)))  # links stay: they make a venv
    return found


def main() -> int:
    """Measure, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    environment = os.environ.get
    parser.add_argument("--jax-python", default=environment("QUABLA_BENCH_JAX"), metavar="PATH")
    parser.add_argument("--torch-python", default=environment("QUABLA_BENCH_TORCH"), metavar="PATH")
    parser.add_argument(
        "--peer", action="append", default=environment("QUABLA_BENCH_PEERS", "").split(), metavar="NAME=PATH"
    )
    parser.add_argument(
        "--rows", nargs="+", choices=list(dict.fromkeys(r.work for r in ROWS)), metavar="WORK"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all frameworks (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.7, help="per workload and round (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where a goal is missed")
    options = parser.parse_args()

    rows = [r for r in ROWS if options.rows is None or r.work in options.rows]
    works = list(dict.fromkeys(r.work for r in rows))
    results: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        everybody = contenders(options, bytecode)
        for i in range(options.rounds):
            for contender in everybody:
                print(f"round {i + 1} of {options.rounds}: {contender.name}", file=sys.stderr)
                merge(results.setdefault(contender.name, {}), one_round(contender, works, options.seconds))

    lines, met = table(results, rows)
    about = machine()
    print(
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}; best of {options.rounds} rounds\n"
    )
    print(markdown(lines))
    for name, found in results.items():
        for work, numbers in found.items():
            if "error" in numbers:
                print(f"\n{name}, {work}: {numbers['error']}")
    if options.json:
        options.json.write_text(
            json.dumps({"machine": about, "results": results}, indent=1), encoding="utf-8"
        )
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
