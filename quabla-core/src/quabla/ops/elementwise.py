"""Elementwise arithmetic: one record per op, and the function that users call beneath it."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import TraceTensor, bind, full_value, innermost
from quabla.dtypes import bool_
from quabla.errors import DtypeError
from quabla.ir.op import OPS, Op, Sample, define
from quabla.ops.apply import batch_elementwise, binary, operand, promote, recorded, unary
from quabla.ops.compare import equal, greater, isinf, less
from quabla.ops.family import LINEAR, elementwise
from quabla.ops.limits import square_of_root
from quabla.ops.masks import through_mask
from quabla.ops.signs import bounds_nothing, never_negative
from quabla.ops.structure import broadcast, zeros_like
from quabla.shapes import ShapeDtype, aval_of, broadcast_shapes

__all__ = [
    "abs", "add", "cos", "div", "elementwise", "exp", "log", "maximum", "minimum", "mul", "neg", "relu",
    "sigmoid", "sign", "sin", "softplus", "sqrt", "stop_gradient", "sub", "tanh", "where",
]  # fmt: skip


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
    if x is y and type(x) is TraceTensor:
        square = square_of_root(x)
        if square is not None:
            return square
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

    Shapes, dtypes and errors as for `exp`.

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
tanh_op = elementwise("tanh", lambda x, out: bind(sech2_op, (x,), {}), evaluate=np.tanh)


# The slope of tanh, 1 / cosh(x)**2. As 1 - tanh(x)**2 it would cancel: from 20 on nothing of it would be left.


def _sech2(x: Any) -> Any:
    e = exp(-2.0 * abs(x))
    return 4.0 * e / ((1.0 + e) * (1.0 + e))


def _sech2_numpy(x: np.ndarray) -> np.ndarray:
    e = np.exp(-2 * np.abs(x))
    return np.asarray(4 * e / ((1 + e) * (1 + e)), x.dtype)


sech2_op: Op = elementwise(
    "sech2",
    lambda x, out: -2.0 * (tanh(x) * out),
    evaluate=_sech2_numpy,
    decompose=_sech2,
    extra=(("far", ([-800.0, -20.0, 0.0, 20.0, np.inf],)),),
)


def root_slope(x: Any, out: Any) -> Any:
    # The subgradient 0 at 0. The quotient is kept finite there, so that no derivative of it meets 0 * inf.
    at_zero = equal(out, 0.0)
    return where(at_zero, 0.0, div(0.5, where(at_zero, 1.0, out)))


def _root_pullback(ct: Any, operands: Any, out: Any, wanted: Any) -> Any:
    return (
        through_mask(
            ct,
            lambda c: (
                root_slope(operands[0], out) if full_value(c) == 1.0 else bind(OPS["unroot"], (c, out), {})
            ),
        ),
    )


def _root_forward(primals: Any, tangents: Any) -> Any:
    out = bind(sqrt_op, primals, {})
    return out, bind(OPS["sqrt_tangent"], (*tangents, out), {})


sqrt_op: Op = elementwise("sqrt", root_slope, evaluate=np.sqrt, domain=(0.2, 4.0), vjp=_root_pullback,
                      forward=_root_forward,
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

    Args:
        x: floating array of any shape, or a number.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: a bool array, or something that is no array, such as a list.

    Example:
        >>> import quabla as qb
        >>> qb.exp(qb.array([0.0, 1000.0])).tolist()
        [1.0, inf]
    """
    return unary(exp_op, x)


def log(x: Any) -> Any:
    """The natural logarithm of `x`, elementwise: -inf at 0 and NaN below, never an error.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.log(qb.array([1.0, 0.0, -1.0])).tolist()
        [0.0, -inf, nan]
    """
    return unary(log_op, x)


def sin(x: Any) -> Any:
    """The sine of `x` (radians), elementwise, for a floating `x` of any shape and size.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.sin(qb.array([0.0])).tolist()
        [0.0]
    """
    return unary(sin_op, x)


