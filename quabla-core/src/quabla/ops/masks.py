"""Cotangents with zeros that a `where` has put there: such a zero stays zero.

The derivative rule of `where` gives the branch that is not taken a cotangent of 0. The rules that follow would multiply
it by derivatives that do not count, and those may be infinite or NaN. So the mask is moved behind each of them:
where(c, ct, 0) times a derivative becomes where(c, ct times derivative, 0). That costs nothing, changes no other
element, and is what forward mode does anyway. It reaches as far as elementwise ops, sums over axes, and sums of
cotangents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quabla.arrays.tracer import TraceTensor, bind, full_value
from quabla.ir.op import OPS

__all__ = ["add_cotangents", "through_mask"]


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
