"""Functions that rearrange elements. Each checks its arguments and composes the primitives of `structure.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, SupportsIndex

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.dtypes import as_dtype
from quabla.errors import ShapeError
from quabla.ops.apply import operand, promote
from quabla.ops.elementwise import where
from quabla.ops.structure import broadcast, cast, concatenate, permute, reshape_to, strided_slice
from quabla.shapes import as_shape, broadcast_shapes, normalize_axes, normalize_axis, whole

__all__ = [
    "astype", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "ravel", "reshape", "roll",
    "split", "squeeze", "stack", "swapaxes", "tile", "transpose", "tril", "triu",
]  # fmt: skip

Shape = tuple[int, ...]


# --- the same elements under another shape ----------------------------------------------------------------------------


def reshape(x: Any, shape: int | Sequence[int]) -> Any:
    """The elements of `x`, in row-major order, under another shape.

    Args:
        x: array or number.
        shape: the new extents; one of them may be -1 and is then worked out.

    Returns:
        An array of that shape.

    Raises:
        ShapeError: the shape does not hold as many elements as `x` has.

    Example:
        >>> import quabla as qb
        >>> qb.reshape(qb.arange(6), (2, -1)).tolist()
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    x = operand(x, "reshape")
    return reshape_to(x, _completed(shape, x))


