"""`BackendCapabilities`: what a backend can do, as data.

Only describing a backend needs this file, so nothing on the way to a running program imports it (or pydantic).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["CONTROL_FLOW", "LINALG", "BackendCapabilities"]

CONTROL_FLOW = frozenset(("cond", "scan", "while"))
"""The ops that hold programs and cannot be replaced by them: branches and loops."""

LINALG = frozenset("cholesky det eigh eliminate lu lu_det lu_solve slogdet solve triangular_solve".split())
"""The matrix factorisations and solvers."""

Dtype = Literal["float64", "float32", "bool", "int64"]


class BackendCapabilities(BaseModel):
    """What a backend can do. Immutable; unknown fields are refused.

    Attributes:
        dtypes: the element types that programs may use.
        ops: the names of the ops that it runs, by rules of its own or by decomposing them. What is not among them is
            refused by `lower`, wherever in a program it stands.
        regions: whether it runs branches and loops. Follows from `ops`, with which it has to agree where it is given.
        linalg: the names of the matrix factorisations and solvers among `ops`. Follows from them, too.
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
        >>> can.regions, can.linalg
        (False, ())
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dtypes: tuple[Dtype, ...] = Field(min_length=1)
    ops: tuple[str, ...] = Field(min_length=1)
    native_float64: bool
    regions: bool = False
    linalg: tuple[str, ...] = ()
    training: tuple[str, ...] = ("any",)
    determinism: Literal["bitwise", "none"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _follow_from_ops(cls, given: Any) -> Any:
        ops = given.get("ops")
        if isinstance(ops, tuple):
            given = {"regions": not CONTROL_FLOW.isdisjoint(ops), **given}
            given = {"linalg": tuple(sorted(LINALG.intersection(ops))), **given}
        return given

    @model_validator(mode="after")
    def _agree_with_ops(self) -> BackendCapabilities:
        if self.regions == CONTROL_FLOW.isdisjoint(self.ops):
            there = sorted(CONTROL_FLOW.intersection(self.ops)) or "none of cond, scan, while"
            raise ValueError(f"regions={self.regions} does not agree with ops, which has {there}")
        if set(self.linalg) != LINALG.intersection(self.ops):
            raise ValueError(
                f"linalg={self.linalg!r} does not agree with ops, which has {sorted(LINALG.intersection(self.ops))}"
            )
        return self

    def supports(self, op: str, dtype: str) -> bool:
        """Whether an op on elements of a type is among what the backend says it can do."""
        return op in self.ops and dtype in self.dtypes
