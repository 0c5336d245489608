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
from frameworks import ELEMENTWISE
from workloads import WORKLOADS, Work, forward, network

GOAL = 1.05


def by_hand(compiled: bool) -> SimpleNamespace:
    """MLX itself."""
    import mlx.core as mx
    from mlx.utils import tree_map

    jit = mx.compile if compiled else lambda f: f

    def wait(result: Any) -> Any:
        mx.eval(result)
        return result

    def hessian(f: Any) -> Any:
        def dense(x: Any) -> Any:
            def column(v: Any) -> Any:
                return mx.jvp(mx.grad(f), (x,), (v,))[1][0]

            return mx.vmap(column)(mx.eye(x.size))

        return dense

    def trainer(loss: Any, params: Any, rate: float, *data: Any, b1: float = 0.9, b2: float = 0.999) -> Any:
        def step(params: Any, t: Any, m: Any, v: Any, *data: Any) -> Any:
            value, g = mx.value_and_grad(loss)(params, *data)
            t = t + 1.0
            m = tree_map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
            v = tree_map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
            root = mx.sqrt(1 - b2**t)
            scale, floor = rate * root / (1 - b1**t), 1e-8 * root
            params = tree_map(lambda p, m, v: p - scale * m / (mx.sqrt(v) + floor), params, m, v)
            return (params, t, m, v), value

        run = jit(step)
        zeros = tree_map(mx.zeros_like, params)
        kept = [(params, mx.array(0.0), zeros, zeros)]

        def call() -> Any:
            kept[0], value = run(*kept[0], *data)
            mx.eval(kept[0], value)
            return value

        return call

    return SimpleNamespace(
        **{name: getattr(mx, name) for name in (*ELEMENTWISE, "stack")},
        grad=mx.grad,
        vmap=mx.vmap,
        value_and_grad=lambda f, argnums=0: mx.value_and_grad(f, argnums),
        jit=jit,
        hessian=hessian,
        array=lambda a: mx.array(np.asarray(a, np.float32)),
        loop=lambda steps, body, state, *operands: _unrolled(steps, body, state, *operands),
        wait=wait,
        trainer=trainer,
    )


def _unrolled(steps: int, body: Any, state: Any, *operands: Any) -> Any:
    for _ in range(steps):
        state = body(state, *operands)
    return state


def ours() -> SimpleNamespace:
    """This library on the device "mlx"."""
    import quabla as qb

    def trainer(loss: Any, params: Any, rate: float, *data: Any) -> Callable[[], Any]:
        return qb.optim.Trainer(loss, params, qb.optim.Adam(rate), *data, device="mlx").step  # type: ignore[no-any-return]

    return SimpleNamespace(
        **{name: getattr(qb, name) for name in (*ELEMENTWISE, "stack", "grad", "vmap", "hessian")},
        value_and_grad=lambda f, argnums=0: qb.value_and_grad(f, argnums=argnums),
        jit=lambda f: qb.jit(f, device="mlx"),
        array=lambda a: qb.asarray(np.asarray(a, np.float32)),
        loop=lambda steps, body, state, *operands: qb.fori_loop(
            0, steps, lambda i, s, *rest: body(s, *rest), state, operands=operands
        ),
        wait=lambda result: result,
        trainer=trainer,
    )


def pinn_plane(fw: Any) -> Work:
    """The Laplacian of a 2-64-64-64-1 tanh network at 2048 points, value and gradient."""

    def u(x: Any, y: Any, params: Any) -> Any:
        return fw.reshape(forward(fw, params, fw.reshape(fw.stack([x, y]), (1, 2))), ())

    u_xx = fw.vmap(fw.grad(fw.grad(u, 0), 0), (0, 0, None))
    u_yy = fw.vmap(fw.grad(fw.grad(u, 1), 1), (0, 0, None))

    def loss(params: Any, x: Any, y: Any) -> Any:
        right = fw.sin(math.pi * x) * fw.sin(math.pi * y)
        return fw.mean((u_xx(x, y, params) + u_yy(x, y, params) + right) ** 2)

    rng = np.random.default_rng(5)
    x, y = fw.array(rng.random(2048)), fw.array(rng.random(2048))
    params, step = network(fw, (2, 64, 64, 64, 1)), fw.jit(fw.value_and_grad(loss))
    return lambda: fw.wait(step(params, x, y))


def ode(fw: Any) -> Work:
    """Lotka and Volterra's equations, 1000 steps of Runge and Kutta, with the gradient in the rates."""

    def slope(s: Any, p: Any) -> Any:
        return fw.stack([p[0] * s[0] - p[1] * s[0] * s[1], p[2] * s[0] * s[1] - p[3] * s[1]])

    def loss(p: Any, start: Any, h: float = 0.01) -> Any:
        def body(s: Any, p: Any) -> Any:
            k1 = slope(s, p)
            k2 = slope(s + 0.5 * h * k1, p)
            k3 = slope(s + 0.5 * h * k2, p)
            k4 = slope(s + h * k3, p)
            return s + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

        return fw.sum(fw.loop(1000, body, start, p) ** 2)

    step = fw.jit(fw.value_and_grad(loss))
    p, start = fw.array(np.array([1.1, 0.4, 0.1, 0.4])), fw.array(np.array([10.0, 5.0]))
    return lambda: fw.wait(step(p, start))


ROWS: dict[str, Callable[[Any], Work]] = {
    **{name: work for name, work in WORKLOADS.items() if name != "readme_after"},
    "pinn_plane": pinn_plane,
    "ode": ode,
}


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
