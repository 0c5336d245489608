"""The carry of a loop: a pytree of arrays whose structure, shapes and dtypes a step keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quabla import tree
from quabla.arrays.tensor import Tensor
from quabla.control.regions import weak_numbers, with_output_types
from quabla.errors import DtypeError, ShapeError
from quabla.ops.structure import cast
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.staging import name_of, take_apart

__all__ = ["Carry", "begin", "keep", "settle", "take_carry"]


@dataclass(slots=True)
class Carry:
    """A carry taken apart.

    Attributes:
        treedef: its structure.
        arrays: its leaves; Python numbers have become weak arrays.
    """

    treedef: Any
    arrays: list[Any]

    def put_together(self, arrays: Sequence[Any]) -> Any:
        """The carry with other leaves."""
        return tree.unflatten(self.treedef, list(arrays))


def take_carry(where: str, init: Any) -> Carry:
    """Take the initial carry of a loop apart.

    Raises:
        DtypeError: a leaf is no array.
    """
    call = take_apart(_named(where), (weak_numbers(init),), {})
    return Carry(call.treedef.children[0].children[0], call.arrays)


def begin(where: str, init: Any) -> Any:
    """The initial carry of a loop whose steps run one by one: arrays, as within a trace.

    Raises:
        DtypeError: a leaf is no array.
    """
    taken = take_carry(where, init)
    return taken.put_together(taken.arrays)


def _named(where: str) -> Callable[..., Any]:
    def fun(carry: Any) -> Any:
        return carry

    fun.__name__ = where
    return fun


def settle(
    where: str,
    fun: Callable[..., Any],
    carry: Carry,
    stage_step: Callable[[list[ShapeDtype]], tuple[Any, int]],
) -> Any:
    """Trace a step until the carry that it returns has the types of the carry that it takes.

    A weak leaf of the initial carry (a Python number) adopts the dtype that the step gives it.

    Args:
        where: the loop, for messages.
        fun: the user's step, for messages.
        carry: the initial carry; its arrays are cast in place.
        stage_step: traces the step for given types of the carry; returns what `stage` does, and how many leading
            outputs are the carry.

    Raises:
        ShapeError: the step returns a carry of another structure or shape.
        DtypeError: the step returns a carry of another dtype.
    """
    while True:
        avals = [x.aval for x in carry.arrays]
        staged, count = stage_step(avals)
        returned = staged.program.out_avals[:count]
        wanted = [
            _agreed(where, fun, carry, i, a, b) for i, (a, b) in enumerate(zip(avals, returned, strict=True))
        ]
        if all(a is w for a, w in zip(avals, wanted, strict=True)):
            rest = staged.program.out_avals[count:]
            staged.program = with_output_types(staged.program, [*wanted, *rest])
            return staged
        carry.arrays = [cast(x, w.dtype, w.weak) for x, w in zip(carry.arrays, wanted, strict=True)]


_COLLECT = {"scan": "return what grows as the second result, which scan stacks"}


def _agreed(where: str, fun: Any, carry: Carry, i: int, before: ShapeDtype, after: ShapeDtype) -> ShapeDtype:
    path = "/".join(tree.paths(carry.treedef)[i])
    at = f" at {path}" if path else ""
    if before.shape != after.shape:
        raise ShapeError(
            f"{where}: the carry must keep its shape, but {name_of(fun)} takes {before}{at} and returns {after}; give "
            f"the initial carry the final shape, or {_COLLECT.get(where, 'collect results with quabla.scan')}"
        )
    if before.dtype is after.dtype:
        return aval_of(before.shape, before.dtype, before.weak and after.weak)
    if before.weak and before.dtype.kind == "f" and after.dtype.kind == "f":
        return aval_of(after.shape, after.dtype, after.weak)
    if after.weak and before.dtype.kind == "f" and after.dtype.kind == "f":
        return before
    raise DtypeError(
        f"{where}: the carry must keep its dtype, but {name_of(fun)} takes {before}{at} and returns {after}; "
        "convert the "
        "initial carry or the result with astype"
    )


def same_structure(where: str, fun: Any, carry: Carry, result: Any) -> None:
    """Check the structure of the carry that a step returned.

    Raises:
        ShapeError: it differs from that of the initial carry.
    """
    if result != carry.treedef:
        raise ShapeError(
            f"{where}: {name_of(fun)} must return a carry of the structure that it takes, {carry.treedef.shown()}; it "
            f"returned {'None (is its return statement missing?)' if result.kind is type(None) else result.shown()}"
        )


def keep(where: str, fun: Any, before: Any, after: Any) -> Any:
    """The carry after a step that ran on concrete arrays: the step is held to what a traced one is.

    Args:
        where: the loop, for messages.
        fun: the user's step, for messages.
        before: the carry that it took.
        after: the carry that it returned.

    Returns:
        That carry, as arrays of the types that it had.

    Raises:
        ShapeError: another structure or shape.
        DtypeError: another dtype, or a leaf that is no array.
    """
    if type(before) is type(after) is Tensor and before.aval is after.aval:
        return after
    taken, returned = take_carry(where, before), take_carry(where, after)
    same_structure(where, fun, taken, returned.treedef)
    kept = []
    for i, (x, y) in enumerate(zip(taken.arrays, returned.arrays, strict=True)):
        wanted = _agreed(where, fun, taken, i, x.aval, y.aval)
        kept.append(y if y.aval is wanted else cast(y, wanted.dtype, wanted.weak))
    return returned.put_together(kept)
