"""Linear structural primitives, closed under transposition: what each does to a cotangent is another one of them.

`broadcast` and `reduce_sum`, `slice` and `pad`, `concat` and `slice`, `reshape`, `transpose` and `astype` with
themselves. The functions that users call, with argument checking, are in `shape.py` and `reduce.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap_as
from quabla.arrays.tracer import TraceTensor, bind, full_value
from quabla.dtypes import bool_, dtype
from quabla.errors import DtypeError
from quabla.ir.op import OPS, Jointly, Op, Sample, define
from quabla.ops.masks import moved, summed
from quabla.shapes import ShapeDtype, aval_of

__all__ = [
    "astype_op",
    "broadcast",
    "broadcast_op",
    "cast",
    "concat_op",
    "concatenate",
    "pad",
    "pad_op",
    "permute",
    "reduce_sum_op",
    "reshape_op",
    "reshape_to",
    "slice_op",
    "strided_slice",
    "sum_over",
    "transpose_op",
]

Shape = tuple[int, ...]


# --- astype -----------------------------------------------------------------------------------------------------------


def cast(x: Any, to: dtype, weak: bool = False) -> Any:
    """`x` with elements of dtype `to`."""
    if x.aval.dtype is to and x.aval.weak == weak:
        return x
    return bind(astype_op, (x,), {"to": to, "weak": weak})


def _astype_jvp(primals: Any, tangents: Any, out: Any, *, to: dtype, weak: bool) -> Any:
    if tangents[0] is None or to.kind != "f" or primals[0].dtype.kind != "f":
        return None
    return cast(tangents[0], to)


def _astype_transpose(ct: Any, operands: Any, wanted: Any, *, to: dtype, weak: bool) -> Any:
    return (cast(ct, operands[0].dtype) if to.kind == "f" and operands[0].dtype.kind == "f" else None,)


def _astype_samples() -> Iterator[Sample]:
    from quabla.dtypes import float32, float64

    for to in (float32, float64, bool_):
        yield Sample(
            f"to_{to}", lambda rng: (rng.normal(size=(3, 4)),), {"to": to, "weak": False}, smooth=False
        )
    yield Sample(
        "from_bool", lambda rng: (rng.random((3, 4)) < 0.5,), {"to": float64, "weak": False}, smooth=False
    )


astype_op: Op = define(
    Op(
        name="astype",
        infer=lambda x, *, to, weak: aval_of(x.shape, to, weak),
        evaluate=lambda x, *, to, weak: x.astype(to.numpy),
        jvp=_astype_jvp,
        linear=Jointly(),
        transpose=_astype_transpose,
        batch=lambda operands, mapped, size, **params: bind(astype_op, operands, params),
        samples=_astype_samples,
        family="elementwise",
    )
)


# --- broadcast and its transpose, the sum -----------------------------------------------------------------------------


def broadcast(x: Any, shape: Shape, dims: Shape | None = None) -> Any:
    """`x` repeated to `shape`. Axis i of `x` becomes axis `dims[i]` (by default the last ones); extents 1 stretch."""
    if x.aval.shape == shape:
        return x
    value = full_value(x)
    if value is not None:
        return x.frame.full(value, aval_of(shape, x.aval.dtype, x.aval.weak))
    if dims is None:
        dims = tuple(range(len(shape) - x.ndim, len(shape)))
    return bind(broadcast_op, (x,), {"shape": shape, "dims": dims})


def _broadcast_numpy(x: np.ndarray, *, shape: Shape, dims: Shape) -> np.ndarray:
    inner = [1] * len(shape)
    for extent, axis in zip(x.shape, dims, strict=True):
        inner[axis] = extent
    return np.broadcast_to(x.reshape(inner), shape)


def _broadcast_transpose(ct: Any, operands: Any, wanted: Any, *, shape: Shape, dims: Shape) -> Any:
    (x,) = operands
    place = dict(zip(dims, x.shape, strict=True))
    axes = tuple(a for a, n in enumerate(shape) if place.get(a, 0) != n)

    def some(c: Any) -> Any:
        return reshape_to(bind(OPS["reduce_any"], (c,), {"axes": axes}) if axes else c, x.shape)

    def single(c: Any) -> Any:
        node = c.node
        alike = node is not None and node.op is broadcast_op and node.params["dims"] == dims
        return node.inputs[0] if alike and node.inputs[0].shape == x.shape else None

    return (summed(ct, lambda v: reshape_to(sum_over(v, axes), x.shape), some, single),)


def _broadcast_batch(operands: Any, mapped: Any, size: int, *, shape: Shape, dims: Shape) -> Any:
    return broadcast(operands[0], (size, *shape), (0, *(d + 1 for d in dims)))


def _broadcast_samples() -> Iterator[Sample]:
    yield Sample("new_axes", lambda rng: (rng.normal(size=(3,)),), {"shape": (2, 3, 4), "dims": (1,)})
    yield Sample("stretch", lambda rng: (rng.normal(size=(3, 1)),), {"shape": (2, 3, 4), "dims": (1, 2)})
    yield Sample("scalar", lambda rng: (rng.normal(size=()),), {"shape": (2, 3), "dims": ()})
    yield Sample("inner", lambda rng: (rng.normal(size=(2, 4)),), {"shape": (2, 3, 4), "dims": (0, 2)})


broadcast_op = define(
    Op(
        name="broadcast",
        infer=lambda x, *, shape, dims: aval_of(shape, x.dtype, x.weak),
        evaluate=_broadcast_numpy,
        linear=Jointly(),
        transpose=_broadcast_transpose,
        batch=_broadcast_batch,
        samples=_broadcast_samples,
        family="structural",
    )
)


def sum_over(x: Any, axes: Shape) -> Any:
    """The sum over `axes` (sorted, non-negative), which disappear."""
    return bind(reduce_sum_op, (x,), {"axes": axes}) if axes else x


def without(shape: Shape, axes: Shape) -> Shape:
    """`shape` less the extents of `axes`."""
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _sum_numpy(x: np.ndarray, *, axes: Shape) -> Any:
    # float32 sums are accumulated in float64: a running float32 sum stops growing at 2**24.
    return np.sum(x, axis=axes, dtype=np.float64 if x.dtype == np.float32 else None).astype(x.dtype)


def _sum_transpose(ct: Any, operands: Any, wanted: Any, *, axes: Shape) -> Any:
    shape = operands[0].shape
    kept = tuple(a for a in range(len(shape)) if a not in axes)

    return (moved(ct, lambda v: broadcast(v, shape, kept)),)


def reduce_samples() -> Iterator[Sample]:
    """Samples of a reduction: whole, one axis, two axes that are not neighbours."""
    for axes in ((0, 1, 2), (0,), (1,), (0, 2)):
        yield Sample(f"axes{axes}", lambda rng: (rng.normal(size=(2, 3, 4)),), {"axes": axes})


def reduce_batch(op: Callable[[], Op]) -> Callable[..., Any]:
    """The batching rule of a reduction: the axes move one place on. `op` is called when the record exists."""

    def batch(operands: Any, mapped: Any, size: int, *, axes: Shape) -> Any:
        return bind(op(), operands, {"axes": tuple(a + 1 for a in axes)})

    return batch


def _sum_type(x: ShapeDtype, *, axes: Shape) -> ShapeDtype:
    if x.dtype is bool_:
        raise DtypeError(f"reduce_sum: takes numbers, got {x}; convert it with astype to count what is true")
    return aval_of(without(x.shape, axes), x.dtype, x.weak)


reduce_sum_op: Op = define(
    Op(
        name="reduce_sum",
        infer=_sum_type,
        evaluate=_sum_numpy,
        linear=Jointly(),
        transpose=_sum_transpose,
        batch=reduce_batch(lambda: reduce_sum_op),
        samples=reduce_samples,
        family="reduce",
    )
)


# --- reshape, transpose -----------------------------------------------------------------------------------------------


def reshape_to(x: Any, shape: Shape) -> Any:
    """`x` with the same elements in row-major order and another shape of the same size."""
    if x.aval.shape == shape:
        return x
    value = full_value(x)
    if value is not None:
        return x.frame.full(value, aval_of(shape, x.aval.dtype, x.aval.weak))
    return bind(reshape_op, (x,), {"shape": shape})


reshape_op = define(
    Op(
        name="reshape",
        infer=lambda x, *, shape: aval_of(shape, x.dtype, x.weak),
        evaluate=lambda x, *, shape: x.reshape(shape),
        linear=Jointly(),
        transpose=lambda ct, operands, wanted, *, shape: (
            moved(ct, lambda v: reshape_to(v, operands[0].shape)),
        ),
        batch=lambda operands, mapped, size, *, shape: reshape_to(operands[0], (size, *shape)),
        samples=lambda: iter(
            [
                Sample("merge", lambda rng: (rng.normal(size=(2, 3, 4)),), {"shape": (6, 4)}),
                Sample("split", lambda rng: (rng.normal(size=(6, 4)),), {"shape": (3, 2, 4)}),
                Sample("scalar", lambda rng: (rng.normal(size=(1, 1)),), {"shape": ()}),
            ]
        ),
        family="structural",
    )
)


def permute(x: Any, perm: Shape) -> Any:
    """`x` with its axes in the order `perm`."""
    return x if perm == tuple(range(x.ndim)) else bind(transpose_op, (x,), {"perm": perm})


def inverse_permutation(perm: Shape) -> Shape:
    """The permutation that undoes `perm`."""
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = i
    return tuple(out)


transpose_op = define(
    Op(
        name="transpose",
        infer=lambda x, *, perm: aval_of(tuple(x.shape[p] for p in perm), x.dtype, x.weak),
        evaluate=lambda x, *, perm: x.transpose(perm),
        linear=Jointly(),
        transpose=lambda ct, operands, wanted, *, perm: (
            moved(ct, lambda v: permute(v, inverse_permutation(perm))),
        ),
        batch=lambda operands, mapped, size, *, perm: permute(operands[0], (0, *(p + 1 for p in perm))),
        samples=lambda: iter(
            [
                Sample("cycle", lambda rng: (rng.normal(size=(2, 3, 4)),), {"perm": (1, 2, 0)}),
                Sample("matrix", lambda rng: (rng.normal(size=(2, 3)),), {"perm": (1, 0)}),
                Sample("rank4", lambda rng: (rng.normal(size=(2, 3, 4, 5)),), {"perm": (2, 0, 3, 1)}),
            ]
        ),
        family="structural",
    )
)


# --- slice and its transpose, the padding; concat ---------------------------------------------------------------------


def strided_slice(x: Any, start: Shape, stop: Shape, step: Shape) -> Any:
    """Elements `start, start + step, ...` of each axis. A negative step ends before `stop`, which may be -1."""
    return bind(slice_op, (x,), {"start": start, "stop": stop, "step": step})


def slice_extent(start: int, stop: int, step: int) -> int:
    """How many positions `range(start, stop, step)` has."""
    return len(range(start, stop, step))


def _slice_infer(x: ShapeDtype, *, start: Shape, stop: Shape, step: Shape) -> ShapeDtype:
    return aval_of(tuple(map(slice_extent, start, stop, step)), x.dtype, x.weak)


def _slice_numpy(x: np.ndarray, *, start: Shape, stop: Shape, step: Shape) -> np.ndarray:
    return x[tuple(slice(a, None if b < 0 else b, c) for a, b, c in zip(start, stop, step, strict=True))]


def _slice_transpose(ct: Any, operands: Any, wanted: Any, *, start: Shape, stop: Shape, step: Shape) -> Any:
    low, high, inner = [], [], []
    flipped = tuple(a for a, c in enumerate(step) if c < 0)
    if flipped:  # reverse those axes first, so that the rest is a slice with positive steps
        n = ct.shape
        ct = strided_slice(
            ct,
            tuple(m - 1 if a in flipped else 0 for a, m in enumerate(n)),
            tuple(-1 if a in flipped else m for a, m in enumerate(n)),
            tuple(-1 if a in flipped else 1 for a in range(len(n))),
        )
    for a, (extent, b, c) in enumerate(zip(operands[0].shape, start, step, strict=True)):
        last = b + (ct.shape[a] - 1) * c
        low.append(min(b, last))
        high.append(extent - 1 - max(b, last))
        inner.append(abs(c) - 1)
    return (pad(ct, tuple(low), tuple(high), tuple(inner)),)


slice_op = define(
    Op(
        name="slice",
        infer=_slice_infer,
        evaluate=_slice_numpy,
        linear=Jointly(),
        transpose=_slice_transpose,
        batch=lambda operands, mapped, size, *, start, stop, step: strided_slice(
            operands[0], (0, *start), (size, *stop), (1, *step)
        ),
        samples=lambda: iter(
            [
                Sample(
                    "block",
                    lambda rng: (rng.normal(size=(5, 7)),),
                    {"start": (1, 2), "stop": (4, 7), "step": (1, 1)},
                ),
                Sample(
                    "strided",
                    lambda rng: (rng.normal(size=(5, 7)),),
                    {"start": (0, 1), "stop": (5, 7), "step": (2, 3)},
                ),
                Sample(
                    "backwards",
                    lambda rng: (rng.normal(size=(5, 7)),),
                    {"start": (4, 6), "stop": (-1, 0), "step": (-2, -3)},
                ),
            ]
        ),
        family="structural",
    )
)


def pad(x: Any, low: Shape, high: Shape, inner: Shape) -> Any:
    """`x` with zeros: `low` before, `high` after, and `inner` between neighbours of each axis."""
    if not any(low) and not any(high) and not any(inner):
        return x
    return bind(pad_op, (x,), {"low": low, "high": high, "inner": inner})


def padded_shape(shape: Shape, low: Shape, high: Shape, inner: Shape) -> Shape:
    """The shape that `pad` gives."""
    return tuple(b + n + (n - 1) * i + h for n, b, h, i in zip(shape, low, high, inner, strict=True))


def _pad_numpy(x: np.ndarray, *, low: Shape, high: Shape, inner: Shape) -> np.ndarray:
    out = np.zeros(padded_shape(x.shape, low, high, inner), x.dtype)
    at = tuple(
        slice(b, b + (n - 1) * (i + 1) + 1, i + 1) for n, b, i in zip(x.shape, low, inner, strict=True)
    )
    out[at] = x
    return out


def _pad_transpose(ct: Any, operands: Any, wanted: Any, *, low: Shape, high: Shape, inner: Shape) -> Any:
    stop = tuple(n - h for n, h in zip(ct.shape, high, strict=True))
    return (strided_slice(ct, low, stop, tuple(i + 1 for i in inner)),)


pad_op = define(
    Op(
        name="pad",
        infer=lambda x, *, low, high, inner: aval_of(
            padded_shape(x.shape, low, high, inner), x.dtype, x.weak
        ),
        evaluate=_pad_numpy,
        linear=Jointly(),
        transpose=_pad_transpose,
        batch=lambda operands, mapped, size, *, low, high, inner: pad(
            operands[0], (0, *low), (0, *high), (0, *inner)
        ),
        samples=lambda: iter(
            [
                Sample(
                    "sides",
                    lambda rng: (rng.normal(size=(2, 3)),),
                    {"low": (1, 0), "high": (2, 3), "inner": (0, 0)},
                ),
                Sample(
                    "inner",
                    lambda rng: (rng.normal(size=(2, 3)),),
                    {"low": (0, 2), "high": (1, 0), "inner": (2, 1)},
                ),
            ]
        ),
        family="structural",
    )
)


def concatenate(arrays: Any, axis: int) -> Any:
    """The arrays one after another along `axis`."""
    return bind(concat_op, tuple(arrays), {"axis": axis}) if len(arrays) > 1 else arrays[0]


def _concat_infer(*xs: ShapeDtype, axis: int) -> ShapeDtype:
    first = xs[0]
    extent = sum(x.shape[axis] for x in xs)
    return aval_of(
        (*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype, all(x.weak for x in xs)
    )


def zeros_like(x: Any, aval: ShapeDtype | None = None) -> Any:
    """Zeros of the type of `x` or another, in the trace of `x` if it is traced."""
    aval = x.aval if aval is None else aval
    if type(x) is TraceTensor:
        return x.frame.full(0, aval)
    return wrap_as(np.zeros(aval.shape, aval.dtype.numpy), aval)


def _concat_transpose(ct: Any, operands: Any, wanted: Any, *, axis: int) -> Any:
    cts, at = [], 0
    for x, want in zip(operands, wanted, strict=True):
        end = at + x.shape[axis]
        if want:
            start = tuple(at if a == axis else 0 for a in range(ct.ndim))
            stop = tuple(end if a == axis else n for a, n in enumerate(ct.shape))
            cts.append(moved(ct, lambda v, a=start, b=stop: strided_slice(v, a, b, (1,) * v.ndim)))  # type: ignore[misc]
        else:
            cts.append(None)
        at = end
    return tuple(cts)


def _concat_batch(operands: Any, mapped: Any, size: int, *, axis: int) -> Any:
    return concatenate([lead(x, m, size) for x, m in zip(operands, mapped, strict=True)], axis + 1)


def lead(x: Any, mapped: bool, size: int) -> Any:
    """`x` with the batch axis in front: repeated along it where it is not mapped."""
    return x if mapped else broadcast(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))


concat_op = define(
    Op(
        name="concat",
        infer=_concat_infer,
        evaluate=lambda *xs, axis: np.concatenate(xs, axis),
        linear=Jointly(),
        transpose=_concat_transpose,
        batch=_concat_batch,
        samples=lambda: iter(
            [
                Sample("rows", lambda rng: (rng.normal(size=(2, 3)), rng.normal(size=(4, 3))), {"axis": 0}),
                Sample(
                    "columns",
                    lambda rng: (rng.normal(size=(2, 1)), rng.normal(size=(2, 3)), rng.normal(size=(2, 2))),
                    {"axis": 1},
                ),
            ]
        ),
        family="structural",
    )
)
