"""The rows of the table: what each shows, how large it may be, and how ratios are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from others import OTHERS
from workloads import EIGHT

OURS = "quabla"
TOLERANCE = 1.2  # how much a ratio may grow against the committed one

# What each framework gave: by framework, workload and quantity.
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        title: what it is called.
        work: the workload that is run for it.
        key: which of the numbers that a run gives.
        unit: its unit.
        group: the part of the table that it stands in.
        goal: how large our number may be, as a part of the best peer's.
        against: the one peer that counts, where not all of them do the same work.
        bound: how large our number may be, in its unit.
        peer_key: the number of the peers that ours is compared with, where that is another one.
    """

    title: str
    work: str
    key: str
    unit: str
    group: str = ""
    goal: float | None = None
    against: str | None = None
    bound: float | None = None
    peer_key: str | None = None

    @property
    def name(self) -> str:
        """What the row is called in files."""
        return f"{self.work}.{self.key}"

    def value(self, results: Results, framework: str) -> float | None:
        """The number of one framework, if it has one."""
        key = self.key if framework == OURS else self.peer_key or self.key
        value = results.get(framework, {}).get(self.work, {}).get(key)
        return value if isinstance(value, float) and math.isfinite(value) else None

    def ratios(self, results: Results) -> dict[str, float]:
        """Our number as a part of that of each peer that counts."""
        ours = self.value(results, OURS)
        found: dict[str, float] = {}
        for peer in results:
            theirs = self.value(results, peer)
            counts = peer != OURS and self.against in (None, peer)
            if counts and ours is not None and theirs:
                found[peer] = ours / theirs
        return found


# Per row of the eight: what it is, and the goal for a call.
_EIGHT = {
    "readme": ("README step: one parameter, 8 points, u''", 1 / 4),
    "pinn1d": ("PINN 1-16-1, 64 points, u''", 1 / 3),
    "pinn2d": ("PINN 2-64-64-64-1, 2048 points, Laplacian", 1 / 2),
    "mlp_train": ("MLP 784-256-128-10, batch 128", 0.8),
    "chain": ("elementwise chain, 1e6 values", 1 / 3),
    "gemm": ("matrix product 1024", 1.02),
    "hessian": ("Hessian 64 x 64", 1 / 2),
    "ode": ("ODE, 1000 RK4 steps", 0.8),
}
_OTHERS = {
    "mlp_float32": "MLP of above in float32",
    "chain_float32": "chain of above in float32",
    "heat": "PINN 2-32-32-32-32-1, sines, 4096 points, u_t - u_xx",
    "wide": "2-512-512-1, 512 points, gradient in the points",
    "beam": "PINN 1-16-16-1, 64 points, u''''",
    "classifier": "normalised layers, softmax, batch 256",
    "small_products": "1024 products of 8 x 8, two in a row",
    "systems": "64 systems of 20 equations",
    "recurrent": "recurrent network, 32 units, 200 steps",
    "cumulative": "running sums, 1000 x 100",
}
assert list(_EIGHT) == list(EIGHT) and list(_OTHERS) == list(OTHERS)

STEADY, BESIDE, FIRST, CACHED, MEMORY, MORE = (
    "value and gradient, per call",
    "programs beside these, value and gradient, per call",
    "first call",
    "first call of a program that an earlier process compiled, against JAX's first call",
    "largest resident size of the process",
    "more",
)

ROWS = (
    *(Row(title, work, "us", "µs", STEADY, goal) for work, (title, goal) in _EIGHT.items()),
    *(Row(title, work, "us", "µs", BESIDE, 1.0) for work, title in _OTHERS.items()),
    # Against what compiles, too: an interpreter has nothing to do before its first call.
    *(Row(t, work, "first_ms", "ms", FIRST, 1 / 3, against="jax") for work, (t, _) in _EIGHT.items()),
    *(Row(title, work, "first_ms", "ms", FIRST, 1 / 3, against="jax") for work, title in _OTHERS.items()),
    *(
        Row(title, work, "cached_ms", "ms", CACHED, 1 / 10, against="jax", peer_key="first_ms")
        for work, (title, _) in _EIGHT.items()
    ),
    *(Row(title, work, "rss_mb", "MB", MEMORY, 1.0, against="jax") for work, (title, _) in _EIGHT.items()),
    *(Row(title, work, "rss_mb", "MB", MEMORY, 1.0, against="jax") for work, title in _OTHERS.items()),
    Row("README problem, trainer.step()", "trainer", "us", "µs", MORE, 1 / 10),
    Row("PINN 1-16-1, trainer.step()", "pinn1d_trainer", "us", "µs", MORE, 1 / 3),
    Row("README step, first call after that of another program", "readme_after", "first_ms", "ms", MORE,
        against="jax"),
    Row("README step, from before the import to the first result", "readme", "start_ms", "ms", MORE),
    Row("import", "import", "ms", "ms", MORE, bound=150.0),
    Row("tracing the PINN step, per node", "tracing", "us", "µs", MORE, bound=15.0),
)  # fmt: skip

