"""What is measured: each workload is a function from a framework to something to call without arguments.

The same mathematics and the same numbers go to every framework; `frameworks.py` says what each calls its functions. A
workload is traced and compiled by its first call, which is timed apart from the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Work = Callable[[], Any]


def _frequency(fw: Any) -> tuple[Any, Any, Any]:
    """The problem of the README: one parameter, eight points, a second derivative per point."""
    u_xx = fw.vmap(fw.grad(fw.grad(lambda x, w: fw.sin(x * w))), (0, None))

    def loss(w: Any, x: Any) -> Any:
        return fw.mean((u_xx(x, w) + math.pi**2 * fw.sin(math.pi * x)) ** 2)

    return loss, fw.array(np.array(2.5)), fw.array(np.linspace(0.05, 0.95, 8))


def network(fw: Any, sizes: tuple[int, ...]) -> Any:
    """The weights of a tanh network, from a fixed seed."""
    rng = np.random.default_rng(0)
    return [
        {"w": fw.array(rng.normal(0.0, a**-0.5, (a, b))), "b": fw.array(np.zeros(b))}
        for a, b in itertools.pairwise(sizes)
    ]


def forward(fw: Any, params: Any, x: Any) -> Any:
    """The network on `(batch, inputs)`."""
    for p in params[:-1]:
        x = fw.tanh(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def pinn_loss(fw: Any) -> tuple[Any, Any, Any]:
    """-u'' = pi^2 sin(pi x) by a 1-16-1 network at 64 points."""

    def u(x: Any, params: Any) -> Any:
        return fw.reshape(forward(fw, params, fw.reshape(x, (1, 1))), ())

    u_xx = fw.vmap(fw.grad(fw.grad(u)), (0, None))

    def loss(params: Any, x: Any) -> Any:
        return fw.mean((u_xx(x, params) + math.pi**2 * fw.sin(math.pi * x)) ** 2)

    return loss, network(fw, (1, 16, 1)), fw.array(np.linspace(0.05, 0.95, 64))


def readme(fw: Any) -> Work:
    """jit(value_and_grad(loss)) of the README's problem."""
    loss, w, x = _frequency(fw)
    step = fw.jit(fw.value_and_grad(loss))
    return lambda: fw.wait(step(w, x))


def readme_after(fw: Any) -> Work:
    """The same after another program, when all that compiling needs is in memory."""
    fw.wait(fw.jit(lambda x: x + 1.0)(fw.array(np.zeros(2))))
    return readme(fw)


def trainer(fw: Any) -> Work:
    """Loss, gradient and Adam on it, in one call."""
    loss, w, x = _frequency(fw)
    return fw.trainer(loss, w, 0.05, x)  # type: ignore[no-any-return]


def pinn(fw: Any) -> Work:
    """jit(value_and_grad(loss)) of a small physics-informed network."""
    loss, params, x = pinn_loss(fw)
    step = fw.jit(fw.value_and_grad(loss))
    return lambda: fw.wait(step(params, x))


def pinn_trainer(fw: Any) -> Work:
    """Loss, gradient and Adam on it, in one call."""
    loss, params, x = pinn_loss(fw)
    return fw.trainer(loss, params, 1e-3, x)  # type: ignore[no-any-return]


def mlp(fw: Any) -> Work:
    """A 784-256-128-10 network, 128 examples, squared error, value and gradient."""
    rng = np.random.default_rng(1)
    x, y = fw.array(rng.random((128, 784))), fw.array(rng.random((128, 10)))
    params = network(fw, (784, 256, 128, 10))
    step = fw.jit(fw.value_and_grad(lambda p, x, y: fw.mean((forward(fw, p, x) - y) ** 2)))
    return lambda: fw.wait(step(params, x, y))


def chain(fw: Any) -> Work:
    """Elementwise functions of a million values, value and both gradients: bound by memory."""
    rng = np.random.default_rng(2)
    a, b = fw.array(rng.normal(size=1_000_000)), fw.array(rng.normal(size=1_000_000))

    def f(a: Any, b: Any) -> Any:
        return fw.sum(fw.tanh(a * b + 1.0) * fw.exp(-a * a) + fw.sin(b) * fw.sqrt(fw.abs(a) + 1.0))

    step = fw.jit(fw.value_and_grad(f, (0, 1)))
    return lambda: fw.wait(step(a, b))


def gemm(fw: Any) -> Work:
    """The product of two matrices of 1024 x 1024."""
    rng = np.random.default_rng(3)
    a, b = fw.array(rng.normal(size=(1024, 1024))), fw.array(rng.normal(size=(1024, 1024)))
    product = fw.jit(lambda a, b: a @ b)
    return lambda: fw.wait(product(a, b))


def hessian(fw: Any) -> Work:
    """The dense Hessian, 64 x 64, of a scalar function with a matrix in it."""
    rng = np.random.default_rng(4)
    a, x = fw.array(rng.normal(size=(64, 64)) / 8.0), fw.array(rng.normal(size=64))
    second = fw.jit(fw.hessian(lambda x: fw.sum(fw.tanh(a @ x) ** 2) + fw.sum(fw.sin(x) * x)))
    return lambda: fw.wait(second(x))


WORKLOADS: dict[str, Callable[[Any], Work]] = {
    "readme": readme,
    "readme_after": readme_after,
    "trainer": trainer,
    "pinn": pinn,
    "pinn_trainer": pinn_trainer,
    "mlp": mlp,
    "chain": chain,
    "gemm": gemm,
    "hessian": hessian,
}
