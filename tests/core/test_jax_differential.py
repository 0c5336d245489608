"""Random programs under every transform, compared with JAX in float64 and float32: thousands of them, none refused.

`QUABLA_PROGRAMS=50000` (how many in all; 2600 unless given) makes a longer search; the numbers are shared out evenly
among the ways to transform a program.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import quabla as qb

jax = pytest.importorskip("jax")

from tests.core.jaxpr_numpy import run  # noqa: E402
from tests.core.random_programs import (  # noqa: E402
    FORWARD_ONLY,
    OURS,
    REVERSE_ONLY,
    THEIRS,
    Random,
    arguments,
    programs,
)


def same(ours: Any, theirs: Any, program: Random, tolerance: float = 1e-10) -> None:
    a, b = qb.tree.flatten(ours)[0], jax.tree.leaves(theirs)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        y = np.asarray(y)
        assert x.shape == y.shape, repr(program)
        assert str(x.dtype) == str(y.dtype), repr(program)
        scale = max(1.0, float(np.max(np.abs(y)))) if np.isfinite(y).all() else 1.0
        np.testing.assert_allclose(
            x.numpy(), y, rtol=tolerance, atol=tolerance * scale, err_msg=repr(program)
        )


# Each applies one transform in library `t` (qb or jax) to a program written with module `m`.
TRANSFORMS: dict[str, Callable[[Any, Any, Random], Callable[..., Any]]] = {
    "jit": lambda t, m, p: t.jit(p.loss(m)),
    "jit_values": lambda t, m, p: t.jit(lambda *a: p.values(m, *a)),
    "grad": lambda t, m, p: t.grad(p.loss(m), argnums=(0, 1, 2)),
    "jit_value_and_grad": lambda t, m, p: t.jit(t.value_and_grad(p.loss(m), argnums=(2, 0))),
    "grad_grad": lambda t, m, p: t.grad(t.grad(p.loss(m), argnums=2), argnums=2),
    "hvp": lambda t, m, p: lambda x, w, s: t.jvp(t.grad(lambda x: p.loss(m)(x, w, s)), (x,), (x + 1.0,)),
    "jvp": lambda t, m, p: lambda *a: t.jvp(p.last(m), a, tuple(v * 0.5 + 1.0 for v in a)),
    "vjp": lambda t, m, p: lambda *a: _pulled(t, p.last(m), a),
    "jacobian": lambda t, m, p: getattr(t, "jacobian", getattr(t, "jacrev", None))(p.last(m), argnums=(0, 2)),
    "hessian": lambda t, m, p: t.hessian(p.loss(m)),
    "grad_of_hessian": lambda t, m, p: t.grad(
        lambda x, w, s: m.sum(m.sin(t.hessian(p.loss(m), argnums=2)(x, w, s)))
    ),
    "grad_of_jvp": lambda t, m, p: t.grad(
        lambda x, w, s: m.sum(m.sin(t.jvp(lambda x: p.last(m)(x, w, s), (x,), (x * x,))[1])), argnums=(0, 1)
    ),
    "grad_of_tree": lambda t, m, p: (
        lambda x, w, s: t.grad(lambda tree: p.loss(m)(tree["layers"][0]["x"], tree["w"], tree["layers"][1]))(
            {"w": w, "layers": [{"x": x}, s]}
        )
    ),
    "jvp_of_jvp": lambda t, m, p: (
        lambda *a: t.jvp(
            lambda *b: t.jvp(p.last(m), b, tuple(v * v for v in b))[1], a, tuple(0.5 * v + 1.0 for v in a)
        )
    ),
    "vjp_of_vjp": lambda t, m, p: lambda *a: _pulled(t, lambda *b: _pulled(t, p.loss(m), b)[1][0], a),
    "closures": lambda t, m, p: t.grad(
        lambda s, x, w: (
            m.sum(t.grad(lambda x: p.loss(m)(x, w, s * s))(x) * x) * t.grad(lambda s: p.loss(m)(x, w, s))(s)
        )
    ),
}
_CLOSURE_ORDER = {"closures": (2, 0, 1)}

MAPPED: dict[str, Callable[[Any, Any, Random], Callable[..., Any]]] = {
    "vmap": lambda t, m, p: t.vmap(p.last(m)),
    "vmap_unmapped": lambda t, m, p: (
        lambda x, w, s: t.vmap(p.last(m), in_axes=(0, None, None))(x, w[0], s[0])
    ),
    "vmap_axes": lambda t, m, p: (
        lambda x, w, s: t.vmap(p.last(m), in_axes=(1, None, 0), out_axes=-1)(m.transpose(x), w[0], s)
    ),
    "per_example_gradients": lambda t, m, p: (
        lambda x, w, s: t.vmap(t.grad(p.loss(m), argnums=(0, 1)), in_axes=(0, None, 0))(x, w[0], s)
    ),
    "vmap_hessian": lambda t, m, p: (
        lambda x, w, s: t.vmap(t.hessian(p.loss(m)), in_axes=(0, 0, None))(x, w, s[1])
    ),
    "pinn": lambda t, m, p: (
        lambda x, w, s: t.grad(
            lambda w: m.mean(
                t.vmap(t.grad(t.grad(p.loss(m), 2), 2), in_axes=(None, None, 0))(x[0], w, s) ** 2
            )
        )(w[0])
    ),
    "vmap_vmap": lambda t, m, p: t.vmap(
        lambda x, w, s: t.vmap(lambda v: p.last(m)(v, w, s))(m.stack([x, x * 0.5])), in_axes=(0, 0, 0)
    ),
    "grid": lambda t, m, p: (
        lambda x, w, s: t.vmap(t.vmap(p.loss(m), in_axes=(None, None, 0)), in_axes=(0, None, None))(
            x, w[0], s
        )
    ),
    "jvp_of_vmap": lambda t, m, p: lambda *a: t.jvp(t.vmap(p.last(m)), a, tuple(v * 0.5 for v in a)),
    "jit_grad_vmap": lambda t, m, p: t.jit(
        t.grad(lambda *a: m.sum(m.sin(t.vmap(p.last(m))(*a))), argnums=(0, 1, 2))
    ),
    "vmap_of_closure": lambda t, m, p: t.grad(
        lambda x, w, s: m.sum(m.sin(t.vmap(t.grad(lambda v: p.loss(m)(v, w[0], s[0])))(x))), argnums=(1, 2)
    ),
    "jacobian_of_vmap": lambda t, m, p: (
        lambda x, w, s: getattr(t, "jacobian", getattr(t, "jacfwd", None))(
            lambda s: t.vmap(p.loss(m))(x, w, s)
        )(s)
    ),
}


def _pulled(t: Any, f: Any, args: Any) -> Any:
    value, pullback = t.vjp(f, *args)
    return value, pullback(value * 0.5 + 1.0)


def check(name: str, build: Any, program: Random, args: list[np.ndarray], tolerance: float = 1e-10) -> None:
    args = [args[i] for i in _CLOSURE_ORDER.get(name, (0, 1, 2))]
    ours = build(qb, OURS, program)(*[qb.asarray(a) for a in args])
    same(ours, run(build(jax, THEIRS, program), *args), program, tolerance)


SINGLE = ["jit_values", "grad", "hvp", "vjp"]
# What JAX derives in one direction only takes part where it can.
MORE = {
    **dict.fromkeys(("jit", "jit_values"), (*FORWARD_ONLY, *REVERSE_ONLY)),
    **dict.fromkeys(
        ("jvp", "jvp_of_jvp", "vmap", "vmap_axes", "vmap_vmap", "jvp_of_vmap"), tuple(FORWARD_ONLY)
    ),
    **dict.fromkeys(
        ("grad", "jit_value_and_grad", "vjp", "grad_of_tree", "jit_grad_vmap"), tuple(REVERSE_ONLY)
    ),
}
WAYS = [*TRANSFORMS, *MAPPED, *(f"{name}_float32" for name in SINGLE)]
EXAMPLES = settings(
    max_examples=-(-int(os.environ.get("QUABLA_PROGRAMS", "2600")) // len(WAYS)),
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@EXAMPLES
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_random_programs(way: str, data: Any, seed: int) -> None:
    name = way.removesuffix("_float32")
    mapped = name in MAPPED
    program = data.draw(programs(5 if mapped or name != way else 7, MORE.get(way, ())))
    args = arguments(seed, 4 if mapped else None)
    if name == way:
        check(name, (MAPPED if mapped else TRANSFORMS)[name], program, args)
    else:
        check(name, TRANSFORMS[name], program, [a.astype(np.float32) for a in args], 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*TRANSFORMS, *MAPPED])
@settings(EXAMPLES, max_examples=3)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_numpy_computes_what_xla_computes(way: str, data: Any, seed: int) -> None:
    """The yardstick itself: JAX's own execution of the same function."""
    program = data.draw(programs(5, MORE.get(way, ())))
    args = [arguments(seed, 4 if way in MAPPED else None)[i] for i in _CLOSURE_ORDER.get(way, (0, 1, 2))]
    f = (MAPPED if way in MAPPED else TRANSFORMS)[way](jax, THEIRS, program)
    for mine, theirs in zip(jax.tree.leaves(run(f, *args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9, err_msg=repr(program))


@pytest.mark.parametrize(
    "name", ["jit_value_and_grad", "hvp", "hessian", "closures", "per_example_gradients", "pinn"]
)
def test_one_program_under_every_transform(name: str) -> None:
    """The quick part: one fixed program with a bit of everything."""
    program = Random(
        (
            ("sin", (2,)),
            ("matmul", (2, 0)),
            ("add", (0, 1)),
            ("softmax", (0,)),
            ("mul", (0, 4)),
            ("backwards", (0,)),
            ("max_last", (0,)),
            ("outer", (1, 2)),
            ("sum_first", (0,)),
        )
    )
    if name in TRANSFORMS:
        check(name, TRANSFORMS[name], program, arguments(7))
    else:
        check(name, MAPPED[name], program, arguments(7, 4))
