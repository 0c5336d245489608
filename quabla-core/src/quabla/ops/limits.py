"""Derivatives through a square root or an absolute value of zero, where the chain rule alone says 0 times infinity.

Let r = |x|, or r = sqrt(s) with s a sum of squares. A function F(r) such as r**2 or (1 + r) exp(-r) may be smooth at r
= 0 although r is not. Its gradient is F'(r) x / r, and by l'Hospital's rule F'(r) / r tends to F''(0) where F'(0) = 0.
So the second derivative at 0 is F''(0) times the identity. Where F'(0) is not 0 there is a kink: its subgradient is 0,
and F''(0) is the second derivative of the smooth part.

In a program, F'(r) is the cotangent of r. When the gradient is differentiated once more, `derivative_along` looks in
the trace for the way from r to that cotangent and differentiates it: the only place where a rule looks beyond its
operands. First derivatives cost nothing. Forward mode alone (a tangent of a tangent) never sees F', and says 0; there,
and for speed, `powers.py` takes even powers of roots and absolute values without the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quabla.arrays.tracer import TraceTensor, bind
from quabla.ir.op import OPS, Each, Jointly
from quabla.ir.program import Node, Value
from quabla.ops.compare import equal
from quabla.ops.structure import cast, zeros_like

__all__ = ["derivative_along"]

# Ways longer than this many ops are left out. What makes F smooth at 0 is near r, such as a square; the rest of a long
# computation enters F'' with a factor F'(0)**2, which is then 0. Without a bound, n roots in a row would take n**2
# nodes.
_FAR = 20


def derivative_along(v: Any, r: Any) -> Any:
    """The derivative of `v` where `r` is 0 and moves at unit speed, from the nodes between them.

    Elements of `r` that are not 0 stay where they are. `v` depends on `r` element by element wherever F is smooth.

    Returns:
        An array of the shape of `v`; None where `v` does not depend on `r`, or they are not values of one trace.
    """
    if type(v) is not TraceTensor or type(r) is not TraceTensor or v.frame is not r.frame:
        return None
    while r.node is not None and r.node.op.name == "broadcast":  # by a batching rule
        r = r.node.inputs[0]
    path = _between(r, v)
    if not path:
        return None
    tangents: dict[Any, Any] = {r: cast(equal(r, 0.0), r.dtype)}
    for node in path:
        t = _tangent(node, [tangents.get(x) for x in node.inputs])
        if t is not None:
            tangents.update(zip(node.outputs, t if node.op.multiple else (t,), strict=True))
    return tangents.get(v)


def _between(r: Value, v: Value) -> list[Node]:
    """The nodes on ways of at most `_FAR` steps from `r` to `v`, in order."""
    ahead: dict[Value, int] = {v: 0}  # steps to v
    edge = [v]
    for steps in range(1, _FAR):
        edge = [y for x in edge if x.node is not None and x is not r for y in x.node.inputs if y not in ahead]
        ahead.update(dict.fromkeys(edge, steps))
    if r not in ahead:
        return []
    behind: dict[Value, int] = {r: 0}  # steps from r
    path: dict[Node, None] = {}
    seen: set[Value] = {r}
    stack: list[tuple[Value, bool]] = [(v, False)]
    while stack:
        x, ready = stack.pop()
        node = x.node
        if node is None:
            continue
        if not ready:
            if x not in seen:
                seen.add(x)
                stack.append((x, True))
                stack.extend([(y, False) for y in node.inputs if y in ahead])
            continue
        steps = min([behind[y] for y in node.inputs if y in behind], default=_FAR) + 1
        if steps + ahead[x] <= _FAR:
            behind[x] = steps
            path[node] = None
    return list(path)


def _tangent(node: Node, tangents: Sequence[Any]) -> Any:
    op, xs = node.op, node.inputs
    outs: Any = node.outputs if op.multiple else node.outputs[0]
    if callable(op.jvp):
        return op.jvp(xs, tangents, outs, **node.params)
    if isinstance(op.linear, Jointly):
        moved = [zeros_like(x) if t is None else t for x, t in zip(xs, tangents, strict=True)]
        return bind(op, moved, node.params)
    if isinstance(op.linear, Each):
        total = None
        for i in op.linear.operands:
            if tangents[i] is not None:
                term = bind(op, [*xs[:i], tangents[i], *xs[i + 1 :]], node.params)
                total = term if total is None else bind(OPS["add"], (total, term), {})
        return total
    return op.forward(xs, tangents, **node.params)[1] if op.forward is not None else None
