"""Options that are whole numbers: integers of any library pass, truth values and floats do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

X = np.arange(6.0).reshape(2, 3) + 1.0
V = X[0]


def _trained(i: Callable[[int], Any]) -> Any:
    trainer = qb.optim.Trainer(
        lambda w, a: qb.sum(w * a), qb.array(V), qb.optim.SGD(0.1), qb.array(X), batch_argnums=i(0)
    )
    trainer.step(qb.array(2.0 * X))
    return trainer.params


def _positions(i: Callable[[int], Any]) -> Any:
    f = qb.custom_jvp(lambda a, n: a * n, nondiff_argnums=(i(1),))
    f.defjvp(lambda n, primals, tangents: (primals[0] * n, tangents[0] * n))
    return qb.grad(lambda a: qb.sum(f(a, 2.0)))(qb.array(V))


# Each takes what makes an option of a number; 1 and 0 are as good as any, so that truth values fit in their place.
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "in_axes": lambda i: qb.vmap(qb.sum, in_axes=i(1))(X),
    "in_axes_tuple": lambda i: qb.vmap(lambda a, b: qb.sum(a) * b, in_axes=(i(1), None))(X, V[0]),
    "in_axes_tree": lambda i: qb.vmap(lambda a: qb.sum(a["q"]), in_axes=({"q": i(1)},))({"q": X}),
    "out_axes": lambda i: qb.vmap(lambda r: r * 2.0, out_axes=i(1))(X),
    "chunk_size": lambda i: qb.vmap(qb.sum, chunk_size=i(1))(X),
    "jacobian_chunk_size": lambda i: qb.jacobian(lambda a: a * a, chunk_size=i(1))(V),
    "argnums": lambda i: qb.grad(lambda a, b: qb.sum(a * b * b), argnums=i(1))(X, X),
    "argnums_tuple": lambda i: qb.grad(lambda a, b: qb.sum(a * b), argnums=(i(0), i(1)))(X, X),
    "jacobian_argnums": lambda i: qb.jacobian(lambda a, b: a * b, argnums=i(1))(V, V),
    "hessian_argnums": lambda i: qb.hessian(lambda a, b: qb.sum(a * b * b), argnums=i(1))(V, V),
    "static_argnums": lambda i: qb.jit(lambda a, n: a * n, static_argnums=i(1))(X, 2.0),
    "static_argnums_tuple": lambda i: qb.jit(lambda a, n: a * n, static_argnums=(i(1),))(X, 2.0),
    "checkpoint_static_argnums": lambda i: qb.checkpoint(lambda a, n: a * n, static_argnums=i(1))(qb.array(V), 2.0),
    "nondiff_argnums": _positions,
    "batch_argnums": _trained,
    "max_traces": lambda i: qb.jit(lambda a: a * 2.0, max_traces=i(1))(X),
    "length": lambda i: qb.scan(lambda c, j: (c + 1.0, c), 0.0, length=i(1)),
    "bounds": lambda i: qb.fori_loop(i(0), i(1), lambda j, c: c + 1.0, 0.0),
    "max_steps": lambda i: qb.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, 0.0, max_steps=i(1)),
    "max_steps_traced": lambda i: qb.jit(
        lambda z: qb.while_loop(lambda c: c < 9.0, lambda c: c + 1.0, z, max_steps=i(1))
    )(1.0),
    "axis": lambda i: qb.sum(X, axis=i(1)),
    "axes": lambda i: qb.sum(X, axis=(i(0), i(1))),
    "shape": lambda i: qb.ones(i(1)),
    "shape_tuple": lambda i: qb.ones((i(1), i(1))),
    "reshape": lambda i: qb.reshape(X, (i(1), 6)),
    "tensordot_axes": lambda i: qb.tensordot(X, X.T, axes=i(1)),
    "roll": lambda i: qb.roll(X, i(1), axis=i(1)),
    "split": lambda i: qb.split(X, i(1))[0],
    "diff": lambda i: qb.diff(X, i(1)),
    "diagonal": lambda i: qb.tril(X, i(1)),
    "repeat": lambda i: qb.repeat(X, i(1)),
    "position": lambda i: qb.array(X)[i(1)],
    "norm_order": lambda i: qb.norm(X.astype(np.float32), 1, ord=i(1)),
    "ddof": lambda i: qb.std(X.astype(np.float32), 1, ddof=i(1)),
}  # fmt: skip
FLOATS = {"norm_order", "ddof"}


def leaves(value: Any) -> list[Any]:
    return [(x.dtype, x.shape, x.tolist()) for x in qb.tree.leaves(value)]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.intp])
@pytest.mark.parametrize("name", OPTIONS)
def test_integers_of_numpy_pass(name: str, kind: Any) -> None:
    assert leaves(OPTIONS[name](kind)) == leaves(OPTIONS[name](int))


@pytest.mark.parametrize("kind", [bool, np.bool_, float, np.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_others_are_refused(name: str, kind: Any) -> None:
    if name in FLOATS and kind in (float, np.float64):
        assert leaves(OPTIONS[name](kind)) == leaves(OPTIONS[name](int))
        return
    with pytest.raises(qb.QuablaError):
        OPTIONS[name](kind)