def _completed(shape: Any, x: Any) -> Shape:
    """The target of a reshape, with -1 worked out."""
    shape = shape.tolist() if isinstance(shape, np.ndarray) else shape
    given = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    free = [i for i, n in enumerate(given) if isinstance(n, SupportsIndex) and n == -1]
    if len(free) > 1:
        raise ShapeError(f"reshape: only one extent may be -1, got {given}")
    known = as_shape(tuple(n for i, n in enumerate(given) if i not in free), "reshape")
    size = 1
    for n in known:
        size *= n
    if x.size != size if not free else x.size % size:
        why = f": {x.size} is no multiple of {size}" if free else f" with {size}; one extent may be -1"
        raise ShapeError(
            f"reshape: an array of shape {x.shape} has {x.size} elements, which do not fit shape {given}{why}"
        )
    return (*known[: free[0]], x.size // size, *known[free[0] :]) if free else known


def ravel(x: Any) -> Any:
    """The elements of `x`, in row-major order, as a vector.

    The result has the shape `(x.size,)`, and `(1,)` for a scalar. Dtypes and errors as for `reshape`.

    Example:
        >>> import quabla as qb
        >>> qb.ravel(qb.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [1.0, 2.0, 3.0, 4.0]
    """
    x = operand(x, "ravel")
    return reshape_to(x, (x.size,))


def squeeze(x: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    """`x` without axes of extent 1.

    Args:
        x: array or number.
        axis: the axes to remove; all of extent 1 if None.

    Returns:
        An array with the same elements and fewer axes.

    Raises:
        ShapeError: an axis is out of range, or its extent is not 1.

    Example:
        >>> import quabla as qb
        >>> qb.squeeze(qb.ones((1, 3, 1))).shape, qb.squeeze(qb.ones((1, 3, 1)), axis=0).shape
        ((3,), (3, 1))
    """
    x = operand(x, "squeeze")
    if axis is None:
        axes = tuple(a for a, n in enumerate(x.shape) if n == 1)
    else:
        axes = normalize_axes(axis, x.ndim, "squeeze")
        for a in axes:
            if x.shape[a] != 1:
                raise ShapeError(f"squeeze: axis {a} of shape {x.shape} has {x.shape[a]} elements, not 1")
    return reshape_to(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def expand_dims(x: Any, axis: int | tuple[int, ...]) -> Any:
    """`x` with new axes of extent 1.

    Args:
        x: array or number.
        axis: where the new axes stand in the result.

    Returns:
        An array with the same elements and more axes.

    Raises:
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import quabla as qb
        >>> qb.expand_dims(qb.ones((3, 4)), axis=(0, -1)).shape
        (1, 3, 4, 1)
    """
    x = operand(x, "expand_dims")
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = normalize_axes(given, x.ndim + len(given), "expand_dims")
    extents = iter(x.shape)
    return reshape_to(x, tuple(1 if a in axes else next(extents) for a in range(x.ndim + len(axes))))


# --- the order of axes ------------------------------------------------------------------------------------------------


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """`x` with its axes in another order.

    Args:
        x: array or number.
        axes: for each axis of the result, the axis of `x` that it is; the reverse order if None.

    Returns:
        An array whose shape is that of `x`, permuted.

    Raises:
        ShapeError: `axes` is not a permutation of the axes of `x`.

    Example:
        >>> import quabla as qb
        >>> qb.transpose(qb.ones((2, 3, 4))).shape, qb.transpose(qb.ones((2, 3, 4)), (1, 2, 0)).shape
        ((4, 3, 2), (3, 4, 2))
    """
    x = operand(x, "transpose")
    if axes is None:
        return permute(x, tuple(range(x.ndim))[::-1])
    order = tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)
    perm = tuple(normalize_axis(a, x.ndim, "transpose") for a in order)
    if sorted(perm) != list(range(x.ndim)):
        raise ShapeError(f"transpose: axes {order} are not a permutation of the axes of shape {x.shape}")
    return permute(x, perm)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """`x` with some axes moved elsewhere; the others keep their order.

    Args:
        x: array.
        source: the axes to move.
        destination: where each of them goes, as many as in `source`.

    Returns:
        An array with the same elements.

    Raises:
        ShapeError: an axis is out of range or named twice, or the numbers of axes differ.

    Example:
        >>> import quabla as qb
        >>> qb.moveaxis(qb.ones((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    x = operand(x, "moveaxis")
    sources, targets = (
        tuple(normalize_axis(a, x.ndim, "moveaxis") for a in (v if isinstance(v, (tuple, list)) else (v,)))
        for v in (source, destination)
    )
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(
            f"moveaxis: source {source} and destination {destination} must name as many axes, each of them once"
        )
    order = [a for a in range(x.ndim) if a not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute(x, tuple(order))


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """`x` with two axes exchanged.

    Args:
        x: array of any dtype.
        axis1: an axis.
        axis2: the axis to exchange it with.

    Raises:
        ShapeError: an axis is out of range.

    Example:
        >>> import quabla as qb
        >>> qb.swapaxes(qb.ones((2, 3, 4)), 0, 2).shape
        (4, 3, 2)
    """
    x = operand(x, "swapaxes")
    order = list(range(x.ndim))
    a, b = (normalize_axis(axis, x.ndim, "swapaxes") for axis in (axis1, axis2))
    order[a], order[b] = b, a
    return permute(x, tuple(order))


# --- repetition -------------------------------------------------------------------------------------------------------


def broadcast_to(x: Any, shape: int | Sequence[int]) -> Any:
    """`x` repeated to a shape by NumPy's broadcasting rules.

    Args:
        x: array or number.
        shape: the new shape, which ends in that of `x` up to extents 1.

    Returns:
        An array of that shape.

    Raises:
        ShapeError: `x` does not broadcast to that shape.

    Example:
        >>> import quabla as qb
        >>> qb.broadcast_to(qb.array([1.0, 2.0]), (2, 2)).tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    x = operand(x, "broadcast_to")
    target = as_shape(shape, "broadcast_to")
    if len(target) < x.ndim or broadcast_shapes("broadcast_to", x.shape, target) != target:
        raise ShapeError(f"broadcast_to: an array of shape {x.shape} does not broadcast to shape {target}")
    return broadcast(x, target)


def tile(x: Any, reps: int | Sequence[int]) -> Any:
    """Copies of `x` side by side.

    Args:
        x: array or number.
        reps: how many copies along each of the last axes; more numbers than axes add axes in front.

    Returns:
        An array whose extents are those of `x` times `reps`.

    Raises:
        ShapeError: a number is below 1.

    Example:
        >>> import quabla as qb
        >>> qb.tile(qb.array([1.0, 2.0]), (2, 2)).tolist()
        [[1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0]]
    """
    x = operand(x, "tile")
    counts = as_shape(reps, "tile")
    ndim = len(counts) if len(counts) > x.ndim else x.ndim
    counts = (*(1,) * (ndim - len(counts)), *counts)
    shape = (*(1,) * (ndim - x.ndim), *x.shape)
    woven = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    dims = tuple(2 * a + 1 for a in range(ndim))
    wide = broadcast(reshape_to(x, shape), woven, dims)
    return reshape_to(wide, tuple(c * n for c, n in zip(counts, shape, strict=True)))


def _whole(n: Any, where: str, name: str) -> int:
    try:
        return whole(n)
    except TypeError:
        raise ShapeError(f"{where}: {name} is one integer, got {n!r}") from None


# --- joining and splitting --------------------------------------------------------------------------------------------


def concat(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays one after another along an axis.

    Args:
        arrays: arrays of equal shapes except along `axis`, and of one dtype.
        axis: the axis to join along.

    Returns:
        An array whose extent along `axis` is the sum of theirs.

    Raises:
        ShapeError: there are no arrays, the shapes differ elsewhere, or an array is a scalar.
        DtypeError: float32 beside float64.

    Example:
        >>> import quabla as qb
        >>> qb.concat([qb.array([1.0, 2.0]), qb.array([3.0])]).tolist()
        [1.0, 2.0, 3.0]
    """
    return joined(arrays, axis, "concat")


def joined(arrays: Any, axis: int, where: str) -> Any:
    """What `concat` does, in the name of another function."""
    xs = _several(arrays, where)
    first = xs[0]
    if any(x.ndim == 0 for x in xs):
        raise ShapeError(
            f"{where}: takes arrays of rank 1 or more, got shapes {_shapes(xs)}; use stack for scalars"
        )
    if any(x.ndim != first.ndim for x in xs):
        raise ShapeError(f"{where}: the arrays must have one number of axes, got shapes {_shapes(xs)}")
    at = normalize_axis(axis, first.ndim, where)
    for x in xs:
        for a, (m, n) in enumerate(zip(first.shape, x.shape, strict=True)):
            if m != n and a != at:
                raise ShapeError(
                    f"{where}: shapes {_shapes(xs)} must agree except along axis {at}: "
                    f"axis {a} has {m} and {n} elements"
                )
    return concatenate(xs, at)


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape side by side along a new axis.

    Args:
        arrays: arrays or numbers of one shape and dtype.
        axis: where the new axis stands in the result.

    Returns:
        An array with one axis more, of as many elements as there are arrays.

    Raises:
        ShapeError: there are no arrays, or their shapes differ.
        DtypeError: float32 beside float64.

    Example:
        >>> import quabla as qb
        >>> qb.stack([qb.array([1.0, 2.0]), qb.array([3.0, 4.0])], axis=1).tolist()
        [[1.0, 3.0], [2.0, 4.0]]
    """
    xs = _several(arrays, "stack")
    if any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(
            f"stack: the arrays must have one shape, got {_shapes(xs)}; quabla.concat joins along an axis that is there"
        )
    at = normalize_axis(axis, xs[0].ndim + 1, "stack")
    return concatenate([reshape_to(x, (*x.shape[:at], 1, *x.shape[at:])) for x in xs], at)


def _several(arrays: Any, where: str) -> list[Any]:
    if not isinstance(arrays, (tuple, list)) or not arrays:
        raise ShapeError(
            f"{where}: takes a list or tuple of at least one array, as in {where}([x, y]); got {_described(arrays)}"
        )
    return promote(arrays, where, bools=True)


def _described(x: Any) -> str:
    return f"an empty {type(x).__name__}" if isinstance(x, (tuple, list)) else f"one {type(x).__name__}"


def _shapes(xs: Sequence[Any]) -> str:
    return ", ".join(str(x.shape) for x in xs)


def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    """`x` cut into parts along an axis.

    Args:
        x: array.
        indices_or_sections: the number of equal parts, or the positions of the cuts.
        axis: the axis to cut.

    Returns:
        The list of parts.

    Raises:
        ShapeError: the parts would not be equal, or a part would be empty.

    Example:
        >>> import quabla as qb
        >>> [part.tolist() for part in qb.split(qb.arange(5), [2])]
        [[0.0, 1.0], [2.0, 3.0, 4.0]]
    """
    x = operand(x, "split")
    at = normalize_axis(axis, x.ndim, "split")
    n = x.shape[at]
    if isinstance(indices_or_sections, (tuple, list)):
        cuts = [0, *(_whole(c, "split", "a position") for c in indices_or_sections), n]
    else:
        parts = _whole(indices_or_sections, "split", "the number of parts")
        if parts < 1 or n % parts:
            raise ShapeError(f"split: {n} elements along axis {at} do not divide into {parts} equal parts")
        cuts = list(range(0, n + 1, n // parts))
    if any(a >= b for a, b in pairwise(cuts)):
        raise ShapeError(
            f"split: cuts at {tuple(cuts[1:-1])} leave an empty part of {n} elements; empty arrays are not supported"
        )
    ones = (1,) * x.ndim
    return [
        strided_slice(
            x,
            tuple(a if i == at else 0 for i in range(x.ndim)),
            tuple(b if i == at else m for i, m in enumerate(x.shape)),
            ones,
        )
        for a, b in pairwise(cuts)
    ]


# --- the order of elements --------------------------------------------------------------------------------------------


def flip(x: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    """`x` with the order of elements reversed along some axes.

    Args:
        x: array.
        axis: the axis or axes; all of them if None.

    Returns:
        An array of the same shape.

    Raises:
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import quabla as qb
        >>> qb.flip(qb.array([1.0, 2.0, 3.0])).tolist()
        [3.0, 2.0, 1.0]
    """
    x = operand(x, "flip")
    axes = normalize_axes(axis, x.ndim, "flip")
    if not axes:
        return x
    turned = [a in axes for a in range(x.ndim)]
    return strided_slice(
        x,
        tuple(n - 1 if t else 0 for n, t in zip(x.shape, turned, strict=True)),
        tuple(-1 if t else n for n, t in zip(x.shape, turned, strict=True)),
        tuple(-1 if t else 1 for t in turned),
    )


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Any:
    """`x` with its elements moved along, those that leave at the end coming in at the front.

    Args:
        x: array.
        shift: by how many places, one number per axis.
        axis: the axis or axes; the flattened array if None.

    Returns:
        An array of the same shape.

    Raises:
        ShapeError: an axis is out of range, or the numbers of shifts and axes differ.

    Example:
        >>> import quabla as qb
        >>> qb.roll(qb.array([1.0, 2.0, 3.0]), 1).tolist()
        [3.0, 1.0, 2.0]
    """
    x = operand(x, "roll")
    if axis is None:
        return reshape_to(roll(reshape_to(x, (x.size,)), shift, 0), x.shape)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for s, a in zip(shifts, axes, strict=True):
        at = normalize_axis(a, x.ndim, "roll")
        cut = -_whole(s, "roll", "a shift") % x.shape[at]
        if cut:
            head, tail = split(x, [cut], at)
            x = concatenate([tail, head], at)
    return x


# --- triangles, element types -----------------------------------------------------------------------------------------


def tril(x: Any, k: int = 0) -> Any:
    """The lower triangle of a matrix; zeros above the diagonal.

    Args:
        x: array `(..., m, n)`.
        k: the last diagonal that is kept: 0 the main one, positive above it.

    Returns:
        An array of the same shape.

    Raises:
        ShapeError: `x` has less than two axes.

    Example:
        >>> import quabla as qb
        >>> qb.tril(qb.ones((2, 3))).tolist()
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    return _triangle(x, k, "tril")


def triu(x: Any, k: int = 0) -> Any:
    """The upper triangle of a matrix; zeros below the diagonal.

    Args:
        x: array `(..., m, n)`.
        k: the first diagonal that is kept: 0 the main one, positive above it.

    Returns:
        An array of the same shape.

    Raises:
        ShapeError: `x` has less than two axes.

    Example:
        >>> import quabla as qb
        >>> qb.triu(qb.ones((2, 3))).tolist()
        [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """
    return _triangle(x, k, "triu")


def _triangle(x: Any, k: Any, name: str) -> Any:
    x = operand(x, name)
    if x.ndim < 2:
        raise ShapeError(f"{name}: takes an array of rank 2 or more, got {x.aval}")
    m, n = x.shape[-2:]
    diagonal = min(max(_whole(k, name, "k"), -m), n)  # beyond the corners there is nothing
    below = np.tri(x.shape[-2], x.shape[-1], diagonal if name == "tril" else diagonal - 1, dtype=np.bool_)
    mask = wrap(below if name == "tril" else ~below)
    return where(mask, x, 0.0 if x.dtype.kind == "f" else wrap(np.zeros((), x.dtype.numpy)))


def astype(x: Any, dtype: Any) -> Any:
    """`x` with elements of another type.

    Args:
        x: array or number.
        dtype: float64, float32 or `bool_`, or what NumPy calls them.

    Returns:
        An array of the same shape. Floating to bool is `x != 0`. From or to bool the derivative is 0.

    Raises:
        DtypeError: the type is not supported.

    Example:
        >>> import quabla as qb
        >>> qb.astype(qb.array([0.0, 2.0]), qb.bool_).tolist()
        [False, True]
    """
    return cast(operand(x, "astype"), as_dtype(dtype, "astype"))
