"""Random programs, written once and run with Quabla and with JAX.

A program is a list of steps over the values computed so far. Its results are kept near [-1, 1] here and there by tanh,
and away from poles and kinks that would make a comparison moot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

import quabla as qb

jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

__all__ = ["OURS", "SHAPES", "THEIRS", "Random", "arguments", "programs"]

_SAME = (
    "sin cos tan tanh sinh cosh exp expm1 log log1p sqrt cbrt abs square arctan arctan2 arcsinh hypot logaddexp sum "
    "mean max min prod var std stack reshape transpose where power maximum minimum matmul einsum broadcast_to tril "
    "triu outer inner kron cross diag diagonal trace roll flip expand_dims squeeze swapaxes moveaxis tensordot repeat "
    "tile ravel split pad cumsum cumprod sort argsort argmax take take_along_axis clip mod fmod floor sinc interp diff "
    "trapezoid polyval searchsorted"
).split()


def _scan(f: Any, init: Any, xs: Any = None, length: Any = None) -> Any:
    return jax.lax.scan(f, init, jnp.arange(length) if xs is None else xs, length)


THEIRS = SimpleNamespace(
    **{n: getattr(jnp, n) for n in _SAME},
    sigmoid=jax.nn.sigmoid, softplus=jax.nn.softplus, relu=jax.nn.relu, silu=jax.nn.silu, softmax=jax.nn.softmax,
    gelu=lambda x: jax.nn.gelu(x, approximate=False), log_softmax=jax.nn.log_softmax, logsumexp=jax.nn.logsumexp,
    erf=jax.scipy.special.erf, norm=jnp.linalg.norm, linalg=jnp.linalg, solve=jnp.linalg.solve,
    cholesky=jnp.linalg.cholesky, concat=jnp.concatenate, stop_gradient=jax.lax.stop_gradient, cond=jax.lax.cond,
    fori_loop=jax.lax.fori_loop, scan=_scan, vmap=jax.vmap, grad=jax.grad, jvp=jax.jvp, checkpoint=jax.checkpoint,
    custom_jvp=jax.custom_jvp, custom_vjp=jax.custom_vjp, where_eye=lambda x: x + jnp.eye(x.shape[-1], dtype=x.dtype),
    while_loop=lambda cond, body, init: jax.lax.while_loop(cond, body, init),
)  # fmt: skip
OURS = SimpleNamespace(
    **{n: getattr(qb, n) for n in _SAME},
    **{n: getattr(qb, n) for n in "sigmoid softplus relu silu softmax log_softmax logsumexp erf norm".split()},
    **{n: getattr(qb, n) for n in "linalg solve cholesky concat stop_gradient cond fori_loop scan vmap grad".split()},
    **{n: getattr(qb, n) for n in "jvp checkpoint custom_jvp custom_vjp while_loop".split()},
    gelu=lambda x: qb.gelu(x, approximate=False), where_eye=lambda x: x + qb.eye(x.shape[-1], dtype=x.dtype),
)  # fmt: skip

Op = Callable[..., Any]


def _twice(m: Any) -> Any:
    """x sin(x) with a rule of its own, for forward mode."""

    @m.custom_jvp
    def f(x: Any) -> Any:
        return x * m.sin(x)

    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return f(x), t * (
            m.sin(x) + 1.5 * x * m.cos(x)
        )  # not the true slope: the rule must be the one that is used

    f.defjvp(rule)
    return f


def _backwards(m: Any) -> Any:
    """The same with a rule for reverse mode."""

    @m.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * m.sin(y)

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda kept, ct: (ct * m.sin(kept[1]), 0.5 * ct * kept[0]))
    return f


def _knots(m: Any, x: Any) -> Any:
    """Points of an interpolation, whose heights depend on `x`."""
    zero = 0.0 * m.sum(x)
    return m.stack([zero - 1.0, zero, zero + 0.4]), m.stack([m.mean(x), m.tanh(m.sum(x)), zero + 0.5])


def _of_three(x: Any, y: Any) -> Any:
    """JAX alone takes vectors of two components, too."""
    if x.shape[-1:] != (3,) or y.shape[-1:] != (3,):
        raise ValueError("no vectors of three components")
    return x, y


def _separate(m: Any, x: Any) -> Any:
    """A matrix whose eigenvalues differ, whatever `x` is."""
    return 0.2 * m.tanh(x) + m.diag(m.cumsum(1.0 + 0.0 * x[0], axis=0))


def _apart(m: Any, x: Any, axis: int = -1) -> Any:
    """`x` with elements along an axis that do not tie because a function before has made them equal up to rounding."""
    return x + m.cumsum(0.0 * x + 0.1370417, axis=axis)


def _several(m: Any, x: Any) -> Any:
    """A scan whose carry is a tree and whose results are one, too."""
    start = {"a": x[0] * 0.5, "b": (x[-1],)}

    def step(c: Any, row: Any) -> Any:
        new = {"a": m.tanh(c["a"] + row), "b": (c["a"] * 0.5 - c["b"][0],)}
        return new, (row * c["b"][0], m.sum(row))

    last, (rows, sums) = m.scan(step, start, x)
    return m.sin(rows + last["a"]) + m.sum(last["b"][0]) * m.mean(sums)


UNARY: dict[str, Op] = {
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(2.0 * x),
    "tanh": lambda m, x: m.tanh(x),
    "exp": lambda m, x: m.exp(-x * x),
    "log": lambda m, x: m.log(1.5 + x * x),
    "sqrt": lambda m, x: m.sqrt(0.5 + x**2),
    "sigmoid": lambda m, x: m.sigmoid(x),
    "softplus": lambda m, x: m.softplus(x),
    "relu": lambda m, x: m.relu(x),
    "silu": lambda m, x: m.silu(x),
    "gelu": lambda m, x: m.gelu(x),
    "erf": lambda m, x: m.erf(x),
    "expm1": lambda m, x: m.expm1(0.5 * m.tanh(x)),
    "log1p": lambda m, x: m.log1p(x * x),
    "arctan": lambda m, x: m.arctan(x) + 0.1 * m.arcsinh(x),
    "cosh": lambda m, x: 1.0 / m.cosh(x),
    "sinc": lambda m, x: m.sinc(x + 0.3),
    "cbrt": lambda m, x: m.cbrt(1.5 + m.sin(x)),
    "abs": lambda m, x: m.abs(x),
    "cube": lambda m, x: m.tanh(x) ** 3,
    "inverse": lambda m, x: 1.0 / (2.0 + m.cos(x)),
    "root": lambda m, x: (1.0 + x * x) ** -0.5,
    "negative": lambda m, x: 1 - x,
    "clip": lambda m, x: m.clip(x, -0.31, 0.72),
    "mod": lambda m, x: m.mod(x + 0.013, 0.7),
    "step": lambda m, x: m.where(x > 0.1, x * x, m.sin(x)),
    "stop": lambda m, x: x * m.stop_gradient(m.tanh(x)),
    "interp": lambda m, x: m.interp(x, *_knots(m, x)),
    "polyval": lambda m, x: m.tanh(m.polyval(m.stack([m.mean(x), 0.3 + 0.0 * m.mean(x), m.tanh(m.sum(x))]), x)),
    # reductions
    "sum": lambda m, x: m.tanh(m.sum(x)),
    "sum_first": lambda m, x: m.sum(x, axis=0),
    "mean_last": lambda m, x: m.mean(x, axis=-1),
    "max_last": lambda m, x: m.max(_apart(m, x), axis=-1),
    "min_kept": lambda m, x: m.min(_apart(m, x, 0), axis=0, keepdims=True) * x,
    "norm": lambda m, x: m.norm(x + 2.0, axis=-1),
    "prod": lambda m, x: m.prod(0.5 + m.sigmoid(x), axis=-1),
    "var": lambda m, x: m.var(x, axis=0),
    "std": lambda m, x: m.sqrt(0.1 + m.var(x, axis=-1, keepdims=True)) * x,
    "logsumexp": lambda m, x: m.logsumexp(x, axis=-1),
    "softmax": lambda m, x: m.softmax(x, axis=-1),
    "log_softmax": lambda m, x: 0.3 * m.log_softmax(x, axis=0),
    "trapezoid": lambda m, x: m.trapezoid(x, dx=0.5),
    # along an axis
    "cumsum": lambda m, x: m.tanh(m.cumsum(x, axis=0)),
    "cumprod": lambda m, x: m.cumprod(0.5 + m.sigmoid(x), axis=-1),
    "sort": lambda m, x: m.sort(_apart(m, x), axis=-1),
    "ranked": lambda m, x: m.take_along_axis(x * x, m.argsort(_apart(m, x), axis=-1), axis=-1),
    "largest": lambda m, x: x * (1.0 + m.argmax(_apart(m, x), axis=-1, keepdims=True)),
    "diff": lambda m, x: m.diff(x, axis=0),
    "flip": lambda m, x: m.flip(x, axis=0),
    "roll": lambda m, x: m.roll(x, 1, axis=0),
    # shapes
    "transpose": lambda m, x: m.transpose(x),
    "swap": lambda m, x: m.swapaxes(x, 0, -1),
    "move": lambda m, x: m.moveaxis(x, 0, -1),
    "ravel": lambda m, x: m.reshape(x, (-1,)),
    "column": lambda m, x: m.reshape(x, (-1, 1)),
    "expand": lambda m, x: m.expand_dims(x, 0),
    "broadcast": lambda m, x: m.broadcast_to(x, (2, *x.shape)),
    "repeat": lambda m, x: m.repeat(x[..., None], 2, axis=-1),
    "tile": lambda m, x: m.tile(x, 2),
    "pad": lambda m, x: m.pad(x, 1),
    "halves": lambda m, x: (lambda a, b: a * b[..., :1])(*m.split(m.concat([x, x], axis=0), 2)),
    "tril": lambda m, x: m.tril(x),
    "triu": lambda m, x: m.triu(x, 1),
    "diagonal": lambda m, x: m.diagonal(x),
    "diag": lambda m, x: m.diag(x),
    # indexing
    "every_second": lambda m, x: x[::2],
    "backwards": lambda m, x: x[::-1] * 0.5,
    "tail": lambda m, x: x[1:],
    "first": lambda m, x: x[0],
    "last_column": lambda m, x: x[..., -1],
    "positions": lambda m, x: x[np.array([1, 0, 1, -1]) % x.shape[0]],
    "pairs": lambda m, x: x[np.array([0, 1]) % x.shape[0], np.array([1, 1]) % x.shape[1]],
    "of_columns": lambda m, x: x[:, np.array([2, 0]) % x.shape[1]],
    "new_axis": lambda m, x: x[None, ..., 0],
    "mask": lambda m, x: x[np.array([True, False, True])],
    "take": lambda m, x: m.take(x, np.array([[2, 0], [1, 1]]) % x.shape[0], axis=0),
    "at_largest": lambda m, x: x[m.argmax(_apart(m, m.mean(m.reshape(x, (x.shape[0], -1)), axis=1)))],
    # matrices
    "solve": lambda m, x: m.solve(m.where_eye(0.3 * m.tanh(x)), m.sin(x)),
    "solve_vector": lambda m, x: m.solve(m.where_eye(0.3 * m.tanh(x)), x[0]),
    "cholesky": lambda m, x: m.cholesky(m.where_eye(0.3 * m.matmul(x, m.swapaxes(x, -1, -2)))),
    "inv": lambda m, x: m.linalg.inv(m.where_eye(0.3 * m.tanh(x))),
    "det": lambda m, x: m.tanh(m.linalg.det(m.where_eye(0.5 * m.tanh(x)))),
    "slogdet": lambda m, x: m.linalg.slogdet(m.where_eye(0.3 * m.tanh(x)))[1],
    "trace": lambda m, x: m.trace(x),
    "eigenvalues": lambda m, x: 0.3 * m.linalg.eigvalsh(_separate(m, x)),
    "eigenvectors": lambda m, x: m.linalg.eigh(_separate(m, x))[1] ** 2,
    # regions
    "loop": lambda m, x: m.fori_loop(0, 3, lambda i, c: m.sin(c) + 0.1 * c * (i + 1.0) + 0.2 * x, x),
    "loop_from": lambda m, x: m.fori_loop(2, 5, lambda i, c: m.tanh(c * i) + x[-1], x),
    "scan": lambda m, x: m.scan(lambda c, r: (m.tanh(c + r), c * r + m.sum(x)), x[0] * 0.0, x)[1],
    "scan_counted": lambda m, x: m.scan(lambda c, i: (m.sin(c) + 0.1 * i, c[..., :1]), x, length=3)[1],
    "scan_tree": _several,
    "branch": lambda m, x: m.cond(m.sum(x) > 0.1, lambda v: m.sin(v), lambda v: v * v, x),
    "branch_of_closure": lambda m, x: m.cond(m.max(x) > 0.5, lambda: x * m.exp(-x * x), lambda: m.log(2.0 + m.tanh(x))),
    "checkpoint": lambda m, x: m.checkpoint(lambda v: m.sin(v) * m.tanh(v * v))(x),
    "own_rule": lambda m, x: _twice(m)(x),
    "rows": lambda m, x: m.vmap(lambda r: m.sin(r) * m.sum(r))(x),
    "columns": lambda m, x: m.vmap(lambda c: m.cumsum(c), in_axes=1, out_axes=-1)(x),
    "turned": lambda m, x: m.vmap(lambda c: c * c[0], in_axes=-1, out_axes=0)(x),
    "loops_of_rows": lambda m, x: m.vmap(lambda r: m.fori_loop(0, 2, lambda i, c: m.sin(c) + r, r * 0.5))(x),
    "branches_of_rows": lambda m, x: m.vmap(
        lambda r: m.cond(m.sum(r) > 0.05, lambda v: m.tanh(v), lambda v: 0.5 * v * v, r)
    )(x),
    "slope": lambda m, x: m.grad(lambda v: m.sum(m.sin(v) * v))(x),
    "slopes": lambda m, x: m.vmap(m.grad(lambda r: m.sum(m.tanh(r) * r[0])))(x),
    "directional": lambda m, x: m.jvp(lambda v: m.sin(v) * m.sum(v), (x,), (m.cos(x),))[1],
}  # fmt: skip
BINARY: dict[str, Op] = {
    "add": lambda m, x, y: x + y,
    "sub": lambda m, x, y: x - 0.5 * y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / (1.5 + y * y),
    "power": lambda m, x, y: m.power(0.5 + m.sigmoid(x), m.tanh(y)),
    "maximum": lambda m, x, y: m.maximum(x, y + 0.01),
    "minimum": lambda m, x, y: m.minimum(x, y - 0.01),
    "select": lambda m, x, y: m.where(x < y + 0.01, x, y),
    "arctan2": lambda m, x, y: m.arctan2(x, 1.2 + m.sin(y)),
    "hypot": lambda m, x, y: m.hypot(x + 1.5, y),
    "logaddexp": lambda m, x, y: m.logaddexp(x, y),
    "matmul": lambda m, x, y: m.tanh(m.matmul(x, y)),
    "matmul_turned": lambda m, x, y: m.tanh(m.matmul(x, m.transpose(y))),
    "outer": lambda m, x, y: m.outer(x, y),
    "inner": lambda m, x, y: m.tanh(m.inner(x, y)),
    "kron": lambda m, x, y: m.kron(x, y),
    "cross": lambda m, x, y: m.tanh(m.cross(*_of_three(x, y))),
    "concat": lambda m, x, y: m.concat([x, y], axis=0),
    "stack": lambda m, x, y: m.stack([x, y], axis=-1),
    "by_rows": lambda m, x, y: m.einsum("ij,j->i", x, y),
    "diagonal_sum": lambda m, x, y: m.tanh(m.einsum("ij,ij->j", x, y)),
    "tensordot": lambda m, x, y: m.tanh(m.tensordot(x, y, 1)),
    "solve_both": lambda m, x, y: m.solve(m.where_eye(0.3 * m.tanh(x)), m.tanh(y)),
    "one_mapped": lambda m, x, y: m.vmap(lambda a, b: a * m.sum(b), in_axes=(0, None))(x, y),
    "scan_two": lambda m, x, y: m.scan(lambda c, r: (m.sin(c + r), c * m.sum(y)), x[0], x)[1],
    "loop_two": lambda m, x, y: m.fori_loop(0, 2, lambda i, c: (m.sin(c[1]), m.tanh(c[0] + y)), (x, x))[0],
    "choose": lambda m, x, y: m.cond(m.sum(y) > 0.2, lambda a, b: a + m.sum(b), lambda a, b: a * m.sum(b), x, y),
    "pulled": lambda m, x, y: m.grad(lambda v: m.sum(m.sin(v * m.sum(y))))(x),
}  # fmt: skip
# What JAX has no reverse mode, or no forward mode, of.
FORWARD_ONLY: dict[str, Op] = {
    "while": lambda m, x: m.while_loop(lambda c: m.sum(c * c) > 0.3, lambda c: 0.7 * m.sin(c), x),
    "while_of_rows": lambda m, x: m.vmap(
        lambda r: m.while_loop(lambda c: m.sum(c * c) > 0.3, lambda c: 0.7 * m.sin(c), r)
    )(x),
}
REVERSE_ONLY: dict[str, Op] = {"own_pullback": lambda m, x, y: _backwards(m)(x, m.tanh(m.sum(y)) + 0.0 * x)}

OPS: dict[str, tuple[int, Op]] = {
    **{n: (1, f) for n, f in (UNARY | FORWARD_ONLY).items()},
    **{n: (2, f) for n, f in (BINARY | REVERSE_ONLY).items()},
}


@dataclass(frozen=True)
class Random:
    """A program: steps `(name, operands)`; operand numbers count back from the latest value."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]

    def values(self, m: Any, *args: Any) -> list[Any]:
        found = list(args)
        for name, operands in self.steps:
            found.append(OPS[name][1](m, *(found[-1 - i] for i in operands)))
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


