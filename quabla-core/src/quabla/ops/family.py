"""The family of elementwise ops: from partial derivatives to a whole record.

A record gives, per operand, the partial derivative as a function of the operands and the result. The family makes the
forward rule (sum of partial times tangent) and the pullback (cotangent times partial) from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind, full_value
from quabla.errors import DtypeError
from quabla.ir.op import OPS, Each, Jointly, Op, Sample, define
from quabla.ops.apply import batch_elementwise
from quabla.ops.masks import through_mask
from quabla.shapes import ShapeDtype

__all__ = ["LINEAR", "Partial", "elementwise"]

LINEAR = "linear"  # in place of a partial derivative: the op itself, applied to the tangent in that operand's place
Partial = Callable[..., Any] | float | str | None

_FULL = (-3.0, 3.0)


def partial_samples(operands: tuple[Any, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A sample of given operands."""
    return lambda rng: tuple(np.array(v, float) for v in operands)


def elementwise(
    name: str,
    *partials: Partial,
    evaluate: Callable[..., Any],
    domain: tuple[float, float] = _FULL,
    decompose: Callable[..., Any] | None = None,
    smooth: bool = True,
    extra: tuple[tuple[str, tuple[Any, ...]], ...] = (),
    samples: Callable[[], Iterator[Sample]] | None = None,
    takes: str = "f",
    **rules: Any,
) -> Op:
    """Define an elementwise op on floating operands of one shape and dtype.

    Args:
        name: its name.
        partials: per operand, the partial derivative: a function of `(*operands, out)`, a number, `LINEAR` where the op
            is linear in that operand alone, or None where the derivative is zero.
        evaluate: its meaning in NumPy.
        domain: where the sample operands are drawn from.
        decompose: the op in terms of simpler ones.
        smooth: False where the samples sit on kinks.
        extra: further samples, `(name, operands)`: the singular points.
        samples: all samples, in place of those made here.
        takes: the dtype kinds that it takes: "f", or "fi" for those that also serve positions.
        rules: fields of the record that do not follow from the partials.
    """

    def infer(*avals: ShapeDtype, **params: Any) -> ShapeDtype:
        first = avals[0]
        if first.dtype.kind not in takes:
            raise DtypeError(f"{name}: takes floating operands, got {first}; convert with astype")
        return first

    def times(t: Any, i: int, operands: Any, out: Any, params: Any) -> Any:
        """The tangent or cotangent `t` times the partial derivative in operand `i`."""
        partial = partials[i]
        if partial is LINEAR:
            return bind(op, [*operands[:i], t, *operands[i + 1 :]], params)
        if partial == 1.0:
            return t
        if partial == -1.0:
            return bind(OPS["neg"], (t,), {})
        assert callable(partial)
        factor = partial(*operands, out, **params)
        # The seed of a gradient is 1, and every first pullback would multiply by it.
        return factor if full_value(t) == 1.0 else bind(OPS["mul"], (t, factor), {})

    def jvp(primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        total = None
        for i, t in enumerate(tangents):
            if t is not None and partials[i] is not None:
                term = times(t, i, primals, out, params)
                total = term if total is None else bind(OPS["add"], (total, term), {})
        return total

    def vjp(ct: Any, operands: Any, out: Any, wanted: Any, **params: Any) -> Any:
        return tuple(
            [
                through_mask(ct, lambda c, i=i: times(c, i, operands, out, params))  # type: ignore[misc]
                if w and partials[i] is not None
                else None
                for i, w in enumerate(wanted)
            ]
        )

    fixed = tuple(i for i, p in enumerate(partials) if p is LINEAR or isinstance(p, float))
    jointly = all(isinstance(p, float) for p in partials)

    def transpose(ct: Any, operands: Any, wanted: Any, **params: Any) -> Any:
        # Where the op is linear its partial derivative does not look at the result.
        return vjp(ct, operands, None, [w and i in fixed for i, w in enumerate(wanted)], **params)

    def own_samples() -> Iterator[Sample]:
        lo, hi = domain
        n = len(partials)
        yield Sample(
            "matrix", lambda rng: tuple(rng.uniform(lo, hi, (3, 4)) for _ in range(n)), smooth=smooth
        )
        yield Sample("scalar", lambda rng: tuple(rng.uniform(lo, hi, ()) for _ in range(n)), smooth=smooth)
        for label, operands in extra:
            yield Sample(label, partial_samples(operands), smooth=False)

    made: dict[str, Any] = {
        "jvp": jvp,
        "linear": Jointly() if jointly else Each(fixed) if fixed else None,
        "transpose": transpose if fixed else None,
        "vjp": vjp,
        "batch": lambda operands, mapped, size, **params: batch_elementwise(
            op, operands, mapped, size, params
        ),
        "decompose": decompose,
        "samples": samples or own_samples,
    }
    op: Op = define(Op(name=name, infer=infer, evaluate=evaluate, family="elementwise", **(made | rules)))
    return op
