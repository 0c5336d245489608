"""Differences, integrals by the trapezoidal rule, polynomials, and the grids that they are evaluated on."""

from __future__ import annotations

from typing import Any

from quabla.errors import DtypeError, ShapeError
from quabla.ops.apply import agree, floating_operand, operand, promote
from quabla.ops.elementwise import add, mul, sub
from quabla.ops.shape import joined
from quabla.ops.structure import broadcast, reshape_to, strided_slice, sum_over, zeros_like
from quabla.shapes import normalize_axis, whole

__all__ = ["diff", "meshgrid", "polyval", "trapezoid"]


def _along(x: Any, start: int, stop: int, axis: int) -> Any:
    """Elements `start` to `stop` of an axis."""
    low = tuple(start if a == axis else 0 for a in range(x.ndim))
    high = tuple(stop if a == axis else n for a, n in enumerate(x.shape))
    return strided_slice(x, low, high, (1,) * x.ndim)


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The differences of neighbours, x[i + 1] - x[i], along an axis, `n` times.

    Args:
        x: floating array of rank 1 or more.
        n: how many times.
        axis: along which axis.
        prepend: what goes before `x` along the axis: a number, or an array of the shape of `x` but for that axis.
        append: likewise, after `x`.

    Returns:
        An array with `n` elements fewer along the axis than `x` and what is joined to it.

    Raises:
        ShapeError: there are not more than `n` elements along the axis, `n` is negative, or the axis is out of range.

    Example:
        >>> import quabla as qb
        >>> qb.diff(qb.array([1.0, 4.0, 9.0])).tolist(), qb.diff(qb.array([1.0, 4.0, 9.0]), n=2).tolist()
        ([3.0, 5.0], [2.0])
        >>> qb.diff(qb.array([1.0, 4.0, 9.0]), prepend=0.0).tolist()
        [1.0, 3.0, 5.0]
    """
    x = floating_operand(x, "diff")
    a = normalize_axis(axis, x.ndim, "diff")
    ends = [end if end is None else _end(end, x, a) for end in (prepend, append)]
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    x = joined(parts, a, "diff") if len(parts) > 1 else x
    try:
        times = whole(n)
    except TypeError:
        raise DtypeError(f"diff: n is one integer, got {n!r}") from None
    if not 0 <= times < x.shape[a]:
        raise ShapeError(
            f"diff: {n} differences of the {x.shape[a]} elements along axis {a} of {x.aval}: there must be more "
            "elements"
        )
    for _ in range(times):
        m = x.shape[a]
        x = sub(_along(x, 1, m, a), _along(x, 0, m - 1, a))
    return x


def _end(end: Any, x: Any, axis: int) -> Any:
    """What `diff` joins to `x`: a number once along the axis, an array as it is."""
    end = operand(end, "diff")
    return end if end.ndim else broadcast(end, (*x.shape[:axis], 1, *x.shape[axis + 1 :]), ())


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of `y` along an axis by the trapezoidal rule.

    Args:
        y: floating array of rank 1 or more: the values.
        x: where they are taken, a vector as long as the axis or an array of the shape of `y`; steps of `dx` if None.
        dx: the distance of neighbours, where `x` is not given.
        axis: along which axis.

    Returns:
        An array without that axis; 0 where there is one point only.

    Raises:
        ShapeError: the shapes do not fit.

    Example:
        >>> import quabla as qb
        >>> qb.trapezoid(qb.array([0.0, 1.0, 4.0]), dx=1.0).item()
        3.0
    """
    y = floating_operand(y, "trapezoid")
    a = normalize_axis(axis, y.ndim, "trapezoid")
    n = y.shape[a]
    if x is None:
        step = dx
    else:
        x = floating_operand(x, "trapezoid")
        if x.ndim == 1 and x.shape[0] == n:
            x = reshape_to(x, tuple(n if i == a else 1 for i in range(y.ndim)))
        elif x.shape != y.shape:
            raise ShapeError(
                f"trapezoid: x of shape {x.shape} must have the shape {y.shape} of y, or be a vector of {n} elements"
            )
        step = None if n == 1 else sub(_along(x, 1, n, a), _along(x, 0, n - 1, a))
    if n == 1:  # one point encloses no area
        return zeros_like(sum_over(y, (a,)))
    heights = mul(0.5, add(_along(y, 1, n, a), _along(y, 0, n - 1, a)))
    agree((step, heights), "trapezoid")
    areas = mul(step, heights)
    return sum_over(areas, (a,))


def polyval(p: Any, x: Any) -> Any:
    """The polynomial with coefficients `p`, the highest first, at `x`, by Horner's rule.

    Args:
        p: vector of coefficients, or a list of numbers and scalar arrays.
        x: array or number.

    Returns:
        An array of the shape of `x`.

    Raises:
        ShapeError: `p` is not a vector.

    Example:
        >>> import quabla as qb
        >>> qb.polyval(qb.array([1.0, 0.0, -2.0]), 3.0).item()
        7.0
    """
    if isinstance(p, (tuple, list)):
        if not p:
            raise ShapeError("polyval: p has no coefficient")
        coefficients = list(p)
    else:
        p = floating_operand(p, "polyval")
        if p.ndim != 1:
            raise ShapeError(f"polyval: the coefficients are a vector, got {p.aval}")
        coefficients = [reshape_to(_along(p, i, i + 1, 0), ()) for i in range(p.shape[0])]
    x, *coefficients = promote((x, *coefficients), "polyval")
    for i, c in enumerate(coefficients):
        if c.ndim:
            raise ShapeError(f"polyval: coefficient {i} has shape {c.shape}; coefficients are scalars")
    out = broadcast(coefficients[0], x.shape)
    for c in coefficients[1:]:
        out = add(mul(out, x), c)
    return out


def meshgrid(*xs: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Arrays of coordinates from vectors of coordinates: element k of the result varies along one axis as `xs[k]` does.

    Args:
        xs: vectors or numbers.
        indexing: "xy" puts the second vector along axis 0 and the first along axis 1; "ij" keeps their order.

    Returns:
        A tuple of as many arrays, all of one shape.

    Raises:
        ShapeError: an operand is not a vector, or the order has another name.

    Example:
        >>> import quabla as qb
        >>> x, y = qb.meshgrid(qb.array([1.0, 2.0, 3.0]), qb.array([4.0, 5.0]))
        >>> x.shape, y[:, 0].tolist()
        ((2, 3), [4.0, 5.0])
    """
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid: indexing is 'xy' or 'ij', got {indexing!r}")
    vectors = []
    for x in xs:
        x = operand(x, "meshgrid")
        if x.ndim > 1:
            raise ShapeError(f"meshgrid: takes vectors, got {x.aval}")
        vectors.append(reshape_to(x, (x.size,)))
    places = list(range(len(vectors)))
    if indexing == "xy":
        places[:2] = places[:2][::-1]
    shape = [0] * len(vectors)
    for place, v in zip(places, vectors, strict=True):
        shape[place] = v.size
    return tuple(broadcast(v, tuple(shape), (place,)) for place, v in zip(places, vectors, strict=True))
