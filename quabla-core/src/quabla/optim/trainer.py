"""`Trainer`: loss, gradient and update as one compiled step, whose state and data stay on the device."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, final

from quabla import tree
from quabla.arrays.convert import asarray
from quabla.arrays.tensor import Tensor, shared
from quabla.arrays.tracer import TraceTensor
from quabla.backends import registry
from quabla.backends.protocol import TrainingPlan
from quabla.dtypes import dtype, float32, float64
from quabla.errors import DtypeError, QuablaError, ShapeError, TracerError, UnsupportedOperationError
from quabla.ir.program import Program
from quabla.ops.structure import cast
from quabla.optim.optimizer import Optimizer
from quabla.shapes import ShapeDtype, aval_of, whole, wholes
from quabla.spellings import spelled
from quabla.transforms import dispatch
from quabla.transforms.derivatives import Gradient
from quabla.transforms.narrowing import native_float64, warn_of_float64
from quabla.transforms.staging import Call, name_of, stage, take_apart
from quabla.typed_repr import typed

__all__ = ["Trainer", "TrainerState"]

# How long `run` stays in native code: Ctrl-C is heard in between. It decides nothing about the results.
_PATIENCE_SECONDS = 0.1

_all: weakref.WeakSet[Trainer] = weakref.WeakSet()


def _renew_locks() -> None:
    # Another thread may have been in a step with a batch while this process was forked.
    for trainer in list(_all):
        trainer._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class TrainerState(NamedTuple):
    """What a training run consists of besides its data, a pytree.

    Attributes:
        params: the parameters, of the structure that the trainer was given.
        optimizer: the optimiser's own state.

    Example:
        >>> import quabla as qb
        >>> trainer = qb.optim.Trainer(lambda w: w * w, 1.0, qb.optim.SGD(), device="reference")
        >>> trainer.get_state()
        TrainerState(params=Tensor(1.), optimizer=())
    """

    params: Any
    optimizer: Any


@dataclass(frozen=True)
class _Slot:
    """A data argument that every step replaces: where it stands, and what it must look like."""

    position: int
    treedef: tree.TreeDef
    avals: tuple[ShapeDtype, ...]
    first: int  # the place of its first array among the plan's data


@dataclass(frozen=True)
class _Kept:
    """An array of the state: the type that the parameters or the optimiser give it, and how it stays on the device.

    Attributes:
        given: its type in `loss`, `init` and `update`.
        kept: its type in the plan, and in what is read from it.
        taken: the dtypes in which `set_state` takes it.
    """

    given: ShapeDtype
    kept: ShapeDtype
    taken: tuple[dtype, ...]


def _kept(avals: Sequence[ShapeDtype], params: int, backend: Any) -> tuple[_Kept, ...]:
    """How a device keeps a state whose first arrays are the parameters.

    A device that computes float64 in float32 keeps what the optimiser adds to float32 parameters in float32, as it
    computes with it: whoever trains in float32 there has not asked for float64. Everything else stays as it is given.
    States of other devices and of earlier versions fit nevertheless, since `set_state` takes either.
    """
    double = [a.dtype is float64 for a in avals]
    added = [d and i >= params for i, d in enumerate(double)]
    narrow = any(added) and not any(double[:params]) and not native_float64(backend)
    return tuple(
        _Kept(a, aval_of(a.shape, float32) if narrow else a, (float64, float32))
        if free
        else _Kept(a, a, (a.dtype,))
        for a, free in zip(avals, added, strict=True)
    )


@final
class Trainer:
    """A training loop whose step is one call of native code.

    `loss(params, *data)` is traced once, together with its gradient and the optimiser's update, and compiled for the
    device. Parameters, the optimiser's state and the data live in the compiled plan; `step` reads nothing back. What
    the caller passed stays as it is.

    The step does what the loop of calls does, bit for bit on the CPU: `Adam` has float64 moments for float32
    parameters, too. On a device that computes float64 in float32, what the optimiser adds to float32 parameters is
    float32.

    Python numbers in `data` are constants of the program, and in `params` they become float64 arrays. Steps, readings
    and replacements exclude each other, so a trainer may be shared by threads. An interrupt (Ctrl-C) arrives between
    two steps and loses nothing.

    Args:
        loss: a function of the parameters and the data that returns a floating scalar of shape `()`.
        params: a pytree of arrays and numbers; those that are floating are trained.
        optimizer: `Adam(...)`, `SGD(...)`, or another object with pure `init` and `update`.
        data: further arguments of `loss`, pytrees.
        device: "cpu" (also None), or another that `quabla.devices()` lists.
        batch_argnums: positions in `data` of what each `step` replaces, an int or a tuple of ints. Their first values
            say what shapes and dtypes batches have.

    Raises:
        ShapeError: the loss is not of shape `()`, or a position in `batch_argnums` does not exist.
        DtypeError: the loss is not one floating array, `params` have no floating leaf, or an argument has a wrong type.
        UnsupportedOperationError: the device is not there, or cannot run the step.
        TracerError: called inside a traced function, or the loss needs the value of a traced array.

    Example:
        >>> import quabla as qb
        >>> def loss(w, x, y):
        ...     return qb.mean((x @ w - y) ** 2)
        >>> x, y = qb.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), qb.array([1.0, 3.0, 5.0])
        >>> trainer = qb.optim.Trainer(loss, qb.zeros(2), qb.optim.SGD(0.3), x, y)
        >>> trainer.run(500)
        >>> [round(w, 6) for w in trainer.params.tolist()], trainer.loss().item() < 1e-12
        ([1.0, 2.0], True)
    """

    @spelled
    def __init__(
        self,
        loss: Callable[..., Any],
        params: Any,
        optimizer: Optimizer,
        *data: Any,
        device: str | None = None,
        batch_argnums: int | tuple[int, ...] = (),
    ) -> None:
        if not callable(loss):
            raise DtypeError(
                f"Trainer: loss must be a function of (params, *data), got a {type(loss).__name__}"
            )
        _check_optimizer(optimizer)
        batched = _positions(batch_argnums, len(data))
        # Numbers in a batched position are arrays: a constant could not be replaced.
        call = take_apart(loss, (params, *data), {}, as_arrays={0, *(p + 1 for p in batched)})
        if any(type(x) is TraceTensor for x in call.arrays):
            raise TracerError(
                "Trainer: params and data must be concrete arrays; a Trainer cannot be made inside a traced function"
            )
        call.arrays = [_strong(x) for x in call.arrays]
        (params, *data_), _ = call.put_together(call.arrays)
        if not any(x.dtype.kind == "f" for x in tree.flatten(params)[0]):
            raise DtypeError(
                "Trainer: params have no floating leaf, so there is nothing to train; "
                f"they are {tree.flatten(params)[1]!r}"
            )
        backend, name = registry.backend_for(device, "Trainer")
        state = TrainerState(params, optimizer.init(params))
        leaves, self._treedef = tree.flatten(state)
        arrays = [_strong(_as_array("Trainer: the optimiser's state", x)) for x in leaves]
        count = self._treedef.children[0].num_leaves
        kept = _kept([x.aval for x in arrays], count, backend)
        arrays = [_converted(x, row.kept.dtype) for x, row in zip(arrays, kept, strict=True)]
        names = ["/".join(p) for p in tree.paths(self._treedef)] + call.names(loss)[count:]

        def trace() -> Program:
            return _trace(loss, optimizer, kept, tree.unflatten(self._treedef, arrays), data_, names)

        program = trace()
        warn_of_float64(f"Trainer({name_of(loss)})", program, backend, name, device)
        self._plan: TrainingPlan = backend.training_plan(program, name, arrays, call.arrays[count:])
        if dispatch.CHECKS:  # debug_nans is on
            from quabla.transforms.nans import WatchedPlan

            self._plan = WatchedPlan(self._plan, f"Trainer({name_of(loss)})", trace, call.arrays[count:])
        self._run_one = self._plan.step
        self._slots = _slots(call, batched, count)
        self._kept = kept
        # Plans take care of their own steps and readings; this is for a batch, which is replaced and then stepped on.
        # Reentrant, since a signal's handler may step, too.
        self._lock = threading.RLock()
        _all.add(self)
        self._name = name_of(loss)
        self.program = program
        self.device = name

    def step(self, *batch: Any) -> None:
        """Make one step: the loss and its gradient, then the update. Nothing is read back.

        Args:
            batch: the new values of the positions in `batch_argnums`, in that order; left out, the step is made on the
                batch that was given last, at first the data that the trainer was made with. If one does not fit,
                nothing changes.

        Raises:
            ShapeError: another number of arguments than `batch_argnums` has, or another shape.
            TreeError: another structure.
            DtypeError: another dtype.

        Example:
            >>> import quabla as qb
            >>> loss = lambda w, x: qb.mean((w - x) ** 2)
            >>> trainer = qb.optim.Trainer(loss, 0.0, qb.optim.SGD(0.5), qb.zeros(2), batch_argnums=0)
            >>> trainer.step([1.0, 3.0])
            >>> trainer.params.item()
            2.0
            >>> trainer.step()  # on the same batch
        """
        if batch:
            self._step_on(batch)
        else:
            self._run_one()

    def run(self, steps: int) -> None:
        """Make several steps without coming back to Python in between, except to hear an interrupt.

        With `batch_argnums`, all of them use the batch that was given last.

        Args:
            steps: how many.

        Raises:
            DtypeError: `steps` is not a non-negative int.
        """
        try:
            steps = whole(steps)
        except TypeError:
            raise DtypeError(f"Trainer.run: steps must be a non-negative int, got {steps!r}") from None
        if steps < 0:
            raise DtypeError(f"Trainer.run: steps must be a non-negative int, got {steps!r}")
        portion = 1
        while steps > 0:
            start = time.perf_counter()
            self._plan.run(min(portion, steps))
            steps -= portion
            seconds = max(time.perf_counter() - start, 1e-6)
            portion = max(1, int(min(1000.0, _PATIENCE_SECONDS / seconds) * portion))

    def loss(self) -> Tensor:
        """The loss at the parameters from which the last step started; NaN before the first step."""
        return self._plan.loss()

    @property
    def params(self) -> Any:
        """A copy of the parameters as they are now, of the structure that the trainer was given."""
        return self.get_state().params

    def get_state(self) -> TrainerState:
        """A copy of the parameters and of the optimiser's state, to go on from later with `set_state`.

        Example:
            >>> import quabla as qb
            >>> trainer = qb.optim.Trainer(lambda w: (w - 1.0) ** 2, 0.0, qb.optim.Adam(0.1), device="reference")
            >>> saved = trainer.get_state()
            >>> trainer.step()
            >>> trainer.set_state(saved)
            >>> trainer.params.item()
            0.0
        """
        state: TrainerState = tree.unflatten(self._treedef, self._plan.state())
        return state

    def set_state(self, state: Any) -> None:
        """Go on from a state that `get_state` returned, here or in a trainer like this one.

        Args:
            state: a pytree of that structure, of arrays of the same shapes and dtypes; NumPy arrays are taken too.
                What the optimiser keeps in float64 may also be float32, as states of earlier versions and of devices
                without float64 are, and the other way round. If something does not fit, nothing changes.

        Raises:
            TreeError: another structure.
            ShapeError: an array of another shape, with its path.
            DtypeError: an array of another dtype, with its path.
        """
        leaves = tree.flatten_up_to(state, self._treedef, "Trainer.set_state")
        places = zip(leaves, self._kept, tree.paths(self._treedef), strict=True)
        arrays = [
            _fitting(f"Trainer.set_state: {'/'.join(path)}", x, row.kept, row.taken)
            for x, row, path in places
        ]
        self._plan.set_state(arrays)

    def _step_on(self, batch: Sequence[Any]) -> None:
        if len(batch) != len(self._slots):
            wanted = (
                ", ".join(f"data {s.position}" for s in self._slots) or "none, as there are no batch_argnums"
            )
            raise ShapeError(
                f"Trainer.step: takes {len(self._slots)} batch arguments ({wanted}), got {len(batch)}"
            )
        arrays = [_batch(slot, value) for slot, value in zip(self._slots, batch, strict=True)]
        # All of them have been checked; from here on nothing is refused.
        with self._lock:
            for slot, values in zip(self._slots, arrays, strict=True):
                for i, x in enumerate(values):
                    self._plan.replace(slot.first + i, x)
            self._run_one()

    def __reduce__(self) -> NoReturn:
        raise UnsupportedOperationError(
            f"pickling or copying: {self!r} holds memory of its device. Keep trainer.get_state(), and give it to "
            "set_state of a new Trainer",
            op="pickle",
        )

    def __repr__(self) -> str:
        size = sum(row.kept.size for row in self._kept[: self._treedef.children[0].num_leaves])
        return f"<Trainer of {self._name} on {self.device!r}, {size} parameters>"


def _trace(
    loss: Callable[..., Any],
    optimizer: Optimizer,
    kept: Sequence[_Kept],
    state: TrainerState,
    data: Sequence[Any],
    names: Sequence[str],
) -> Program:
    """The step as a program: from state and data to the new state and the loss, the state as it is kept."""

    slope = Gradient(loss, 0, has_aux=False, with_value=True, where="Trainer")

    def step(old: TrainerState, *data: Any) -> Any:
        leaves = tree.flatten(old)[0]
        old = tree.unflatten(
            treedef, [_converted(x, row.given.dtype) for x, row in zip(leaves, kept, strict=True)]
        )
        value, grads = slope(old.params, *data)
        return optimizer.update(old.params, grads, old.optimizer), value

    treedef = tree.flatten(state)[1]
    paths = tree.paths(treedef)

    def split(result: Any) -> tuple[list[Any], None]:
        new, value = result
        where = f"Trainer: what {type(optimizer).__name__}.update returned"
        if not isinstance(new, tuple) or len(new) != 2:
            raise DtypeError(f"{where} must be a pair (params, state), got a {type(new).__name__}")
        found = tree.flatten_up_to(TrainerState(*new), treedef, where)
        new_leaves = [
            _converted(_check(f"{where} at {'/'.join(path)}", _as_array(where, x), row.given), row.kept.dtype)
            for x, row, path in zip(found, kept, paths, strict=True)
        ]
        return [*new_leaves, value], None

    staged = stage(step, take_apart(step, (state, *data), {}), split=split, names=names)
    if staged.captures:
        raise TracerError(
            f"Trainer: {name_of(loss)} closes over values of a trace in progress; a Trainer cannot be made inside a "
            "traced function"
        )
    return staged.program


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, type):
        raise DtypeError(
            f"Trainer: optimizer is the class {optimizer.__name__}; pass an instance, as in {optimizer.__name__}()"
        )
    if not isinstance(optimizer, Optimizer):
        raise DtypeError(
            "Trainer: optimizer must have init(params) and update(params, grads, state), as "
            f"quabla.optim.Adam(...) has; got a {type(optimizer).__name__}. "
            "The order is Trainer(loss, params, optimizer, *data)"
        )


def _positions(batch_argnums: Any, count: int) -> tuple[int, ...]:
    try:
        given, _ = wholes(batch_argnums)
    except TypeError:
        raise DtypeError(
            f"Trainer: batch_argnums must be an int or a tuple of ints, got {typed(batch_argnums)}"
        ) from None
    for i in given:
        if not -count <= i < count:
            raise ShapeError(
                f"Trainer: batch_argnums {i} is out of range: there are {count} data arguments after the optimiser, "
                "counted from 0"
            )
    picked = tuple(i % count for i in given)
    if len(set(picked)) != len(picked):
        raise ShapeError(f"Trainer: batch_argnums {batch_argnums!r} names an argument twice")
    return picked


def _slots(call: Call, batched: Sequence[int], first_data: int) -> tuple[_Slot, ...]:
    """The batched positions, with the places of their arrays among all arrays of the data."""
    at = call.positions()
    slots = []
    for position in batched:
        places = [i for i, p in enumerate(at) if p == position + 1]
        treedef = call.treedef.children[0].children[position + 1]
        avals = tuple(call.arrays[i].aval for i in places)
        slots.append(_Slot(position, treedef, avals, places[0] - first_data if places else 0))
    return tuple(slots)


def _batch(slot: _Slot, value: Any) -> list[Tensor]:
    if type(value) is Tensor and len(slot.avals) == 1 and value.aval is slot.avals[0]:
        return [value]
    where = f"Trainer.step: data {slot.position}"
    single = slot.treedef.kind is tree.LEAF  # then a list is an array to be made, as it is for `asarray`
    leaves = [value] if single else tree.flatten_up_to(value, slot.treedef, where)
    paths = tree.paths(slot.treedef)
    return [
        _fitting("/".join((where, *path)), x, aval)
        for x, aval, path in zip(leaves, slot.avals, paths, strict=True)
    ]


def _fitting(where: str, value: Any, aval: ShapeDtype, taken: Sequence[dtype] = ()) -> Tensor:
    """`value` as a Tensor of exactly this type; Python numbers adopt its dtype, and arrays of these dtypes do."""
    if type(value) in (int, float) and aval.dtype.kind == "f":
        value = asarray(float(value), aval.dtype)
    x = _as_array(where, value)
    if x.dtype in taken:
        x = _converted(x, aval.dtype)
    return _strong(_check(where, x, aval))


def _as_array(where: str, value: Any) -> Any:
    if isinstance(value, (Tensor, TraceTensor)):
        return value
    try:
        if callable(value) or isinstance(value, (str, bytes)) or value is None:
            raise TypeError("it is no array")
        return asarray(value)
    except (QuablaError, TypeError, ValueError) as error:
        raise DtypeError(f"{where} is a {type(value).__name__} where an array is wanted ({error})") from error


def _check(where: str, x: Any, aval: ShapeDtype) -> Any:
    if x.aval.shape != aval.shape:
        raise ShapeError(f"{where} is {x.aval} where {aval} is wanted")
    if x.aval.dtype is not aval.dtype:
        raise DtypeError(
            f"{where} is {x.aval} where {aval} is wanted; convert it with .astype({aval.dtype!r})"
        )
    return x


def _converted(x: Any, to: dtype) -> Any:
    return x if x.aval.dtype is to else cast(x, to)


def _strong(x: Tensor) -> Tensor:
    """`x` without weakness, so that what stands in a plan has one type per shape and dtype."""
    return shared(x, aval_of(x.aval.shape, x.aval.dtype)) if x.aval.weak else x
