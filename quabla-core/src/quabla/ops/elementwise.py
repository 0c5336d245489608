"""Elementwise arithmetic: one record per op, and the function that users call beneath it.

A record gives, per operand, the partial derivative as a function of the operands and the result. The family makes the
forward rule (sum of partial times tangent) and the pullback (cotangent times partial) from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import TraceTensor, bind, full_value, innermost
from quabla.dtypes import bool_
from quabla.errors import DtypeError
from quabla.ir.op import Each, Jointly, Op, Sample, define
from quabla.ops.apply import batch_elementwise, binary, operand, promote, recorded, unary
from quabla.ops.compare import equal, greater, less, logical_and
from quabla.ops.structure import broadcast, cast, zeros_like
from quabla.shapes import ShapeDtype, aval_of, broadcast_shapes

__all__ = [
    "abs", "add", "cos", "div", "elementwise", "exp", "log", "maximum", "minimum", "mul", "neg", "relu",
    "sigmoid", "sign", "sin", "softplus", "sqrt", "stop_gradient", "sub", "tanh", "where",
]  # fmt: skip

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
            return bind(neg_op, (t,), {})
        assert callable(partial)
        factor = partial(*operands, out, **params)
        # The seed of a gradient is 1, and every first pullback would multiply by it.
        return factor if full_value(t) == 1.0 else bind(mul_op, (t, factor), {})

    def jvp(primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        total = None
        for i, t in enumerate(tangents):
            if t is not None and partials[i] is not None:
                term = times(t, i, primals, out, params)
                total = term if total is None else bind(add_op, (total, term), {})
        return total

    def vjp(ct: Any, operands: Any, out: Any, wanted: Any, **params: Any) -> Any:
        return tuple(
            [times(ct, i, operands, out, params) if w and partials[i] is not None else None for i, w in enumerate(wanted)]
        )

    fixed = tuple(i for i, p in enumerate(partials) if p is LINEAR or isinstance(p, float))
    jointly = all(isinstance(p, float) for p in partials)

    def transpose(ct: Any, operands: Any, wanted: Any, **params: Any) -> Any:
        # Where the op is linear its partial derivative does not look at the result.
        return vjp(ct, operands, None, [w and i in fixed for i, w in enumerate(wanted)], **params)

    def own_samples() -> Iterator[Sample]:
        lo, hi = domain
        n = len(partials)
        yield Sample("matrix", lambda rng: tuple(rng.uniform(lo, hi, (3, 4)) for _ in range(n)), smooth=smooth)
        yield Sample("scalar", lambda rng: tuple(rng.uniform(lo, hi, ()) for _ in range(n)), smooth=smooth)
        for label, operands in extra:
            yield Sample(label, partial_samples(operands), smooth=False)

    op = define(
        Op(
            name=name,
            infer=infer,
            evaluate=evaluate,
            jvp=jvp,
            linear=Jointly() if jointly else Each(fixed) if fixed else None,
            transpose=transpose if fixed else None,
            vjp=vjp,
            batch=lambda operands, mapped, size, **params: batch_elementwise(op, operands, mapped, size, params),
            decompose=decompose,
            samples=samples or own_samples,
            family="elementwise",
        )
    )
    return op


# --- sums and products ------------------------------------------------------------------------------------------------

add_op = elementwise("add", 1.0, 1.0, evaluate=np.add, takes="fi")
sub_op = elementwise("sub", 1.0, -1.0, evaluate=np.subtract, takes="fi")
neg_op = elementwise("neg", -1.0, evaluate=np.negative, takes="fi")
mul_op = elementwise("mul", LINEAR, LINEAR, evaluate=np.multiply, takes="fi")
div_op = elementwise(
    "div", LINEAR, lambda x, y, out: neg(div(out, y)), evaluate=np.divide, domain=(0.5, 3.0),
    extra=(("by_zero", ([1.0, -1.0, 0.0], [0.0, 0.0, 0.0])),),
)  # fmt: skip


def add(x: Any, y: Any) -> Any:
    """The sum `x + y`, elementwise with broadcasting.

    Args:
        x: array or number.
        y: array or number, of a shape that broadcasts with that of `x`.

    Returns:
        An array of the broadcast shape and the common floating dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DtypeError: float32 beside float64, or bool operands alone.

    Example:
        >>> import quabla as qb
        >>> qb.add(qb.array([1.0, 2.0]), 1.0).tolist()
        [2.0, 3.0]
    """
    return binary(add_op, x, y)


def sub(x: Any, y: Any) -> Any:
    """The difference `x - y`; shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.sub(qb.array([1.0, 2.0]), 1.0).tolist()
        [0.0, 1.0]
    """
    return binary(sub_op, x, y)


def mul(x: Any, y: Any) -> Any:
    """The product `x * y`; shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.mul(qb.array([1.0, 2.0]), 3.0).tolist()
        [3.0, 6.0]
    """
    return binary(mul_op, x, y)


def div(x: Any, y: Any) -> Any:
    """The quotient `x / y`, by IEEE rules: division by zero gives an infinity or NaN, never an error.

    Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.div(qb.array([1.0, -1.0, 0.0]), 0.0).tolist()
        [inf, -inf, nan]
    """
    return binary(div_op, x, y)


def neg(x: Any) -> Any:
    """The negative `-x`, elementwise, for a floating `x` of any shape.

    Example:
        >>> import quabla as qb
        >>> qb.neg(qb.array([1.0, -2.0])).tolist()
        [-1.0, 2.0]
    """
    return unary(neg_op, x)


# --- exponentials, circular and hyperbolic functions ------------------------------------------------------------------

exp_op = elementwise("exp", lambda x, out: out, evaluate=np.exp)
log_op = elementwise("log", lambda x, out: div(1.0, x), evaluate=np.log, domain=(0.2, 4.0),
                     extra=(("edges", ([0.0, -1.0, np.inf, np.nan],)),))  # fmt: skip
sin_op = elementwise("sin", lambda x, out: cos(x), evaluate=np.sin)
cos_op = elementwise("cos", lambda x, out: neg(sin(x)), evaluate=np.cos)
tanh_op = elementwise("tanh", lambda x, out: 1.0 - out * out, evaluate=np.tanh)


def _root_slope(x: Any, out: Any) -> Any:
    # The subgradient 0 at 0. The quotient is kept finite there, so that no derivative of it meets 0 * inf.
    at_zero = equal(out, 0.0)
    return where(at_zero, 0.0, div(0.5, where(at_zero, 1.0, out)))


sqrt_op = elementwise("sqrt", _root_slope, evaluate=np.sqrt, domain=(0.2, 4.0),
                      extra=(("edges", ([0.0, -0.0, np.inf, -1.0],)),))  # fmt: skip
sigmoid_op = elementwise(
    "sigmoid",
    lambda x, out: out * sigmoid(-x),  # not out * (1 - out), which cancels for large x
    evaluate=lambda x: _stable_sigmoid(x),
    extra=(("far", ([-800.0, -40.0, 0.0, 40.0, 800.0],)),),
)
softplus_op = elementwise(
    "softplus",
    lambda x, out: sigmoid(x),
    evaluate=lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
    extra=(("far", ([-800.0, -100.0, 0.0, 100.0, 1000.0],)),),
)


def _stable_sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)), x.dtype)


def exp(x: Any) -> Any:
    """The exponential of `x`, elementwise, for a floating `x` of any shape; overflow gives inf.

    Example:
        >>> import quabla as qb
        >>> qb.exp(qb.array([0.0, 1000.0])).tolist()
        [1.0, inf]
    """
    return unary(exp_op, x)


def log(x: Any) -> Any:
    """The natural logarithm of `x`, elementwise: -inf at 0 and NaN below, never an error.

    Example:
        >>> import quabla as qb
        >>> qb.log(qb.array([1.0, 0.0, -1.0])).tolist()
        [0.0, -inf, nan]
    """
    return unary(log_op, x)


def sin(x: Any) -> Any:
    """The sine of `x` (radians), elementwise, for a floating `x` of any shape and size.

    Example:
        >>> import quabla as qb
        >>> qb.sin(qb.array([0.0])).tolist()
        [0.0]
    """
    return unary(sin_op, x)


def cos(x: Any) -> Any:
    """The cosine of `x` (radians), elementwise, for a floating `x` of any shape and size.

    Example:
        >>> import quabla as qb
        >>> qb.cos(qb.array([0.0])).tolist()
        [1.0]
    """
    return unary(cos_op, x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of `x`, elementwise, for a floating `x` of any shape.

    Example:
        >>> import quabla as qb
        >>> qb.tanh(qb.array([0.0, 1000.0])).tolist()
        [0.0, 1.0]
    """
    return unary(tanh_op, x)


