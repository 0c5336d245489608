"""`jacobian` and `hessian`: dense blocks, as one staged program over batches of basis vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final, overload

import numpy as np

from quabla import tree
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import Frame, TraceTensor, trace
from quabla.dtypes import float32, float64
from quabla.errors import UnsupportedOperationError
from quabla.ir.program import Program
from quabla.ops.compare import equal
from quabla.ops.elementwise import add, minimum, mul
from quabla.ops.limits import has_root
from quabla.ops.structure import broadcast, cast, lead, permute, reshape_to, zeros_like
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.auxiliary import Parts, take_parts
from quabla.transforms.batch import batch_values
from quabla.transforms.chunks import checked_chunk, even, over_chunks, rows
from quabla.transforms.derivatives import Gradient, select_arguments
from quabla.transforms.direction import require_linear_rules
from quabla.transforms.forward import jvp_values
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import Call, stage, take_apart, target
from quabla.transforms.transform import LATER, Transform, normalize_argnums, require_function

__all__ = ["hessian", "jacobian"]

SEEDS = 256  # basis vectors that are pushed through the function at once: a bound on memory


@final
class Jacobian(Transform):
    """The dense Jacobian of a function."""

    kind = "jacobian"

    def __init__(
        self,
        fun: Callable[..., Any],
        argnums: Any,
        has_aux: bool,
        chunk_size: Any,
        where: str = "jacobian",
    ) -> None:
        require_function(where, fun)
        self.where = where  # what the user called
        self.argnums, self.single = normalize_argnums(where, argnums)
        self.chunk = checked_chunk(where, chunk_size) or SEEDS
        self.has_aux = bool(has_aux)
        super().__init__(
            fun,
            (self.argnums, self.single, self.has_aux, self.chunk),
            frozenset(self.argnums),
            self.has_aux,
        )

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the Jacobian in the innermost trace."""
        # Of a Hessian the user's function is below the gradient.
        named = self.fun if self.where == self.kind else self.root
        picked = select_arguments(self.where, named, self.argnums, len(args))
        call = take_apart(self.fun, args, kwargs, self.as_arrays | set(picked), within=True)
        staged = stage(self.fun, call, split=lambda v: take_parts(self.where, named, v, self.has_aux))
        parts: Parts = staged.result
        frame = target(call.arrays, staged.captures)
        primals = [frame.lift(x) for x in (*call.arrays, *staged.captures)]
        program = parts.derived(staged.program)
        wanted = [
            p in picked and a.dtype.kind == "f" for p, a in zip(call.positions(), call.avals, strict=True)
        ] + [False] * len(staged.captures)
        ins = [a for a, w in zip(program.in_avals, wanted, strict=True) if w]
        outs = [a for a in program.out_avals if a.dtype.kind == "f"]
        if not ins or not outs:
            blocks: list[list[Any]] = [[None] * len(ins) for _ in outs]
        else:
            ways = (
                [_by_rows, _by_columns] if _prefers_reverse(program, ins, outs) else [_by_columns, _by_rows]
            )
            try:
                blocks = ways[0](frame, program, primals, wanted, ins, outs, self.chunk)
            except UnsupportedOperationError as refusal:
                # Some functions have derivatives in one direction only: a custom_vjp, a loop without a bound.
                try:
                    blocks = ways[1](frame, program, primals, wanted, ins, outs, self.chunk)
                except UnsupportedOperationError:
                    raise refusal from None
        found = self._arranged(frame, call, parts.value, program.out_avals, picked, blocks)
        return (found, parts.evaluated(staged.program, primals)) if self.has_aux else found

    def _arranged(
        self, frame: Frame, call: Call, result: Any, out_avals: Any, picked: Sequence[int], blocks: Any
    ) -> Any:
        """The blocks as a tree like the result, of trees like the arguments."""
        args_def = call.treedef.children[0]
        positions, avals = call.positions(), call.avals
        column: dict[int, int] = {}
        for i, (p, a) in enumerate(zip(positions, avals, strict=True)):
            if p in picked and a.dtype.kind == "f":
                column[i] = len(column)

        def row(out: ShapeDtype, blocks_of_output: list[Any] | None) -> Any:
            def block(i: int) -> Any:
                if i not in column:
                    return None
                if blocks_of_output is None:  # of a result that takes steps, and so has slope 0
                    return frame.full(0.0, aval_of((*out.shape, *avals[i].shape), avals[i].dtype))
                return blocks_of_output[column[i]]

            trees = []
            for position in picked:
                leaves = [block(i) for i, p in enumerate(positions) if p == position]
                trees.append(tree.unflatten(args_def.children[position], leaves))
            return trees[0] if self.single else tuple(trees)

        rows = iter(blocks)
        return result.put_together([row(a, next(rows) if a.dtype.kind == "f" else None) for a in out_avals])


