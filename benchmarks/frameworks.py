"""What each framework calls the functions that the workloads use. Arrays keep the dtype that NumPy gave them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

# What all of them call the same.
ELEMENTWISE = (
    "sin", "exp", "log", "tanh", "sqrt", "abs", "sum", "mean", "reshape", "stack", "cumsum",
)  # fmt: skip


def loop_of(qb: Any) -> Callable[..., Any]:
    """The loop of `quabla` with its step written as for all others: `body(state, *operands)`."""

    def loop(steps: int, body: Any, state: Any, *operands: Any) -> Any:
        return qb.fori_loop(0, steps, lambda i, s, *rest: body(s, *rest), state, operands=operands)

    return loop


def unrolled(steps: int, body: Any, state: Any, *operands: Any) -> Any:
    """A loop of Python, for those that have no other."""
    for _ in range(steps):
        state = body(state, *operands)
    return state


def scanned(fw: Any) -> Callable[..., Any]:
    """A scan as a loop of Python."""

    def scan(body: Any, state: Any, xs: Any) -> Any:
        results = []
        for x in xs:
            state, result = body(state, x)
            results.append(result)
        return state, fw.stack(results)

    return scan


def load_quabla() -> SimpleNamespace:
    """Whichever `quabla` this interpreter has."""
    import quabla as qb

    def trainer(loss: Any, params: Any, rate: float, *data: Any) -> Callable[[], Any]:
        return qb.optim.Trainer(loss, params, qb.optim.Adam(rate), *data).step  # type: ignore[no-any-return]

    return SimpleNamespace(
        **{name: getattr(qb, name) for name in ELEMENTWISE},
        **{name: getattr(qb, name) for name in ("grad", "vmap", "jit", "hessian")},
        value_and_grad=lambda f, argnums=0: qb.value_and_grad(f, argnums=argnums),
        softmax=qb.softmax,
        solve=qb.linalg.solve,
        loop=loop_of(qb),
        scan=qb.scan,
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
        softmax=jax.nn.softmax,
        solve=jnp.linalg.solve,
        loop=lambda steps, body, state, *operands: jax.lax.scan(
            jax.checkpoint(lambda s, _: (body(s, *operands), None)), state, None, length=steps
        )[0],
        scan=jax.lax.scan,
        array=jnp.asarray,
        wait=jax.block_until_ready,
        trainer=trainer,
        start=jax.devices,
        version=jax.__version__,
    )


def load_torch(compiled: bool = False) -> SimpleNamespace:
    """PyTorch with `torch.func` and `torch.optim.Adam`, eager unless asked for `torch.compile`."""
    import torch

    def compile(f: Any) -> Any:
        return torch.compile(f) if compiled else f

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

        loss = compile(loss)

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
        jit=compile,
        value_and_grad=value_and_grad,
        softmax=torch.softmax,
        solve=torch.linalg.solve,
        loop=unrolled,
        scan=scanned(torch),
        array=lambda a: torch.from_numpy(np.array(a)),
        wait=lambda result: result,
        trainer=trainer,
        start=lambda: None,
        version=torch.__version__,
    )


def load_mlx(compiled: bool = True, device: str | None = "cpu") -> SimpleNamespace:
    """MLX, by `mx.compile` unless told otherwise; on the CPU, where it has float64, or on its default device."""
    import mlx.core as mx
    from mlx.utils import tree_map

    if device is not None:
        mx.set_default_device(getattr(mx, device))
    jit = mx.compile if compiled else lambda f: f

    def wait(result: Any) -> Any:
        mx.eval(result)
        return result

    def hessian(f: Any) -> Any:
        def dense(x: Any) -> Any:
            def column(v: Any) -> Any:
                return mx.jvp(mx.grad(f), (x,), (v,))[1][0]

            return mx.vmap(column)(mx.eye(x.size, dtype=x.dtype))

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
        **{name: getattr(mx, name) for name in ELEMENTWISE},
        **{name: getattr(mx, name) for name in ("grad", "vmap", "softmax")},
        value_and_grad=lambda f, argnums=0: mx.value_and_grad(f, argnums),
        jit=jit,
        hessian=hessian,
        solve=mx.linalg.solve,
        loop=unrolled,
        scan=scanned(mx),
        array=lambda a: mx.array(a, dtype=getattr(mx, a.dtype.name)),
        wait=wait,
        trainer=trainer,
        start=mx.default_device,
        version=mx.__version__,
    )


FRAMEWORKS: dict[str, Callable[[], SimpleNamespace]] = {
    "quabla": load_quabla,
    "jax": load_jax,
    "torch": load_torch,
    "torch.compile": lambda: load_torch(compiled=True),
    "mlx": load_mlx,
}
