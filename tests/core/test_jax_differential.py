"""Random programs under every transform, compared with JAX in float64 and float32.

A program is a list of steps over the values computed so far; the same list is run with Quabla and with JAX. Its results
are kept within [-1, 1] here and there by tanh, and away from poles and kinks that would make the comparison moot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quabla as qb

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

THEIRS = SimpleNamespace(
    **{n: getattr(jnp, n) for n in "sin cos exp log tanh sqrt abs sum mean max min stack reshape transpose".split()},
    **{n: getattr(jnp, n) for n in "where power maximum minimum matmul einsum broadcast_to tril triu outer".split()},
    **{n: getattr(jnp, n) for n in "roll flip expand_dims squeeze swapaxes tensordot repeat tile float32".split()},
    sigmoid=jax.nn.sigmoid, softplus=jax.nn.softplus, relu=jax.nn.relu, norm=jnp.linalg.norm,
    concat=jnp.concatenate, stop_gradient=jax.lax.stop_gradient,
    astype=lambda x, d: x.astype({"float32": jnp.float32, "float64": jnp.float64}[str(d)]),
)  # fmt: skip

UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(2.0 * x),
    "tanh": lambda m, x: m.tanh(x),
    "exp": lambda m, x: m.exp(-x * x),
    "log": lambda m, x: m.log(1.5 + x * x),
    "sqrt": lambda m, x: m.sqrt(0.5 + x**2),
    "sigmoid": lambda m, x: m.sigmoid(x),
    "softplus": lambda m, x: m.softplus(x),
    "relu": lambda m, x: m.relu(x),
    "abs": lambda m, x: m.abs(x),
    "cube": lambda m, x: m.tanh(x) ** 3,
    "inverse": lambda m, x: 1.0 / (2.0 + m.cos(x)),
    "root": lambda m, x: (1.0 + x * x) ** -0.5,
    "negative": lambda m, x: 1 - x,
    "step": lambda m, x: m.where(x > 0.1, x * x, m.sin(x)),
    "stop": lambda m, x: x * m.stop_gradient(m.tanh(x)),
    "sum": lambda m, x: m.tanh(m.sum(x)),
    "sum_first": lambda m, x: m.sum(x, axis=0),
    "mean_last": lambda m, x: m.mean(x, axis=-1),
    "max_last": lambda m, x: m.max(x, axis=-1),
    "min_kept": lambda m, x: m.min(x, axis=0, keepdims=True) * x,
    "norm": lambda m, x: m.norm(x + 2.0, axis=-1),
    "softmax": lambda m, x: (lambda e: e / m.sum(e))(m.exp(x - m.max(x, axis=-1, keepdims=True))),
    "transpose": lambda m, x: m.transpose(x),
    "swap": lambda m, x: m.swapaxes(x, 0, -1),
    "ravel": lambda m, x: m.reshape(x, (-1,)),
    "column": lambda m, x: m.reshape(x, (-1, 1)),
    "flip": lambda m, x: m.flip(x, axis=0),
    "roll": lambda m, x: m.roll(x, 1, axis=0),
    "expand": lambda m, x: m.expand_dims(x, 0),
    "repeat": lambda m, x: m.broadcast_to(x, (2, *x.shape)),
    "tile": lambda m, x: m.tile(x, 2),
    "every_second": lambda m, x: x[::2],
    "backwards": lambda m, x: x[::-1] * 0.5,
    "tail": lambda m, x: x[1:],
    "first": lambda m, x: x[0],
    "last_column": lambda m, x: x[..., -1],
    "tril": lambda m, x: m.tril(x),
    "triu": lambda m, x: m.triu(x, 1),
}
BINARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda m, x, y: x + y,
    "sub": lambda m, x, y: x - 0.5 * y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / (1.5 + y * y),
    "power": lambda m, x, y: m.power(0.5 + m.sigmoid(x), m.tanh(y)),
    "maximum": lambda m, x, y: m.maximum(x, y + 0.01),
    "minimum": lambda m, x, y: m.minimum(x, y - 0.01),
    "select": lambda m, x, y: m.where(x < y + 0.01, x, y),
    "matmul": lambda m, x, y: m.tanh(m.matmul(x, y)),
    "matmul_turned": lambda m, x, y: m.tanh(m.matmul(x, m.transpose(y))),
    "outer": lambda m, x, y: m.outer(x, y),
    "concat": lambda m, x, y: m.concat([x, y], axis=0),
    "stack": lambda m, x, y: m.stack([x, y], axis=-1),
    "rows": lambda m, x, y: m.einsum("ij,j->i", x, y),
    "diagonal_sum": lambda m, x, y: m.tanh(m.einsum("ij,ij->j", x, y)),
    "tensordot": lambda m, x, y: m.tanh(m.tensordot(x, y, 1)),
}


@dataclass(frozen=True)
class Random:
    """A program: steps `(name, operands)`; operand numbers count back from the latest value."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]

    def values(self, m: Any, *args: Any) -> list[Any]:
        found = list(args)
        for name, operands in self.steps:
            xs = [found[-1 - i] for i in operands]
            found.append(UNARY[name](m, *xs) if len(xs) == 1 else BINARY[name](m, *xs))
        return found

    def last(self, m: Any) -> Callable[..., Any]:
        return lambda *args: self.values(m, *args)[-1]

    def loss(self, m: Any) -> Callable[..., Any]:
        def f(*args: Any) -> Any:
            total = 0.0
            for i, v in enumerate(self.values(m, *args)[len(args) :]):
                total = total + m.mean(m.sin(v + 0.1 * i))
            return total

        return f

    def __repr__(self) -> str:
        return "; ".join(f"{n}{o}" for n, o in self.steps)