def _prefers_reverse(program: Program, ins: Sequence[ShapeDtype], outs: Sequence[ShapeDtype]) -> bool:
    """Reverse mode where there are fewer outputs than inputs, or as many and a root among them: the derivative of what
    reverse mode makes knows its limits at 0.

    A program that computes float64 results partly in float32 keeps forward mode: a cotangent would be rounded to
    float32 on its way, a tangent is not rounded after the result's dtype is reached.
    """
    rows, columns = sum(a.size for a in outs), sum(a.size for a in ins)
    if len(outs) != len(program.out_avals) or rows > columns or (rows == columns and not has_root(program)):
        return False
    if not any(a.dtype is float64 for a in outs):
        return True
    single = any(v.aval.dtype is float32 for node in program.nodes for v in node.outputs)
    return not single and not any(a.dtype is float32 for a in program.in_avals)


def _seeds(avals: Sequence[ShapeDtype]) -> list[Any]:
    """The identity over all elements of `avals`, cut into one array `(rows, *shape)` each."""
    total, at = sum(a.size for a in avals), 0
    seeds = []
    for a in avals:
        matrix = np.eye(total, a.size, -at, a.dtype.numpy)
        seeds.append(wrap(matrix.reshape(total, *a.shape)))
        at += a.size
    return seeds


def _pushed(
    frame: Frame,
    program: Program,
    primals: Sequence[TraceTensor],
    basis: Sequence[ShapeDtype],
    chunk: int,
) -> list[TraceTensor]:
    """Run `program`, whose last inputs take one basis vector, for all basis vectors: a leading axis per result."""
    total = sum(a.size for a in basis)
    over = [False] * len(primals) + [True] * len(basis)
    if total <= chunk:
        seeds = [frame.lift(s) for s in _seeds(basis)]
        outs, has = batch_values(frame, program, [*primals, *seeds], over, total)
    else:
        chunk = even(total, chunk)
        args = [*primals, *[None] * len(basis)]
        outs, has = over_chunks(
            frame, program, args, over, total, chunk, lambda index, _: _seeds_of(basis, index, chunk)
        )
    return [lead(o, m, total) for o, m in zip(outs, has, strict=True)]


def _seeds_of(avals: Sequence[ShapeDtype], index: Any, count: int) -> list[Any]:
    """`count` rows of `_seeds`, those of the chunk `index`, which is known when the program runs.

    They are compared into being: whole numbers are exact in float64 up to 2^53.
    """
    total, at = sum(a.size for a in avals), 0
    first = minimum(mul(cast(index, float64), float(count)), float(total - count))
    row = add(broadcast(first, (count,), ()), wrap(np.arange(float(count))))
    seeds = []
    for a in avals:
        column = broadcast(wrap(np.arange(float(at), float(at + a.size))), (count, a.size), (1,))
        hit = equal(broadcast(row, (count, a.size), (0,)), column)
        seeds.append(reshape_to(cast(hit, a.dtype), (count, *a.shape)))
        at += a.size
    return seeds


def _by_rows(
    frame: Frame,
    program: Program,
    primals: Any,
    wanted: Any,
    ins: Sequence[ShapeDtype],
    outs: Sequence[ShapeDtype],
    chunk: int,
) -> list[list[Any]]:
    """Reverse mode: a pullback per output element."""

    def pull(*args: Any) -> list[Any]:
        inner = args[0].frame
        n = len(program.inputs)
        _, backward = vjp_values(inner, program, args[:n], wanted)
        cts = backward(args[n:])
        picked = [(ct, v.aval) for ct, v, w in zip(cts, program.inputs, wanted, strict=True) if w]
        return [inner.full(0.0, a) if ct is None else ct for ct, a in picked]

    pulled, _ = trace(pull, [*program.in_avals, *(aval_of(a.shape, a.dtype) for a in outs)])
    stacked = _pushed(frame, pulled, primals, outs, chunk)
    blocks, at = [], 0
    for out in outs:
        # Blocks have the dtype of the result, as in forward mode.
        parts = [cast(rows(s, at, at + out.size), out.dtype) for s in stacked]
        blocks.append([reshape_to(r, out.shape + a.shape) for r, a in zip(parts, ins, strict=True)])
        at += out.size
    return blocks


