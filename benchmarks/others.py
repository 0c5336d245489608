"""Programs beside the eight rows: other networks, equations, linear algebra and float32.

They show whether what holds for the rows holds for what nobody looked at while tuning. Every one is value and gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from workloads import Work, chain, forward, mlp_train, network


def heat(fw: Any) -> Work:
    """u_t = u_xx by a 2-32-32-32-32-1 network with sines, at 4096 points."""

    def u(x: Any, t: Any, params: Any) -> Any:
        return fw.reshape(forward(fw, params, fw.reshape(fw.stack([x, t]), (1, 2)), "sin"), ())

    u_xx = fw.vmap(fw.grad(fw.grad(u, 0), 0), (0, 0, None))
    u_t = fw.vmap(fw.grad(u, 1), (0, 0, None))
    step = fw.jit(fw.value_and_grad(lambda p, x, t: fw.mean((u_t(x, t, p) - u_xx(x, t, p)) ** 2)))
    rng = np.random.default_rng(6)
    x, t = fw.array(rng.random(4096)), fw.array(rng.random(4096))
    params = network(fw, (2, 32, 32, 32, 32, 1))
    return lambda: fw.wait(step(params, x, t))


def wide(fw: Any) -> Work:
    """The energy of a 2-512-512-1 network at 512 points: half the squared gradient, less the network."""

    def u(x: Any, y: Any, params: Any) -> Any:
        return fw.reshape(forward(fw, params, fw.reshape(fw.stack([x, y]), (1, 2))), ())

    maps = [fw.vmap(f, (0, 0, None)) for f in (fw.grad(u, 0), fw.grad(u, 1), u)]

    def energy(params: Any, x: Any, y: Any) -> Any:
        u_x, u_y, value = (f(x, y, params) for f in maps)
        return fw.mean(0.5 * (u_x**2 + u_y**2) - value)

    step = fw.jit(fw.value_and_grad(energy))
    rng = np.random.default_rng(7)
    x, y = fw.array(rng.random(512)), fw.array(rng.random(512))
    params = network(fw, (2, 512, 512, 1))
    return lambda: fw.wait(step(params, x, y))


def beam(fw: Any) -> Work:
    """u'''' = 1 by a 1-16-16-1 network at 64 points: four gradients, one in another."""

    def u(x: Any, params: Any) -> Any:
        return fw.reshape(forward(fw, params, fw.reshape(x, (1, 1))), ())

    fourth = fw.vmap(fw.grad(fw.grad(fw.grad(fw.grad(u)))), (0, None))
    step = fw.jit(fw.value_and_grad(lambda params, x: fw.mean((fourth(x, params) - 1.0) ** 2)))
    params, x = network(fw, (1, 16, 16, 1)), fw.array(np.linspace(0.05, 0.95, 64))
    return lambda: fw.wait(step(params, x))


def classifier(fw: Any) -> Work:
    """64-128-128-10 with normalised layers and the cross-entropy of a softmax, 256 examples."""

    def normalised(x: Any) -> Any:
        centred = x - fw.mean(x, axis=-1, keepdims=True)
        return centred / fw.sqrt(fw.mean(centred**2, axis=-1, keepdims=True) + 1e-5)

    def loss(params: Any, x: Any, y: Any) -> Any:
        for p in params[:-1]:
            x = fw.tanh(normalised(x @ p["w"] + p["b"]))
        chances = fw.softmax(x @ params[-1]["w"] + params[-1]["b"], -1)
        return -fw.mean(fw.sum(y * fw.log(chances + 1e-9), axis=-1))

    step = fw.jit(fw.value_and_grad(loss))
    rng = np.random.default_rng(8)
    x, y = fw.array(rng.normal(size=(256, 64))), fw.array(np.eye(10)[rng.integers(0, 10, 256)])
    params = network(fw, (64, 128, 128, 10))
    return lambda: fw.wait(step(params, x, y))


def small_products(fw: Any) -> Work:
    """1024 products of 8 x 8 matrices, two in a row."""
    step = fw.jit(fw.value_and_grad(lambda a, b: fw.sum(fw.tanh(a @ b) @ b), (0, 1)))
    rng = np.random.default_rng(9)
    a, b = (fw.array(rng.normal(size=(1024, 8, 8))) for _ in range(2))
    return lambda: fw.wait(step(a, b))


def systems(fw: Any) -> Work:
    """64 systems of 20 equations."""
    step = fw.jit(fw.value_and_grad(lambda a, b: fw.sum(fw.solve(a, b) ** 2), (0, 1)))
    rng = np.random.default_rng(10)
    a, b = rng.normal(size=(64, 20, 20)) + 8.0 * np.eye(20), rng.normal(size=(64, 20, 1))
    left, right = fw.array(a), fw.array(b)
    return lambda: fw.wait(step(left, right))


def recurrent(fw: Any) -> Work:
    """A recurrent network of 32 units over 200 inputs of 8 numbers."""

    def loss(params: Any, xs: Any) -> Any:
        def body(h: Any, x: Any) -> Any:
            h = fw.tanh(h @ params["w"] + x @ params["u"] + params["b"])
            return h, fw.sum(h)

        _, sums = fw.scan(body, params["b"], xs)
        return fw.mean(sums**2)

    step = fw.jit(fw.value_and_grad(loss))
    rng = np.random.default_rng(11)
    params = {
        "w": fw.array(rng.normal(size=(32, 32)) / 32**0.5),
        "u": fw.array(rng.normal(size=(8, 32))),
        "b": fw.array(np.zeros(32)),
    }
    xs = fw.array(rng.normal(size=(200, 8)))
    return lambda: fw.wait(step(params, xs))


def cumulative(fw: Any) -> Work:
    """Running sums of 1000 x 100 values along the first axis."""
    step = fw.jit(fw.value_and_grad(lambda x: fw.mean(fw.tanh(fw.cumsum(x, 0)))))
    x = fw.array(np.random.default_rng(12).normal(size=(1000, 100)))
    return lambda: fw.wait(step(x))


def mlp_float32(fw: Any) -> Work:
    """`mlp_train` in float32."""
    return mlp_train(fw, np.float32)


def chain_float32(fw: Any) -> Work:
    """`chain` in float32."""
    return chain(fw, np.float32)


OTHERS: dict[str, Callable[[Any], Work]] = {
    "mlp_float32": mlp_float32,
    "chain_float32": chain_float32,
    "heat": heat,
    "wide": wide,
    "beam": beam,
    "classifier": classifier,
    "small_products": small_products,
    "systems": systems,
    "recurrent": recurrent,
    "cumulative": cumulative,
}
