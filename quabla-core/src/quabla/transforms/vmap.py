"""`vmap`: a function of one example becomes a function of many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, final

from quabla import tree
from quabla.arrays.tracer import Frame, TraceTensor
from quabla.errors import DtypeError, ShapeError
from quabla.ops.structure import broadcast, permute
from quabla.shapes import ShapeDtype, aval_of, whole
from quabla.transforms.chunks import batch_chunks, checked_chunk
from quabla.transforms.staging import Call, as_outputs, name_of, stage, take_apart, target
from quabla.transforms.transform import Transform, call_hint, require_function
from quabla.tree import TreeError
from quabla.typed_repr import typed

__all__ = ["vmap"]


def _move(x: TraceTensor, source: int, destination: int) -> TraceTensor:
    """`x` with one axis moved."""
    order = [a for a in range(x.ndim) if a != source]
    order.insert(destination, source)
    return permute(x, tuple(order))  # type: ignore[no-any-return]


def _checked(where: str, axes: Any) -> Any:
    leaves, treedef = tree.flatten(axes)
    if all(type(leaf) is int for leaf in leaves):
        return axes
    numbers = []
    for leaf in leaves:
        try:
            numbers.append(whole(leaf))
        except TypeError:
            raise DtypeError(
                f"vmap: {where} holds ints and None in tuples, lists and dicts, got "
                f"{typed(leaf)}{call_hint('vmap', leaf)}"
            ) from None
    return tree.unflatten(treedef, numbers)


def _one(axis: Any) -> int | None:
    """One axis for all arguments, or None for what is no integer."""
    try:
        return whole(axis)
    except TypeError:
        return None


@final
class Batched(Transform):
    """A function mapped over an axis of its arguments."""

    kind = "vmap"

    def __init__(self, fun: Callable[..., Any], in_axes: Any, out_axes: Any, chunk_size: Any) -> None:
        require_function("vmap", fun)
        self.in_axes = in_axes if isinstance(in_axes, (tuple, list)) else _one(in_axes)
        if self.in_axes is None:
            raise DtypeError(
                f"vmap: in_axes must be an int, or a tuple with one entry per argument of {name_of(fun)}, "
                f"got {typed(in_axes)}"
                + (
                    call_hint("vmap", in_axes)
                    or "; for one argument that is a container write in_axes=(axes,)"
                )
            )
        self.in_axes = _checked("in_axes", self.in_axes)
        self.out_axes = _checked("out_axes", out_axes)
        self.chunk = checked_chunk("vmap", chunk_size)
        super().__init__(fun, (_key(self.in_axes), _key(self.out_axes), self.chunk))

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the function for all examples at once in the innermost trace."""
        call = take_apart(self.fun, args, kwargs, self.as_arrays, within=True)
        axes, size = self._mapped_axes(call)
        inner = [_less(a, axis) for a, axis in zip(call.avals, axes, strict=True)]
        one = Call(call.treedef, _with_avals(call.leaves, inner), [])
        staged = stage(self.fun, one, split=lambda value: as_outputs(self.fun, value, self.passing))
        frame = target(call.arrays, staged.captures)
        values = [frame.lift(x) for x in (*call.arrays, *staged.captures)]
        all_axes = [*axes, *[None] * len(staged.captures)]
        values = [v if axis is None else _move(v, axis, 0) for v, axis in zip(values, all_axes, strict=True)]
        outs, over = batch_chunks(
            frame, staged.program, values, [a is not None for a in all_axes], size, self.chunk
        )
        out_axes = self._out_axes(staged.result)
        return staged.result.put_together(
            [self._placed(frame, o, m, axis, size) for o, m, axis in zip(outs, over, out_axes, strict=True)]
        )

    def _mapped_axes(self, call: Call) -> tuple[list[int | None], int]:
        """Per array leaf the axis that is mapped, counted from the front, or None; and the number of examples."""
        args_def, kwargs_def = call.treedef.children
        prefix: Any = self.in_axes
        if isinstance(prefix, (tuple, list)):
            if len(prefix) != len(args_def.children):
                raise ShapeError(
                    f"vmap: in_axes has {len(prefix)} entries, but {name_of(self.fun)} was called with "
                    f"{len(args_def.children)} positional arguments"
                )
            prefix = tuple(prefix)
        given = tree.broadcast_prefix(prefix, args_def, "vmap: in_axes") + [0] * kwargs_def.num_leaves
        axes: list[int | None] = []
        seen: list[tuple[int, ShapeDtype, int]] = []
        for i, (leaf, axis) in enumerate(zip(call.leaves, given, strict=True)):
            if type(leaf) is not ShapeDtype:
                if axis is not None and i < args_def.num_leaves and self._must_be_mapped(call, i):
                    raise DtypeError(
                        f"vmap: argument {call.leaf_names(self.root)[i]} of {name_of(self.fun)} is the Python value "
                        f"{leaf!r}, which is static and cannot be mapped over axis {axis}; write None for it, as in "
                        f"in_axes={self._with_none(call, given)}, or pass an array with an axis to map"
                    )
                continue
            if axis is None:
                axes.append(None)
                continue
            if not -leaf.ndim <= axis < leaf.ndim:
                name = call.names(self.root)[len(axes)]
                raise ShapeError(
                    f"vmap: argument {name} of type {leaf} has no axis {axis} to map over; use None in in_axes"
                )
            seen.append((len(axes), leaf, axis))
            axes.append(axis % leaf.ndim)
        sizes = {aval.shape[axis] for _, aval, axis in seen}
        if not sizes:
            raise ShapeError(
                f"vmap: at least one argument must be mapped, and none of {name_of(self.fun)} is: give one an axis in "
                "in_axes, and pass arrays, since Python numbers are static and never mapped"
            )
        if len(sizes) > 1:
            names = call.names(self.root)
            shown = "; ".join(
                f"{names[i]} of type {aval} has {aval.shape[axis]} along axis {axis}"
                for i, aval, axis in seen
            )
            raise ShapeError(
                f"vmap: the mapped axes of {name_of(self.fun)} have different sizes: {shown}; choose the axes with "
                "in_axes, None for what is the same for all examples"
            )
        return axes, sizes.pop()

    def _must_be_mapped(self, call: Call, i: int) -> bool:
        """Whether a static leaf that in_axes gives an axis is a mistake, not an argument that `jit` was told of."""
        if type(self.in_axes) is not int:
            return True
        counts = [child.num_leaves for child in call.treedef.children[0].children]
        position = next(p for p in range(len(counts)) if i < sum(counts[: p + 1]))
        return position not in self.static_argnums and type(call.leaves[i].value) in (int, float, bool)

    def _with_none(self, call: Call, given: Sequence[int | None]) -> str:
        """The in_axes with None in the places of static leaves."""
        shown, rest = [], iter(zip(call.leaves, given, strict=True))
        for child in call.treedef.children[0].children:
            axes = [
                axis if type(leaf) is ShapeDtype else None
                for leaf, axis in itertools.islice(rest, child.num_leaves)
            ]
            shown.append(repr(axes[0] if len(set(axes)) == 1 else tree.unflatten(child, axes)))
        return f"({', '.join(shown)}{',' * (len(shown) == 1)})"

    def _out_axes(self, result: Any) -> list[int | None]:
        if result.treedef.kind is tree.LEAF and isinstance(self.out_axes, (tuple, list, dict)):
            raise TreeError(
                f"vmap: {name_of(self.fun)} returns one array, so out_axes is one int or None, got {self.out_axes!r}"
            )
        given = tree.broadcast_prefix(self.out_axes, result.treedef, "vmap: out_axes")
        return [axis for axis, leaf in zip(given, result.leaves, strict=True) if type(leaf) is int]

    def _placed(
        self, frame: Frame, out: TraceTensor, mapped: bool, axis: int | None, size: int
    ) -> TraceTensor:
        if axis is None:
            if mapped:
                raise ShapeError(
                    f"vmap: out_axes is None for a result of {name_of(self.fun)} (one example: "
                    f"{_less(out.aval, 0)}) that depends on a mapped argument; give it an axis"
                )
            return out
        if not mapped:
            out = broadcast(out, (size, *out.shape), tuple(range(1, out.ndim + 1)))
        if not -out.ndim <= axis < out.ndim:
            raise ShapeError(f"vmap: out_axes {axis} is out of range for a batched result of type {out.aval}")
        return _move(out, 0, axis % out.ndim)


