"""Measure some workloads in this interpreter: `python measure.py FRAMEWORK SECONDS WORKLOAD ...`.

Prints a line of JSON per workload: the first call in milliseconds, with the framework imported and its devices found;
the way from before the import to the first result; the best steady call in microseconds; and the largest resident size
of the process in megabytes. `run.py` starts this in a process per framework and workload, with an interpreter that has
the framework.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frameworks import FRAMEWORKS
from others import OTHERS
from workloads import WORKLOADS, pinn1d_loss


def steady(call: Callable[[], Any], seconds: float) -> float:
    """The fastest of many timings, in microseconds per call; a timing takes some milliseconds."""
    once, warm = float("inf"), time.perf_counter() + seconds
    for _ in range(4):
        start = time.perf_counter()
        call()
        once = min(once, max(time.perf_counter() - start, 1e-7))
        if time.perf_counter() > warm:
            break
    calls = max(1, min(20_000, int(0.005 / once)))
    best, end = once, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def peak() -> float:
    """The largest resident size of this process so far, in megabytes."""
    try:  # of this program alone; what `getrusage` says may be that of the process that started it
        status = Path("/proc/self/status").read_text("ascii")
        return int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[1]) / 1024  # type: ignore[index]
    except (OSError, TypeError):
        pass
    try:
        import resource
    except ImportError:  # on Windows
        return float("nan")
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def tracing(name: str, fw: Any, seconds: float) -> float:
    """Microseconds per resulting node of tracing the value and the gradient of the physics-informed loss."""
    loss, params, x = pinn1d_loss(fw)
    both = fw.value_and_grad(loss)
    if name == "jax":
        import jax

        def trace() -> int:
            def again(*args: Any) -> Any:  # a new function, for which nothing is cached
                return both(*args)

            return sum(1 for _ in jax.make_jaxpr(again)(params, x).jaxpr.eqns)
    else:
        from quabla.transforms.staging import stage, take_apart

        def trace() -> int:
            return len(stage(both, take_apart(both, (params, x), {})).program.nodes)

    nodes = trace()
    return steady(trace, seconds) / nodes


def main() -> None:
    """Measure and print."""
    name, seconds, wanted = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    begin = time.perf_counter()
    fw = FRAMEWORKS[name]()
    fw.start()
    works = {**WORKLOADS, **OTHERS}
    for work in wanted:
        row: dict[str, Any] = {"work": work, "version": fw.version}
        try:
            if work == "tracing":
                row["us"] = tracing(name, fw, seconds)
            else:
                call = works[work](fw)
                start = time.perf_counter()
                call()
                row["first_ms"] = (time.perf_counter() - start) * 1e3
                row["start_ms"] = (time.perf_counter() - begin) * 1e3
                row["us"] = steady(call, seconds)
        except Exception as error:  # the others are measured all the same
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        row["rss_mb"] = peak()
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
