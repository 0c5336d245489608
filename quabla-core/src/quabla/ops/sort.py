"""Order: sorting, the position of extrema, and search in sorted arrays.

The ops here give positions, which have no derivative. What they pick does: `sort` takes the elements at the positions
that `argsort` found, so its derivative permutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind
from quabla.dtypes import bool_, float64, int64
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import Op, Sample, define
from quabla.ops.apply import operand, promote
from quabla.ops.compare import equal, isnan_op, logical_or_op
from quabla.ops.elementwise import where_op
from quabla.ops.positions import shown
from quabla.ops.reduce import check_keepdims, reduce_max_op, reduce_min_op, spread
from quabla.ops.structure import broadcast, cast, inverse_permutation, lead, permute, reshape_to
from quabla.ops.take import along
from quabla.shapes import ShapeDtype, aval_of, normalize_axis

__all__ = ["argmax", "argmin", "argsort", "searchsorted", "sort"]

Shape = tuple[int, ...]


def _axis(x: Any, axis: int | None, where: str) -> tuple[Any, int]:
    """The array, flattened where `axis` is None, and the axis as an index from the front."""
    if axis is None:
        return reshape_to(x, (x.size,)), 0
    return x, normalize_axis(axis, x.ndim, where)


# --- argsort ----------------------------------------------------------------------------------------------------------


def _lines() -> Iterator[Sample]:
    """Operands for ops along the last axis: with ties, with NaN and infinities, long ones."""
    yield Sample("vector", lambda rng: (rng.normal(size=(9,)),), smooth=False)
    yield Sample("lines", lambda rng: (rng.normal(size=(2, 3, 40)),), smooth=False)
    yield Sample("ties", lambda rng: (rng.integers(0, 4, (3, 37)).astype(float),), smooth=False)
    special = [0.0, np.nan, -np.inf, -0.0, 2.0, np.inf, 0.0, np.nan, -1.0, -0.0]
    yield Sample("special", lambda rng: (np.array([special, special[::-1]]),), smooth=False)
    yield Sample("one", lambda rng: (rng.normal(size=(4, 1)),), smooth=False)
    yield Sample("bools", lambda rng: (rng.random((2, 21)) < 0.5,), smooth=False)


argsort_op: Op = define(
    Op(
        name="argsort",
        infer=lambda x: aval_of(x.shape, int64),
        evaluate=lambda x: np.argsort(x, axis=-1, kind="stable").astype(np.int64),
        jvp=lambda primals, tangents, out: None,
        vjp=lambda ct, operands, out, wanted: (None,),
        batch=lambda operands, mapped, size: bind(argsort_op, operands, {}),
        samples=_lines,
        family="other",
    )
)


def _order(x: Any, axis: int) -> Any:
    """The int64 positions that sort `x` along `axis`."""
    last = (*(a for a in range(x.ndim) if a != axis), axis)
    return permute(bind(argsort_op, (permute(x, last),), {}), inverse_permutation(last))


def sort(x: Any, axis: int | None = -1) -> Any:
    """`x` in ascending order along an axis; NaN comes last, and equal elements keep their order.

    Args:
        x: array; its derivative is permuted like its elements.
        axis: the axis along which to sort; None sorts the elements of the whole array as a vector.

    Returns:
        An array of the shape and dtype of `x`; a vector if `axis` is None.

    Raises:
        ShapeError: `axis` is out of range.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([3.0, 1.0, 2.0])
        >>> qb.sort(x).tolist(), qb.flip(qb.sort(x)).tolist()
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
        >>> qb.grad(lambda v: qb.sort(v)[0])(x).tolist()
        [0.0, 1.0, 0.0]
    """
    x, a = _axis(operand(x, "sort"), axis, "sort")
    return along(x, _order(x, a), a)


def argsort(x: Any, axis: int | None = -1) -> Any:
    """The positions that sort `x` along an axis: `take_along_axis(x, argsort(x, axis), axis)` is sorted.

    The order is stable: of equal elements the first comes first. NaN comes last.

    Args:
        x: array.
        axis: the axis along which to sort; None sorts the elements of the whole array as a vector.

    Returns:
        Positions of the shape of `x`, whole numbers as float64 that adopts the dtype of what it meets; `astype` makes
        int64 of them. They serve as an index. Their derivative is zero.

    Raises:
        ShapeError: `axis` is out of range.

    Example:
        >>> import quabla as qb
        >>> qb.argsort(qb.array([3.0, 1.0, 2.0])).tolist()
        [1.0, 2.0, 0.0]
    """
    x, a = _axis(operand(x, "argsort"), axis, "argsort")
    return shown(_order(x, a))


# --- positions of extrema ---------------------------------------------------------------------------------------------


def _position_op(name: str, extremum: Op, evaluate: Callable[..., Any]) -> Op:
    def infer(x: ShapeDtype, *, axis: int) -> ShapeDtype:
        if x.dtype is bool_:
            raise DtypeError(f"{name}: takes a floating operand, got {x}; convert it with astype")
        return aval_of((*x.shape[:axis], *x.shape[axis + 1 :]), int64)

    def decompose(x: Any, *, axis: int) -> Any:
        # The least position at which x is the extremum; where one element is NaN so is the extremum, which equals
        # nothing.
        n = x.shape[axis]
        hit = equal(x, spread(bind(extremum, (x,), {"axes": (axis,)}), x.shape, (axis,)))
        if x.dtype.kind == "f":
            hit = bind(logical_or_op, (hit, bind(isnan_op, (x,), {})), {})
        numbers = broadcast(x.frame.lift(wrap(np.arange(n))), x.shape, (axis,))
        last = x.frame.full(n - 1, aval_of(x.shape, int64))
        return bind(reduce_min_op, (bind(where_op, (hit, numbers, last), {}),), {"axes": (axis,)})

    def samples() -> Iterator[Sample]:
        for axis in (0, 1, 2):
            yield Sample(
                f"axis{axis}", lambda rng: (rng.normal(size=(2, 3, 4)),), {"axis": axis}, smooth=False
            )
        yield Sample("long", lambda rng: (rng.normal(size=(3, 100)),), {"axis": 1}, smooth=False)
        yield Sample(
            "ties", lambda rng: (rng.integers(0, 3, (5, 9)).astype(float),), {"axis": 1}, smooth=False
        )
        special = [[1.0, np.nan, 3.0, np.nan], [np.inf, 2.0, np.inf, 0.0], [-np.inf, 0.0, -0.0, -np.inf]]
        yield Sample("special", lambda rng: (np.array(special),), {"axis": 1}, smooth=False)

    op = define(
        Op(
            name=name,
            infer=infer,
            evaluate=lambda x, *, axis: np.asarray(evaluate(x, axis=axis), np.int64),
            jvp=lambda primals, tangents, out, *, axis: None,
            vjp=lambda ct, operands, out, wanted, *, axis: (None,),
            batch=lambda operands, mapped, size, *, axis: bind(op, operands, {"axis": axis + 1}),
            decompose=decompose,
            samples=samples,
            family="other",
        )
    )
    return op


argmax_op = _position_op("argmax", reduce_max_op, np.argmax)
argmin_op = _position_op("argmin", reduce_min_op, np.argmin)


def _position_of(op: Op, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = operand(x, op.name)
    given = x.ndim
    if x.dtype is bool_:
        x = cast(x, float64)
    x, a = _axis(x, axis, op.name)
    out = shown(bind(op, (x,), {"axis": a}))
    check_keepdims(op.name, keepdims)
    if not keepdims:
        return out
    return reshape_to(out, (1,) * given if axis is None else (*out.shape[:a], 1, *out.shape[a:]))


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The position of the largest element, or of the largest along an axis: of the first that ties, or the first NaN.

    Args:
        x: array.
        axis: the axis to search along; None searches the whole array, and counts in row-major order.
        keepdims: whether the axis stays, with extent 1 (for None: all axes).

    Returns:
        Positions, whole numbers as float64 that adopts the dtype of what it meets; `astype` makes int64 of them. They
        serve as an index. Their derivative is zero.

    Raises:
        ShapeError: `axis` is out of range.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 5.0, 3.0], [9.0, 2.0, 9.0]])
        >>> qb.argmax(x).item(), qb.argmax(x, axis=1).tolist()
        (3.0, [1.0, 0.0])
        >>> labels = qb.array([1.0, 2.0])
        >>> qb.mean(qb.equal(qb.argmax(x, axis=1), labels).astype(qb.float64)).item()
        0.5
    """
    return _position_of(argmax_op, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The position of the smallest element, or of the smallest along an axis. All else as for `argmax`.

    Example:
        >>> import quabla as qb
        >>> qb.argmin(qb.array([[4.0, 1.0], [2.0, 3.0]]), axis=0).tolist()
        [1.0, 0.0]
    """
    return _position_of(argmin_op, x, axis, keepdims)


# --- searchsorted -----------------------------------------------------------------------------------------------------


def _search_infer(a: ShapeDtype, v: ShapeDtype, *, side: str, batch: int) -> ShapeDtype:
    if a.dtype is not v.dtype:
        raise DtypeError(f"searchsorted: {a} and {v} differ in dtype; convert one with astype")
    if a.ndim != batch + 1 or v.shape[:batch] != a.shape[:-1]:
        raise ShapeError(f"searchsorted: {a} and {v} must agree in their first {batch} axes")
    return aval_of(v.shape, int64)


def _before(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether x comes before y in ascending order, in which NaN is last."""
    before: np.ndarray = (x < y) | ((y != y) & (x == x))
    return before


def _search_numpy(a: np.ndarray, v: np.ndarray, *, side: str, batch: int) -> np.ndarray:
    # Bisection, for all elements at once: defined for any array, where NumPy's own search depends on the neighbours
    # of an element where the array is not sorted.
    rows = math.prod(a.shape[:-1])
    lines, values = a.reshape(rows, -1), v.reshape(rows, -1)
    low, high = np.zeros(values.shape, np.int64), np.full(values.shape, lines.shape[1], np.int64)
    while (searching := low < high).any():
        middle = (low + high) >> 1
        x = np.take_along_axis(lines, np.minimum(middle, lines.shape[1] - 1), axis=1)
        behind = _before(x, values) if side == "left" else ~_before(values, x)
        low = np.where(searching & behind, middle + 1, low)
        high = np.where(searching & ~behind, middle, high)
    return low.reshape(v.shape)


def _search_batch(operands: Any, mapped: Any, size: int, *, side: str, batch: int) -> Any:
    a, v = operands
    if batch or mapped[0]:
        a, v, batch = lead(a, mapped[0], size), lead(v, mapped[1], size), batch + 1
    return bind(searchsorted_op, (a, v), {"side": side, "batch": batch})


def _search_samples() -> Iterator[Sample]:
    def line(rng: Any, *shape: int) -> Any:
        return np.sort(rng.integers(-4, 5, shape).astype(float), axis=-1)

    def values(rng: Any, *shape: int) -> Any:
        return rng.integers(-6, 7, shape).astype(float)

    special = np.array([-np.inf, -0.0, 0.0, 0.0, 1.0, np.inf, np.nan, np.nan])
    for side in ("left", "right"):
        for name, batch, make in (
            ("vector", 0, lambda rng: (line(rng, 9), values(rng, 4, 5))),
            ("batched", 1, lambda rng: (line(rng, 3, 10), values(rng, 3, 8))),
            ("special", 0, lambda rng: (special, special[::-1])),
            ("one", 0, lambda rng: (line(rng, 1), np.array(0.5))),
        ):
            yield Sample(f"{name}_{side}", make, {"side": side, "batch": batch}, smooth=False)


searchsorted_op = define(
    Op(
        name="searchsorted",
        infer=_search_infer,
        evaluate=_search_numpy,
        jvp=lambda primals, tangents, out, *, side, batch: None,
        vjp=lambda ct, operands, out, wanted, *, side, batch: (None, None),
        batch=_search_batch,
        samples=_search_samples,
        family="other",
    )
)


def find(a: Any, v: Any, side: str) -> Any:
    """The int64 positions at which the elements of `v` belong in the sorted vector `a`."""
    return bind(searchsorted_op, (a, v), {"side": side, "batch": 0})


def searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    """The positions at which elements would have to be inserted in a sorted vector to keep it sorted.

    Args:
        a: vector in ascending order; NaN counts as largest. Elements in another order give positions without meaning.
        v: array or number: the elements.
        side: "left" for the first such position, before equal elements, "right" for the last, behind them.

    Returns:
        Positions of the shape of `v`, from 0 to the length of `a`, whole numbers as float64 that adopts the dtype of
        what it meets; `astype` makes int64 of them. Their derivative is zero.

    Raises:
        ShapeError: `a` is no vector.
        DtypeError: the dtypes differ.
        ValueError: `side` is another word.

    Example:
        >>> import quabla as qb
        >>> a = qb.array([1.0, 2.0, 2.0, 3.0])
        >>> qb.searchsorted(a, 2.0).item(), qb.searchsorted(a, 2.0, side="right").item()
        (1.0, 3.0)
    """
    a, v = promote((a, v), "searchsorted")
    if a.ndim != 1:
        raise ShapeError(
            f"searchsorted: the sorted array must be a vector, got {a.aval}; map over others with quabla.vmap"
        )
    if side not in ("left", "right"):
        raise ShapeError(f"searchsorted: side is 'left' or 'right', got {side!r}")
    return shown(find(a, v, side))