MEAN_GOAL = 0.5  # of the eight rows


def mean_ratio(results: Results, rows: Sequence[Row]) -> float | None:
    """The geometric mean of the ratios to the best peer, of those rows that have one."""
    worst = [max(found.values()) for row in rows if (found := row.ratios(results))]
    return math.exp(math.fsum(map(math.log, worst)) / len(worst)) if worst else None


def miss(row: Row, results: Results) -> str | None:
    """What keeps a row from its goal, in words. A row without a number to compare with misses nothing."""
    ours, ratios = row.value(results, OURS), row.ratios(results)
    if ours is None:
        return "failed" if "error" in results.get(OURS, {}).get(row.work, {}) else None
    if row.bound is not None and ours > row.bound:
        return f"{ours:.1f} {row.unit}, the goal is {row.bound:g}"
    if row.goal is not None and ratios and max(ratios.values()) > row.goal:
        peer = max(ratios, key=lambda name: ratios[name])
        return f"{ratios[peer]:.2f} of {peer}, the goal is {row.goal:.2f}"
    return None


def missed(results: Results, rows: Sequence[Row]) -> list[str]:
    """All goals that are not reached."""
    lines = [f"{row.name}: {words}" for row in rows if (words := miss(row, results))]
    mean = mean_ratio(results, [row for row in rows if row.group == STEADY])
    if mean is not None and mean > MEAN_GOAL:
        lines.append(f"geometric mean: {mean:.2f}, the goal is {MEAN_GOAL:.2f}")
    return lines


def all_ratios(results: Results, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The ratios of all rows, by name and peer."""
    return {row.name: found for row in rows if (found := row.ratios(results))}


def regressed(new: Mapping[str, Mapping[str, float]], old: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Where a ratio to the best peer grew beyond the tolerance; only peers that both have are looked at."""
    lines = []
    for name, ratios in new.items():
        shared = ratios.keys() & old.get(name, {}).keys()
        if shared:
            now, before = (max(each[peer] for peer in shared) for each in (ratios, old[name]))
            if now > TOLERANCE * before:
                lines.append(f"{name}: {now:.3f} of the best peer, {before:.3f} in the committed table")
    return lines


def compared(new: Mapping[str, Mapping[str, float]], old: Mapping[str, Mapping[str, float]]) -> int:
    """How many rows two tables share a peer for."""
    return sum(bool(ratios.keys() & old.get(name, {}).keys()) for name, ratios in new.items())


def tables(results: Results, rows: Sequence[Row]) -> dict[str, list[list[str]]]:
    """The cells of the table of each group, headings first."""
    peers = [name for name in results if name != OURS]
    found: dict[str, list[list[str]]] = {}
    for row in rows:
        if not any(row.work in each for each in results.values()):
            continue
        head = [row.group, OURS, *peers, *(["of the best peer"] if peers else []), "goal"]
        lines = found.setdefault(row.group, [head])
        cells = [_shown(row, results, name) for name in (OURS, *peers)]
        ratios = row.ratios(results)
        part = (
            [f"{max(ratios.values()):.2f}" + (f" of {row.against}" if row.against else "")]
            if ratios
            else [""]
        )
        lines.append([row.title, *cells, *(part if peers else []), _goal(row, results)])
    for group, goal in ((STEADY, f"≤ {MEAN_GOAL:.2f}"), (BESIDE, "")):
        mean = mean_ratio(results, [row for row in rows if row.group == group])
        if mean is not None and group in found:
            late = ", missed" if goal and mean > MEAN_GOAL else ""
            found[group].append(["geometric mean", "", *[""] * len(peers), f"{mean:.2f}", goal + late])
    return found


def _goal(row: Row, results: Results) -> str:
    goal = ""
    if row.goal is not None and row.ratios(results):
        goal = f"≤ {row.goal:.2f}"
    if row.bound is not None:
        goal = f"≤ {row.bound:g} {row.unit}"
    return goal + (", missed" if miss(row, results) else "")


def _shown(row: Row, results: Results, framework: str) -> str:
    value = row.value(results, framework)
    if value is None:
        return "failed" if "error" in results[framework].get(row.work, {}) else ""
    unit = row.unit
    if unit == "µs" and value >= 1000.0:
        value, unit = value / 1000.0, "ms"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def markdown(lines: list[list[str]]) -> str:
    """The cells as text that is also Markdown."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = ["-" * w for w in widths]
    return "\n".join(
        f"| {' | '.join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))} |"
        for line in (lines[0], rule, *lines[1:])
    )