def sqrt(x: Any) -> Any:
    """The square root of `x`, elementwise; NaN below zero. Its derivative at 0 is 0, a subgradient of convenience.

    Example:
        >>> import quabla as qb
        >>> qb.sqrt(qb.array([4.0, -1.0])).tolist(), qb.grad(qb.sqrt)(0.0).item()
        ([2.0, nan], 0.0)
    """
    return unary(sqrt_op, x)


def sigmoid(x: Any) -> Any:
    """The logistic function 1 / (1 + exp(-x)), elementwise, without overflow.

    Example:
        >>> import quabla as qb
        >>> qb.sigmoid(qb.array([0.0, -1000.0])).tolist()
        [0.5, 0.0]
    """
    return unary(sigmoid_op, x)


def softplus(x: Any) -> Any:
    """log(1 + exp(x)), elementwise, without overflow. Its derivative is `sigmoid`.

    Example:
        >>> import quabla as qb
        >>> qb.softplus(qb.array([1000.0, -1000.0])).tolist()
        [1000.0, 0.0]
    """
    return unary(softplus_op, x)


# --- kinks ------------------------------------------------------------------------------------------------------------

sign_op = elementwise("sign", None, evaluate=np.sign, takes="fi", extra=(("zero", ([0.0, -0.0, np.nan],)),))
abs_op = elementwise("abs", lambda x, out: sign(x), evaluate=np.abs, takes="fi", extra=(("zero", ([0.0, -0.0],)),))
relu_op = elementwise(
    "relu", lambda x, out: cast(greater(x, 0.0), x.dtype), evaluate=lambda x: np.maximum(x, np.zeros((), x.dtype)),
    extra=(("zero", ([0.0, -0.0, np.nan],)),),
)  # fmt: skip


