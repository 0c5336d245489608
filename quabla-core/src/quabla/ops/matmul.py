"""Products of arrays: the primitive `dot_general`, and `matmul`, `einsum` and their relatives on top of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import Each, Op, Sample, define
from quabla.ops import elementwise
from quabla.ops.apply import promote
from quabla.ops.structure import inverse_permutation, permute, reshape_to, strided_slice, sum_over
from quabla.shapes import ShapeDtype, aval_of, normalize_axis, whole
from quabla.typed_repr import typed

__all__ = ["dot", "einsum", "inner", "matmul", "outer", "tensordot"]

Shape = tuple[int, ...]
Pair = tuple[Shape, Shape]


# --- the primitive ----------------------------------------------------------------------------------------------------


def dot_general(lhs: Any, rhs: Any, contract: Pair, batch: Pair = ((), ())) -> Any:
    """The sum of products over `contract`, for each index of `batch`.

    `contract` and `batch` hold the axes of `lhs` and the axes of `rhs` that are paired. The axes of the result: batch,
    then those left of `lhs`, then those left of `rhs`, as `dot_general` of XLA orders them.
    """
    return bind(dot_general_op, (lhs, rhs), {"contract": contract, "batch": batch})


@lru_cache(maxsize=256)  # every rule of a product asks, and there are few forms
def free_axes(ndim: int, contract: Shape, batch: Shape) -> Shape:
    """The axes of an operand that are neither contracted nor batched."""
    return tuple([a for a in range(ndim) if a not in contract and a not in batch])


def _dot_infer(lhs: ShapeDtype, rhs: ShapeDtype, *, contract: Pair, batch: Pair) -> ShapeDtype:
    if lhs.dtype.kind != "f" or lhs.dtype is not rhs.dtype:
        raise DtypeError(
            f"dot_general: takes floating operands of one dtype, got {lhs} and {rhs}; convert with astype"
        )
    for a, b in (*zip(*contract, strict=True), *zip(*batch, strict=True)):
        if lhs.shape[a] != rhs.shape[b]:
            raise ShapeError(
                f"dot_general: {lhs} and {rhs} do not fit: axis {a} has {lhs.shape[a]} elements, "
                f"axis {b} has {rhs.shape[b]}"
            )
    left = free_axes(lhs.ndim, contract[0], batch[0])
    right = free_axes(rhs.ndim, contract[1], batch[1])
    shape = (
        *(lhs.shape[a] for a in batch[0]),
        *(lhs.shape[a] for a in left),
        *(rhs.shape[a] for a in right),
    )
    return aval_of(shape, lhs.dtype, lhs.weak and rhs.weak)


def _dot_numpy(lhs: np.ndarray, rhs: np.ndarray, *, contract: Pair, batch: Pair) -> np.ndarray:
    left = free_axes(lhs.ndim, contract[0], batch[0])
    right = free_axes(rhs.ndim, contract[1], batch[1])
    b = [lhs.shape[a] for a in batch[0]]
    m = [lhs.shape[a] for a in left]
    n = [rhs.shape[a] for a in right]
    k = int(np.prod([lhs.shape[a] for a in contract[0]]))
    x = lhs.transpose((*batch[0], *left, *contract[0])).reshape((*b, int(np.prod(m)), k))
    y = rhs.transpose((*batch[1], *contract[1], *right)).reshape((*b, k, int(np.prod(n))))
    out: np.ndarray = np.matmul(x, y)
    return out.reshape((*b, *m, *n))


def _dot_transpose(ct: Any, operands: Any, wanted: Any, *, contract: Pair, batch: Pair) -> Any:
    lhs, rhs = operands
    nb = len(batch[0])
    left = free_axes(lhs.ndim, contract[0], batch[0])
    right = free_axes(rhs.ndim, contract[1], batch[1])
    out_batch = tuple(range(nb))
    out_left = tuple(range(nb, nb + len(left)))
    out_right = tuple(range(nb + len(left), nb + len(left) + len(right)))
    cts: list[Any] = [None, None]
    if wanted[
        0
    ]:  # ct contracted with the free axes of rhs: batch, free of lhs, contracted in the order of rhs
        product = dot_general(ct, rhs, (out_right, right), (out_batch, batch[1]))
        partner = dict(zip(contract[1], contract[0], strict=True))
        held = (*batch[0], *left, *(partner[a] for a in sorted(contract[1])))
        cts[0] = permute(product, inverse_permutation(held))
    if wanted[1]:
        product = dot_general(ct, lhs, (out_left, left), (out_batch, batch[0]))
        partner = dict(zip(contract[0], contract[1], strict=True))
        held = (*batch[1], *right, *(partner[a] for a in sorted(contract[0])))
        cts[1] = permute(product, inverse_permutation(held))
    return tuple(cts)


def _dot_batch(operands: Any, mapped: Any, size: int, *, contract: Pair, batch: Pair) -> Any:
    lhs, rhs = operands
    l, r = int(mapped[0]), int(mapped[1])  # how far the axes of each operand move on
    contract = tuple(a + l for a in contract[0]), tuple(a + r for a in contract[1])
    batch = tuple(a + l for a in batch[0]), tuple(a + r for a in batch[1])
    if l and r:
        return dot_general(lhs, rhs, contract, ((0, *batch[0]), (0, *batch[1])))
    # The mapped axis is a free axis of its operand, the first of them; it moves to the front.
    out = dot_general(lhs, rhs, contract, batch)
    at = len(batch[0]) + (0 if l else lhs.ndim - len(contract[0]) - len(batch[0]))
    return permute(out, (at, *(a for a in range(out.ndim) if a != at)))


def _normal(left: Shape, right: Shape) -> Callable[[Any], tuple[Any, ...]]:
    return lambda rng: (rng.normal(size=left), rng.normal(size=right))


def _dot_samples() -> Iterator[Sample]:
    cases: list[tuple[str, Shape, Shape, Pair, Pair]] = [
        ("matrices", (2, 3), (3, 4), ((1,), (0,)), ((), ())),
        ("transposed", (3, 2), (4, 3), ((0,), (1,)), ((), ())),
        ("vectors", (5,), (5,), ((0,), (0,)), ((), ())),
        ("matrix_vector", (2, 3), (3,), ((1,), (0,)), ((), ())),
        ("batched", (5, 2, 3), (5, 3, 4), ((2,), (1,)), ((0,), (0,))),
        ("inner_batch", (2, 5, 3), (3, 4, 5), ((2,), (0,)), ((1,), (2,))),
        ("two_batches", (2, 3, 4, 5), (3, 5, 2, 6), ((3,), (1,)), ((1, 0), (0, 2))),
        ("two_contracted", (2, 3, 4), (4, 5, 3), ((1, 2), (2, 0)), ((), ())),
        ("three_contracted", (2, 3, 4, 5), (4, 5, 3, 6), ((1, 2, 3), (2, 0, 1)), ((), ())),
        ("unordered", (2, 5, 3, 4), (3, 4, 6, 5), ((2, 3, 1), (0, 1, 3)), ((), ())),
        ("outer", (2, 3), (4,), ((), ()), ((), ())),
        ("all_batch", (2, 3), (3, 2), ((), ()), ((0, 1), (1, 0))),
    ]
    for name, left, right, contract, batch in cases:
        yield Sample(name, _normal(left, right), {"contract": contract, "batch": batch})
    yield Sample(
        "special",
        lambda rng: (np.array([[np.inf, 1.0], [np.nan, 0.0]]), np.array([[2.0, -1.0], [1.0, 3.0]])),
        {"contract": ((1,), (0,)), "batch": ((), ())},
        smooth=False,
    )


dot_general_op = define(
    Op(
        name="dot_general",
        infer=_dot_infer,
        evaluate=_dot_numpy,
        linear=Each((0, 1)),
        transpose=_dot_transpose,
        batch=_dot_batch,
        samples=_dot_samples,
        family="product",
    )
)


# --- products of two labelled arrays ----------------------------------------------------------------------------------


def product(x: Any, xs: Sequence[Any], y: Any, ys: Sequence[Any], out: Sequence[Any]) -> Any:
    """The product of two arrays whose axes carry labels, summed over the labels that are not in `out`.

    No operand has a label twice. An extent 1 broadcasts against any other extent of its label.
    """
    x, xs = _squeezed(x, xs, dict(zip(ys, y.shape, strict=True)))
    y, ys = _squeezed(y, ys, dict(zip(xs, x.shape, strict=True)))
    x, xs = _summed(x, xs, {*ys, *out})
    y, ys = _summed(y, ys, {*xs, *out})
    contracted = [a for a in xs if a in ys and a not in out]
    if not contracted:
        return elementwise.mul(_aligned(x, xs, out), _aligned(y, ys, out))
    batch = [a for a in xs if a in ys and a in out]
    result = dot_general(
        x, y,
        (tuple(map(xs.index, contracted)), tuple(map(ys.index, contracted))),
        (tuple(map(xs.index, batch)), tuple(map(ys.index, batch))),
    )  # fmt: skip
    held = [*batch, *(a for a in xs if a not in ys), *(a for a in ys if a not in xs)]
    return permute(result, tuple(map(held.index, out)))


def _squeezed(x: Any, labels: Sequence[Any], other: dict[Any, int]) -> tuple[Any, list[Any]]:
    """`x` without the axes of extent 1 that the other operand has with more elements."""
    kept = [a for a, n in zip(labels, x.shape, strict=True) if n != 1 or other.get(a, 1) == 1]
    shape = tuple(n for a, n in zip(labels, x.shape, strict=True) if a in kept)
    return reshape_to(x, shape), kept


def _summed(x: Any, labels: list[Any], needed: set[Any]) -> tuple[Any, list[Any]]:
    """`x` summed over the labels that are not needed."""
    axes = tuple(i for i, a in enumerate(labels) if a not in needed)
    return sum_over(x, axes), [a for a in labels if a in needed]


def _aligned(x: Any, labels: list[Any], out: Sequence[Any]) -> Any:
    """`x` with an axis per label of `out`, in that order, of extent 1 where it has none."""
    x = permute(x, tuple(labels.index(a) for a in out if a in labels))
    extents = iter(x.shape)
    return reshape_to(x, tuple(next(extents) if a in labels else 1 for a in out))


def diagonal_of(x: Any, first: int, second: int) -> Any:
    """The diagonal of two axes of equal extent n, as a last axis: every (n + 1)-th element of the two made one."""
    n = x.shape[first]
    rest = tuple(a for a in range(x.ndim) if a not in (first, second))
    flat = permute(x, (*rest, first, second))
    flat = reshape_to(flat, (*flat.shape[:-2], n * n))
    ndim = flat.ndim
    return strided_slice(flat, (0,) * ndim, flat.shape, (*(1,) * (ndim - 1), n + 1))


# --- what users call --------------------------------------------------------------------------------------------------


def matmul(x: Any, y: Any) -> Any:
    """The matrix product `x @ y`.

    Args:
        x: floating array `(..., m, k)` or `(k,)`.
        y: floating array `(..., k, n)` or `(k,)`. The leading axes broadcast.

    Returns:
        An array `(..., m, n)`; a vector operand contributes no axis.

    Raises:
        ShapeError: the inner extents differ, the leading axes do not broadcast, or an operand is a scalar.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> qb.matmul(x, qb.array([1.0, 1.0])).tolist()
        [3.0, 7.0]
        >>> qb.matmul(qb.ones((5, 1, 2, 3)), qb.ones((4, 3, 6))).shape
        (5, 4, 2, 6)
    """
    x, y = promote((x, y), "matmul")
    for z in (x, y):
        if z.ndim == 0:
            raise ShapeError(
                f"matmul: takes arrays of rank 1 or more, got {x.aval} and {y.aval}; multiply by a scalar with *"
            )
    inner_y = 0 if y.ndim == 1 else y.ndim - 2
    if x.shape[-1] != y.shape[inner_y]:
        raise ShapeError(
            f"matmul: shapes {x.shape} and {y.shape} do not fit: the last axis of the first has {x.shape[-1]} "
            f"elements, axis {inner_y} of the second has {y.shape[inner_y]}{_turned(x.shape, y.shape)}"
        )
    depth = max(x.ndim, y.ndim, 2) - 2
    leading = list(range(depth))  # labels of the leading axes, aligned at the right
    for a in range(1, 1 + min(x.ndim, y.ndim) - 2):
        if x.shape[-2 - a] != y.shape[-2 - a] and 1 not in (x.shape[-2 - a], y.shape[-2 - a]):
            raise ShapeError(
                f"matmul: the leading axes of {x.shape} and {y.shape} do not broadcast: axis {-2 - a} has "
                f"{x.shape[-2 - a]} and {y.shape[-2 - a]} elements"
            )
    xs = ["k"] if x.ndim == 1 else [*leading[depth - (x.ndim - 2) :], "m", "k"]
    ys = ["k"] if y.ndim == 1 else [*leading[depth - (y.ndim - 2) :], "k", "n"]
    return product(x, xs, y, ys, [*leading, *(a for a in (*xs, *ys) if a in ("m", "n"))])


def _turned(x: Shape, y: Shape) -> str:
    """Which operand would fit if its last two axes were swapped, for the message."""
    if len(y) > 1 and x[-1] == y[-1]:
        return "; they would fit with the second transposed, as in quabla.swapaxes(y, -1, -2)"
    if len(x) > 1 and x[-2] == y[0 if len(y) == 1 else -2]:
        return "; they would fit with the first transposed, as in quabla.swapaxes(x, -1, -2)"
    return ""


def dot(x: Any, y: Any) -> Any:
    """The sum of products over the last axis of `x` and the last but one of `y` (the only one of a vector).

    Args:
        x: floating array `(..., k)`, or a scalar.
        y: floating array `(..., k, n)` or `(k,)`, or a scalar.

    Returns:
        An array with the other axes of `x` and then those of `y`; the product if either is a scalar. For matrices and
        vectors this is `matmul`.

    Raises:
        ShapeError: the extents differ.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> qb.dot(qb.array([1.0, 2.0]), qb.array([3.0, 4.0])).item()
        11.0
    """
    x, y = promote((x, y), "dot")
    if x.ndim == 0 or y.ndim == 0:
        return elementwise.mul(x, y)
    return _paired(x, y, ((x.ndim - 1,), (max(y.ndim - 2, 0),)), "dot")


def inner(x: Any, y: Any) -> Any:
    """The sum of products over the last axes of `x` and `y`.

    Args:
        x: floating array `(..., k)`, or a scalar.
        y: floating array `(..., k)`, or a scalar.

    Returns:
        An array with the other axes of `x` and then those of `y`; the product if either is a scalar.

    Raises:
        ShapeError: the last extents differ.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> qb.inner(qb.array([[1.0, 2.0], [3.0, 4.0]]), qb.array([1.0, 0.5])).tolist()
        [2.0, 5.0]
    """
    x, y = promote((x, y), "inner")
    if x.ndim == 0 or y.ndim == 0:
        return elementwise.mul(x, y)
    return _paired(x, y, ((x.ndim - 1,), (y.ndim - 1,)), "inner")


def outer(x: Any, y: Any) -> Any:
    """The products of every element of `x` with every element of `y`.

    Args:
        x: floating array of any shape, taken as a vector of m elements.
        y: floating array of any shape, taken as a vector of n elements.

    Returns:
        An array `(m, n)`.

    Raises:
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> qb.outer(qb.array([1.0, 2.0]), qb.array([3.0, 4.0])).tolist()
        [[3.0, 4.0], [6.0, 8.0]]
    """
    x, y = promote((x, y), "outer")
    return elementwise.mul(reshape_to(x, (x.size, 1)), reshape_to(y, (1, y.size)))


def tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """The sum of products over pairs of axes.

    Args:
        x: floating array.
        y: floating array.
        axes: a number n (the last n axes of `x` with the first n of `y`), or two axes or sequences of axes to pair.

    Returns:
        An array with the other axes of `x` and then those of `y`.

    Raises:
        ShapeError: the extents of paired axes differ, or an axis is out of range.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> qb.tensordot(qb.ones((2, 3, 4)), qb.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
        (2, 5)
    """
    x, y = promote((x, y), "tensordot")
    if not isinstance(axes, tuple | list):
        try:
            axes = whole(axes)
        except TypeError:
            raise ShapeError(
                f"tensordot: axes is a number or two sequences of axes, got {typed(axes)}"
            ) from None
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot: cannot pair {axes} axes of {x.aval} and {y.aval}")
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        if len(axes) != 2:
            raise ShapeError(f"tensordot: axes is a number or two sequences of axes, got {axes!r}")
        left, right = (_axes_of(a, z.ndim) for a, z in zip(axes, (x, y), strict=True))
        if len(left) != len(right) or len(set(left)) != len(left) or len(set(right)) != len(right):
            raise ShapeError(
                f"tensordot: axes {axes!r} do not pair: name each axis once, and as many of both operands"
            )
    return _paired(x, y, (left, right), "tensordot")


def _axes_of(axes: Any, ndim: int) -> Shape:
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    return tuple(normalize_axis(a, ndim, "tensordot") for a in given)


def _paired(x: Any, y: Any, contract: Pair, where: str) -> Any:
    """The product over paired axes, after a check that names what the user called."""
    for a, b in zip(*contract, strict=True):
        if x.shape[a] != y.shape[b]:
            raise ShapeError(
                f"{where}: shapes {x.shape} and {y.shape} do not fit: axis {a} of the first has {x.shape[a]} elements, "
                f"axis {b} of the second has {y.shape[b]}"
            )
    return dot_general(x, y, contract)


# --- einsum -----------------------------------------------------------------------------------------------------------

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _numbers(given: Sequence[Any]) -> bool:
    """Whether a list holds numbers, as one that was meant as an array does."""
    return any(isinstance(x, (int, float, list)) for x in given)


def einsum(subscripts: Any, *operands: Any) -> Any:
    """The sum of products in Einstein's notation.

    Args:
        subscripts: NumPy's notation, as in "ij,jk->ik": a letter per axis and operand, a letter twice in one operand
            for a diagonal, "..." for axes that broadcast. Without "->", the letters that occur once, in alphabetical
            order, after those of "...". Or NumPy's other form: `einsum(x, [0, 1], y, [1, 2], [0, 2])`.
        operands: floating arrays, one by one or in one list. Three and more are multiplied pair by pair, the cheapest
            pair first.

    Returns:
        An array with the axes after "->".

    Raises:
        ShapeError: the subscripts are malformed, do not fit an operand, or give an axis two extents.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> qb.einsum("ij,jk->ik", x, x).tolist()
        [[7.0, 10.0], [15.0, 22.0]]
        >>> qb.einsum("ii", x).item()
        5.0
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _spelled((subscripts, *operands))
    elif len(operands) == 1 and type(operands[0]) in (list, tuple) and not _numbers(operands[0]):
        operands = tuple(operands[0])
    given = promote(operands, "einsum") if operands else []
    ins, out = _parsed(subscripts, [x.ndim for x in given])
    terms = [_without_repeats(x, labels, subscripts) for x, labels in zip(given, ins, strict=True)]
    extents: dict[Any, int] = {}
    for x, labels in terms:
        for label, n in zip(labels, x.shape, strict=True):
            if extents.setdefault(label, n) != n and n != 1:
                if extents[label] != 1:
                    raise ShapeError(
                        f"einsum: subscripts {subscripts!r} give {_shown(label)} the extents {extents[label]} and {n}; "
                        f"operands have shapes {', '.join(str(z.shape) for z in given)}"
                    )
                extents[label] = n
    while len(terms) > 1:
        i, j = _cheapest(terms, extents)
        (x, xs), (y, ys) = terms[i], terms[j]
        rest = [t for k, t in enumerate(terms) if k not in (i, j)]
        needed = {*out, *(label for _, labels in rest for label in labels)}
        kept = out if not rest else [a for a in dict.fromkeys([*xs, *ys]) if a in needed]
        terms = [*rest, (product(x, xs, y, ys, kept), kept)]
    x, labels = terms[0]
    x, held = _summed(x, list(labels), set(out))
    return permute(x, tuple(map(held.index, out)))


def _cheapest(terms: list[Any], extents: dict[Any, int]) -> tuple[int, int]:
    """The pair whose product takes the fewest multiplications; the first of those."""
    best, found = None, (0, 1)
    for j in range(1, len(terms)):
        for i in range(j):
            cost = 1
            for label in {*terms[i][1], *terms[j][1]}:
                cost *= extents[label]
            if best is None or cost < best:
                best, found = cost, (i, j)
    return found


def _without_repeats(x: Any, labels: list[Any], subscripts: str) -> tuple[Any, list[Any]]:
    """`x` with the diagonal taken of any two axes that share a label."""
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(
                    f"einsum: subscripts {subscripts!r} give {_shown(label)} the extents {x.shape[first]} and "
                    f"{x.shape[second]} in one operand of shape {x.shape}"
                )
            x = diagonal_of(x, first, second)
            labels = [a for i, a in enumerate(labels) if i not in (first, second)] + [label]
    return x, labels


def _shown(label: Any) -> str:
    return repr(label) if isinstance(label, str) else f"axis {label} of '...'"


def _parsed(subscripts: str, ndims: list[int]) -> tuple[list[list[Any]], list[Any]]:
    """The labels of each operand's axes and of the result's. Axes of "..." are labelled -1, -2, ... from the right."""

    def bad(why: str) -> ShapeError:
        return ShapeError(f"einsum: subscripts {subscripts!r}: {why}")

    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ndims):
        raise bad(
            f"{len(parts)} term{'s' * (len(parts) != 1)} for {len(ndims)} operand{'s' * (len(ndims) != 1)}"
        )
    for part in [*parts, right]:
        letters = part.replace("...", "", 1)
        if not all(c in _LETTERS for c in letters):
            raise bad("only letters, '...', ',' and '->' may occur")
    ins = []
    for i, (part, ndim) in enumerate(zip(parts, ndims, strict=True)):
        before, dots, after = part.partition("...")
        hidden = ndim - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise bad(f"{part!r} does not fit operand {i}, which has {ndim} dimension{'s' * (ndim != 1)}")
        ins.append([*before, *range(-hidden, 0), *after])
    depth = -min([label for labels in ins for label in labels if isinstance(label, int)], default=0)
    broadcast = list(range(-depth, 0))
    if not arrow:
        every = [label for labels in ins for label in labels if isinstance(label, str)]
        return ins, [*broadcast, *sorted(a for a in set(every) if every.count(a) == 1)]
    before, dots, after = right.partition("...")
    if broadcast and not dots:
        raise bad("the operands have axes under '...', but the result has no '...'")
    for a in before + after:
        if (before + after).count(a) > 1:
            raise bad(f"the result has {a!r} twice")
        if a not in left:
            raise bad(f"the result has {a!r}, which no operand has")
    return ins, [*before, *broadcast, *after]


def _spelled(arguments: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """NumPy's form with a list of numbers behind each operand, as subscripts."""

    def letters(labels: Any) -> str:
        try:
            return "".join("..." if a is Ellipsis else _LETTERS[a] for a in labels)
        except (TypeError, IndexError):
            raise ShapeError(
                f"einsum: expected subscripts such as 'ij,jk->ik', or a list of axis numbers below 52 behind each "
                f"operand, got {labels!r}"
            ) from None

    pairs = len(arguments) // 2
    text = ",".join(letters(arguments[2 * i + 1]) for i in range(pairs))
    if len(arguments) % 2:
        text += "->" + letters(arguments[-1])
    return text, tuple(arguments[2 * i] for i in range(pairs))
