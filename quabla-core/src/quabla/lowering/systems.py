"""A linear system with a transposed matrix is the transposed system: nothing is rearranged, and factors are shared."""

from __future__ import annotations

from typing import Any

from quabla.ir.program import Value
from quabla.lowering.passes import Rewriter, made_by, rule

__all__: list[str] = []


def _untransposed(a: Value) -> Value | None:
    """The matrices whose transposes, and nothing else, `a` is."""
    node = made_by(a, "transpose")
    n = a.ndim
    if node is None or node.params["perm"] != (*range(n - 2), n - 1, n - 2):
        return None
    return node.inputs[0]


@rule("solve")
def _solve(r: Rewriter, xs: Any, params: Any) -> Value | None:
    a = _untransposed(xs[0])
    if a is None:
        return None
    return r.apply("solve", a, xs[1], transposed=not params["transposed"])  # type: ignore[no-any-return]


@rule("triangular_solve")
def _triangular_solve(r: Rewriter, xs: Any, params: Any) -> Value | None:
    a = _untransposed(xs[0])
    if a is None:
        return None
    lower, transposed = not params["lower"], not params["transposed"]
    return r.apply(  # type: ignore[no-any-return]
        "triangular_solve", a, xs[1], lower=lower, transposed=transposed, unit=params["unit"]
    )
