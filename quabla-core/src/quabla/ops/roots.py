"""The pullbacks of `sqrt` and `abs`: ops of their own, which know their derivatives at 0 (`limits.py`).

Where the second derivative is not known it is NaN. The gradient itself stays what it is, so forward mode puts the NaN
into the tangent, and reverse mode into the cotangent of the root; a mask around them keeps it out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.arrays.tracer import TraceTensor, bind
from quabla.ir.op import Op
from quabla.ops.compare import equal, logical_and, not_equal
from quabla.ops.elementwise import abs_op, div, mul, neg, root_slope, sign, where
from quabla.ops.family import LINEAR, elementwise
from quabla.ops.limits import Limit, limit
from quabla.ops.masks import through_mask
from quabla.ops.structure import zeros_like

__all__ = ["at_zero", "curved", "unless_unknown"]

# --- ct / (2 r), the pullback of sqrt ---------------------------------------------------------------------------------


def at_zero(ct: Any, r: Any, found: Limit) -> Any:
    out = bind(unroot_op, (ct, r), {})
    return out if found.slope is None else where(equal(r, 0.0), 0.5 * found.slope, out)


def unless_unknown(found: Limit, t: Any) -> Any:
    return t if found.unknown is None else where(found.unknown, math.nan, t)


def _unroot_forward(primals: Any, tangents: Any) -> Any:
    moved = unroot_op.jvp(primals, tangents, bind(unroot_op, primals, {}))  # type: ignore[operator, misc]
    if tangents[1] is None:
        return bind(unroot_op, primals, {}), moved
    ct, r = primals
    found = limit(ct, r)
    return at_zero(ct, r, found), unless_unknown(found, moved)


def _unroot_reverse(frame: Any, operands: Any, wanted: Any) -> Any:
    ct, r = operands
    plain = bind(unroot_op, operands, {})
    found = limit(ct, r) if wanted[1] else Limit(None, None)

    def pullback(c: Any) -> Any:
        back, by_root = unroot_op.vjp(c, operands, plain, wanted)  # type: ignore[misc]
        if found.unknown is not None:
            by_root = through_mask(c, _doubtful)
        return back, by_root

    def _doubtful(c: Any) -> Any:
        return unless_unknown(found, unroot_op.vjp(c, operands, plain, wanted)[1])  # type: ignore[misc]

    return at_zero(ct, r, found), pullback


unroot_op: Op = elementwise(
    "unroot",
    LINEAR,
    lambda ct, r, out: where(equal(r, 0.0), 0.0, neg(div(out, where(equal(r, 0.0), 1.0, r)))),
    evaluate=lambda ct, r: (
        ct * np.where(r == 0.0, np.zeros_like(r), 0.5 / np.where(r == 0.0, np.ones_like(r), r))
    ),
    decompose=lambda ct, r: mul(ct, root_slope(None, r)),
    domain=(0.5, 3.0),
    extra=(("zero", ([0.0, 1.0, 2.0], [0.0, 0.0, -0.0])),),
    forward=_unroot_forward,
    reverse=_unroot_reverse,
)


# --- ct sign(x), the pullback of abs ----------------------------------------------------------------------------------


def _magnitude(x: Any) -> Any:
    """abs(x), taken before `x` was repeated by a batching rule: the node that the cotangent depends on."""
    node = x.node if type(x) is TraceTensor else None
    if node is None or node.op.name != "broadcast":
        return bind(abs_op, (x,), {})
    return bind(node.op, (_magnitude(node.inputs[0]),), node.params)


def _signed_forward(primals: Any, tangents: Any) -> Any:
    (ct, x), t = primals, tangents[1]
    out = bind(signed_op, primals, {})
    moved = signed_op.jvp(primals, tangents, out)  # type: ignore[operator, misc]
    found = Limit(None, None) if t is None else limit(ct, _magnitude(x))
    if found.slope is not None or found.unknown is not None:
        moved = where(equal(x, 0.0), curved(found, t), zeros_like(x) if moved is None else moved)
    return out, moved


def curved(found: Limit, t: Any) -> Any:
    """The derivative of the slope of F(|x|) at x = 0, in the direction `t` or backwards."""
    moved = zeros_like(t) if found.slope is None else mul(found.slope, t)
    if found.unknown is None:
        return moved
    return where(logical_and(found.unknown, not_equal(t, 0.0)), math.nan, moved)


def _signed_reverse(frame: Any, operands: Any, wanted: Any) -> Any:
    ct, x = operands
    found = limit(ct, _magnitude(x)) if wanted[1] else Limit(None, None)

    def pullback(c: Any) -> Any:
        back = through_mask(c, lambda v: bind(signed_op, (v, x), {})) if wanted[0] else None
        if found.slope is None and found.unknown is None:
            return back, None
        return back, through_mask(c, lambda v: where(equal(x, 0.0), curved(found, v), 0.0))

    return bind(signed_op, operands, {}), pullback


signed_op: Op = elementwise(
    "signed", LINEAR, None, evaluate=lambda ct, x: ct * np.sign(x), decompose=lambda ct, x: mul(ct, sign(x)),
    extra=(("zero", ([0.0, 1.0], [0.0, -0.0])),), forward=_signed_forward, reverse=_signed_reverse,
)  # fmt: skip
