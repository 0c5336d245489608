"""`jit(f).explain()`: what was compiled, why, what it costs, what could be better. It looks, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from quabla.backends import registry
from quabla.backends.protocol import Costs
from quabla.transforms.differences import reason, suggestions
from quabla.transforms.staging import name_of
from quabla.transforms.transform import Transform

__all__ = ["Explanation", "Trace", "explanation"]


@dataclass(frozen=True)
class Trace:
    """One signature for which a function was compiled.

    Attributes:
        signature: the arguments, as in "(float64[3], 2.0)".
        reason: what differs from the nearest signature before it.
        nodes: the number of nodes that were traced.
        costs: what the backend makes of them, or None where it does not say.
    """

    signature: str
    reason: str
    nodes: int
    costs: Costs | None

    def __str__(self) -> str:
        lines = [self.signature, f"   {self.reason}"]
        c = self.costs
        if c is None:
            return "\n".join([*lines, f"   {_count(self.nodes, 'node')}"])
        parts = [
            _count(n, what)
            for n, what in ((c.kernels, "kernel"), (c.products, "product"), (c.routines, "routine"))
            if n
        ]
        work = ", ".join(parts) or "nothing to compute"
        lines.append(f"   {_count(self.nodes, 'node')}, {c.nodes} after simplification: {work}")
        return "\n".join([*lines, f"   {_bytes(c.held)} held, {_bytes(c.moved)} moved per call"])


@dataclass(frozen=True)
class Explanation:
    """What a jitted function has done so far; printing it shows everything.

    Attributes:
        name: the function.
        device: for which device it compiles.
        max_traces: how many signatures it may be traced for.
        traces: the signatures, in the order in which they came.
        suggestions: what could be better, in words.
    """

    name: str
    device: str
    max_traces: int
    traces: tuple[Trace, ...]
    suggestions: tuple[str, ...]

    def __str__(self) -> str:
        count = len(self.traces)
        if not count:
            return f"{self.name} on {self.device!r}: not called yet"
        lines = [
            f"{self.name} on {self.device!r}: traced for {count} of at most {self.max_traces} signatures"
        ]
        for i, trace in enumerate(self.traces, 1):
            first, *rest = str(trace).split("\n")
            lines += [f"  {i}. {first}", *(f"  {line}" for line in rest)]
        if self.suggestions:
            lines += ["suggestions", *(f"  {s}" for s in self.suggestions)]
        return "\n".join(lines)

    __repr__ = __str__


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _bytes(n: int) -> str:
    size = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{n} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def explanation(transform: Transform) -> Explanation:
    """What the cache of a transform tells."""
    compiled = list(transform.cache.entries.values())
    calls = [c.call for c in compiled]
    traces = tuple(
        Trace(c.call.shown(), reason(transform, calls[:i], c.call), c.nodes, c.costs)
        for i, c in enumerate(compiled)
    )
    device = transform.device or registry.default_device()
    found = suggestions(transform, calls)
    if len(calls) >= transform.max_traces:
        found.append(
            f"the next new signature raises RetraceLimitError: mend the causes above, or raise max_traces={len(calls)}"
        )
    return Explanation(name_of(transform), device, transform.max_traces, traces, tuple(found))
