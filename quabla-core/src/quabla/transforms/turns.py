"""Second derivatives through a root of zero where forward mode comes first: a tangent of a tangent.

Let r = |x| or sqrt(s), t its tangent, and F(r) what follows. The tangent of F(r) is F'(r) t, and the tangent of that
has a term F''(r) times the product of two tangents of r. Where r is 0 both are 0 by convention, but near 0 their
product is that of two tangents of x, since r**2 = x**2: it has a limit, here `w`, although its factors have none. So
the tangent of a root is an op of its own, a mark (`ops/tangents.py`), whose tangent in turn notes w. When all of a
program has been differentiated, F'' is found by differentiating the tangents of its results by r and by the mark, and
F''(0) w is added (`straightened`). F'(0) has no part in it: where that is not 0 there is a kink, and what is left is
the smooth part.

F'' of two roots, or of two elements of one, is no derivative of anything here: |x| |2x| is a square, too. To notice it,
roots are moved at speeds that differ, and marks at speeds that cancel those of their own root only.

The roots of a branch or a loop are dealt with inside. What leaves it may hang on a root of zero or not; that shows when
it runs again with something large added for each such root (`_shaken`). If the results that then change meet each
other or another root, the second derivative is not known, and is NaN.

A program without roots pays nothing for this, and neither does a first derivative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quabla.arrays.tracer import bind, frames, replay, trace
from quabla.dtypes import float32, float64
from quabla.ir.program import Node, Program
from quabla.ops.compare import equal, isnan, logical_and, logical_not, logical_or, not_equal
from quabla.ops.elementwise import add, div, mul, where
from quabla.ops.limits import along, powers_of_two
from quabla.ops.reduce import reduce_any_op
from quabla.ops.structure import broadcast, cast, zeros_like
from quabla.ops.tangents import bend_op
from quabla.shapes import ShapeDtype

__all__ = ["Met", "marked", "straightened"]

_MARKS = ("abs_tangent", "sqrt_tangent")


def marked(program: Program) -> bool:
    """Whether a program holds the tangent of a root, itself or in a program that one of its ops holds."""
    found = program.memo.get(marked)
    if found is None:
        found = program.memo[marked] = any(
            node.op.name in _MARKS or any(marked(p) for p in _programs(node)) for node in program.nodes
        )
    return bool(found)


def _programs(node: Node) -> list[Program]:
    return [p for p in node.params.values() if isinstance(p, Program)]


# --- what differentiating a program meets -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """The tangent of a root.

    Attributes:
        root: the root.
        copies: the nodes by which batching rules have repeated it, the first one first.
        mark: its tangent.
        product: the product `w` of two tangents, where the root is 0; else 0.
    """

    root: Any
    copies: Sequence[Node]
    mark: Any
    product: Any

    def like_mark(self, x: Any) -> Any:
        """An array like the root, repeated to one like the mark."""
        for node in self.copies:
            x = bind(node.op, (x,), node.params)
        return x


def _turn(mark: Any, w: Any, r: Any) -> Turn:
    root, copies = r, []
    while root.node is not None and root.node.op.name == "broadcast":
        copies.append(root.node)
        root = root.node.inputs[0]
    return Turn(root, copies[::-1], mark, where(equal(r, 0.0), w, 0.0))


@dataclass(frozen=True, slots=True)
class Met:
    """The tangents of roots that a program was found to hold while it was differentiated.

    Attributes:
        turns: the tangents of roots.
        leaving: of each branch or loop, its results, and which elements of each hang on a root of zero; None for none.
    """

    turns: list[Turn] = field(default_factory=list)
    leaving: list[tuple[Sequence[Any], list[Any]]] = field(default_factory=list)

    def node(self, node: Node, out: Any, t_out: Any) -> Any:
        """Look at a node, with its result and its tangent; returns the tangent."""
        if node.op.name in _MARKS:
            bent = None if t_out is None else t_out.node
            if bent is not None and bent.op is bend_op:
                self.turns.append(_turn(out, bent.inputs[1], bent.inputs[2]))
        elif node.op.family == "region" and any(marked(p) for p in _programs(node)):
            return self._region(node, out, t_out)
        return t_out

    def _region(self, node: Node, out: Any, t_out: Sequence[Any]) -> Sequence[Any]:
        # A loop that mixes may multiply by 0 what a root did in an earlier step; 0 times NaN is still NaN.
        mixes = _mixes(node)
        shaken = [_shaken(t, math.nan if mixes else 1.0) for t in t_out]
        if all(s is None for s in shaken):
            return t_out
        before = _at_speeds(self)[0]
        ends = [v for pair in zip(shaken, t_out, strict=True) if pair[0] is not None for v in pair]
        first = along(_way(before, ends), before)
        doubts: list[Any] = []
        tangents: list[Any] = []
        for s, t in zip(shaken, t_out, strict=True):
            if s is None:
                doubts.append(None)
                tangents.append(t)
                continue
            doubt = logical_and(not_equal(s, t), logical_not(isnan(t)))
            # Roots from outside, of which the tangents of roots inside are multiples.
            unknown = _differs(first.get(s), first.get(t))
            if mixes:
                unknown = doubt if unknown is None else logical_or(doubt, unknown)
            doubts.append(doubt)
            tangents.append(t if unknown is None else where(unknown, math.nan, t))
        self.leaving.append((out, doubts))
        return tuple(tangents)


def _differs(x: Any, y: Any) -> Any:
    """Where two tangents differ; None for nowhere. A tangent that is None is zero."""
    if x is y:
        return None
    return not_equal(0.0 if x is None else x, 0.0 if y is None else y)


def _shaken(t: Any, scale: float) -> Any:
    """The second tangent `t`, the result of a region, with something large added for each root in it that is 0 and
    moves, or NaN if `scale` is; None if there is none."""
    node = t.node if t is not None else None
    if node is None or node.op.family != "region":
        return None
    params = {k: _with_shaken(p, scale) if isinstance(p, Program) else p for k, p in node.params.items()}
    return bind(node.op, node.inputs, params)[t.index] if _differ(node, params) else None


def _differ(node: Node, params: dict[str, Any]) -> bool:
    return any(p is not node.params[k] for k, p in params.items())


def _with_shaken(program: Program, scale: float) -> Program:
    """The program with large second tangents of the roots that are 0 and move."""
    key = (_with_shaken, repr(scale))
    found: Program | None = program.memo.get(key)
    if found is None:
        found = program.memo[key] = _retraced(program, scale)
    return found


def _retraced(program: Program, scale: float) -> Program:
    params = [
        {k: _with_shaken(p, scale) if isinstance(p, Program) else p for k, p in node.params.items()}
        for node in program.nodes
    ]
    if not any(
        node.op is bend_op or _differ(node, own) for node, own in zip(program.nodes, params, strict=True)
    ):
        return program

    def run(*args: Any) -> list[Any]:
        value: dict[Any, Any] = dict(zip(program.inputs, args, strict=True))
        for node, own in zip(program.nodes, params, strict=True):
            xs = tuple([value[v] for v in node.inputs])
            if node.op is bend_op:
                moved, w, r = xs
                vanishes = logical_and(equal(r, 0.0), not_equal(w, 0.0))
                out = add(moved, where(vanishes, mul(w, _large(w.aval, scale)), 0.0))
            else:
                again = Node(node.op, node.inputs, own) if _differ(node, own) else node
                out = replay(frames()[-1], again, xs)
            value.update(zip(node.outputs, out if node.op.multiple else (out,), strict=True))
        return [value[v] for v in program.outputs]

    return trace(run, program.in_avals, program.input_names)[0]


def _large(aval: ShapeDtype, scale: float) -> Any:
    return mul(powers_of_two(aval), scale * (2.0**50 if aval.dtype is float32 else 2.0**300))


def _mixes(node: Node) -> bool:
    """Whether a loop multiplies a carry by the tangent of one, or by a root or a tangent of a root of the same step."""
    body = node.params.get("body")
    if body is None:
        return False
    key = (_mixes, node.params["consts"], node.params["carry"])
    if key not in body.memo:
        body.memo[key] = False
        trace(lambda *args: _look_into(body, args, key), body.in_avals)
    return bool(body.memo[key])


def _look_into(body: Program, args: Sequence[Any], key: tuple[Any, int, int]) -> Sequence[Any]:
    consts, carry = key[1:]
    value: dict[Any, Any] = dict(zip(body.inputs, args, strict=True))
    roots, marks = [], []
    for node in body.nodes:
        out = replay(frames()[-1], node, tuple([value[v] for v in node.inputs]))
        value.update(zip(node.outputs, out if node.op.multiple else (out,), strict=True))
        if node.op.name in _MARKS:
            roots.append(value[node.inputs[-1]])
            marks.append(out)
        elif any(marked(p) for p in _programs(node)):  # a region in the step, which has both
            roots.extend(v for v in out if v.dtype.kind == "f")
            marks.extend(v for v in out if v.dtype.kind == "f")
    state = [x for x in args[1 + consts : 1 + consts + carry] if x.dtype.kind == "f"]
    ends = [value[v] for v in body.outputs]
    found = [
        *_second(ends, _ones(state), _ones([*state, *marks])),
        *_second(ends, _ones(roots), _ones(state)),
    ]
    body.memo[key] = any(k is not None for k in found)
    return args[:1]  # the trace itself is not needed


def _ones(xs: Iterable[Any]) -> dict[Any, Any]:
    return {x: x.frame.full(1.0, x.aval) for x in xs}


# --- what is added to a tangent of a tangent --------------------------------------------------------------------------


def straightened(outs: Sequence[Any], t_outs: Sequence[Any], met: Met) -> list[Any]:
    """The tangents of the outputs, with what the roots of zero that were met contribute; NaN where it is not known."""
    if not met.turns and not met.leaving:
        return list(t_outs)
    roots = dict.fromkeys(turn.root for turn in met.turns)
    ones = {r: cast(equal(r, 0.0), r.dtype) for r in roots}
    products = {turn.mark: turn.product for turn in met.turns}
    found = _second(outs, ones, products)
    checked = _second(outs, *_at_speeds(met)) if _in_doubt(outs, met, roots) else found
    somewhere = _any(
        [*(not_equal(turn.product, 0.0) for turn in met.turns), *(d for _, ds in met.leaving for d in ds)]
    )
    return [_added(t, o, k, c, somewhere) for t, o, k, c in zip(t_outs, outs, found, checked, strict=True)]


def _added(t: Any, out: Any, known: Any, checked: Any, somewhere: Any) -> Any:
    if known is None and checked is None:
        return t
    moved = zeros_like(out) if t is None else t
    total = moved if known is None else add(moved, known)
    differs = _differs(known, checked)
    if differs is not None:
        total = where(differs, math.nan, total)
    return where(somewhere, total, moved)


def _in_doubt(outs: Sequence[Any], met: Met, roots: dict[Any, None]) -> bool:
    """Whether several roots, or elements of one, may have met."""
    if met.leaving or len(roots) > 1:
        return True
    return any(
        r.aval.size > 1 and any(node.op.family != "elementwise" for node in _way({r}, outs)) for r in roots
    )


def _at_speeds(met: Met) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Roots moved at speeds that differ, and marks at speeds that cancel them; results of regions at others."""
    speeds: dict[Any, float] = {}
    moved, against = {}, {}
    for turn in met.turns:
        r = turn.root
        speed = speeds.setdefault(r, 2.0 ** (len(speeds) * 11 % 31 - 15))
        by_element = powers_of_two(r.aval)
        moved[r] = mul(mul(cast(equal(r, 0.0), r.dtype), by_element), speed)
        against[turn.mark] = mul(div(turn.product, turn.like_mark(by_element)), 1.0 / speed)
    k = 0
    for outs, doubts in met.leaving:
        hangs = cast(_any(doubts), float64)
        for v, d in zip(outs, doubts, strict=True):
            if v.dtype.kind == "f":
                k += 1
                moved[v] = mul(broadcast(cast(hangs, v.dtype), v.shape), 3.0 ** (k % 20 - 10))
                against[v] = None if d is None else mul(cast(d, v.dtype), 5.0 ** (k % 20 - 10))
    return moved, {v: t for v, t in against.items() if t is not None}


