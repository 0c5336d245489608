"""The warning that a device computes float64 in float32: one per function and device, whichever way it gets there."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from quabla.backends import registry
from quabla.dtypes import float64
from quabla.ir.program import Program

__all__ = ["native_float64", "warn_of_float64"]

_SAID = "computed in float32"


def native_float64(backend: Any) -> bool:
    """Whether a backend computes float64 in float64."""
    # What the default device can do is no question, and to ask it would import pydantic.
    return backend.platform == registry.DEFAULT or bool(backend.capabilities.native_float64)


def warn_of_float64(
    name: str, program: Program, backend: Any, device: str, asked: str | None, said: bool = False
) -> bool:
    """Warn that a device computes this program in float32 if it does, unless that was said of the function before.

    Args:
        name: the function, for the message.
        program: what is compiled; it remembers for which devices it was the occasion.
        backend: the backend of the device.
        device: the device.
        asked: the device that the user asked for; the default device is nobody's choice, and warns of nothing.
        said: whether another program of the same function was the occasion already, for this device.

    Returns:
        Whether it has been said now, here or before.
    """
    if said or asked is None:
        return said
    if not any(a.dtype is float64 and not a.weak for a in (*program.in_avals, *program.out_avals)):
        return False
    devices = program.memo.setdefault(_SAID, set())
    if device in devices:
        return True
    if native_float64(backend):
        return False
    devices.add(device)
    warnings.warn(
        f"{name}: the device {device!r} computes float64 in float32, so results have about 7 digits; "
        "pass float32 arrays (x.astype('float32')) to say so, or use the device 'cpu'",
        UserWarning,
        stacklevel=_outside(),
    )
    return True


def _outside() -> int:
    """The stack level, for the caller's `warnings.warn`, of the user's line that led here."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").partition(".")[0] == "quabla":
        level, frame = level + 1, frame.f_back
    return level
