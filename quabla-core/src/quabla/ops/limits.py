"""Derivatives through a square root or an absolute value of zero, where the chain rule alone says 0 times infinity.

Let r = |x|, or r = sqrt(s) with s a sum of squares. A function F(r) such as r**2 or (1 + r) exp(-r) may be smooth at r
= 0 although r is not. Its gradient is F'(r) x / r, and by l'Hospital's rule F'(r) / r tends to F''(0) where F'(0) = 0.
So the second derivative at 0 is F''(0) times the identity. Where F'(0) is not 0 there is a kink: its subgradient is 0,
and F''(0) is the second derivative of the smooth part.

In a program, F'(r) is the cotangent of r. When the gradient is differentiated once more, `limit` looks in the trace for
the way from r to that cotangent and differentiates it: the only place where a rule looks beyond its operands. First
derivatives cost nothing.

What it cannot see it must not take for 0. A cotangent that is 0 where r is, and that moves with something unseen, has a
limit that is not known, and the second derivative is NaN. Unseen is

- what a region gets from outside and the root in it does not depend on, such as the cotangent of the region's result
  (`conceal`);
- another root that is 0 at the same place, or another element of the same one: |x| |2x| is a square, too, but the ratio
  of two roots at 0 is no derivative of anything here;
- a value that depends on a root, more than `_NEAR` ops away from the cotangent, and off the ways of at most `_FAR` ops
  from the root to it. What makes F smooth at 0 is near r, such as a square; the rest of a long computation enters F''
  with a factor F'(0)**2, which is then 0. Without a bound, n roots in a row would take n**2 nodes.

To find out whether the cotangent moves with unseen values, all of them are moved at once, at speeds that do not cancel.

Where forward mode comes first and reverse mode second, F'(r) is the cotangent of the tangent of r (`tangents.py`), and
the same holds. Forward mode alone never sees F'; `transforms/turns.py` tells what it does. For speed, products and even
powers of roots are taken without the root (`square_of_root`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import Frame, TraceTensor, bind
from quabla.ir.op import OPS, Each, Jointly
from quabla.ir.program import Node, Program, Value
from quabla.ops.compare import equal, logical_and, logical_or, not_equal
from quabla.ops.structure import cast, zeros_like
from quabla.shapes import ShapeDtype

__all__ = [
    "Limit",
    "along",
    "conceal",
    "has_root",
    "limit",
    "looks_around",
    "powers_of_two",
    "square_of_root",
]

_FAR = 20
_NEAR = 6
_ROOTS = ("sqrt", "abs")
_SINGULAR = ("unroot", "signed")  # their pullbacks, which divide 0 by 0 in turn
_LOOKING = (*_SINGULAR, "abs_tangent", "sqrt_tangent")


class Limit(NamedTuple):
    """What becomes of a cotangent where its root is 0.

    Attributes:
        slope: its derivative where the root moves at unit speed; None for 0.
        unknown: where the derivative is not known, an array of bools; None for nowhere.
    """

    slope: Any
    unknown: Any


def limit(ct: Any, r: Any) -> Limit:
    """How the cotangent `ct` of the root `r` moves with it where `r` is 0, from the nodes between them."""
    if type(ct) is not TraceTensor or type(r) is not TraceTensor or ct.frame is not r.frame:
        return Limit(None, None)
    root: Any = r
    copies = []
    while root.node is not None and root.node.op.name == "broadcast":  # by a batching rule
        copies.append(root.node)
        root = root.node.inputs[0]
    ahead = _steps_to(ct, root)
    way = _between(root, ct, ahead)
    at_zero = cast(equal(root, 0.0), root.dtype)
    slope = along(way, {root: at_zero}).get(ct)

    doubts = []
    around = _around(ct, root, ahead, way)
    moving = _unseen(ct, root, around)
    if moving or any(node.op.name in _SINGULAR for node in around):
        doubts.append((along(around, moving, shaken=True).get(ct), 0.0))
    if slope is not None and root.aval.size > 1 and any(node.op.family != "elementwise" for node in way):
        # Where each element moves with its own root alone, a power of 2 as its speed comes through without rounding.
        speeds = powers_of_two(root.aval)
        total = along(way, {root: bind(OPS["mul"], (at_zero, speeds), {})}).get(ct)
        for node in reversed(copies):
            speeds = bind(node.op, (speeds,), node.params)
        doubts.append((total, bind(OPS["mul"], (slope, speeds), {})))
    unknown = None
    for moved, expected in doubts:
        if moved is not None:
            differs = not_equal(moved, expected)
            unknown = differs if unknown is None else logical_or(unknown, differs)
    if unknown is not None:
        unknown = logical_and(logical_and(equal(r, 0.0), equal(ct, 0.0)), unknown)
    return Limit(slope, unknown)


def conceal(values: Iterable[TraceTensor]) -> None:
    """Note that these inputs of a trace move, in a way that the trace cannot see."""
    for i, v in enumerate(values):
        _origins(v.frame)[v] = 2 << i


def square_of_root(x: Any) -> Any:
    """The square of a traced `x` that is an absolute value, a root, or a number times a root; else None.

    norm(x)**2 is a polynomial, and as such it has all its derivatives at 0, where those of the root do not exist.
    """
    node = x.node
    name = "" if node is None else node.op.name
    if name == "abs":
        return bind(OPS["mul"], (node.inputs[0], node.inputs[0]), {})
    if name == "sqrt":
        (s,) = node.inputs
        if _is_sum_of_squares(s):
            return s
        below = bind(OPS["less"], (s, s.frame.full(0.0, s.aval)), {})
        return bind(OPS["where"], (below, s.frame.full(math.nan, s.aval), s), {})
    if name == "reshape":
        square = square_of_root(node.inputs[0])
        return None if square is None else bind(node.op, (square,), node.params)
    if name == "mul":
        scale, root = node.inputs
        if root.node is None or root.node.op.name != "sqrt":
            return None
        whole = _without_scale(root.node.inputs[0], scale)
        if whole is not None:
            return whole
        return bind(OPS["mul"], (scale, bind(OPS["mul"], (scale, square_of_root(root)), {})), {})
    if name == "where":  # a root but where it has another value, as `hypot` has for infinities
        chosen, other, root = node.inputs
        square = square_of_root(root)
        return (
            None
            if square is None
            else bind(node.op, (chosen, bind(OPS["mul"], (other, other), {}), square), {})
        )
    return None


def _without_scale(s: Any, scale: Any) -> Any:
    """The sum of the squares of `v` if `s` is that of `v / scale`, as in `norm`; else None.

    A root needs its scale, lest the squares overflow or underflow. The square of the root does so itself where they do,
    but its derivatives do not: they must not meet the square of the scale.
    """
    node = s.node
    if node is None or node.op.name != "reduce_sum" or not _is_sum_of_squares(s):
        return None
    part = node.inputs[0].node.inputs[0].node
    if part is None or part.op.name != "div":
        return None
    v, by = part.inputs
    spread = by.node.inputs[0] if by.node is not None and by.node.op.name == "broadcast" else by
    return bind(node.op, (bind(OPS["mul"], (v, v), {}),), node.params) if spread is scale else None


def _is_sum_of_squares(s: Any) -> bool:
    """Whether `s` cannot be negative, as far as its last two nodes show."""
    node = s.node
    if node is not None and node.op.name == "reduce_sum":
        node = node.inputs[0].node
    return node is not None and node.op.name == "mul" and node.inputs[0] is node.inputs[1]


# --- what is seen and what is not -------------------------------------------------------------------------------------


def _is_root(v: Value) -> bool:
    node = v.node
    if node is None or node.op.name not in _ROOTS:
        return False
    below = node.inputs[0].node
    return below is None or below.op.name != "stop_gradient"


def _steps_to(v: Value, r: Value) -> dict[Value, int]:
    """The floating values fewer than `_FAR` ops before `v`, and how many; those before `r` are left out."""
    ahead, edge = {v: 0}, [v]
    for steps in range(1, _FAR):
        inputs = [y for x in edge if x.node is not None and x is not r for y in x.node.inputs]
        edge = [y for y in dict.fromkeys(inputs) if y not in ahead and y.aval.dtype.kind == "f"]
        ahead.update(dict.fromkeys(edge, steps))
    return ahead


def _around(ct: Value, r: Value, ahead: dict[Value, int], way: Sequence[Node]) -> list[Node]:
    """The nodes in which movements are followed, in order: those near `ct`, and those on the way from `r`."""
    within = {v.node for v, steps in ahead.items() if steps < _NEAR and v.node is not None and v is not r} | {
        *way
    }
    return _ordered(ct, within)


def _unseen(ct: Any, r: Any, around: Sequence[Node]) -> dict[Any, Any]:
    """The values that may move with `r` in a way that is not known, with a speed for each.

    Speeds are powers of 2, so that what cancels in `ct` cancels in its derivative.
    """
    own, inside = _origin(r), {v for node in around for v in node.outputs}
    found: dict[Any, None] = {} if ct in inside or not _origin(ct) & ~own else {ct: None}
    for node in around:
        for y in node.inputs:
            outside = y not in inside and y is not r and y.aval.dtype.kind == "f"
            if outside and _origin(y) & (~own | (y.node is not None)):
                found[y] = None
        if _has_root(node) or any(_is_root(v) and v is not r for v in node.outputs):
            found.update(dict.fromkeys(v for v in node.outputs if v.aval.dtype.kind == "f"))
    moved = {}
    for k, v in enumerate(found):
        speed = v.frame.full(8.0 ** (k % 20 - 10), v.aval)
        moved[v] = bind(OPS["mul"], (cast(equal(v, 0.0), v.dtype), speed), {}) if _is_root(v) else speed
    return moved


def _origins(frame: Frame) -> dict[Value, int]:
    """What is known of the values of a frame: a set of bits, of which the first says that it depends on a root, and the
    others on which concealed input."""
    found: dict[Value, int] | None = frame.seen.get(_origins)
    if found is None:
        found = frame.seen[_origins] = {}
    return found


def _origin(v: Any) -> int:
    found, stack = _origins(v.frame), [v]
    while stack:
        x = stack[-1]
        missing = []
        if x not in found:
            inputs = x.node.inputs if x.node is not None and x.node.op.name != "stop_gradient" else ()
            missing = [y for y in inputs if y not in found and y.aval.dtype.kind == "f"]
            if not missing:
                bits = 1 if _is_root(x) or _has_root(x.node) else 0
                for y in inputs:
                    bits |= found.get(y, 0)
                found[x] = bits
        stack.extend(missing)
        if not missing:
            stack.pop()
    return found[v]


def _has_root(node: Node | None) -> bool:
    """Whether an op holds a program with a root in it."""
    return node is not None and any(has_root(p) for p in node.params.values() if isinstance(p, Program))


def has_root(program: Program) -> bool:
    """Whether a program takes a root or an absolute value, itself or in a program that one of its ops holds."""
    found = program.memo.get(has_root)
    if found is None:
        found = program.memo[has_root] = any(
            _is_root(v) or _has_root(node) for node in program.nodes for v in node.outputs
        )
    return bool(found)


def looks_around(program: Program) -> bool:
    """Whether a program holds the pullback or the tangent of a root, whose derivatives look for more than operands."""
    found = program.memo.get(looks_around)
    if found is None:
        found = program.memo[looks_around] = any(
            node.op.name in _LOOKING
            or any(looks_around(p) for p in node.params.values() if isinstance(p, Program))
            for node in program.nodes
        )
    return bool(found)


# --- derivatives along the way ----------------------------------------------------------------------------------------


def _between(r: Value, v: Value, ahead: dict[Value, int]) -> list[Node]:
    """The nodes on ways of at most `_FAR` steps from `r` to `v`, in order."""
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


def _ordered(v: Value, within: set[Node]) -> list[Node]:
    """Nodes from which `v` is computed, in order."""
    order: dict[Node, None] = {}
    stack = [(v.node, False)]
    while stack:
        node, ready = stack.pop()
        if node is None or node not in within or node in order:
            continue
        if ready:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend([(x.node, False) for x in node.inputs])
    return list(order)


def powers_of_two(aval: ShapeDtype) -> Any:
    """An array of powers of 2, of which neighbours and most others differ."""
    values = 2.0 ** (np.arange(aval.size) * 7 % 61 - 30.0)
    return wrap(values.reshape(aval.shape).astype(aval.dtype.numpy))


def along(nodes: Sequence[Node], moved: dict[Any, Any], shaken: bool = False) -> dict[Any, Any]:
    """The tangents of values, from those of some of them.

    Args:
        nodes: nodes in order.
        moved: the tangents to begin with; they add to what follows from others.
        shaken: whether a quotient of zeros moves, in a way that is not known. By its rule it stands still.
    """
    tangents = dict(moved)
    for node in nodes:
        inputs = [tangents.get(x) for x in node.inputs]
        t = None if all(u is None for u in inputs) else _tangent(node, inputs)
        outs = [None] * len(node.outputs) if t is None else t if node.op.multiple else (t,)
        if shaken and node.op.name in _SINGULAR:
            zeros = logical_and(equal(node.inputs[0], 0.0), equal(node.inputs[1], 0.0))
            outs = [_sum(outs[0], cast(zeros, node.outputs[0].aval.dtype))]
        for v, u in zip(node.outputs, outs, strict=True):
            total = _sum(u, moved.get(v))
            if total is not None:
                tangents[v] = total
    return tangents


def _sum(x: Any, y: Any) -> Any:
    return y if x is None else x if y is None else bind(OPS["add"], (x, y), {})


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
