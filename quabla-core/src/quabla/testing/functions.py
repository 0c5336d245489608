"""Functions for the conformance suite, as users write them: models, branches and loops, and what nests them.

Each takes two vectors of four elements and returns a scalar. They run through the public transforms and `jit`, and so
through the whole of what calls a compiled function: the signature, the guard, the native entry if the device has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.control.checkpoint import checkpoint
from quabla.control.cond import cond
from quabla.control.custom import custom_jvp, custom_vjp
from quabla.control.loops import fori_loop, scan
from quabla.control.whiles import while_loop
from quabla.ops.elementwise import abs as absolute
from quabla.ops.elementwise import cos, exp, sin, sqrt, tanh
from quabla.ops.linalg import solve
from quabla.ops.matmul import outer
from quabla.ops.reduce import max as max_of
from quabla.ops.reduce import mean, sum
from quabla.ops.sort import sort
from quabla.transforms.derivatives import grad, jvp
from quabla.transforms.vmap import vmap

__all__ = ["LANES", "TRANSFORMS", "Function", "functions"]

LANES = 3


@dataclass(frozen=True)
class Function:
    """A function of two vectors.

    Attributes:
        name: what it shows.
        fun: the function.
        without: names of transforms that the function does not allow, for every device.
    """

    name: str
    fun: Callable[[Any, Any], Any]
    without: frozenset[str] = frozenset()


def _pinn(x: Any, w: Any) -> Any:
    def u(t: Any) -> Any:
        return sum(w * tanh(x * t + w[::-1]))

    return mean((vmap(grad(grad(u)))(x) + u(x[0])) ** 2)


def _system(x: Any, w: Any) -> Any:
    dominant = wrap((4.0 * np.eye(4)).astype(x.dtype.numpy))
    return sum(solve(outer(tanh(w), cos(x)) + dominant, x) * w)


def _sorted(x: Any, w: Any) -> Any:
    return sum(sort(x * w) * w[::-1])


def _cond(x: Any, w: Any) -> Any:
    return cond(sum(x) > sum(w), lambda a: sum(sin(a) * w), lambda a: sum(exp(-a * a)) + x[1], x + w)


def _cond_in_cond(x: Any, w: Any) -> Any:
    def inner(a: Any) -> Any:
        return cond(a[0] * w[0] > 0.0, lambda b: sum(b * b), lambda b: sum(b * w) ** 2, a)

    return cond(x[0] > -10.0, inner, lambda a: sum(a), x) + cond(w[0] > 10.0, sum, inner, w)


def _fori(x: Any, w: Any) -> Any:
    return sum(fori_loop(0, 5, lambda i, c: tanh(c * w + i * 0.1) + x, x))


def _scan(x: Any, w: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        a, b = row
        c = sin(c * a) + w * b
        return c, sum(c * c)

    last, ys = scan(step, x, (x, w))
    return sum(last) + sum(ys * x)


def _scan_of_pairs(x: Any, w: Any) -> Any:
    (p, q), energy = scan(
        lambda c, i: ((c[0] + 0.1 * c[1], c[1] - 0.1 * sin(c[0])), sum(c[1] ** 2) * i), (x, w), length=6
    )
    return sum(p * q) + mean(energy)


def _while(x: Any, w: Any) -> Any:
    return sum(while_loop(lambda c: max_of(absolute(c)) < 8.0, lambda c: c * 1.5 + 0.1 * w, x, max_steps=40))


def _endless(x: Any, w: Any) -> Any:
    return sum(while_loop(lambda c: max_of(absolute(c)) < 8.0, lambda c: c * 1.5 + 0.1 * w, x))


def _nested(x: Any, w: Any) -> Any:
    def body(i: Any, c: Any) -> Any:
        grown = while_loop(lambda s: sum(s * s) < 3.0, lambda s: s * 2.0 + 0.1, c, max_steps=12)
        return cond(sum(grown) > i, lambda s: s / (1.0 + sqrt(sum(s * s))), lambda s: s * w, grown)

    return sum(fori_loop(0, 4, body, x) * w)


def _checkpointed(x: Any, w: Any) -> Any:
    block = checkpoint(lambda c: tanh(c * w) + sin(c))
    return sum(block(block(x)))


def _own_tangent(x: Any, w: Any) -> Any:
    rule = custom_jvp(lambda a: sin(a) * a)
    rule.defjvp(lambda primals, tangents: (sin(primals[0]) * primals[0], 2.0 * tangents[0] * cos(primals[0])))
    return sum(rule(x) * w)


def _own_cotangent(x: Any, w: Any) -> Any:
    rule = custom_vjp(lambda a: sin(a) * a)
    rule.defvjp(lambda a: (sin(a) * a, a), lambda a, ct: (3.0 * ct * cos(a),))
    return sum(rule(x) * w)


def functions() -> Iterator[Function]:
    """Every function of the suite."""
    yield Function("pinn", _pinn)
    yield Function("linear_system", _system)
    yield Function("sort", _sorted)
    yield Function("cond", _cond)
    yield Function("cond_in_cond", _cond_in_cond)
    yield Function("fori_loop", _fori)
    yield Function("scan", _scan)
    yield Function("scan_of_pairs", _scan_of_pairs)
    yield Function("while_loop", _while)
    yield Function("while_without_bound", _endless, frozenset({"grad", "jvp of grad", "vmap of grad"}))
    yield Function("loops_and_branches", _nested)
    yield Function("checkpoint", _checkpointed)
    yield Function("custom_jvp", _own_tangent)
    yield Function("custom_vjp", _own_cotangent, frozenset({"jvp", "jvp of grad"}))


Fun = Callable[..., Any]

TRANSFORMS: dict[str, tuple[Callable[[Fun], Fun], str]] = {
    "value": (lambda f: f, "xw"),
    "jvp": (lambda f: lambda x, w, t, u: jvp(f, (x, w), (t, u)), "xwtu"),
    "grad": (lambda f: grad(f, argnums=(0, 1)), "xw"),
    "jvp of grad": (lambda f: lambda x, w, t, u: jvp(grad(f, argnums=(0, 1)), (x, w), (t, u)), "xwtu"),
    "vmap": (lambda f: vmap(f, in_axes=(0, None)), "Xw"),
    "vmap of grad": (lambda f: vmap(grad(f, argnums=(0, 1))), "XW"),
}
"""Name, what it makes of a function, and its operands: vectors, and in capitals `LANES` vectors."""
