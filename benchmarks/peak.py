"""What this machine can do: `python benchmarks/peak.py`. Prints the rates that docs/performance.md compares with.

Multiplications and additions: the fastest product of matrices, ours and that of NumPy's BLAS, of several sizes.
Memory: the fastest copy of arrays far larger than the caches, divided among threads. A copy reads and writes; that the
processor may read what is written before it writes it is not counted. Everything is the best of many tries.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np


def fastest(call: Callable[[], Any], seconds: float) -> float:
    """The least seconds that a call took."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def products(dtype: Any, seconds: float) -> dict[str, float]:
    """Billions of multiplications and additions per second, by who multiplies."""
    import quabla as qb

    rng, found = np.random.default_rng(0), {"quabla": 0.0, "numpy": 0.0}
    ours = qb.jit(lambda a, b: a @ b)
    for n in (512, 768, 1024):
        a, b = (rng.normal(size=(n, n)).astype(dtype) for _ in range(2))
        left, right, out = qb.asarray(a), qb.asarray(b), np.empty_like(a)
        calls: dict[str, Callable[[], Any]] = {
            "quabla": functools.partial(ours, left, right),
            "numpy": functools.partial(np.matmul, a, b, out),
        }
        for name, call in calls.items():
            call()
            found[name] = max(found[name], 2.0 * n**3 / fastest(call, seconds) / 1e9)
    return found


def copies(threads: int, seconds: float, nbytes: int = 256 << 20) -> float:
    """Billions of bytes per second, read and written."""
    source, target = np.ones(nbytes // 8), np.zeros(nbytes // 8)
    parts = [slice(i * len(source) // threads, (i + 1) * len(source) // threads) for i in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

        return 2.0 * nbytes / fastest(copy, seconds) / 1e9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rates there")
    options = parser.parse_args()
    seconds = options.seconds
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {
        "cores": cores,
        "float64_gflops": products(np.float64, seconds),
        "float32_gflops": products(np.float32, seconds),
        "copy_gbytes": {str(n): copies(n, seconds) for n in sorted({1, cores})},
    }
    shown = json.dumps(found, indent=1)
    print(shown)
    if options.json:
        options.json.write_text(shown + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