def _any(conditions: Sequence[Any]) -> Any:
    some = None
    for c in conditions:
        if c is not None:
            one = bind(reduce_any_op, (c,), {"axes": tuple(range(c.ndim))}) if c.ndim else c
            some = one if some is None else logical_or(some, one)
    return some


def _second(outs: Sequence[Any], by: dict[Any, Any], tangents: dict[Any, Any]) -> list[Any]:
    """The derivative of each output by these values and by those, in given directions; None for zero."""
    first = along(_way(by, outs), by)
    moved = [first.get(v) for v in outs]
    live = [t for t in moved if t is not None]
    second = along(_way(tangents, live), tangents)
    return [None if t is None else second.get(t) for t in moved]


def _way(sources: Iterable[Any], ends: Sequence[Any]) -> list[Node]:
    """The nodes on ways from `sources` to `ends`, in order."""
    reached = set(sources)
    order: dict[Node, bool] = {}
    stack = [(v.node, False) for v in reversed(ends)]
    while stack:
        node, ready = stack.pop()
        if node is None or node in order:
            continue
        if not ready:
            stack.append((node, True))
            stack.extend([(v.node, False) for v in node.inputs if v.aval.dtype.kind == "f"])
            continue
        order[node] = any(v in reached for v in node.inputs)
        if order[node]:
            reached.update(node.outputs)
    return [node for node, on in order.items() if on]