def _less(aval: ShapeDtype, axis: int | None) -> ShapeDtype:
    """`aval` without its mapped axis."""
    if axis is None:
        return aval
    return aval_of(aval.shape[:axis] + aval.shape[axis + 1 :], aval.dtype, aval.weak)


def _with_avals(leaves: tuple[Any, ...], avals: list[ShapeDtype]) -> tuple[Any, ...]:
    rest = iter(avals)
    return tuple(next(rest) if type(leaf) is ShapeDtype else leaf for leaf in leaves)


def _key(axes: Any) -> Any:
    leaves, treedef = tree.flatten(axes)
    return (tuple(leaves), treedef)


def vmap(
    fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, chunk_size: int | None = None
) -> Callable[..., Any]:
    """Map a function over an axis of its arguments.

    Args:
        fun: a function of arrays and pytrees of arrays, written for one example.
        in_axes: the axis to map over: an int for all arguments, or a tuple with an entry per argument, each an int,
            None (not mapped) or a tree of them that is a prefix of the argument. Negative axes count from the end.
            A Python number is static and has no axis: it needs None, as in `in_axes=(0, None)`. Arrays passed by
            keyword are mapped over their first axis, and numbers passed by keyword are the same for all examples.
        out_axes: where the results get the batch axis; an int, None (a result that is the same for all examples), or a
            tree of them that is a prefix of the result.
        chunk_size: how many examples are computed at a time, all unless given: a bound on memory, also in gradients, at
            the cost of a loop; at least two. On the CPU the results have the same bits for arguments that are mapped
            over their first axis, also in gradients with respect to them, with few exceptions: a sum over several axes
            at once, and one of 128 or more terms over a first axis that is not mapped, may differ by rounding. The
            gradient of an argument that is not mapped adds up chunk by chunk, and is the same up to rounding.

    Returns:
        A function of arguments that have the mapped axes, all of one size.

    Raises:
        ShapeError: mapped axes of different sizes, an axis that an argument does not have, or nothing mapped.
        DtypeError: in_axes or out_axes hold something else than ints and None, a Python number has an axis, or
            `chunk_size` is no positive int.
        TreeError: in_axes or out_axes is a tree that is no prefix of the arguments or the result.

    Example:
        >>> import quabla as qb
        >>> qb.vmap(lambda x, w: x @ w, in_axes=(0, None))(qb.eye(2), qb.array([3.0, 4.0])).tolist()
        [3.0, 4.0]
    """
    return Batched(fun, in_axes, out_axes, chunk_size)
