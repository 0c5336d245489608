"""Running sums and products, and the linear recurrence that is the derivative of running products.

`recurrence` is closed under transposition: the transpose runs the other way, with the factors shifted by one.
float32 elements are accumulated in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.dtypes import bool_
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import Each, Jointly, Op, Sample, define
from quabla.ops.apply import operand
from quabla.ops.elementwise import add_op, mul_op
from quabla.ops.structure import lead, pad, reshape_to, strided_slice, zeros_like
from quabla.shapes import ShapeDtype, aval_of, normalize_axis

__all__ = ["cumprod", "cumsum"]

Shape = tuple[int, ...]


def _infer(name: str) -> Callable[..., ShapeDtype]:
    def infer(*xs: ShapeDtype, axis: int, reverse: bool) -> ShapeDtype:
        if any(x.dtype is bool_ for x in xs):
            raise DtypeError(
                f"{name}: takes floating operands, got {' and '.join(map(repr, xs))}; convert with astype"
            )
        if any(x.shape != xs[0].shape or x.dtype is not xs[0].dtype for x in xs):
            raise ShapeError(f"{name}: the operands {' and '.join(map(repr, xs))} must have one type")
        return aval_of(xs[0].shape, xs[0].dtype, all(x.weak for x in xs))

    return infer


def _accumulated(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A NumPy function of arrays and an axis, with float32 computed in float64, forwards or backwards."""

    def evaluate(*xs: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        narrow = xs[0].dtype == np.float32
        wide = [x.astype(np.float64) if narrow else x for x in xs]
        if reverse:
            return np.flip(run(*[np.flip(x, axis) for x in wide], axis=axis), axis).astype(xs[0].dtype)
        return run(*wide, axis=axis).astype(xs[0].dtype, copy=False)

    return evaluate


def _samples(count: int) -> Callable[[], Iterator[Sample]]:
    def sample(name: str, shape: Shape, axis: int, reverse: bool) -> Sample:
        return Sample(
            name,
            lambda rng: tuple(rng.uniform(0.5, 1.5, shape) for _ in range(count)),
            {"axis": axis, "reverse": reverse},
        )

    def samples() -> Iterator[Sample]:
        yield sample("vector", (6,), 0, False)
        yield sample("reversed", (6,), 0, True)
        yield sample("first", (4, 3), 0, False)
        yield sample("middle", (2, 5, 3), 1, True)
        yield sample("wide", (3, 19), 0, False)
        yield sample("last", (3, 19), 1, True)
        yield sample("one", (3, 1), 1, False)
        zeros = [[1.0, 0.0, 2.0, 0.0, 3.0], [0.0, -1.0, 2.0, 2.0, 2.0]]
        yield Sample(
            "zeros",
            lambda rng: tuple(np.array(zeros) for _ in range(count)),
            {"axis": 1, "reverse": False},
            smooth=False,
        )

    return samples


def _piece(x: Any, axis: int, start: int, stop: int) -> Any:
    """Elements `start` to `stop` of an axis."""
    low = tuple(start if a == axis else 0 for a in range(x.ndim))
    high = tuple(stop if a == axis else n for a, n in enumerate(x.shape))
    return strided_slice(x, low, high, (1,) * x.ndim)


def _padded(x: Any, axis: int, before: int, behind: int) -> Any:
    """Zeros around `x` along an axis."""
    low = tuple(before if a == axis else 0 for a in range(x.ndim))
    high = tuple(behind if a == axis else 0 for a in range(x.ndim))
    return pad(x, low, high, (0,) * x.ndim)


def _previous(x: Any, axis: int, reverse: bool) -> Any:
    """At each place the element that comes before it, in the order of the running op; 0 where there is none."""
    n = x.shape[axis]
    if n == 1:
        return zeros_like(x)
    return (
        _padded(_piece(x, axis, 1, n), axis, 0, 1)
        if reverse
        else _padded(_piece(x, axis, 0, n - 1), axis, 1, 0)
    )


def _only_first(x: Any, axis: int, reverse: bool) -> Any:
    """`x` with 0 in place of all elements but that which comes first in the order of the running op."""
    n = x.shape[axis]
    at = n - 1 if reverse else 0
    return _padded(_piece(x, axis, at, at + 1), axis, at, n - 1 - at)


# --- records ----------------------------------------------------------------------------------------------------------


def _running(op: Op, operands: Any, axis: int, reverse: bool) -> Any:
    return bind(op, operands, {"axis": axis, "reverse": reverse})


cumsum_op: Op = define(
    Op(
        name="cumsum",
        infer=_infer("cumsum"),
        evaluate=_accumulated(np.cumsum),
        linear=Jointly(),
        transpose=lambda ct, operands, wanted, *, axis, reverse: (
            _running(cumsum_op, (ct,), axis, not reverse),
        ),
        batch=lambda operands, mapped, size, *, axis, reverse: _running(
            cumsum_op, operands, axis + 1, reverse
        ),
        samples=_samples(1),
        family="other",
    )
)


def recurrence(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    """y[0] = b[0] and y[i] = b[i] + a[i] y[i - 1] along an axis; from its end if `reverse`. The first a is not used."""
    return _running(recurrence_op, (a, b), axis, reverse)


def _recurrence_numpy(a: np.ndarray, b: np.ndarray, *, axis: int) -> np.ndarray:
    a, out = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0).copy()
    for i in range(1, len(out)):
        out[i] += a[i] * out[i - 1]
    return np.moveaxis(out, 0, axis)


def _recurrence_jvp(primals: Any, tangents: Any, out: Any, *, axis: int, reverse: bool) -> Any:
    (a, _), (ta, tb) = primals, tangents
    if ta is None and tb is None:
        return None
    moving = tb
    if ta is not None:
        term = bind(mul_op, (ta, _previous(out, axis, reverse)), {})
        moving = term if tb is None else bind(add_op, (term, tb), {})
    return recurrence(a, moving, axis, reverse)


def _recurrence_vjp(ct: Any, operands: Any, out: Any, wanted: Any, *, axis: int, reverse: bool) -> Any:
    # z[i] = ct[i] + a[i + 1] z[i + 1]: the same recurrence from the other end, with the factors of the next place.
    back = recurrence(_previous(operands[0], axis, not reverse), ct, axis, not reverse)
    by_a = bind(mul_op, (back, _previous(out, axis, reverse)), {}) if wanted[0] else None
    return by_a, back if wanted[1] else None


def _recurrence_batch(operands: Any, mapped: Any, size: int, *, axis: int, reverse: bool) -> Any:
    a, b = (lead(x, m, size) for x, m in zip(operands, mapped, strict=True))
    return recurrence(a, b, axis + 1, reverse)


recurrence_op = define(
    Op(
        name="recurrence",
        infer=_infer("recurrence"),
        evaluate=_accumulated(_recurrence_numpy),
        jvp=_recurrence_jvp,
        linear=Each((1,)),
        transpose=lambda ct, operands, wanted, **params: _recurrence_vjp(
            ct, operands, None, (False, wanted[1]), **params
        ),
        vjp=_recurrence_vjp,
        batch=_recurrence_batch,
        samples=_samples(2),
        family="other",
    )
)


def _cumprod_jvp(primals: Any, tangents: Any, out: Any, *, axis: int, reverse: bool) -> Any:
    # y[i] = x[i] y[i - 1], and so dy[i] = x[i] dy[i - 1] + y[i - 1] dx[i]: no quotient, and so right at zeros.
    (x,), (t,) = primals, tangents
    if t is None:
        return None
    terms = bind(mul_op, (t, _previous(out, axis, reverse)), {})
    return recurrence(x, bind(add_op, (terms, _only_first(t, axis, reverse)), {}), axis, reverse)


cumprod_op: Op = define(
    Op(
        name="cumprod",
        infer=_infer("cumprod"),
        evaluate=_accumulated(np.cumprod),
        jvp=_cumprod_jvp,
        batch=lambda operands, mapped, size, *, axis, reverse: _running(
            cumprod_op, operands, axis + 1, reverse
        ),
        samples=_samples(1),
        family="other",
    )
)


# --- what users call --------------------------------------------------------------------------------------------------


def _of(op: Op, x: Any, axis: int | None, reverse: bool) -> Any:
    x = operand(x, op.name)
    if x.dtype is bool_:
        raise DtypeError(
            f"{op.name}: takes a floating operand, got {x.aval}; convert it with .astype(quabla.float64)"
        )
    if axis is None:
        return _running(op, (reshape_to(x, (x.size,)),), 0, bool(reverse))
    return _running(op, (x,), normalize_axis(axis, x.ndim, op.name), bool(reverse))


def cumsum(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """The running sums of the elements of `x`: at each place the sum of all elements up to it.

    float32 elements are accumulated in float64, and each sum is rounded once.

    Args:
        x: floating array or number.
        axis: the axis along which to sum; None sums the elements in row-major order, as a vector.
        reverse: whether to sum from the end: at each place the sum of all elements from it on.

    Returns:
        An array of the shape and dtype of `x`; a vector if `axis` is None.

    Raises:
        DtypeError: `x` is bool.
        ShapeError: `axis` is out of range.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> qb.cumsum(x).tolist(), qb.cumsum(x, axis=0).tolist()
        ([1.0, 3.0, 6.0, 10.0], [[1.0, 2.0], [4.0, 6.0]])
    """
    return _of(cumsum_op, x, axis, reverse)


def cumprod(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """The running products of the elements of `x`: at each place the product of all elements up to it.

    float32 elements are accumulated in float64. The derivative is right where elements are zero, too. Arguments and
    errors as for `cumsum`.

    Example:
        >>> import quabla as qb
        >>> qb.cumprod(qb.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 2.0, 6.0]
        >>> qb.grad(lambda x: qb.cumprod(x)[-1])(qb.array([2.0, 0.0, 3.0])).tolist()
        [0.0, 6.0, 0.0]
    """
    return _of(cumprod_op, x, axis, reverse)
