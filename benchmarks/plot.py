"""Draw the ratios of table.json: `python benchmarks/plot.py` writes docs/_static/performance.svg. Needs matplotlib.

A dot per row and peer: our time as a part of theirs, on a logarithmic axis. Left of the line at 1 we are faster. The
background is transparent and the ink grey, so that the figure can be read on a light page and on a dark one.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from others import OTHERS
from rows import ROWS
from workloads import EIGHT

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "docs" / "_static" / "performance.svg"
INK = "#808080"
COLOURS = {
    "jax": "#3b8fd9",
    "torch": "#e0703a",
    "torch.compile": "#c9a227",
    "mlx": "#3aa876",
    "other": "#a873d1",
}


def main() -> None:
    """Draw."""
    table = json.loads((HERE / "table.json").read_text("utf-8"))
    works = [*EIGHT, *OTHERS]
    goals = {row.work: row.goal for row in ROWS if row.key == "us" and row.work in works}
    plt.rcParams.update({"svg.hashsalt": "quabla", "svg.fonttype": "path", "font.size": 9, "text.color": INK})
    figure, axes = plt.subplots(figsize=(7.5, 5.2))
    places = {work: -i - 0.8 * (i >= len(EIGHT)) for i, work in enumerate(works)}
    for peer in (name for name in table["results"] if name != "quabla"):
        points = [
            (table["ratios"][f"{work}.us"][peer], places[work])
            for work in works
            if peer in table["ratios"].get(f"{work}.us", {})
        ]
        if points:
            axes.scatter(
                [x for x, _ in points],
                [y for _, y in points],
                s=26,
                color=COLOURS.get(peer, INK),
                label=peer,
                zorder=3,
            )
    ticks = [(goal, places[work]) for work, goal in goals.items() if goal is not None and work in EIGHT]
    axes.scatter(
        [x for x, _ in ticks], [y for _, y in ticks], s=90, marker="|", color=INK, label="goal", zorder=2
    )
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks([places[work] for work in works], works)
    axes.set_xlabel("our time as a part of theirs", color=INK)
    axes.tick_params(colors=INK)
    axes.grid(axis="x", color=INK, alpha=0.25)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(INK)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, labelcolor=INK, ncols=6, loc="lower center", bbox_to_anchor=(0.45, 1.0))
    figure.tight_layout()
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, transparent=True, metadata={"Date": None})
    lines = TARGET.read_text("utf-8").splitlines()
    TARGET.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
