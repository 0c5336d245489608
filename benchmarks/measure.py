"""Measure some workloads in this interpreter: `python measure.py FRAMEWORK SECONDS WORKLOAD ...`.

Prints a line of JSON per workload: the first call in milliseconds, with the framework imported and its devices found;
the way from before the import to the first result; and the best steady call in microseconds. `run.py` starts this in a
process per framework and workload, with an interpreter that has the framework.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from frameworks import FRAMEWORKS
from workloads import WORKLOADS, pinn_loss


def steady(call: Callable[[], Any], seconds: float) -> float:
    """The fastest of many timings, in microseconds per call; a timing takes some milliseconds."""
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    calls = max(1, min(20_000, int(0.005 / once)))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def tracing(name: str, fw: Any, seconds: float) -> float:
    """Microseconds per resulting node of tracing the value and the gradient of the physics-informed loss."""
    loss, params, x = pinn_loss(fw)
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
    for work in wanted:
        row: dict[str, Any] = {"work": work, "version": fw.version}
        try:
            if work == "tracing":
                row["us"] = tracing(name, fw, seconds)
            else:
                call = WORKLOADS[work](fw)
                start = time.perf_counter()
                call()
                row["first_ms"] = (time.perf_counter() - start) * 1e3
                row["start_ms"] = (time.perf_counter() - begin) * 1e3
                row["us"] = steady(call, seconds)
        except Exception as error:  # the others are measured all the same
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
