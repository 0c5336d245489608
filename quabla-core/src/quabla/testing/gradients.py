"""`check_grads`: the derivatives of a user's function against numbers, to any order."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.convert import asarray
from quabla.errors import DtypeError
from quabla.testing.numeric import assert_close, assert_dot_identity, central_difference, random_like
from quabla.transforms.derivatives import jvp, vjp

__all__ = ["check_grads"]


def check_grads(
    fun: Callable[..., Any], args: Sequence[Any], order: int = 2, *, rtol: float | None = None, seed: int = 0
) -> None:
    """Check the derivatives of a function by numbers.

    Forward mode is compared with central differences of the function along a random direction (fourth order), reverse
    mode with forward mode through the identity <ct, J t> = <J' ct, t>. For higher orders the same is done for the
    derivatives themselves, in both modes.

    Args:
        fun: a function of arrays and pytrees of arrays, smooth near `args`.
        args: its positional arguments, a tuple. Floating leaves are varied, others held fixed; numbers become arrays.
        order: up to which order of derivatives.
        rtol: the tolerance, relative to each element and to the largest; by default 1e-7 in float64, 2e-2 in float32
            (float32 differences have few digits: check in float64 what can be).
        seed: of the random directions.

    Raises:
        AssertionError: the derivatives disagree; the message names mode, order and element.
        DtypeError: there is no floating argument, or no floating result.

    Example:
        >>> import quabla as qb
        >>> from quabla.testing import check_grads
        >>> check_grads(lambda x, w: qb.sum(qb.tanh(x @ w)), (qb.ones((2, 3)), qb.full((3, 4), 0.1)), order=2)
        >>> wrong = lambda x: qb.stop_gradient(x) * x
        >>> try:
        ...     check_grads(wrong, (qb.array(3.0),), order=1)
        ... except AssertionError as error:
        ...     print(error)
        JVP of order 1 against differences: result 0, element (): ...
    """
    if isinstance(args, (str, bytes)) or not isinstance(args, (tuple, list)):
        raise DtypeError(
            f"check_grads: args is a tuple of arguments, got a {type(args).__name__}; write (x,) for one"
        )
    _check(fun, tuple(args), 1, order, rtol, np.random.default_rng(seed), "")


def _check(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    level: int,
    order: int,
    rtol: float | None,
    rng: Any,
    trail: str,
) -> None:
    flat, treedef = tree.flatten(args)
    leaves = [asarray(leaf) for leaf in flat]
    moving = [i for i, leaf in enumerate(leaves) if leaf.dtype.kind == "f"]
    if not moving:
        raise DtypeError("check_grads: no argument is floating, so there is nothing to differentiate")
    exact = builtins.all(leaves[i].dtype.name == "float64" for i in moving)
    tolerance = rtol if rtol is not None else 1e-7 if exact else 2e-2
    step = 2e-4 if exact else 3e-2

    def outputs(value: Any) -> list[np.ndarray]:
        found = [a for a in (asarray(leaf).numpy() for leaf in tree.flatten(value)[0]) if a.dtype.kind == "f"]
        if not found:
            raise DtypeError(
                "check_grads: the function has no floating result, so there is nothing to differentiate"
            )
        return [a.astype(np.float64) for a in found]

    def put(arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """The arguments with other floating leaves."""
        rest = iter(arrays)
        changed = [
            asarray(np.asarray(next(rest), leaf.dtype.numpy)) if i in moving else leaf
            for i, leaf in enumerate(leaves)
        ]
        return tuple(tree.unflatten(treedef, changed))

    def of_moving(*arrays: Any) -> Any:
        """`fun` as a function of the floating leaves alone."""
        rest = iter(arrays)
        return fun(
            *tree.unflatten(treedef, [next(rest) if i in moving else leaf for i, leaf in enumerate(leaves)])
        )

    x = [leaves[i].numpy() for i in moving]
    tangents = [random_like(rng, a) for a in x]
    primals, directions = tuple(map(asarray, x)), tuple(map(asarray, tangents))
    where = f"of order {level}{trail}"

    # The direction as `x + t` rounds it: in float32 a step must be one that the arithmetic can take.
    _, moved = jvp(of_moving, primals, directions)
    expected = central_difference(lambda arrays: outputs(fun(*put(arrays))), x, tangents, step)
    assert_close(f"JVP {where} against differences", outputs(moved), expected, tolerance, tolerance)

    value, pullback = vjp(of_moving, *primals)
    cotangent = tree.map(lambda v: asarray(random_like(rng, asarray(v).numpy())), value)
    grads = pullback(cotangent)
    assert_dot_identity(
        f"VJP {where} against JVP", outputs(cotangent), outputs(moved), outputs(grads),
        [t.astype(np.float64) for t in tangents], 1e-10 if exact else 1e-4,
    )  # fmt: skip
    if level < order:
        _check(
            lambda *a: jvp(of_moving, a, directions)[1],
            primals,
            level + 1,
            order,
            rtol,
            rng,
            f"{trail} (JVP)",
        )
        _check(
            lambda *a: vjp(of_moving, *a)[1](cotangent),
            primals,
            level + 1,
            order,
            rtol,
            rng,
            f"{trail} (VJP)",
        )