def _ahead(x: Any, y: Any) -> Any:
    """1 where x > y, 1/2 where they tie, 0 elsewhere: the share of `maximum` that is due to x."""
    return where(equal(x, y), 0.5, cast(greater(x, y), x.dtype))


_TIES = (("ties", ([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])),)
maximum_op = elementwise(
    "maximum", lambda x, y, out: _ahead(x, y), lambda x, y, out: _ahead(y, x), evaluate=np.maximum, takes="fi", extra=_TIES
)
minimum_op = elementwise(
    "minimum", lambda x, y, out: _ahead(y, x), lambda x, y, out: _ahead(x, y), evaluate=np.minimum, takes="fi", extra=_TIES
)


def abs(x: Any) -> Any:
    """The absolute value of `x`, elementwise. Its derivative at 0 is 0.

    Example:
        >>> import quabla as qb
        >>> qb.abs(qb.array([-1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    return unary(abs_op, x)


def sign(x: Any) -> Any:
    """-1, 0 or 1 by the sign of `x`, elementwise; NaN for NaN. Its derivative is 0.

    Example:
        >>> import quabla as qb
        >>> qb.sign(qb.array([-3.0, 0.0, 2.0])).tolist()
        [-1.0, 0.0, 1.0]
    """
    return unary(sign_op, x)


def relu(x: Any) -> Any:
    """max(x, 0), elementwise. Its derivative at 0 is 0.

    Example:
        >>> import quabla as qb
        >>> qb.relu(qb.array([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return unary(relu_op, x)


def maximum(x: Any, y: Any) -> Any:
    """The larger of `x` and `y`, elementwise with broadcasting; NaN where either is NaN.

    Where they tie, each gets half of the derivative. Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.maximum(qb.array([1.0, 5.0]), 3.0).tolist()
        [3.0, 5.0]
    """
    return binary(maximum_op, x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of `x` and `y`, elementwise with broadcasting; NaN where either is NaN.

    Where they tie, each gets half of the derivative. Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.minimum(qb.array([1.0, 5.0]), 3.0).tolist()
        [1.0, 3.0]
    """
    return binary(minimum_op, x, y)


# --- selection --------------------------------------------------------------------------------------------------------


def _where_infer(c: ShapeDtype, x: ShapeDtype, y: ShapeDtype) -> ShapeDtype:
    return x


def _where_transpose(ct: Any, operands: Any, wanted: Any) -> Any:
    c = operands[0]
    zero = zeros_like(ct)
    return (
        None,
        bind(where_op, (c, ct, zero), {}) if wanted[1] else None,
        bind(where_op, (c, zero, ct), {}) if wanted[2] else None,
    )


def _where_jvp(primals: Any, tangents: Any, out: Any) -> Any:
    c, x, y = primals
    _, t, u = tangents
    if t is None and u is None:
        return None
    return bind(where_op, (c, zeros_like(x) if t is None else t, zeros_like(y) if u is None else u), {})


where_op: Op = define(
    Op(
        name="where",
        infer=_where_infer,
        evaluate=lambda c, x, y: np.where(c, x, y),
        jvp=_where_jvp,
        transpose=_where_transpose,
        vjp=lambda ct, operands, out, wanted: _where_transpose(ct, operands, wanted),
        batch=lambda operands, mapped, size: batch_elementwise(where_op, operands, mapped, size, {}),
        samples=lambda: iter(
            [
                Sample(
                    "matrix",
                    lambda rng: (rng.random((3, 4)) < 0.5, rng.normal(size=(3, 4)), rng.normal(size=(3, 4))),
                )
            ]
        ),
        family="elementwise",
    )
)


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where `condition` holds and `y` elsewhere, elementwise with broadcasting.

    Args:
        condition: bool array or Python bool.
        x: array or number.
        y: array or number; the three shapes broadcast.

    Returns:
        An array of the broadcast shape and the common dtype of `x` and `y`.

    Raises:
        DtypeError: the condition is not bool, or `x` and `y` do not mix.
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([-1.0, 2.0])
        >>> qb.where(x > 0.0, x, 0.0).tolist()
        [0.0, 2.0]
    """
    c = operand(condition, "where")
    if c.dtype is not bool_:
        raise DtypeError(f"where: the condition must be bool, got {c.aval}; compare it, as in condition != 0.0")
    x, y = promote((x, y), "where", bools=True)
    shape = broadcast_shapes("where", c.shape, x.shape, y.shape)
    frame = innermost((c, x, y))
    if frame is None:
        c, x, y = (broadcast(v, shape) for v in (c, x, y))
        return bind(where_op, (c, x, y), {})
    aval = aval_of(shape, x.dtype, x.aval.weak)
    operands = (recorded(frame, c, aval_of(shape, bool_)), recorded(frame, x, aval), recorded(frame, y, aval))
    return frame.emit(where_op, operands, {})


# --- derivatives switched off -----------------------------------------------------------------------------------------

stop_gradient_op: Op = define(
    Op(
        name="stop_gradient",
        infer=lambda x: x,
        evaluate=lambda x: x,
        jvp=lambda primals, tangents, out: None,
        vjp=lambda ct, operands, out, wanted: (None,),
        batch=lambda operands, mapped, size: bind(stop_gradient_op, operands, {}),
        samples=lambda: iter([Sample("matrix", lambda rng: (rng.normal(size=(3, 4)),), smooth=False)]),
        family="elementwise",
    )
)


def stop_gradient(x: Any) -> Any:
    """`x` itself, with derivative zero.

    Example:
        >>> import quabla as qb
        >>> qb.grad(lambda x: x * qb.stop_gradient(x))(3.0).item()
        3.0
    """
    return bind(stop_gradient_op, (operand(x, "stop_gradient"),), {})

