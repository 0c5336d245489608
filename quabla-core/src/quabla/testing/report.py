"""What the conformance suite found on a device: for people, for programs, and as a page."""

from __future__ import annotations

import html
import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quabla.backends.hookspec import HOOKSPEC_VERSION
from quabla.testing.target import TOLERANCES, Target

__all__ = ["OUTCOMES", "REFUSED", "SUPPORTED", "WRONG", "Report", "Verdict"]

SUPPORTED, REFUSED, WRONG = OUTCOMES = ("supported", "refused correctly", "wrong")


@dataclass(frozen=True)
class Verdict:
    """What became of one item.

    Attributes:
        group: "op", "program", "function", "training" or "promise".
        subject: the name of the op, the program or the promise.
        sample: which of its samples.
        dtype: of the floating operands, or of all.
        transform: "value", "jvp", "vjp", "second derivative", "vmap" and the like.
        outcome: one of `OUTCOMES`.
        detail: why, where it is not "supported".
        seconds: how long it took.
    """

    group: str
    subject: str
    sample: str
    dtype: str
    transform: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def item(self) -> str:
        """The name of the item, for messages and for `--only`."""
        parts = (self.group, self.subject, self.sample, self.dtype, self.transform)
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Report:
    """The verdicts on a device.

    Attributes:
        device: the device.
        plugin: the plugin that brings it.
        capabilities: what it says that it can do.
        verdicts: one for each item.
    """

    device: str
    plugin: str
    capabilities: dict[str, Any]
    verdicts: tuple[Verdict, ...]

    @classmethod
    def of(cls, target: Target, verdicts: Sequence[Verdict]) -> Report:
        """The report on a target."""
        can = target.can.model_dump(mode="json")
        return cls(target.device, target.backend.plugin, can, tuple(verdicts))

    @property
    def counts(self) -> dict[str, int]:
        """How many items had each outcome."""
        found = Counter(v.outcome for v in self.verdicts)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def conforms(self) -> bool:
        """Whether there was something to judge and nothing was wrong."""
        return bool(self.verdicts) and not self.counts[WRONG]

    def rows(self) -> list[tuple[str, str, dict[str, int]]]:
        """Group, transform and counts, in the order of the suite."""
        found: dict[tuple[str, str], Counter[str]] = {}
        for v in self.verdicts:
            key = (v.group, v.transform if v.group != "promise" else "")
            found.setdefault(key, Counter())[v.outcome] += 1
        return [(*key, {o: count[o] for o in OUTCOMES}) for key, count in found.items()]

    def as_text(self) -> str:
        """The report for people."""
        lines = [f"Conformance of device {self.device!r}, brought by {self.plugin}", ""]
        heads = ("", *OUTCOMES)
        table = [
            (f"{group} {transform}".rstrip(), *map(str, n.values())) for group, transform, n in self.rows()
        ]
        table.append(("all", *map(str, self.counts.values())))
        widths = [max(len(row[i]) for row in (heads, *table)) for i in range(len(heads))]
        for row in (heads, *table):
            first, *rest = (
                cell.rjust(w) if i else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join((first, *rest)).rstrip())
        for outcome in (WRONG, REFUSED):
            listed = [v for v in self.verdicts if v.outcome == outcome]
            if listed:
                lines += ["", outcome.capitalize()]
                lines += (
                    [f"  {v.item}: {v.detail}" for v in listed] if outcome == WRONG else _by_subject(listed)
                )
        lines += ["", "Tolerances, the same for every device: " + _tolerances()]
        seconds = sum(v.seconds for v in self.verdicts)
        verdict = "conforms" if self.conforms else "does not conform"
        lines.append(f"{self.device} {verdict}: {len(self.verdicts)} items in {seconds:.0f} s")
        return "\n".join(lines)

    def as_json(self) -> str:
        """The report for programs."""
        return json.dumps(
            {
                "device": self.device,
                "plugin": self.plugin,
                "hookspec": HOOKSPEC_VERSION,
                "machine": platform.platform(),
                "numpy": np.__version__,
                "capabilities": self.capabilities,
                "tolerances": {name: asdict(t) for name, t in TOLERANCES.items()},
                "counts": self.counts,
                "conforms": self.conforms,
                "items": [asdict(v) for v in self.verdicts],
            },
            indent=1,
        )

    def as_html(self) -> str:
        """The report as one page, without scripts and without other files."""
        e = html.escape
        overview = "".join(
            f"<tr><td>{e(group)} {e(transform)}</td>{''.join(_cell(o, n[o]) for o in OUTCOMES)}</tr>"
            for group, transform, n in [*self.rows(), ("all", "", self.counts)]
        )
        order = {WRONG: 0, REFUSED: 1, SUPPORTED: 2}
        items = "".join(
            f'<tr class="{_CLASSES[v.outcome]}"><td>{e(v.item)}</td><td>{e(v.outcome)}</td><td>{e(v.detail)}</td></tr>'
            for v in sorted(self.verdicts, key=lambda v: order[v.outcome])
        )
        heads = "".join(f"<th>{e(o)}</th>" for o in OUTCOMES)
        verdict = "conforms" if self.conforms else "does not conform"
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Conformance of {e(self.device)}</title>'
            f"<style>{_STYLE}</style></head><body><h1>Device {e(self.device)} {verdict}</h1>"
            f"<p>Brought by {e(self.plugin)}, on {e(platform.platform())} with NumPy {e(np.__version__)}.</p>"
            f"<table><tr><th></th>{heads}</tr>{overview}</table><p>Tolerances, the same for every device: "
            f"{e(_tolerances())}</p><h2>Items</h2><table><tr><th>item</th><th>outcome</th><th>why</th></tr>{items}"
            f"</table><h2>Capabilities</h2><pre>{e(json.dumps(self.capabilities, indent=1))}</pre></body></html>\n"
        )


def _by_subject(verdicts: Sequence[Verdict]) -> list[str]:
    """Refusals with one line per op or program."""
    found: dict[tuple[str, str], list[Verdict]] = {}
    for v in verdicts:
        found.setdefault((v.group, v.subject), []).append(v)
    return [f"  {g} {s} ({len(each)} items): {each[0].detail}" for (g, s), each in found.items()]


def _tolerances() -> str:
    def said(name: str) -> str:
        t = TOLERANCES[name]
        parts = [f"{t.each:g} relative"] if t.each else []
        parts += [f"{t.largest:g} of the largest element"] if t.largest else []
        return f"{name} {' + '.join(parts)}"

    unit = "in units of 2.2e-16 (float64) or 1.2e-7 (float32); integers and bools are exact"
    return f"{'; '.join(map(said, TOLERANCES))}; {unit}"


_CLASSES = {SUPPORTED: "supported", REFUSED: "refused", WRONG: "wrong"}
_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:90em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}td.n{text-align:right}"
    ".wrong{background:#fdd}.refused{background:#ffd}pre{white-space:pre-wrap}"
)


def _cell(outcome: str, count: int) -> str:
    return f'<td class="n {_CLASSES[outcome] if count else ""}">{count}</td>'
