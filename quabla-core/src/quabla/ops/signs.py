"""Traced values that cannot be negative, as far as the ops show that they come from.

For such a value `v`, `relu(v)`, `abs(v)` and `maximum(v, 0)` are `v` itself. That saves an op; but the point is where
`v` is 0. It is as small as it can be there, so what looks like a kink is none, and the limits of roots of zero
(`limits.py`) stay in sight: relu(norm(x))**2 has the derivatives of norm(x)**2.
"""

from __future__ import annotations

from typing import Any

from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import TraceTensor, full_value
from quabla.shapes import broadcast_shapes

__all__ = ["bounds_nothing", "never_negative"]

_FAR = 8  # ops back
_NEVER = frozenset(("abs", "exp", "relu", "sech2", "sigmoid", "sqrt"))
_IF_ALL_ARE = frozenset(
    (
        "add", "arcsinh", "arctan", "broadcast", "cbrt", "concat", "div", "erf", "expm1", "log1p", "minimum", "mul",
        "reduce_max", "reduce_min", "reduce_prod", "reduce_sum", "reshape", "sinh", "slice", "stop_gradient", "tanh",
        "transpose",
    )
)  # fmt: skip


def never_negative(v: Any, steps: int = _FAR) -> bool:
    """Whether a value is known to be positive, 0 or NaN, from at most `steps` ops before it."""
    node = v.node if type(v) is TraceTensor else None
    if node is None or not steps or not v.frame.open:
        return False
    name, inputs = node.op.name, node.inputs
    if name in _NEVER:
        return True
    if name == "full":
        return bool(node.params["value"] >= 0.0)
    if name == "integer_power" and node.params["exponent"] % 2 == 0:
        return True
    if name == "mul" and (inputs[0] is inputs[1] or _is_sign_of(inputs[1], inputs[0])):
        return True
    if name == "maximum":
        return any(never_negative(x, steps - 1) for x in inputs)
    if name == "where":
        inputs = inputs[1:]
    elif name == "stand_in":
        inputs = inputs[:1]
    elif name not in _IF_ALL_ARE:
        return False
    return all(never_negative(x, steps - 1) for x in inputs)


def _is_sign_of(s: Any, x: Any) -> bool:
    while s.node is not None and s.node.op.name == "stop_gradient":
        s = s.node.inputs[0]
    return s.node is not None and s.node.op.name == "sign" and s.node.inputs[0] is x


def bounds_nothing(bound: Any, v: Any) -> bool:
    """Whether `maximum(v, bound)` is `v`: it cannot be negative, and `bound` is no positive number, nor larger."""
    if not never_negative(v):
        return False
    if isinstance(bound, int | float):
        return bound <= 0.0
    if type(bound) is Tensor:
        fits = bound.dtype is v.dtype and broadcast_shapes("maximum", bound.shape, v.shape) == v.shape
        return fits and bool((bound.numpy() <= 0.0).all())
    value = full_value(bound)
    return value is not None and bool(value <= 0.0) and bound.aval is v.aval
