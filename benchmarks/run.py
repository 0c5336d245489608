"""Measure this library and, where their interpreters are named, others, in the same minutes on the same machine.

    python benchmarks/run.py
    python benchmarks/run.py --jax-python ../venv-jax/bin/python --torch-python ../venv-torch/bin/python
    python benchmarks/run.py --peer older=../venv-older/bin/python --rows readme trainer --json numbers.json
    python benchmarks/run.py --merge first.json second.json --rounds 0 --json both.json

Every framework runs in processes of its own, several rounds of all frameworks in turn, and the best round counts.
`--peer` is an environment with another `quabla`. The variables QUABLA_BENCH_JAX, QUABLA_BENCH_TORCH, QUABLA_BENCH_MLX
and QUABLA_BENCH_PEERS (NAME=PATH, with spaces between several) name interpreters, too. README.md explains the rows.
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

from rows import OURS, ROWS, TOLERANCE, all_ratios, compared, markdown, missed, regressed, tables
from workloads import EIGHT

HERE = Path(__file__).resolve().parent
TABLE = HERE / "table.json"  # what `--check` compares with


@dataclass(frozen=True)
class Contender:
    """A framework, the interpreter that has it, and a folder for bytecode where a checkout is not to be written to."""

    name: str
    framework: str
    python: str
    bytecode: str | None = None

    def run(self, arguments: list[str], cache: str, limit: float) -> str:
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
            [self.python, *arguments], cwd=HERE, env=environment, capture_output=True, text=True, check=False,
            timeout=limit,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"{self.name}: {self.python} failed:\n{done.stderr}")
        return done.stdout

    def measured(self, work: str, seconds: float, cache: str, limit: float) -> dict[str, Any]:
        """The numbers of one workload in a process of its own."""
        try:
            found = self.run(["measure.py", self.framework, str(seconds), work], cache, limit)
        except subprocess.TimeoutExpired:
            return {"work": work, "error": f"took longer than {limit:g} seconds"}
        return json.loads(found)  # type: ignore[no-any-return]


def once(contender: Contender, work: str, seconds: float, limit: float) -> dict[str, Any]:
    """The numbers of one framework and workload, with no code compiled earlier: a first call is a new program's."""
    with tempfile.TemporaryDirectory() as cache:
        if work == "import":
            module = contender.framework.split(".")[0]
            code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
            return {"ms": min(float(contender.run(["-c", code], cache, limit)) for _ in range(3)) * 1e3}
        found = contender.measured(work, seconds, cache, limit)
        if contender.name == OURS and work in EIGHT:
            found["cached_ms"] = contender.measured(work, 0.0, cache, limit).get("first_ms")
        return found