def cos(x: Any) -> Any:
    """The cosine of `x` (radians), elementwise, for a floating `x` of any shape and size.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.cos(qb.array([0.0])).tolist()
        [1.0]
    """
    return unary(cos_op, x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of `x`, elementwise, for a floating `x` of any shape.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.tanh(qb.array([0.0, 1000.0])).tolist()
        [0.0, 1.0]
    """
    return unary(tanh_op, x)


def sqrt(x: Any) -> Any:
    """The square root of `x`, elementwise; NaN below zero. Its derivative at 0 is 0, a subgradient of convenience.

    Its square has the derivatives of `x`, and of smooth functions of a root of squares holds what `norm` says.
    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.sqrt(qb.array([4.0, -1.0])).tolist(), qb.grad(qb.sqrt)(0.0).item()
        ([2.0, nan], 0.0)
    """
    return unary(sqrt_op, x)


def sigmoid(x: Any) -> Any:
    """The logistic function 1 / (1 + exp(-x)), elementwise, without overflow.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.sigmoid(qb.array([0.0, -1000.0])).tolist()
        [0.5, 0.0]
    """
    return unary(sigmoid_op, x)


def softplus(x: Any) -> Any:
    """log(1 + exp(x)), elementwise, without overflow. Its derivative is `sigmoid`.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.softplus(qb.array([1000.0, -1000.0])).tolist()
        [1000.0, 0.0]
    """
    return unary(softplus_op, x)


# --- kinks ------------------------------------------------------------------------------------------------------------

sign_op = elementwise("sign", None, evaluate=np.sign, takes="fi", extra=(("zero", ([0.0, -0.0, np.nan],)),))


def _abs_pullback(ct: Any, operands: Any, out: Any, wanted: Any) -> Any:
    return (
        through_mask(
            ct, lambda c: sign(*operands) if full_value(c) == 1.0 else bind(OPS["signed"], (c, *operands), {})
        ),
    )


def _abs_forward(primals: Any, tangents: Any) -> Any:
    out = bind(abs_op, primals, {})
    return out, bind(OPS["abs_tangent"], (*tangents, *primals, out), {})


abs_op: Op = elementwise("abs", lambda x, out: sign(x), evaluate=np.abs, takes="fi", vjp=_abs_pullback,
                     forward=_abs_forward,
                     extra=(("zero", ([0.0, -0.0],)),))  # fmt: skip


# 1 above 0 and 0 below. The result is 0 there or NaN, and so is the slope: what is NaN goes on as NaN.
relu_op = elementwise(
    "relu", lambda x, out: where(greater(x, 0.0), 1.0, stop_gradient(out)),
    evaluate=lambda x: np.maximum(x, np.zeros((), x.dtype)),
    extra=(("zero", ([0.0, -0.0, np.nan],)),),
)  # fmt: skip


def _ahead(x: Any, y: Any, out: Any) -> Any:
    """1 where x > y, 0 where x < y, 1/2 where they tie, else NaN as `out` is: the share of `maximum` due to x."""
    tie = where(equal(x, y), 0.5, stop_gradient(out))
    return where(greater(x, y), 1.0, where(less(x, y), 0.0, tie))


_TIES = (("ties", ([1.0, 2.0, 3.0, np.nan, 1.0], [1.0, 3.0, 2.0, 1.0, np.nan])),)
maximum_op = elementwise(
    "maximum",
    lambda x, y, out: _ahead(x, y, out),
    lambda x, y, out: _ahead(y, x, out),
    evaluate=np.maximum,
    takes="fi",
    extra=_TIES,
)
minimum_op = elementwise(
    "minimum",
    lambda x, y, out: _ahead(y, x, out),
    lambda x, y, out: _ahead(x, y, out),
    evaluate=np.minimum,
    takes="fi",
    extra=_TIES,
)


def abs(x: Any) -> Any:
    """The absolute value of `x`, elementwise. Its derivative at 0 is 0; for smooth functions of it see `norm`.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.abs(qb.array([-1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    return x if never_negative(x) else unary(abs_op, x)


def sign(x: Any) -> Any:
    """-1, 0 or 1 by the sign of `x`, elementwise; NaN for NaN. Its derivative is 0.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.sign(qb.array([-3.0, 0.0, 2.0])).tolist()
        [-1.0, 0.0, 1.0]
    """
    return unary(sign_op, x)


def relu(x: Any) -> Any:
    """max(x, 0), elementwise. Its derivative at 0 is 0, and NaN for NaN.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.relu(qb.array([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return x if never_negative(x) else unary(relu_op, x)


def maximum(x: Any, y: Any) -> Any:
    """The larger of `x` and `y`, elementwise with broadcasting; NaN where either is NaN.

    Where they tie, each gets half of the derivative; where either is NaN, so is the derivative. Shapes, dtypes and
    errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.maximum(qb.array([1.0, 5.0]), 3.0).tolist()
        [3.0, 5.0]
    """
    if bounds_nothing(y, x):
        return x
    return y if bounds_nothing(x, y) else binary(maximum_op, x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of `x` and `y`, elementwise with broadcasting; NaN where either is NaN.

    Where they tie, each gets half of the derivative; where either is NaN, so is the derivative. Shapes, dtypes and
    errors as for `add`.

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
        through=lambda walk, given: [walk.either(given[1], given[2])],
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

    What is left out has no part in a derivative, whatever its own slope is: infinities and NaN of elementwise
    functions, sums over axes, reshapes, stacks and checkpoints before it stay out of a gradient. Behind products of
    matrices, slices and positions they do not; replace the operand there too, as in where(c, f(where(c, x, 1.0)), 0.0).

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
        raise DtypeError(
            f"where: the condition must be bool, got {c.aval}; compare it, as in quabla.not_equal(condition, 0.0)"
        )
    x, y = promote((x, y), "where", bools=True)
    shape = broadcast_shapes("where", c.shape, x.shape, y.shape)
    frame = innermost((c, x, y))
    if frame is None:
        c, x, y = (broadcast(v, shape) for v in (c, x, y))
        return bind(where_op, (c, x, y), {})
    aval = aval_of(shape, x.dtype, x.aval.weak)
    operands = (recorded(frame, c, aval_of(shape, bool_)), recorded(frame, x, aval), recorded(frame, y, aval))
    return frame.emit(where_op, operands, {})


def at_ends(x: Any, slope: Any) -> Any:
    """`slope(x)`, and 0 with all its derivatives where `x` is infinite: the formula would multiply 0 by infinity."""
    far = isinf(x)
    return where(far, 0.0, slope(where(far, 0.0, x)))


# --- derivatives switched off -----------------------------------------------------------------------------------------

stop_gradient_op: Op = define(
    Op(
        name="stop_gradient",
        infer=lambda x: x,
        evaluate=lambda x: x,
        jvp=lambda primals, tangents, out: None,
        vjp=lambda ct, operands, out, wanted: (None,),
        batch=lambda operands, mapped, size: bind(stop_gradient_op, operands, {}),
        decompose=lambda x: x,
        declared=True,
        samples=lambda: iter([Sample("matrix", lambda rng: (rng.normal(size=(3, 4)),), smooth=False)]),
        family="elementwise",
    )
)


# Where an infinity hides what is added to it, the derivative of a value is not that of its formula.
stand_in_op: Op = elementwise(
    "stand_in", None, 1.0, evaluate=lambda value, x: value, decompose=lambda value, x: value, declared=True,
    samples=lambda: iter([Sample("infinite", _around_infinity, smooth=False)]), linear=None, transpose=None,
)  # fmt: skip


def _around_infinity(rng: Any) -> tuple[np.ndarray, np.ndarray]:
    value, x = [0.0, np.inf, -np.inf], [np.inf, 1.0, 2.0]
    return np.array([value, value[::-1]]), np.array([x, [3.0, 4.0, np.inf]])


def stand_in(value: Any, x: Any) -> Any:
    """`value` with the derivative of `x`, an array of the same type."""
    return bind(stand_in_op, (value, x), {})


def stop_gradient(x: Any) -> Any:
    """`x` itself, with derivative zero.

    Args:
        x: an array of any shape and dtype, a number, or a pytree of them.

    Returns:
        An array or a tree like `x`.

    Raises:
        DtypeError: a leaf is neither array nor number.

    Example:
        >>> import quabla as qb
        >>> qb.grad(lambda x: x * qb.stop_gradient(x))(3.0).item()
        3.0
        >>> qb.grad(lambda x: x * qb.stop_gradient({"w": x, "b": 2.0})["w"])(3.0).item()
        3.0
    """
    if type(x) is not TraceTensor and type(x) is not Tensor:
        leaves, treedef = tree.flatten(x)
        if treedef.kind is not tree.LEAF:
            names = ["stop_gradient: the leaf at " + "/".join(path) for path in tree.paths(treedef)]
            kept = [operand(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
            return tree.unflatten(treedef, [bind(stop_gradient_op, (leaf,), {}) for leaf in kept])
    return bind(stop_gradient_op, (operand(x, "stop_gradient"),), {})