def _by_columns(
    frame: Frame,
    program: Program,
    primals: Any,
    wanted: Any,
    ins: Sequence[ShapeDtype],
    outs: Sequence[ShapeDtype],
    chunk: int,
) -> list[list[Any]]:
    """Forward mode: a tangent per input element."""
    require_linear_rules(program, wanted)

    def push(*args: Any) -> list[Any]:
        n = len(program.inputs)
        rest = iter(args[n:])
        tangents = [next(rest) if w else None for w in wanted]
        values, moved = jvp_values(args[0].frame, program, args[:n], tangents)
        return [
            zeros_like(o) if t is None else t
            for o, t in zip(values, moved, strict=True)
            if o.dtype.kind == "f"
        ]

    pushed, _ = trace(push, [*program.in_avals, *(aval_of(a.shape, a.dtype) for a in ins)])
    stacked = _pushed(frame, pushed, primals, ins, chunk)
    blocks = []
    for s, out in zip(stacked, outs, strict=True):
        row, at = [], 0
        for a in ins:
            part = rows(s, at, at + a.size)
            turned = permute(part, (*range(1, part.ndim), 0))
            row.append(reshape_to(turned, out.shape + a.shape))
            at += a.size
        blocks.append(row)
    return blocks


@overload
def jacobian(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]: ...


@overload
def jacobian(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def jacobian(
    fun: Any = LATER,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Any:
    """The dense Jacobian of a function.

    Reverse mode where the results have fewer elements than the arguments, forward mode otherwise.

    Args:
        fun: a function of arrays and pytrees of arrays; with `has_aux` it returns (value, aux). Left out in a decorator
            with options, as `@quabla.jacobian(argnums=1)` is one.
        argnums: which positional arguments to differentiate; negative ones count from the end.
        has_aux: whether `fun` returns (value, aux).
        chunk_size: how many rows or columns are computed at a time, at most 256 unless given: a bound on memory. The
            result is the same up to rounding; on the CPU it mostly has the same bits, unless it has a sum of 128 or
            more terms over a first axis, or over several axes at once.

    Returns:
        A function of the same arguments. For an array result of shape `out` and an array argument of shape `in` it
        returns a block of shape `(*out, *in)`; otherwise a tree like the result, of trees like the argument, of blocks.
        Bool leaves of the arguments have None, and the blocks of results that are bool or int64 are zero.
        With `has_aux`, a pair (Jacobian of the value, aux): aux as `fun` returned it, without blocks.

    Raises:
        ShapeError: `argnums` does not fit the call.
        DtypeError: `fun` is no function, `argnums` no int or tuple of ints, `chunk_size` no positive int, or with
            `has_aux` the result is no pair.
        UnsupportedOperationError: (when called) something on the way has no derivative.

    Example:
        >>> import quabla as qb
        >>> qb.jacobian(lambda x: x * x)(qb.array([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        >>> block, total = qb.jacobian(lambda x: (x * x, qb.sum(x)), has_aux=True)(qb.array([1.0, 2.0]))
        >>> block.tolist(), total.item()
        ([[2.0, 0.0], [0.0, 4.0]], 3.0)
    """
    if fun is LATER:
        return partial(jacobian, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size)
    return Jacobian(fun, argnums, has_aux, chunk_size)


@overload
def hessian(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]: ...


@overload
def hessian(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def hessian(
    fun: Any = LATER,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Any:
    """The dense Hessian of a scalar function: `jacobian(grad(fun))`.

    Where the function takes a root or an absolute value of zero, `norm` says what its second derivative is.

    Args:
        fun: a function that returns a floating scalar of shape `()`; with `has_aux`, a pair (scalar, anything). Left
            out in a decorator with options, as `@quabla.hessian(argnums=1)` is one.
        argnums: which positional arguments to differentiate; negative ones count from the end.
        has_aux: whether `fun` returns (value, aux).
        chunk_size: how many rows or columns are computed at a time, at most 256 unless given: a bound on memory. The
            result is the same up to rounding; on the CPU it mostly has the same bits, unless it has a sum of 128 or
            more terms over a first axis, or over several axes at once.

    Returns:
        A function of the same arguments that returns a block of shape `(*in, *in)`, or trees of blocks as `jacobian`
        does. With `has_aux`, a pair (Hessian, aux).

    Raises:
        ShapeError: the result is not of shape `()`, or `argnums` does not fit the call.
        DtypeError: `fun` is no function, `argnums` no int or tuple of ints, `chunk_size` no positive int, or with
            `has_aux` the result is no pair.
        UnsupportedOperationError: (when called) something on the way has no derivative.

    Example:
        >>> import quabla as qb
        >>> qb.hessian(lambda x: qb.sum(x**3))(qb.array([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
        >>> block, slope = qb.hessian(lambda x: (x**3, 3.0 * x**2), has_aux=True)(2.0)
        >>> block.item(), slope.item()
        (12.0, 12.0)
    """
    if fun is LATER:
        return partial(hessian, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size)
    slope = Gradient(fun, argnums, has_aux, with_value=False, where="hessian")
    return Jacobian(slope, argnums, has_aux, chunk_size, where="hessian")
