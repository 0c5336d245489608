"""What each framework calls the functions that the workloads use. All compute in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

ELEMENTWISE = ("sin", "exp", "tanh", "sqrt", "abs", "sum", "mean", "reshape")


def load_quabla() -> SimpleNamespace:
    """Whichever `quabla` this interpreter has."""
    import quabla as qb

    def trainer(loss: Any, params: Any, rate: float, *data: Any) -> Callable[[], Any]:
        return qb.optim.Trainer(loss, params, qb.optim.Adam(rate), *data).step  # type: ignore[no-any-return]

    return SimpleNamespace(
        **{name: getattr(qb, name) for name in ELEMENTWISE},
        **{name: getattr(qb, name) for name in ("grad", "vmap", "jit", "hessian")},
        value_and_grad=lambda f, argnums=0: qb.value_and_grad(f, argnums=argnums),
        array=qb.asarray,
        wait=lambda result: result,  # calls return finished arrays
        trainer=trainer,
        start=qb.devices,  # loads the backends
        version=qb.__version__,
    )


def load_jax() -> SimpleNamespace:
    """JAX on the CPU, with its Adam step fused with loss and gradient into one compiled function."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    tree_map = jax.tree_util.tree_map

    def trainer(loss: Any, params: Any, rate: float, *data: Any, b1: float = 0.9, b2: float = 0.999) -> Any:
        @jax.jit
        def step(state: Any, *data: Any) -> Any:
            params, t, m, v = state
            value, g = jax.value_and_grad(loss)(params, *data)
            t = t + 1.0
            m = tree_map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
            v = tree_map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
            root = jnp.sqrt(1 - b2**t)
            scale, floor = rate * root / (1 - b1**t), 1e-8 * root
            params = tree_map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + floor), params, m, v)
            return (params, t, m, v), value

        zeros = tree_map(jnp.zeros_like, params)
        kept = [(params, jnp.asarray(0.0), zeros, zeros)]

        def call() -> Any:
            kept[0], value = step(kept[0], *data)
            return jax.block_until_ready(value)

        return call

    return SimpleNamespace(
        **{name: getattr(jnp, name) for name in ELEMENTWISE},
        **{name: getattr(jax, name) for name in ("grad", "vmap", "jit", "value_and_grad", "hessian")},
        array=jnp.asarray,
        wait=jax.block_until_ready,
        trainer=trainer,
        start=jax.devices,
        version=jax.__version__,
    )


def load_torch() -> SimpleNamespace:
    """PyTorch, eager, with `torch.func` and `torch.optim.Adam`."""
    import torch

    def value_and_grad(f: Any, argnums: Any = 0) -> Any:
        both = torch.func.grad_and_value(f, argnums)

        def swapped(*args: Any) -> Any:
            g, value = both(*args)
            return value, g

        return swapped

    def trainer(loss: Any, params: Any, rate: float, *data: Any) -> Any:
        leaves, spec = torch.utils._pytree.tree_flatten(params)
        leaves = [x.clone().requires_grad_() for x in leaves]
        params = torch.utils._pytree.tree_unflatten(leaves, spec)
        optimizer = torch.optim.Adam(leaves, lr=rate)

        def call() -> Any:
            optimizer.zero_grad()
            value = loss(params, *data)
            value.backward()
            optimizer.step()
            return value

        return call

    return SimpleNamespace(
        **{name: getattr(torch, name) for name in ELEMENTWISE},
        **{name: getattr(torch.func, name) for name in ("grad", "vmap", "hessian")},
        jit=lambda f: f,
        value_and_grad=value_and_grad,
        array=lambda a: torch.from_numpy(np.array(a)),
        wait=lambda result: result,
        trainer=trainer,
        start=lambda: None,
        version=torch.__version__,
    )


FRAMEWORKS: dict[str, Callable[[], SimpleNamespace]] = {
    "quabla": load_quabla,
    "jax": load_jax,
    "torch": load_torch,
}
