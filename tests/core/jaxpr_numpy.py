"""What a JAX function computes, without XLA, whose compilation would take longer than all the rest: its jaxpr in NumPy.

The derivation (transforms, rules, batching) is JAX's; the elements come from NumPy. A primitive without an entry here
is applied by JAX itself, so that the table decides about speed and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special

__all__ = ["run"]

Rule = Callable[..., Any]


def run(f: Callable[..., Any], *args: Any) -> Any:
    """`f(*args)`, a pytree of NumPy arrays."""
    closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    flat = [np.asarray(x) for x in jax.tree.leaves(args)]
    with np.errstate(all="ignore"):
        outs = _evaluate(closed.jaxpr, closed.consts, flat)
    return jax.tree.unflatten(jax.tree.structure(shape), outs)


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = {}

    def read(v: Any) -> Any:
        return np.asarray(v.val, v.aval.dtype) if hasattr(v, "val") else env[v]

    for variables, values in ((jaxpr.constvars, consts), (jaxpr.invars, args)):
        env.update(zip(variables, map(np.asarray, values), strict=True))
    for eqn in jaxpr.eqns:
        xs = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        if name in POINTWISE:
            outs = [POINTWISE[name](*xs)]
        elif name in STRUCTURE:
            outs = [STRUCTURE[name](*xs, **eqn.params)]
        elif name in REGIONS:
            outs = REGIONS[name](*xs, **eqn.params)
        else:
            out = eqn.primitive.bind(*map(jax.numpy.asarray, xs), **eqn.params)
            outs = out if eqn.primitive.multiple_results else [out]
        for v, out in zip(eqn.outvars, outs, strict=True):
            env[v] = np.asarray(out, v.aval.dtype)
            assert env[v].shape == v.aval.shape, (name, env[v].shape, v.aval)
    return [read(v) for v in jaxpr.outvars]


POINTWISE: dict[str, Rule] = {
    **{n: getattr(np, n) for n in "sin cos tan tanh sinh cosh exp exp2 expm1 log log1p sqrt cbrt abs sign".split()},
    **{n: getattr(np, n) for n in "floor ceil square maximum minimum".split()},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "neg": np.negative, "pow": np.power, "rem": np.fmod, "nextafter": np.nextafter,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "is_finite": np.isfinite, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "logistic": scipy.special.expit,
    "rsqrt": lambda x: 1 / np.sqrt(x), "stop_gradient": lambda x: x, "copy": lambda x: x, "copy_p": lambda x: x,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": lambda which, *cases: np.where(which, cases[1], cases[0]),
}  # fmt: skip


def _broadcast(x: Any, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    wide = [1] * len(shape)
    for n, d in zip(x.shape, broadcast_dimensions, strict=True):
        wide[d] = n
    return np.broadcast_to(x.reshape(wide), shape)


def _dot(x: Any, y: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    (cx, cy), (bx, by) = dimension_numbers
    names = iter(range(52))
    left = [next(names) for _ in x.shape]
    right = [-1] * y.ndim
    for a, b in (*zip(cx, cy, strict=True), *zip(bx, by, strict=True)):
        right[b] = left[a]
    right = [next(names) if n < 0 else n for n in right]
    out = [left[a] for a in bx]
    out += [n for a, n in enumerate(left) if a not in bx and a not in cx]
    out += [n for b, n in enumerate(right) if b not in by and b not in cy]
    return np.einsum(x, left, y, right, out)


def _pad(x: Any, value: Any, *, padding_config: Any) -> Any:
    shape = [
        low + high + n + max(n - 1, 0) * gap
        for n, (low, high, gap) in zip(x.shape, padding_config, strict=True)
    ]
    # Negative widths cut: the elements are placed in an array wide enough, of which a part is the result.
    cut = [(max(-low, 0), max(-high, 0)) for low, high, _ in padding_config]
    out = np.full([n + a + b for n, (a, b) in zip(shape, cut, strict=True)], value, x.dtype)
    at = tuple(
        slice(max(low, 0), max(low, 0) + (n - 1) * (gap + 1) + 1 if n else max(low, 0), gap + 1)
        for n, (low, _, gap) in zip(x.shape, padding_config, strict=True)
    )
    out[at] = x
    return out[tuple(slice(a, out.shape[i] - b) for i, (a, b) in enumerate(cut))]


def _cumulative(ufunc: Any) -> Rule:
    def rule(x: Any, *, axis: int, reverse: bool) -> Any:
        return (
            np.flip(ufunc.accumulate(np.flip(x, axis), axis), axis) if reverse else ufunc.accumulate(x, axis)
        )

    return rule


STRUCTURE: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot,
    "pad": _pad,
    "reshape": lambda x, *, new_sizes, dimensions=None, **_: (
        x if dimensions is None else x.transpose(dimensions)
    ).reshape(new_sizes),
    "transpose": lambda x, *, permutation: x.transpose(permutation),
    "squeeze": lambda x, *, dimensions: x.squeeze(dimensions),
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, dimensions),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "slice": lambda x, *, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))
    ],
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype),
    "reduce_sum": lambda x, *, axes, **_: x.sum(tuple(axes)),
    "reduce_prod": lambda x, *, axes, **_: x.prod(tuple(axes)),
    "reduce_max": lambda x, *, axes, **_: x.max(tuple(axes)),
    "reduce_min": lambda x, *, axes, **_: x.min(tuple(axes)),
    "reduce_and": lambda x, *, axes, **_: x.all(tuple(axes)),
    "reduce_or": lambda x, *, axes, **_: x.any(tuple(axes)),
    "integer_pow": lambda x, *, y: x**y if y >= 0 else 1 / x ** (-y),
    "iota": lambda *, dtype, shape, dimension, **_: np.broadcast_to(
        np.arange(shape[dimension], dtype=dtype).reshape(
            [-1 if i == dimension else 1 for i in range(len(shape))]
        ),
        shape,
    ),
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _cumulative(np.maximum),
}


def _inner(closed: Any, xs: Sequence[Any]) -> list[Any]:
    return (
        _evaluate(closed.jaxpr, closed.consts, xs) if hasattr(closed, "consts") else _evaluate(closed, (), xs)
    )


def _scan(
    *xs: Any, jaxpr: Any, length: int, reverse: bool, num_consts: int, num_carry: int, **_: Any
) -> list[Any]:
    consts, carry = list(xs[:num_consts]), list(xs[num_consts : num_consts + num_carry])
    rows = xs[num_consts + num_carry :]
    found: list[Any] = [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        outs = _inner(jaxpr, [*consts, *carry, *(x[i] for x in rows)])
        carry, found[i] = outs[:num_carry], outs[num_carry:]
    return [*carry, *(np.stack(ys) for ys in zip(*found, strict=True))]


def _while(
    *xs: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **_: Any
) -> list[Any]:
    of_cond, of_body = xs[:cond_nconsts], xs[cond_nconsts : cond_nconsts + body_nconsts]
    carry = list(xs[cond_nconsts + body_nconsts :])
    while True:
        goes_on = _inner(cond_jaxpr, [*of_cond, *carry])[0]  # a number, or one per lane
        if not goes_on.any():
            break
        new = _inner(body_jaxpr, [*of_body, *carry])
        lanes = [goes_on.reshape(goes_on.shape + (1,) * (x.ndim - goes_on.ndim)) for x in new]
        carry = [np.where(on, x, before) for on, x, before in zip(lanes, new, carry, strict=True)]
    return carry


REGIONS: dict[str, Rule] = {
    "jit": lambda *xs, jaxpr, **_: _inner(jaxpr, xs),
    "pjit": lambda *xs, jaxpr, **_: _inner(jaxpr, xs),
    "closed_call": lambda *xs, call_jaxpr, **_: _inner(call_jaxpr, xs),
    "core_call": lambda *xs, call_jaxpr, **_: _inner(call_jaxpr, xs),
    "remat2": lambda *xs, jaxpr, **_: _inner(jaxpr, xs),
    "checkpoint": lambda *xs, jaxpr, **_: _inner(jaxpr, xs),
    "custom_jvp_call": lambda *xs, call_jaxpr, **_: _inner(call_jaxpr, xs),
    "custom_vjp_call": lambda *xs, call_jaxpr, **_: _inner(call_jaxpr, xs),
    "custom_vjp_call_jaxpr": lambda *xs, fun_jaxpr, **_: _inner(fun_jaxpr, xs),
    "scan": _scan,
    "while": _while,
    "cond": lambda which, *xs, branches, **_: _inner(branches[int(np.clip(which, 0, len(branches) - 1))], xs),
}
