"""The tangents of `abs` and `sqrt`, as ops: marks that forward mode finds where it differentiates a tangent again.

Their values are what the rules of `abs` and `sqrt` say. `transforms/turns.py` tells what they are for; reverse mode
over forward mode looks for limits, as it does everywhere (`limits.py`). `bend` is the tangent of such a tangent: it
notes the product `w` of two tangents of the root `r`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.ir.op import OPS, Op
from quabla.ops.compare import equal
from quabla.ops.elementwise import div, mul, neg, root_slope, sign, where
from quabla.ops.family import LINEAR, elementwise
from quabla.ops.limits import limit
from quabla.ops.masks import through_mask
from quabla.ops.roots import at_zero, curved, unless_unknown
from quabla.ops.structure import zeros_like

__all__ = ["bend_op"]

bend_op: Op = elementwise(
    "bend", 1.0, None, None, evaluate=lambda moved, w, r: moved, decompose=lambda moved, w, r: moved,
    declared=True,
)  # fmt: skip


def _bent(out: Any, moved: Any, w: Any, r: Any) -> tuple[Any, Any]:
    return out, bind(bend_op, (zeros_like(out) if moved is None else moved, w, r), {})


def _abs_tangent_forward(primals: Any, tangents: Any) -> Any:
    t, x, r = primals
    out = bind(abs_tangent_op, primals, {})
    moved = None if tangents[0] is None else bind(abs_tangent_op, (tangents[0], x, r), {})
    return (out, moved) if tangents[1] is None else _bent(out, moved, mul(t, tangents[1]), r)


def _abs_tangent_reverse(frame: Any, operands: Any, wanted: Any) -> Any:
    t, x, r = operands

    def pullback(c: Any) -> Any:
        by_t = through_mask(c, lambda v: bind(OPS["signed"], (v, x), {})) if wanted[0] else None
        by_x = through_mask(c, lambda v: where(equal(x, 0.0), curved(limit(v, r), t), 0.0))
        return by_t, by_x if wanted[1] else None, None

    return bind(abs_tangent_op, operands, {}), pullback


abs_tangent_op: Op = elementwise(
    "abs_tangent", LINEAR, None, None, evaluate=lambda t, x, r: t * np.sign(x),
    decompose=lambda t, x, r: mul(t, sign(x)), forward=_abs_tangent_forward, reverse=_abs_tangent_reverse,
)  # fmt: skip


def _sqrt_tangent_forward(primals: Any, tangents: Any) -> Any:
    out = bind(sqrt_tangent_op, primals, {})
    moved = sqrt_tangent_op.jvp(primals, tangents, out)  # type: ignore[operator, misc]
    return (out, moved) if tangents[0] is None else _bent(out, moved, mul(0.5, tangents[0]), primals[1])


def _sqrt_tangent_reverse(frame: Any, operands: Any, wanted: Any) -> Any:
    r = operands[1]
    out = bind(sqrt_tangent_op, operands, {})

    def by_square(c: Any) -> Any:
        if not wanted[1]:
            return bind(OPS["unroot"], (c, r), {})
        found = limit(c, r)
        return unless_unknown(found, at_zero(c, r, found))

    def pullback(c: Any) -> Any:
        by_root = sqrt_tangent_op.vjp(c, operands, out, (False, wanted[1]))[1]  # type: ignore[misc]
        return through_mask(c, by_square) if wanted[0] else None, by_root

    return out, pullback


sqrt_tangent_op: Op = elementwise(
    "sqrt_tangent",
    LINEAR,
    lambda t, r, out: where(equal(r, 0.0), 0.0, neg(div(out, where(equal(r, 0.0), 1.0, r)))),
    evaluate=lambda t, r: t * np.where(r == 0.0, 0.0, 0.5 / np.where(r == 0.0, 1.0, r)).astype(r.dtype),
    decompose=lambda t, r: mul(t, root_slope(None, r)),
    domain=(0.5, 3.0),
    extra=(("zero", ([0.0, 1.0, 2.0], [0.0, 0.0, -0.0])),),
    forward=_sqrt_tangent_forward,
    reverse=_sqrt_tangent_reverse,
)
