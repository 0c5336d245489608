"""The plugin that brings the device "cpu" to Quabla."""

from __future__ import annotations

from quabla.backends.hookspec import hookimpl
from quabla_cpu.backend import CpuBackend

__all__ = ["quabla_backend"]

quabla_hookspec_version = 1


@hookimpl
def quabla_backend() -> CpuBackend:
    """The CPU backend."""
    return CpuBackend()
