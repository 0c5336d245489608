"""Cotangents with zeros that a `where` has put there: such a zero stays zero.

The derivative rule of `where` gives the branch that is not taken a cotangent of 0. The rules that follow would multiply
it by derivatives that do not count, and those may be infinite or NaN. So the mask is moved behind each of them:
where(c, ct, 0) times a derivative becomes where(c, ct times derivative, 0). That costs nothing, changes no other
element, and is what forward mode does anyway.

It reaches through elementwise ops, broadcasting and sums over axes, sums of cotangents, `reshape`, `transpose`,
`concat` (and so `stack`) and `checkpoint`, and into the branches of `cond`: regions take masks along as operands. It
ends at ops that mix elements or place them among others: products of matrices, slices, positions, the carry of a loop.
What the mask has kept out until there stays out; behind them, a zero is a number like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from quabla.arrays.tracer import TraceTensor, bind, full_value
from quabla.ir.op import OPS

__all__ = ["add_cotangents", "moved", "summed", "through_mask", "with_masks"]


def _masked(ct: Any) -> tuple[Any, Any, int] | None:
    """Condition and cotangent where `ct` is a selection between a cotangent and 0, and which of the two is kept: 1 if
    the condition holds, 2 if not."""
    node = ct.node if type(ct) is TraceTensor else None
    if node is None or node.op.name != "where":
        return None
    c, x, y = node.inputs
    if full_value(y) == 0.0:
        return c, x, 1
    return (c, y, 2) if full_value(x) == 0.0 else None


def _select(c: Any, x: Any, side: int) -> Any:
    zero = x.frame.full(0.0, x.aval)
    return bind(OPS["where"], (c, x, zero) if side == 1 else (c, zero, x), {})


def through_mask(ct: Any, function: Callable[[Any], Any], of_mask: Callable[[Any], Any] | None = None) -> Any:
    """`function(ct)` for a linear map, with the mask of `ct` applied afterwards.

    Args:
        ct: a cotangent.
        function: takes a cotangent; may return None for zero.
        of_mask: what happens to the mask; nothing if None.
    """
    found = _masked(ct)
    if found is None:
        return function(ct)
    c, inner, side = found
    out = through_mask(inner, function, of_mask)
    return None if out is None else _select(c if of_mask is None else of_mask(c), out, side)


def moved(ct: Any, function: Callable[[Any], Any]) -> Any:
    """`function(ct)` for a function that puts elements elsewhere or repeats them, and so does the same to a mask."""
    return through_mask(ct, function, function)


def summed(
    ct: Any, total: Callable[[Any], Any], some: Callable[[Any], Any], single: Callable[[Any], Any]
) -> Any:
    """The sums `total(ct)` of groups of elements, masked where all elements of a group are.

    Args:
        ct: a cotangent.
        total: the sums.
        some: from the condition per element to whether it holds for any of the group.
        single: the same without computing anything, where it is one condition for all of them; else None.
    """
    inner, layers = _layers(ct)
    if not layers:
        return total(ct)
    conditions = [single(c) for c, _ in layers]
    if None not in conditions:
        out = total(inner)
        for c, (_, side) in zip(reversed(conditions), reversed(layers), strict=True):
            out = _select(c, out, side)
        return out
    kept = [c if side == 1 else bind(OPS["logical_not"], (c,), {}) for c, side in layers]
    return _select(some(reduce(lambda a, b: bind(OPS["logical_and"], (a, b), {}), kept)), total(ct), 1)


def _layers(ct: Any) -> tuple[Any, list[tuple[Any, int]]]:
    """A cotangent without its masks, and these with the side that each keeps, outermost first."""
    layers = []
    while (found := _masked(ct)) is not None:
        c, ct, side = found
        layers.append((c, side))
    return ct, layers


def add_cotangents(x: Any, y: Any) -> Any:
    """The sum of two cotangents of one value. Elements that a `where` has left out of both stay left out."""
    total = bind(OPS["add"], (x, y), {})
    first, second = _masked(x), _masked(y)
    if first is None or second is None:
        return total
    (c, a, side), (d, b, other) = first, second
    if c is d:
        return _select(c, add_cotangents(a, b), side) if side == other else total
    if other != side:
        d = bind(OPS["logical_not"], (d,), {})
    union = bind(OPS["logical_or" if side == 1 else "logical_and"], (c, d), {})
    return _select(union, total, side)


def with_masks(cts: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Cotangents as operands of a region.

    Args:
        cts: the cotangents.

    Returns:
        The operands: each cotangent without its masks, then these; and a function that puts them together in the
        region, where rules see the masks again.
    """
    apart = [_layers(ct) for ct in cts]
    operands = [x for ct, layers in apart for x in (ct, *(c for c, _ in layers))]

    def put_together(values: Sequence[Any]) -> list[Any]:
        rest, out = iter(values), []
        for _, layers in apart:
            ct, conditions = next(rest), [next(rest) for _ in layers]
            for c, (_, side) in zip(reversed(conditions), reversed(layers), strict=True):
                ct = _select(c, ct, side)
            out.append(ct)
        return out

    return operands, put_together
