"""Which way the derivative of one number by another is taken: forwards, where that gives the same.

A Jacobian of one row and one column is the same in both modes. Forwards it costs at most one evaluation more, and
nothing is kept; backwards it costs two. The difference grows with every derivative of a derivative. For a function of
one variable, the tangents of nested forward passes are the coefficients of its Taylor series: the value, the first
derivative, the second and so on, each computed once, since equal nodes are recorded once. The n-th derivative takes
n + 1 such channels, while nested backward passes make the program longer by a factor each time.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from quabla.control.custom import custom_jvp_op, linear_rule
from quabla.ir.op import Refused
from quabla.ir.program import Node, Program
from quabla.ops.elementwise import stop_gradient_op
from quabla.shapes import ShapeDtype
from quabla.transforms.linearity import Walk

__all__ = ["forwards", "require_linear_rules"]

# Their second derivatives at 0 are found from a cotangent (`ops/limits.py`), which takes less than to find them from
# tangents (`turns.py`).
_BY_COTANGENT = frozenset(("abs", "sqrt", "signed", "unroot", "abs_tangent", "sqrt_tangent", "power"))


def forwards(program: Program, avals: Sequence[ShapeDtype], wanted: Sequence[bool]) -> int | None:
    """The input to differentiate by in forward mode, or None where reverse mode is the way.

    Args:
        program: its first output is differentiated, a scalar.
        avals: the types of the inputs.
        wanted: by which inputs a derivative is asked for.

    Returns:
        The position of the only floating input asked for, if it has a single element and every op has a forward rule
        that says as much as its reverse. What reverse mode refuses stays refused: whether a gradient exists must not
        hang on the number of elements.

    Raises:
        UnsupportedOperationError: on the way is a `custom_jvp` whose rule is not linear.
    """
    asked = [i for i, (a, w) in enumerate(zip(avals, wanted, strict=True)) if w and a.dtype.kind == "f"]
    if len(asked) != 1 or avals[asked[0]].size != 1 or not _both_ways(program):
        return None
    require_linear_rules(program, [i == asked[0] for i in range(len(avals))])
    return asked[0]


def require_linear_rules(program: Program, wanted: Sequence[bool]) -> None:
    """Refuse what reverse mode refuses of a `custom_jvp`, before forward mode is taken in its place.

    Args:
        program: what is differentiated.
        wanted: by which inputs.

    Raises:
        UnsupportedOperationError: a result hangs on one of them by a rule that is not linear.
    """
    if _has_rules(program):
        Walk(False, operator.or_, _moved)(program, wanted)


def _moved(walk: Walk, node: Node, given: Sequence[bool]) -> Sequence[bool]:
    """Which results of a node have a tangent, where these operands do."""
    if node.op is stop_gradient_op or not any(given):
        return [False] * len(node.outputs)
    if node.op is custom_jvp_op:
        linear_rule(given, **node.params)
    found = (
        [True] * len(node.outputs) if node.op.through is None else node.op.through(walk, given, **node.params)
    )
    return [f and v.aval.dtype.kind == "f" for f, v in zip(found, node.outputs, strict=True)]


def _has_rules(program: Program) -> bool:
    found = program.memo.get(_has_rules)
    if found is None:
        found = program.memo[_has_rules] = any(
            node.op is custom_jvp_op
            or any(_has_rules(x) for x in node.params.values() if isinstance(x, Program))
            for node in program.nodes
        )
    return bool(found)


def _both_ways(program: Program) -> bool:
    found = program.memo.get(_both_ways)
    if found is None:
        found = program.memo[_both_ways] = all(
            node.op.name not in _BY_COTANGENT
            and not (node.op.name == "while" and node.params["length"] is None)
            and (node.op.family == "source" or not isinstance(node.op.jvp, Refused))
            and all(_both_ways(x) for x in node.params.values() if isinstance(x, Program))
            for node in program.nodes
        )
    return bool(found)
