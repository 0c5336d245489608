"""`BackendCapabilities`: what a backend can do, as data.

Only describing a backend needs this file, so nothing on the way to a running program imports it (or pydantic).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from quabla.backends.hookspec import HOOKSPEC_VERSION

__all__ = ["BackendCapabilities"]

Dtype = Literal["float64", "float32", "bool", "int64"]


class BackendCapabilities(BaseModel):
    """What a backend can do. Immutable; unknown fields are refused.

    Attributes:
        hookspec: the version of the hooks and protocols that the backend was written for.
        dtypes: the element types that programs may use.
        ops: the names of the ops that it runs, by rules of its own or by decomposing them.
        regions: whether it runs nodes that hold programs (branches and loops) without coming back to Python.
        linalg: the names of the matrix factorisations and solvers that it runs.
        training: the names of the update rules that it keeps resident, such as "adam"; "any" where the step is an
            ordinary program to it.
        determinism: "bitwise" where the same program on the same machine gives the same bits on every run, "none" where
            it may not.
        native_float64: whether float64 arithmetic is done in float64 by the device itself.

    Example:
        >>> from quabla.backends.capabilities import BackendCapabilities
        >>> can = BackendCapabilities(dtypes=("float32",), ops=("add", "mul"), native_float64=False)
        >>> can.supports("add", "float32"), can.supports("add", "float64")
        (True, False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dtypes: tuple[Dtype, ...] = Field(min_length=1)
    ops: tuple[str, ...] = Field(min_length=1)
    native_float64: bool
    regions: bool = False
    linalg: tuple[str, ...] = ()
    training: tuple[str, ...] = ("any",)
    determinism: Literal["bitwise", "none"] = "none"
    hookspec: int = Field(default=HOOKSPEC_VERSION, ge=1)

    def supports(self, op: str, dtype: str) -> bool:
        """Whether an op on elements of a type is among what the backend says it can do."""
        return op in self.ops and dtype in self.dtypes