def merge(best: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> None:
    """Keep the smaller of all numbers; an error counts only where nothing was measured."""
    for work, numbers in found.items():
        kept = best.setdefault(work, {})
        for key, value in numbers.items():
            if isinstance(value, float):
                kept[key] = min(value, kept.get(key, float("inf")))
            elif value is not None and not (key == "error" and "us" in kept):
                kept[key] = value
        if "us" in kept:
            kept.pop("error", None)


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
    named = {"jax": options.jax_python, "torch": options.torch_python, "mlx": options.mlx_python}
    if options.torch_compile:
        named["torch.compile"] = options.torch_python
    for framework, python in named.items():
        if python:
            found.append(Contender(framework, framework, os.path.abspath(python)))
    for given in options.peer:
        name, sign, python = given.partition("=")
        if not sign or name == OURS:
            sys.exit(f"--peer takes NAME=PATH with a name other than {OURS!r}, got {given!r}")
        found.append(Contender(name, "quabla", os.path.abspath(python)))  # links stay: they make a venv
    return [each for each in found if options.only is None or each.name in options.only]


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, environment = parser.add_argument, os.environ.get
    add("--jax-python", default=environment("QUABLA_BENCH_JAX"), metavar="PATH")
    add("--torch-python", default=environment("QUABLA_BENCH_TORCH"), metavar="PATH")
    add("--torch-compile", action="store_true", help="a second PyTorch, with torch.compile")
    add("--mlx-python", default=environment("QUABLA_BENCH_MLX"), metavar="PATH")
    peers = environment("QUABLA_BENCH_PEERS", "").split()
    add("--peer", action="append", default=peers, metavar="NAME=PATH")
    add("--only", nargs="+", metavar="NAME", help="measure these alone")
    add("--rows", nargs="+", choices=list(dict.fromkeys(r.work for r in ROWS)), metavar="WORK")
    add("--rounds", type=int, default=3, help="rounds of all frameworks (%(default)s)")
    add("--seconds", type=float, default=0.7, help="per workload and round (%(default)s)")
    add("--limit", type=float, default=120.0, help="seconds that a process may take (%(default)s)")
    add(
        "--merge",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="numbers of earlier runs to count in",
    )
    add("--json", type=Path, metavar="FILE", help="write all numbers and ratios there")
    add(
        "--check", nargs="?", type=Path, const=TABLE, metavar="FILE",
        help="exit with status 1 where a ratio is more than 20 %% above that of a table (benchmarks/table.json)",
    )  # fmt: skip
    add("--goals", action="store_true", help="exit with status 1 where a goal is missed")
    return parser.parse_args()


def collected(options: argparse.Namespace, works: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """The numbers of earlier runs and of this one."""
    results: dict[str, dict[str, dict[str, Any]]] = {OURS: {}}
    for path in options.merge:
        for name, found in json.loads(path.read_text("utf-8"))["results"].items():
            merge(results.setdefault(name, {}), {w: n for w, n in found.items() if w in works})
    with tempfile.TemporaryDirectory() as bytecode:
        everybody = contenders(options, bytecode)
        for i in range(options.rounds):
            for contender in everybody:
                print(f"round {i + 1} of {options.rounds}: {contender.name}", file=sys.stderr)
                for work in works:
                    if work == "tracing" and contender.name not in (OURS, "jax"):
                        continue
                    found = once(contender, work, options.seconds, options.limit)
                    merge(results.setdefault(contender.name, {}), {work: found})
                    if options.json:  # what is there stays, should this run be ended
                        write(options.json, results)
    return results


def write(path: Path, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """The numbers, with their ratios and with what they depend on, in a file."""
    versions = {
        name: next((n["version"] for n in each.values() if "version" in n), None)
        for name, each in results.items()
    }
    whole = {
        "machine": machine(),
        "versions": versions,
        "ratios": all_ratios(results, ROWS),
        "results": results,
    }
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def failures(title: str, lines: list[str]) -> bool:
    """Print what is wrong, if anything is."""
    if lines:
        print(f"\n{title}:\n" + "\n".join(f"  {line}" for line in lines))
    return bool(lines)


def main() -> int:
    """Measure, print the tables, write the JSON file, judge."""
    options = parsed()
    rows = [r for r in ROWS if options.rows is None or r.work in options.rows]
    results = collected(options, list(dict.fromkeys(r.work for r in rows)))
    about, ratios = machine(), all_ratios(results, rows)
    print(f"{about['cpu']}, {about['cores']} cores, Python {about['python']}")
    for lines in tables(results, rows).values():
        print("\n" + markdown(lines))
    for name, found in results.items():
        for work, numbers in found.items():
            if "error" in numbers:
                print(f"\n{name}, {work}: {numbers['error']}")
    if options.json:
        write(options.json, results)
    bad = False
    if options.goals:
        bad |= failures("goals missed", missed(results, rows))
    if options.check:
        old = json.loads(options.check.read_text("utf-8"))["ratios"]
        bad |= failures(f"more than {TOLERANCE - 1:.0%} above {options.check}", regressed(ratios, old))
        if not (shared := compared(ratios, old)):
            print(f"\nnothing to compare: {options.check} has none of these rows with one of these peers")
        bad |= not shared
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