SHAPES = [(3,), (3, 3), ()]


@st.composite
def programs(draw: Any, length: int = 7) -> Random:
    shapes: list[Any] = list(SHAPES)
    steps: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(2, length))):
        table: Any = draw(st.sampled_from([UNARY, BINARY]))
        name = draw(st.sampled_from(sorted(table)))
        operands = tuple(
            draw(st.integers(0, min(len(shapes) - 1, 4))) for _ in range(1 if table is UNARY else 2)
        )
        given_shapes = [jax.ShapeDtypeStruct(shapes[-1 - i], jnp.float64) for i in operands]
        try:
            out = jax.eval_shape(lambda *xs, f=table[name]: f(THEIRS, *xs), *given_shapes)
        except (TypeError, ValueError, IndexError):
            continue  # this op does not take these shapes
        if out.size == 0 or out.size > 200 or len(out.shape) > 3:
            continue
        steps.append((name, operands))
        shapes.append(out.shape)
    return Random(tuple(steps) or (("sin", (2,)),))


def arguments(seed: int, size: int | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s if size is None else (size, *s)) * 0.8 for s in SHAPES]


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
    ours = build(qb, qb, program)(*[qb.asarray(a) for a in args])
    theirs = build(jax, THEIRS, program)(*[jnp.asarray(a) for a in args])
    same(ours, theirs, program, tolerance)


EXAMPLES = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMS)
@EXAMPLES
@given(program=programs(), seed=st.integers(0, 2**16))
def test_transforms(name: str, program: Random, seed: int) -> None:
    check(name, TRANSFORMS[name], program, arguments(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPPED)
@EXAMPLES
@given(program=programs(length=5), seed=st.integers(0, 2**16))
def test_mapped_transforms(name: str, program: Random, seed: int) -> None:
    check(name, MAPPED[name], program, arguments(seed, 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jit_values", "grad", "hvp", "vjp"])
@EXAMPLES
@given(program=programs(length=5), seed=st.integers(0, 2**16))
def test_float32_stays_float32(name: str, program: Random, seed: int) -> None:
    check(name, TRANSFORMS[name], program, [a.astype(np.float32) for a in arguments(seed)], 2e-3)


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
