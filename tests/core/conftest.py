"""Control flow and its oracle: programs written once, run as regions, as straight-line code, and with JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quabla as qb

NAMES = "sin cos exp log sqrt tanh sum stack where any abs relu maximum".split()
REGIONS = SimpleNamespace(
    **{n: getattr(qb, n) for n in NAMES},
    cond=qb.cond,
    fori_loop=qb.fori_loop,
    scan=qb.scan,
    while_loop=qb.while_loop,
)


class Straight:
    """Control flow without regions: decisions are taken once on concrete values, then replayed under any transform.

    No branch not taken and no step not made ever exists here, so nothing of them can leak into a derivative.
    """

    def __init__(self) -> None:
        self.decisions: list[bool] = []
        self.replayed: Iterator[bool] | None = None
        for name in NAMES:
            setattr(self, name, getattr(qb, name))

    def decide(self, pred: Any) -> bool:
        if self.replayed is not None:
            return next(self.replayed)
        self.decisions.append(bool(pred.item()) if isinstance(pred, qb.Tensor) else bool(pred))
        return self.decisions[-1]

    def cond(self, pred: Any, true: Any, false: Any, *operands: Any) -> Any:
        return (true if self.decide(pred) else false)(*operands)

    def fori_loop(self, lower: int, upper: int, body: Any, init: Any, operands: Any = ()) -> Any:
        for i in range(lower, upper):
            init = body(i, init, *operands)
        return init

    def scan(self, f: Any, init: Any, xs: Any = None, length: int = 0, operands: Any = ()) -> Any:
        length = length or qb.tree.flatten(xs)[0][0].shape[0]
        ys = []
        for i in range(length):
            init, y = f(init, i if xs is None else qb.tree.map(lambda x: x[i], xs), *operands)  # noqa: B023
            ys.append(y)
        return init, qb.tree.map(lambda *rows: qb.stack(rows), *ys)

    def while_loop(
        self, cond: Any, body: Any, init: Any, max_steps: int | None = None, operands: Any = ()
    ) -> Any:
        steps = 0
        while (max_steps is None or steps < max_steps) and self.decide(cond(init, *operands)):
            init = body(init, *operands)
            steps += 1
        return init


def straight(f: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """`f(m, *args)` as straight-line code, with the decisions that it takes at these arguments."""
    m = Straight()
    f(m, *args)

    def run(*xs: Any) -> Any:
        m.replayed = iter(m.decisions)
        return f(m, *xs)

    return run


# Transforms of a scalar function of x[n] and w[], as functions of (x, w, tangent of x): first, second and third order.
LADDER: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "value": lambda f: lambda x, w, t: f(x, w),
    "grad": lambda f: lambda x, w, t: qb.grad(f, (0, 1))(x, w),
    "jvp": lambda f: lambda x, w, t: qb.jvp(f, (x, w), (t, 0.5 * w)),
    "jacobian": lambda f: lambda x, w, t: qb.jacobian(lambda w: qb.stack([f(x, w), w * f(x, w)]))(w),
    "hessian": lambda f: lambda x, w, t: qb.hessian(f)(x, w),
    "mixed": lambda f: lambda x, w, t: qb.grad(lambda w: qb.sum(t * qb.grad(f)(x, w)))(w),
    "forward_over_reverse": lambda f: lambda x, w, t: qb.jvp(qb.grad(f, (0, 1)), (x, w), (t, 0.5 * w)),
    "reverse_over_forward": lambda f: (
        lambda x, w, t: qb.grad(lambda x: qb.jvp(f, (x, w), (t, 0.5 * w))[1])(x)
    ),
    "reverse_over_reverse": lambda f: (
        lambda x, w, t: qb.grad(lambda x, w: qb.sum(qb.grad(f)(x, w) * t), (0, 1))(x, w)
    ),
    "third_reverse": lambda f: (
        lambda x, w, t: qb.grad(lambda x: qb.sum(t * qb.grad(lambda x: qb.sum(t * qb.grad(f)(x, w)))(x)))(x)
    ),
    "third_hessian": lambda f: lambda x, w, t: qb.grad(lambda w: qb.sum(qb.hessian(f)(x, w) * t))(w),
    "third_forward": lambda f: (
        lambda x, w, t: qb.jvp(
            lambda x: qb.jvp(lambda x: qb.jvp(lambda x: f(x, w), (x,), (t,))[1], (x,), (t,))[1], (x,), (t,)
        )
    ),
}
FORWARD = ("value", "jvp", "third_forward")
QUICK = ("value", "grad", "hessian", "reverse_over_reverse", "third_reverse")
SLOW = tuple(name for name in LADDER if name not in QUICK)


def close(found: Any, expected: Any, rtol: float, where: str) -> None:
    """The same tree of the same numbers; NaN and infinities must stand in the same places."""
    leaves, treedef = qb.tree.flatten(found)
    wanted, other = qb.tree.flatten(expected)
    assert treedef == other, where
    scale = max([1.0, *(np.abs(w.numpy())[np.isfinite(w.numpy())].max(initial=0.0) for w in wanted)])
    for a, b in zip(leaves, wanted, strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype, (where, a, b)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol * scale, err_msg=where)


class Control:
    """What the tests of control flow ask for."""

    regions = REGIONS
    ladder = LADDER
    forward, quick, slow = FORWARD, QUICK, SLOW
    straight = staticmethod(straight)
    close = staticmethod(close)

    def climb(self, f: Any, points: Any, names: Any = tuple(LADDER), rtol: float = 1e-10) -> None:
        """`f(m, x, w)` under every transform, at each point, compiled, and mapped over all points."""

        def region(x: Any, w: Any) -> Any:
            return f(REGIONS, x, w)

        xs, ws, ts = (qb.stack([qb.array(p[i]) for p in points]) for i in range(3))
        for name in names:
            rung = LADDER[name]
            expected = []
            for x, w, t in points:
                args = tuple(qb.array(a) for a in (x, w, t))
                expected.append(qb.jit(rung(straight(f, *args[:2])), device="reference")(*args))
                close(qb.jit(rung(region))(*args), expected[-1], rtol, f"jit of {name}")
            close(rung(region)(*args), expected[-1], rtol, name)
            stacked = qb.tree.map(lambda *rows: qb.stack(rows), *expected)
            close(qb.jit(qb.vmap(rung(region)))(xs, ws, ts), stacked, rtol, f"vmap of {name}")
            # One argument mapped at a time.
            x, w, t = (a[0] for a in (xs, ws, ts))
            rows = [
                qb.jit(rung(straight(f, xs[i], w)), device="reference")(xs[i], w, t)
                for i in range(len(points))
            ]
            stacked = qb.tree.map(lambda *rows: qb.stack(rows), *rows)
            close(qb.vmap(rung(region), (0, None, None))(xs, w, t), stacked, rtol, f"vmap of {name} over x")
            rows = [
                qb.jit(rung(straight(f, x, ws[i])), device="reference")(x, ws[i], t)
                for i in range(len(points))
            ]
            stacked = qb.tree.map(lambda *rows: qb.stack(rows), *rows)
            close(qb.vmap(rung(region), (None, 0, None))(x, ws, t), stacked, rtol, f"vmap of {name} over w")
        if "grad" in names:
            total = qb.grad(lambda xs, w: qb.sum(qb.vmap(region, (0, None))(xs, w)), (0, 1))
            rows = [qb.jit(qb.grad(straight(f, x, w), (0, 1)), device="reference")(x, w) for x in xs]
            expected_total = (qb.stack([r[0] for r in rows]), sum((r[1] for r in rows[1:]), rows[0][1]))
            close(qb.jit(total)(xs, w), expected_total, rtol, "grad of vmap")
        if "hessian" in names:
            second = qb.hessian(lambda w: qb.sum(qb.vmap(region, (0, None))(xs, w)))
            rows = [qb.jit(qb.hessian(straight(f, x, w), 1), device="reference")(x, w) for x in xs]
            close(qb.jit(second)(w), sum(rows[1:], rows[0]), rtol, "hessian of vmap")


@pytest.fixture(scope="session")
def control() -> Control:
    """The ladder of transforms over control flow."""
    return Control()
