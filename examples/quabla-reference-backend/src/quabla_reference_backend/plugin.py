"""The device "numpy": runs programs with NumPy and counts the nodes that it ran.

This is a whole backend, to be copied. It does what every backend does: it says what it can do, refuses what it
cannot before anything runs, compiles a program (here: chooses a NumPy function per node), and makes training steps
resident. The executor is that of Quabla's reference backend; a backend for a real device replaces it and keeps the
rest.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from quabla.arrays.tensor import Tensor
from quabla.backends.generic_plan import GenericTrainingPlan
from quabla.backends.hookspec import hookimpl
from quabla.backends.protocol import TrainingPlan
from quabla.backends.reference import ReferenceExecutable, build
from quabla.backends.support import require
from quabla.ir.op import OPS
from quabla.ir.program import Node, Program
from quabla.shapes import ShapeDtype

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

quabla_hookspec_version = 1  # of the hooks and protocols that this plugin was written for

# What this device does in its own way, by the name of the op: a function of the operands and the node's params. Any
# other op is evaluated as the op itself defines it.
RULES: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "tanh": np.tanh,
    "exp": np.exp,
}


class NodeCounts:
    """How many nodes of each op have run. Programs run on many threads, so it has a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        """Count the nodes of one run."""
        with self._lock:
            self._counts.update(counts)

    def read(self) -> dict[str, int]:
        """The counts so far, by the name of the op."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True)
class NumpyLowered:
    """A program that this device can run."""

    program: Program
    device: str

    def as_text(self) -> str:
        """One line per node: who evaluates it."""
        nodes = [
            f"{n.op.name}: {'own rule' if n.op.name in RULES else 'definition'}" for n in self.program.nodes
        ]
        return "\n".join([f"device {self.device}", *nodes])


@dataclass(frozen=True)
class NumpyExecutable:
    """A compiled program that counts its nodes whenever it runs."""

    inner: ReferenceExecutable
    nodes: Mapping[str, int]
    counts: NodeCounts
    entry: None = None  # there is no native function to call

    @property
    def in_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the inputs."""
        return self.inner.in_avals

    @property
    def out_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the outputs."""
        return self.inner.out_avals

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program."""
        results = self.inner(*inputs)
        self.counts.add(self.nodes)
        return results


class NumpyBackend:
    """The backend.

    Args:
        refused: the names of ops that this device shall not have.
    """

    platform = "numpy"

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused = refused
        self.counts = NodeCounts()

    @cached_property
    def capabilities(self) -> BackendCapabilities:
        """What the device can do, as data. Imported here: running a program does not need it."""
        from quabla.backends.capabilities import BackendCapabilities

        return BackendCapabilities(
            dtypes=("float64", "float32", "bool", "int64"),
            ops=tuple(sorted(set(OPS) - self.refused)),
            determinism="bitwise",
            native_float64=True,
        )

    def devices(self) -> Sequence[str]:
        """The devices that are there now. A driver's count would stand here, as "numpy:0", "numpy:1" and so on."""
        return (self.platform,)

    def lower(self, program: Program, device: str) -> NumpyLowered:
        """Refuse what the device cannot do, inside branches and loops too, before anything runs."""
        require(program, self.capabilities, device)
        return NumpyLowered(program, device)

    def compile(self, lowered: NumpyLowered) -> NumpyExecutable:
        """Choose a function per node."""

        def choose(node: Node) -> Callable[..., Any]:
            return RULES.get(node.op.name, node.op.evaluate)

        nodes = Counter(node.op.name for node in lowered.program.nodes)
        return NumpyExecutable(build(lowered.program, choose), nodes, self.counts)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> TrainingPlan:
        """The plan that works for every executable; a device with memory of its own keeps the state there instead."""
        return GenericTrainingPlan(self.compile(self.lower(program, device)), state, data)


_backend = NumpyBackend()


@hookimpl
def quabla_backend() -> NumpyBackend:
    """Called once, when the device is first asked for."""
    return _backend


@hookimpl
def quabla_public_names() -> dict[str, Any]:
    """Adds `quabla.evaluated_nodes()`."""
    return {"evaluated_nodes": _backend.counts.read}
