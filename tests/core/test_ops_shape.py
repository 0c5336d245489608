"""Functions that rearrange elements, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import wrap
from quabla.errors import DtypeError, QuablaError, ShapeError
from quabla.ops import shape as ops

X = np.arange(24.0).reshape(2, 3, 4)

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("reshape", (X, (6, 4)), {}),
    ("reshape", (X, (4, -1, 2)), {}),
    ("reshape", (X, -1), {}),
    ("reshape", (X, [24]), {}),
    ("reshape", (np.array([[5.0]]), ()), {}),
    ("ravel", (X,), {}),
    ("squeeze", (X[:1, :, :1],), {}),
    ("squeeze", (X[:1, :, :1], -1), {}),
    ("squeeze", (X[:1, :, :1], (0, 2)), {}),
    ("expand_dims", (X, 1), {}),
    ("expand_dims", (X, -1), {}),
    ("expand_dims", (X, (0, -1, 2)), {}),
    ("transpose", (X,), {}),
    ("transpose", (X, (1, 2, 0)), {}),
    ("transpose", (X, (-1, 0, 1)), {}),
    ("moveaxis", (X, 0, 2), {}),
    ("moveaxis", (X, (0, 2), (1, 0)), {}),
    ("moveaxis", (X, [-1, 0], [0, -1]), {}),
    ("swapaxes", (X, 0, -1), {}),
    ("broadcast_to", (X[:, :1], (5, 2, 3, 4)), {}),
    ("broadcast_to", (np.array(2.0), (2, 3)), {}),
    ("broadcast_to", (np.array(2.0), 3), {}),
    ("repeat", (X, 3), {}),
    ("repeat", (X, 2, 1), {}),
    ("repeat", (X, 2, -1), {}),
    ("tile", (X, 2), {}),
    ("tile", (X, (2, 1, 3)), {}),
    ("tile", (X, (2, 1, 1, 3)), {}),
    ("tile", (np.array(2.0), (2, 3)), {}),
    ("stack", ([X, X + 1],), {}),
    ("stack", ([X, X + 1], 2), {}),
    ("stack", ([X, X + 1], -1), {}),
    ("stack", ([np.array(1.0), np.array(2.0)],), {}),
    ("split", (X, 2, 2), {}),
    ("split", (X, [1, 3], -1), {}),
    ("split", (X, 2), {}),
    ("flip", (X,), {}),
    ("flip", (X, 1), {}),
    ("flip", (X, (0, -1)), {}),
    ("roll", (X, 5), {}),
    ("roll", (X, -2, 2), {}),
    ("roll", (X, (1, 2), (0, -1)), {}),
    ("roll", (X, 1, (1, 2)), {}),
    ("roll", (X, (1, 1), 2), {}),
    ("roll", (X, 12, 0), {}),
    ("tril", (X,), {}),
    ("tril", (X, 1), {}),
    ("tril", (X, -1), {}),
    ("triu", (X,), {"k": 2}),
    ("triu", (X[0], -1), {}),
    ("tril", (X > 5, 0), {}),
]


def to_tensors(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return wrap(np.array(x))
    return [to_tensors(v) for v in x] if isinstance(x, list) else x


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{c[0]}{i}" for i, c in enumerate(CASES)])
def test_as_in_numpy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    expected = getattr(np, name)(*args, **kwargs)
    ours = getattr(qb, name)(*map(to_tensors, args), **kwargs)
    for a, b in zip(ours, expected, strict=True) if isinstance(expected, list) else [(ours, expected)]:
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.numpy(), b)
        assert a.numpy().dtype == b.dtype


def test_concat_as_in_numpy() -> None:
    xs = [X, X[:, :1], X[:, 1:]]
    for axis in (1, -2):
        np.testing.assert_array_equal(ops.concat(to_tensors(xs), axis).numpy(), np.concatenate(xs, axis))
    np.testing.assert_array_equal(ops.concat(to_tensors([X])).numpy(), X)


def test_astype() -> None:
    x = wrap(np.array([0.0, 0.1, np.nan]))
    assert ops.astype(x, "float32").dtype.name == "float32"
    assert ops.astype(x, np.float64) is x
    np.testing.assert_array_equal(ops.astype(x, bool).numpy(), [False, True, True])
    np.testing.assert_array_equal(ops.astype(wrap(np.array([True, False])), "float64").numpy(), [1.0, 0.0])
    with pytest.raises(DtypeError, match="float16"):
        ops.astype(x, np.float16)


def t(*shape: int) -> Any:
    return wrap(np.ones(shape))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.reshape(t(2, 3), (4, 2)), ["reshape", "(2, 3)", "6", "(4, 2)", "8"]),
        (lambda: ops.reshape(t(2, 3), (-1, 4)), ["reshape", "(2, 3)", "(-1, 4)"]),
        (lambda: ops.reshape(t(2, 3), (-1, -1)), ["reshape", "only one"]),
        (lambda: ops.reshape(t(2, 3), (0, -1)), ["reshape", "empty"]),
        (lambda: ops.reshape(t(2, 3), (-2, 3)), ["reshape", "negative"]),
        (lambda: ops.transpose(t(2, 3), (0, 0)), ["transpose", "(0, 0)", "(2, 3)"]),
        (lambda: ops.transpose(t(2, 3), (0, 2)), ["transpose", "axis 2"]),
        (lambda: ops.transpose(t(2, 3), 0), ["transpose", "(0,)", "(2, 3)"]),
        (lambda: ops.squeeze(t(2, 1), 0), ["squeeze", "axis 0", "2 elements"]),
        (lambda: ops.expand_dims(t(2), 3), ["expand_dims", "axis 3"]),
        (lambda: ops.moveaxis(t(2, 3), (0, 1), (0,)), ["moveaxis"]),
        (lambda: ops.broadcast_to(t(2, 3), (2, 4)), ["broadcast_to", "(2, 3)", "(2, 4)"]),
        (lambda: ops.broadcast_to(t(2, 3), (3,)), ["broadcast_to", "(2, 3)", "(3,)"]),
        (lambda: ops.broadcast_to(t(2, 3), (2, 1)), ["broadcast_to", "(2, 3)", "(2, 1)"]),
        (lambda: ops.concat([t(2, 3), t(2, 4)]), ["concat", "(2, 3)", "(2, 4)", "axis 0"]),
        (lambda: ops.concat([t(2), 1.0]), ["concat", "stack"]),
        (lambda: ops.concat([]), ["concat", "at least one"]),
        (lambda: ops.stack([t(2), t(3)]), ["stack", "(2,)", "(3,)"]),
        (lambda: ops.stack(t(2)), ["stack", "Tensor"]),
        (lambda: ops.split(t(5), 2), ["split", "5 elements", "2 equal"]),
        (lambda: ops.split(t(5), [0, 2]), ["split", "empty"]),
        (lambda: qb.repeat(t(5), 0), ["repeat", "empty"]),
        (lambda: ops.tile(t(5), (2, 0)), ["tile", "empty"]),
        (lambda: ops.tril(t(5)), ["tril", "rank 2", "float64[5]"]),
    ],
)
def test_errors_say_what_came_and_what_fits(call: Any, words: list[str]) -> None:
    with pytest.raises(ShapeError) as raised:
        call()
    for word in words:
        assert word in str(raised.value)


def test_dtypes_do_not_mix() -> None:
    with pytest.raises(QuablaError, match=r"concat: .*float32.*float64.*astype"):
        ops.concat([wrap(np.ones(2, np.float32)), wrap(np.ones(2))])
