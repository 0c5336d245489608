"""Checks of derivatives by numbers alone: central differences, and the identity of transposes.

They work on functions from a list of NumPy arrays to a list of NumPy arrays, so that rules, programs and user functions
are checked by the same few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["MismatchError", "assert_close", "assert_dot_identity", "central_difference", "random_like"]

Arrays = Sequence[np.ndarray]
Function = Callable[[Arrays], list[np.ndarray]]


class MismatchError(AssertionError):
    """Two ways to compute one thing that do not agree."""


def assert_close(what: str, got: Arrays, expected: Arrays, rtol: float, atol: float) -> None:
    """Compare lists of arrays; NaN equals NaN and an infinity itself.

    Args:
        what: named in the message.
        got: one list.
        expected: the other.
        rtol: tolerance relative to each element.
        atol: tolerance relative to the largest finite element, or to 1.

    Raises:
        MismatchError: with the worst element.
    """
    if len(got) != len(expected):
        raise MismatchError(f"{what}: {len(got)} results, expected {len(expected)}")
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise MismatchError(f"{what}: result {k} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}")
        if a.dtype.kind != "f":
            wrong = np.not_equal(a, b)
        else:
            finite = np.abs(b[np.isfinite(b)])
            with np.errstate(invalid="ignore"):
                allowed = rtol * np.abs(b) + atol * max(1.0, float(finite.max(initial=0.0)))
                wrong = ~(
                    (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isfinite(b) & (np.abs(a - b) <= allowed))
                )
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise MismatchError(
                f"{what}: result {k}, element {at}: {a[at]!r}, expected {b[at]!r} "
                f"({int(wrong.sum())} of {a.size} differ)"
            )


def central_difference(
    f: Function, x: Arrays, t: Sequence[np.ndarray | None], step: float
) -> list[np.ndarray]:
    """The directional derivative of `f` at `x` along `t` (None for zero), with an error of order step**4.

    The weights are the classical ones: (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h.
    """

    def moved(factor: float) -> list[np.ndarray]:
        return f([a if b is None else a + (factor * step) * b for a, b in zip(x, t, strict=True)])

    far_back, back, ahead, far_ahead = (moved(k) for k in (-2.0, -1.0, 1.0, 2.0))
    return [
        (a - 8.0 * b + 8.0 * c - d) / (12.0 * step)
        for a, b, c, d in zip(far_back, back, ahead, far_ahead, strict=True)
    ]


def assert_dot_identity(
    what: str, cts: Arrays, t_outs: Arrays, grads: Arrays, tangents: Arrays, tolerance: float
) -> None:
    """Check that <ct, J t> equals <J' ct, t>: that one computation is the transpose of the other.

    Args:
        what: named in the message.
        cts: the cotangents of the results.
        t_outs: the tangents of the results.
        grads: the cotangents of the operands.
        tangents: the tangents of the operands.
        tolerance: relative to the sum of the magnitudes of the terms.

    Raises:
        MismatchError: with both numbers.
    """
    left, size = 0.0, 1.0
    for a, b in zip(cts, t_outs, strict=True):
        left += float(np.vdot(a, b))
        size += float(np.abs(a * b).sum())
    right = 0.0
    for a, b in zip(grads, tangents, strict=True):
        right += float(np.vdot(a, b))
        size += float(np.abs(a * b).sum())
    if not abs(left - right) <= tolerance * size:
        raise MismatchError(f"{what}: <ct, J t> = {left!r} but <J' ct, t> = {right!r}")


def random_like(rng: Any, x: np.ndarray) -> np.ndarray:
    """Numbers between -1 and 1 in the shape and dtype of `x`."""
    return np.asarray(rng.uniform(-1.0, 1.0, x.shape), x.dtype)
