"""The reference backend: runs a Program node by node with `Op.evaluate` on NumPy arrays.

It is the definition of what a program means, and every other backend is tested against it. It is an ordinary plugin of
the hooks. Other backends may build on it: `build` takes the function that chooses how a node is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.backends.generic_plan import GenericTrainingPlan
from quabla.backends.hookspec import hookimpl
from quabla.backends.inputs import check_inputs
from quabla.backends.protocol import TrainingPlan
from quabla.errors import BackendError
from quabla.ir.op import OPS
from quabla.ir.program import Node, Program, Value
from quabla.shapes import ShapeDtype

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

__all__ = ["ReferenceBackend", "ReferenceExecutable", "ReferenceLowered", "build", "quabla_backend"]

Evaluate = Callable[..., Any]
"""Takes the operands of a node as NumPy arrays and its params as keywords; returns the array, or a tuple of them."""


def by_definition(node: Node) -> Evaluate:
    """The evaluation that defines a node: that of its op."""
    return node.op.evaluate


class ReferenceLowered(NamedTuple):
    """A program for the reference backend, which needs no preparation."""

    program: Program
    device: str

    def as_text(self) -> str:
        """One line per node, in the order of evaluation."""
        names: dict[Value, str] = dict(zip(self.program.inputs, self.program.input_names, strict=True))
        lines = [f"device {self.device}", *(f"input {names[v]}: {v.aval!r}" for v in self.program.inputs)]
        for i, node in enumerate(self.program.nodes):
            for v in node.outputs:
                names[v] = f"v{i}" if len(node.outputs) == 1 else f"v{i}.{v.index}"
            left = ", ".join(f"{names[v]}: {v.aval!r}" for v in node.outputs)
            operands = [names[v] for v in node.inputs] + [f"{k}={p!r}" for k, p in node.params.items()]
            lines.append(f"{left} = {node.op.name}({', '.join(operands)})")
        lines.append(f"return {', '.join(names[v] for v in self.program.outputs)}")
        return "\n".join(lines)


class Step(NamedTuple):
    """One node, ready to run: slots instead of values.

    Attributes:
        evaluate: the NumPy function.
        ins: where the operands are.
        params: the keywords.
        outs: where the results go.
        avals: their types.
        free: slots that nothing reads after this step.
        op: the name of the op, for errors.
    """

    evaluate: Evaluate
    ins: tuple[int, ...]
    params: dict[str, Any]
    outs: tuple[int, ...]
    avals: tuple[ShapeDtype, ...]
    free: tuple[int, ...]
    op: str


class ReferenceExecutable(NamedTuple):
    """A program as a list of steps over numbered slots; the inputs take the first of them."""

    in_avals: tuple[ShapeDtype, ...]
    out_avals: tuple[ShapeDtype, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    slots: int
    entry: None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program.

        Raises:
            ShapeError: where the number of inputs or a shape is another than compiled for.
            DtypeError: where a dtype is another.
        """
        check_inputs(inputs, self.in_avals)
        values: list[Any] = [x.numpy() for x in inputs] + [None] * (self.slots - len(inputs))
        with np.errstate(all="ignore"):
            for step in self.steps:
                out = step.evaluate(*[values[i] for i in step.ins], **step.params)
                many = out if isinstance(out, tuple) else (out,)
                if len(many) != len(step.outs):
                    raise BackendError(
                        f"{step.op}: evaluated to {len(many)} results, not {len(step.outs)}; please report this"
                    )
                for slot, aval, result in zip(step.outs, step.avals, many, strict=True):
                    values[slot] = _as_array(result, aval, step.op)
                for slot in step.free:
                    values[slot] = None
        results = []
        taken: set[int] = set()
        for slot, aval in zip(self.results, self.out_avals, strict=True):
            array = values[slot]
            # Results own their memory. Inputs and constants came as views of it, and so have a base.
            if array.base is not None or id(array) in taken:
                array = array.copy()
            taken.add(id(array))
            results.append(wrap_as(array, aval))
        return tuple(results)


def _as_array(result: Any, aval: ShapeDtype, op: str) -> np.ndarray:
    array = np.asarray(result, aval.dtype.numpy)
    if array.shape != aval.shape:
        raise BackendError(
            f"{op}: evaluated to shape {array.shape} where {aval!r} was inferred; please report this"
        )
    return array


def build(program: Program, choose: Callable[[Node], Evaluate] = by_definition) -> ReferenceExecutable:
    """Make a program runnable.

    Args:
        program: any program.
        choose: says how a node is evaluated; `Op.evaluate` unless given.

    Returns:
        An executable that runs on host memory.
    """
    slot: dict[Value, int] = {v: i for i, v in enumerate(program.inputs)}
    for node in program.nodes:
        for v in node.outputs:
            slot[v] = len(slot)
    results = tuple(slot[v] for v in program.outputs)
    needed = set(results)
    steps: list[Step] = []
    for node in reversed(
        program.nodes
    ):  # backwards: what is met for the first time is read for the last time
        ins, outs = tuple(slot[v] for v in node.inputs), tuple(slot[v] for v in node.outputs)
        free = tuple(dict.fromkeys(i for i in (*ins, *outs) if i not in needed))
        needed.update(ins)
        steps.append(
            Step(
                choose(node), ins, node.params, outs, tuple(v.aval for v in node.outputs), free, node.op.name
            )
        )
    steps.reverse()
    return ReferenceExecutable(program.in_avals, program.out_avals, tuple(steps), results, len(slot))


class ReferenceBackend:
    """Runs on the host by definition: any dtype, any op, one core, no code generation."""

    platform = "reference"

    @property
    def capabilities(self) -> BackendCapabilities:
        """All dtypes and all ops."""
        from quabla.backends.capabilities import BackendCapabilities

        return BackendCapabilities(
            dtypes=("float64", "float32", "bool", "int64"),
            ops=tuple(sorted(OPS)),
            regions=True,
            determinism="bitwise",
            native_float64=True,
        )

    def devices(self) -> Sequence[str]:
        """The one device."""
        return (self.platform,)

    def lower(self, program: Program, device: str) -> ReferenceLowered:
        """Nothing is refused and nothing is changed."""
        return ReferenceLowered(program, device)

    def compile(self, lowered: ReferenceLowered) -> ReferenceExecutable:
        """The list of steps."""
        return build(lowered.program)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> TrainingPlan:
        """The plan that every backend can have."""
        return GenericTrainingPlan(self.compile(self.lower(program, device)), state, data)


@hookimpl
def quabla_backend() -> ReferenceBackend:
    """The plugin: this module registers itself through the same hook as everybody."""
    return ReferenceBackend()
