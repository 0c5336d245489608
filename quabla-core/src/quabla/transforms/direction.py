"""Which way the derivative of one number by another is taken: forwards, where that gives the same.

A Jacobian of one row and one column is the same in both modes. Forwards it costs at most one evaluation more, and
nothing is kept; backwards it costs two. The difference grows with every derivative of a derivative. For a function of
one variable, the tangents of nested forward passes are the coefficients of its Taylor series: the value, the first
derivative, the second and so on, each computed once, since equal nodes are recorded once. The n-th derivative takes
n + 1 such channels, while nested backward passes make the program longer by a factor each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from quabla.ir.op import Refused
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype

__all__ = ["forwards"]

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
    """
    asked = [i for i, (a, w) in enumerate(zip(avals, wanted, strict=True)) if w and a.dtype.kind == "f"]
    if len(asked) != 1 or avals[asked[0]].size != 1 or not _both_ways(program):
        return None
    return asked[0]


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
