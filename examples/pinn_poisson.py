"""Train a physics-informed network: u, a small tanh network, learns to solve -u'' = pi^2 sin(pi x) on [0, 1].

The boundary values u(0) = u(1) = 0 are built into u, so the loss is the mean squared residual of the equation at the
collocation points. The second derivative is exact: `grad` of `grad` at one point, mapped over all of them. The solution
sin(pi x) is known and measures the error. Ctrl-C stops early and still writes the picture.
"""

import argparse
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

import quabla as qb

SIZES = (1, 24, 24, 1)


def initial(rng):
    return [
        {"w": qb.array(rng.normal(0.0, math.sqrt(2.0 / (m + n)), (m, n))), "b": qb.zeros(n)}
        for m, n in pairwise(SIZES)
    ]


def u(x, params):  # at one point: x is a scalar
    z = qb.reshape(x, (1,))
    for p in params[:-1]:
        z = qb.tanh(z @ p["w"] + p["b"])
    network = z @ params[-1]["w"] + params[-1]["b"]
    return x * (1.0 - x) * network[0]


u_xx = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None))


def loss(params, x):
    residual = u_xx(x, params) + math.pi**2 * qb.sin(math.pi * x)
    return qb.mean(residual**2)


def train(params, x, steps):
    trainer = qb.optim.Trainer(loss, params, qb.optim.Adam(1e-3), x)
    best, history = math.inf, []
    shown = "{desc}{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} steps, {rate_fmt}, {remaining} left"
    with tqdm(total=steps, unit=" steps", bar_format=shown) as bar:
        try:
            while portion := min(100, steps - bar.n):
                trainer.run(portion - 1)
                now = trainer.params
                trainer.step()
                value = trainer.loss().item()  # of `now`: the loss is that from which the last step started
                if value < best:
                    best, params = value, now
                bar.set_description_str(f"loss {value:.1e} ", refresh=False)
                bar.update(portion)
                history.append((bar.n, value))
        except KeyboardInterrupt:
            bar.write(f"stopped after {bar.n} of {steps} steps")
    return params, history


def draw(path, x, solution, exact, history):
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplot_mosaic([["solution", "loss"], ["error", "loss"]], height_ratios=(3, 1))
    axes["solution"].plot(x, exact, color="0.8", linewidth=7, label="exact: sin(πx)")
    axes["solution"].plot(x, solution, color="C0", label="network")
    axes["solution"].set(title="-u'' = π² sin(πx),  u(0) = u(1) = 0", ylabel="u")
    axes["solution"].legend(loc="lower center", frameon=False)
    axes["error"].plot(x, solution - exact, color="C3")
    axes["error"].set(xlabel="x", ylabel="error")
    axes["error"].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes["loss"].semilogy(*zip(*history, strict=True), color="C0")
    axes["loss"].set(title="training", xlabel="step", ylabel="mean squared residual")
    for axis in axes.values():
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000, help="training steps (%(default)s)")
    parser.add_argument("--output", type=Path, default="pinn_poisson.png", help="the picture (%(default)s)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be positive")
    if not options.output.resolve().parent.is_dir():
        parser.error(f"--output: there is no folder {options.output.resolve().parent}")

    params, history = train(initial(np.random.default_rng(0)), qb.linspace(0.0, 1.0, 64), options.steps)

    x = qb.linspace(0.0, 1.0, 501)
    solution = qb.vmap(u, in_axes=(0, None))(x, params).numpy()
    exact = np.sin(math.pi * x.numpy())
    print(f"largest error against the exact solution: {np.max(np.abs(solution - exact)):.1e}")
    if history:
        draw(options.output, x.numpy(), solution, exact, history)
        print(f"solution and loss curve: {options.output.resolve()}")


if __name__ == "__main__":
    main()
