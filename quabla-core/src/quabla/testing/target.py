"""What is under test: a device, what its backend says that it can do, and how exact it has to be.

A program that a device runs is compared with the reference backend. What the capabilities leave out must be refused by
`lower`, with the op and the device in the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quabla.backends import registry
from quabla.backends.guard import GuardedBackend
from quabla.backends.support import dtypes_in, nodes_in, ops_in
from quabla.errors import UnsupportedOperationError
from quabla.ir.program import Program
from quabla.testing.numeric import MismatchError
from quabla.testing.table import tensors

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

__all__ = ["TOLERANCES", "RefusedCorrectly", "Target", "Tolerance"]


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be off, in units of the spacing of numbers near 1.

    Attributes:
        each: relative to each element.
        largest: relative to the largest element of the result, or to 1.
    """

    each: float
    largest: float


# The same for every device. The unit is 2.2e-16 for float64 and 1.2e-7 for float32; float64 programs on a device that
# says it computes them in float32 (`native_float64=False`) have the unit of float32. Integers and bools are exact.
TOLERANCES = {
    "elementwise": Tolerance(8.0, 0.0),
    "value": Tolerance(0.0, 32.0),
    "derivative": Tolerance(0.0, 256.0),
    "batch": Tolerance(8.0, 32.0),
    "program": Tolerance(1e3, 1e3),
}


class RefusedCorrectly(Exception):  # noqa: N818 - a device that refuses as it should makes no error
    """A device refused what it says that it lacks, in the way it should."""


@dataclass(frozen=True, eq=False)
class Target:
    """A device under test.

    Attributes:
        device: its name, as its backend knows it.
        backend: its backend.
        can: what it says that it can do.
    """

    device: str
    backend: GuardedBackend
    can: BackendCapabilities

    @classmethod
    def of(cls, device: str) -> Target:
        """The device of this name.

        Raises:
            UnsupportedOperationError: there is none.
            BackendError: its plugin is broken.
        """
        backend, name = registry.backend_for(device, "conformance")
        return cls(name, backend, backend.capabilities)

    def eps(self, arrays: Iterable[Any]) -> float:
        """The spacing of numbers near 1 in the precision that arrays are computed with."""
        exact = self.can.native_float64 and not any(a.dtype.name == "float32" for a in arrays)
        return float(np.finfo(np.float64 if exact else np.float32).eps)

    def held(self, arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Arrays as the device holds them: where it computes float64 in float32, with the digits and range of that."""
        if self.can.native_float64:
            return list(arrays)
        with np.errstate(over="ignore", under="ignore"):
            return [a.astype(np.float32).astype(a.dtype) if a.dtype == np.float64 else a for a in arrays]

    def lacks(self, program: Program) -> str:
        """What a program uses and the capabilities leave out, in words; empty where there is nothing."""
        ops = ops_in(program).difference(self.can.ops)
        return ", ".join(sorted(ops | dtypes_in(program).difference(self.can.dtypes)))

    def compiled(self, program: Program) -> Any:
        """The program, ready to run.

        Raises:
            RefusedCorrectly: it uses what the device says it lacks, and was refused as it should be.
            MismatchError: it uses that and was accepted, or refused in another way.
        """
        missing = self.lacks(program)
        if not missing:
            return self.backend.compile(self.backend.lower(program, self.device))
        self.refuses(program, missing, lambda: self.backend.lower(program, self.device))
        raise AssertionError("unreachable")

    def refuses(self, program: Program, missing: str, attempt: Any) -> None:
        """Check that an attempt to use a program is refused as it should be; always raises."""
        try:
            attempt()
        except UnsupportedOperationError as error:
            self._names_what_it_lacks(program, error)
            raise RefusedCorrectly(str(error)) from None
        except Exception as error:
            raise MismatchError(
                f"{self.device} lacks {missing}, and `lower` has to refuse that with UnsupportedOperationError; "
                f"it raised {type(error).__name__}: {error}"
            ) from error
        raise MismatchError(
            f"{self.device} lacks {missing}, by its capabilities, and accepted a program of it"
        )

    def _names_what_it_lacks(self, program: Program, error: UnsupportedOperationError) -> None:
        lacking = {
            node.op.name
            for node in nodes_in(program)
            if node.op.name not in self.can.ops
            or {v.aval.dtype.name for v in (*node.inputs, *node.outputs)}.difference(self.can.dtypes)
        }
        if error.op not in lacking and (lacking or error.op is not None):
            raise MismatchError(
                f"{self.device}: the refusal has op={error.op!r}, which is none of {sorted(lacking)}: {error}"
            ) from error
        if error.device != self.device:
            raise MismatchError(
                f"the refusal has device={error.device!r} in place of {self.device!r}: {error}"
            ) from error

    def run(self, program: Program, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The results of a program, compiled now.

        Raises:
            RefusedCorrectly: as for `compiled`.
            MismatchError: as for `compiled`, or a result that is no Tensor of the type it should have.
        """
        return [t.numpy() for t in self.compiled(program)(*tensors(arrays))]
