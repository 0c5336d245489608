"""The device "mlx" against the same mathematics written in MLX by hand: `python benchmarks/by_hand_mlx.py [ROW ...]`.

Both run in this process, in turn, in the same mode: float32, and without `mx.compile` (with `--compile` both use it).
Written by hand a step is `mx.value_and_grad` of the loss, called and evaluated, with its arrays on the device. Prints
per row the fastest call of each in microseconds, and the ratio; `--check` ends with status 1 where one is above 1.05.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from frameworks import load_mlx, load_quabla
from workloads import WORKLOADS, Work

GOAL = 1.05


def by_hand(compiled: bool) -> SimpleNamespace:
    """MLX itself, in float32, on its default device."""
    fw = load_mlx(compiled, device=None)
    fw.array = lambda a, array=fw.array: array(np.asarray(a, np.float32))
    return fw


def ours() -> SimpleNamespace:
    """This library on the device "mlx"."""
    import quabla as qb

    def trainer(loss: Any, params: Any, rate: float, *data: Any) -> Callable[[], Any]:
        return qb.optim.Trainer(loss, params, qb.optim.Adam(rate), *data, device="mlx").step  # type: ignore[no-any-return]

    fw = load_quabla()
    fw.jit = lambda f: qb.jit(f, device="mlx")
    fw.array = lambda a: qb.asarray(np.asarray(a, np.float32))
    fw.trainer = trainer
    return fw


# A first call after another one is not a row here.
ROWS: dict[str, Callable[[Any], Work]] = {name: w for name, w in WORKLOADS.items() if name != "readme_after"}


def fastest(calls: list[Work], seconds: float) -> list[float]:
    """The best time of each call in microseconds; they are called in turn, so that noise meets all of them."""
    best = [math.inf] * len(calls)
    portions = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        portions.append(max(1, int(0.02 / max(time.perf_counter() - start, 1e-6))))
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for i, (call, count) in enumerate(zip(calls, portions, strict=True)):
            start = time.perf_counter()
            for _ in itertools.repeat(None, count):
                call()
            best[i] = min(best[i], (time.perf_counter() - start) / count)
    return [b * 1e6 for b in best]


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all unless given")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each of the two in a row")
    parser.add_argument("--compile", action="store_true", help="let both use mx.compile")
    parser.add_argument("--check", action="store_true", help="fail where the goal is missed")
    options = parser.parse_args()
    if options.compile:
        os.environ["QUABLA_MLX_COMPILE"] = "1"
    missed = []
    print(f"{'row':14}{'by hand, µs':>14}{'this, µs':>14}{'ratio':>8}")
    for name in options.rows or ROWS:
        other, this = fastest([ROWS[name](by_hand(options.compile)), ROWS[name](ours())], options.seconds)
        print(f"{name:14}{other:14.1f}{this:14.1f}{this / other:8.2f}", flush=True)
        if this / other > GOAL:
            missed.append(name)
    if missed:
        print(f"above {GOAL}: {', '.join(missed)}")
    return int(bool(missed) and options.check)


if __name__ == "__main__":
    sys.exit(main())
