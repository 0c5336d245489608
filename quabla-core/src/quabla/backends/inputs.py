"""What every backend checks of the arrays it is given: that they are those it compiled for."""

from __future__ import annotations

from collections.abc import Sequence

from quabla.arrays.tensor import Tensor
from quabla.errors import DtypeError, ShapeError
from quabla.shapes import ShapeDtype

__all__ = ["check_index", "check_inputs", "check_step"]


def check_inputs(inputs: Sequence[Tensor], avals: Sequence[ShapeDtype], what: str = "input") -> None:
    """Raise a typed error unless the inputs are Tensors of these types.

    Args:
        inputs: what a program was called with.
        avals: the types that it takes.
        what: what the inputs are called in errors.

    Raises:
        ShapeError: another number of inputs, or another shape.
        DtypeError: no Tensor, or another dtype.

    Example:
        >>> import quabla as qb
        >>> from quabla.backends.inputs import check_inputs
        >>> check_inputs([qb.zeros(3)], [qb.ShapeDtype((3,))])
    """
    if len(inputs) != len(avals):
        raise ShapeError(f"the program takes {len(avals)} {what}s, got {len(inputs)}")
    for i, (x, aval) in enumerate(zip(inputs, avals, strict=True)):
        if type(x) is not Tensor:
            raise DtypeError(f"{what} {i} is a {type(x).__name__}; convert it with quabla.asarray")
        if x.aval.shape != aval.shape:
            raise ShapeError(f"{what} {i} is {x.aval} where the program takes {aval}")
        if x.aval.dtype is not aval.dtype:
            raise DtypeError(
                f"{what} {i} is {x.aval} where the program takes {aval}; convert it with .astype({aval.dtype!r})"
            )


def check_step(
    ins: Sequence[ShapeDtype], outs: Sequence[ShapeDtype], state: Sequence[Tensor], data: Sequence[Tensor]
) -> None:
    """Raise a typed error unless a program is a training step on this state and data.

    Args:
        ins: the types that the program takes: those of the state and then of the data.
        outs: the types that it returns: those of the new state and then of the loss, a scalar.
        state: the initial state.
        data: the data.

    Raises:
        ShapeError: where the step and its inputs do not fit together.
        DtypeError: the same, for dtypes.
    """
    count = len(state)
    if len(ins) != count + len(data) or len(outs) != count + 1:
        raise ShapeError(
            f"training_plan: a step on {count} state and {len(data)} data arrays takes {count + len(data)} inputs "
            f"and returns {count + 1} outputs; this program has {len(ins)} and {len(outs)}"
        )
    if outs[-1].shape != ():
        raise ShapeError(f"training_plan: the loss, the last output, must have shape (), got {outs[-1]!r}")
    for i, (before, after) in enumerate(zip(ins, outs[:-1], strict=False)):
        if before.shape != after.shape or before.dtype is not after.dtype:
            raise ShapeError(
                f"training_plan: state {i} is {before!r} and becomes {after!r}; it must keep its type"
            )
    check_inputs(state, ins[:count], "state")
    check_inputs(data, ins[count:], "data")


def check_index(index: int, count: int) -> None:
    """Raise a typed error unless there is a data input of this number.

    Raises:
        ShapeError: there is not.
    """
    if not 0 <= index < count:
        raise ShapeError(f"replace: there are {count} data inputs, counted from 0; got index {index}")
