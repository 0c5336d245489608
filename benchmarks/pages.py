"""Write the tables of README.md and docs/performance.md: `python benchmarks/pages.py [--check]`.

The numbers are those of table.json, of peak.json (what `peak.py --json` wrote) and counts.json (`counts.py --json`).

A table stands between two comments, `<!-- benchmarks: NAME -->` and `<!-- end -->`. With `--check` nothing is written,
and the status is 1 where a page differs.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from rows import BESIDE, CACHED, FIRST, MEMORY, MORE, ROWS, STEADY, markdown, tables

HERE = Path(__file__).resolve().parent
PAGES = [HERE.parent / "README.md", HERE.parent / "docs" / "performance.md"]
NAMES = {"eight": STEADY, "others": BESIDE, "first": FIRST, "cached": CACHED, "memory": MEMORY, "more": MORE}

BLOCK = re.compile(r"<!-- benchmarks: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def written(page: str, table: dict[str, Any]) -> str:
    """A page with its tables made anew."""
    found = tables(table["results"], ROWS)

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name == "machine":
            text = machine(table)
        elif name == "roofline":
            text = roofline(table)
        else:
            lines = found[NAMES[name]]
            text = markdown([["work" if i == 0 else line[0], *line[1:]] for i, line in enumerate(lines)])
        return f"<!-- benchmarks: {name} -->\n\n{text}\n\n<!-- end -->"

    return BLOCK.sub(block, page)


def machine(table: dict[str, Any]) -> str:
    """Where the numbers come from, in a sentence."""
    about = table["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    text = f"Measured on {about['cores']} cores of {about['cpu']}, Python {about['python']}: {versions}."
    return textwrap.fill(text, 120)


def shown(t: float) -> str:
    """Microseconds in words."""
    return f"{t / 1e3:.3g} ms" if t >= 1000 else f"{t:.2g} µs" if t < 100 else f"{t:.0f} µs"


def roofline(table: dict[str, Any]) -> str:
    """What each row computes, and how far its time is from what the machine would need at least."""
    peak, counts = (json.loads((HERE / name).read_text("utf-8")) for name in ("peak.json", "counts.json"))
    bandwidth = max(peak["copy_gbytes"].values())
    lines = [
        [
            "row",
            "Mflop",
            "in products",
            "in exp, tanh ...",
            "MB",
            "at the peak",
            "from memory",
            "measured",
            "of the peak",
        ]
    ]
    for work, count in counts.items():
        total = count["products"] + count["plain"] + count["elementary"]
        rate = max(peak["float32_gflops" if "float32" in work else "float64_gflops"].values())
        least, took = total / rate / 1e3, table["results"]["quabla"][work]["us"]
        lines.append([
            work,
            f"{total / 1e6:.3g}" if total < 1e8 else f"{total / 1e6:.0f}",
            *(f"{count[part] / total:.0%}" for part in ("products", "elementary")),
            f"{count['moved'] / 1e6:.2g}" if count["moved"] < 1e8 else f"{count['moved'] / 1e6:.0f}",
            *(shown(t) for t in (least, count["moved"] / bandwidth / 1e3, took)),
            f"{least / took:.0%}",
        ])  # fmt: skip
    return markdown(lines)


def main() -> int:
    """Write, or compare."""
    table = json.loads((HERE / "table.json").read_text("utf-8"))
    stale = []
    for path in PAGES:
        page = path.read_text("utf-8")
        if (new := written(page, table)) != page:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, "utf-8")
    if stale and "--check" in sys.argv:
        print(f"{', '.join(stale)}: not what the numbers say; run: python benchmarks/pages.py")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