@functools.cache
def _shape(name: str, shapes: tuple[Any, ...]) -> Any:
    """The shape of the result, or None for an op that does not take these operands."""
    try:
        out = jax.eval_shape(
            lambda *xs: OPS[name][1](THEIRS, *xs), *(jax.ShapeDtypeStruct(s, jnp.float64) for s in shapes)
        )
    except (TypeError, ValueError, IndexError):
        return None
    fits = 0 < out.size <= 120 and len(out.shape) <= 3
    return tuple(out.shape) if fits and out.dtype == jnp.float64 else None


@st.composite
def programs(draw: Any, length: int = 7, more: tuple[str, ...] = ()) -> Random:
    """Programs of up to `length` steps, of the common ops and `more`."""
    shapes: list[Any] = list(SHAPES)
    steps: list[tuple[str, tuple[int, ...]]] = []
    names = [
        sorted([*UNARY, *(n for n in more if OPS[n][0] == 1)]),
        sorted([*BINARY, *(n for n in more if OPS[n][0] == 2)]),
    ]
    for _ in range(draw(st.integers(2, length))):
        name = draw(st.sampled_from(draw(st.sampled_from(names))))
        operands = tuple(draw(st.integers(0, min(len(shapes) - 1, 4))) for _ in range(OPS[name][0]))
        out = _shape(name, tuple(shapes[-1 - i] for i in operands))
        if out is not None:
            steps.append((name, operands))
            shapes.append(out)
    return Random(tuple(steps) or (("sin", (2,)),))


def arguments(seed: int, size: int | None = None) -> list[np.ndarray]:
    """Arguments for a program, or a batch of them."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s if size is None else (size, *s)) * 0.8 for s in SHAPES]
