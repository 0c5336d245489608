"""The plugin that brings the device "mlx" to Quabla."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quabla.backends.hookspec import BackendUnavailable, hookimpl

if TYPE_CHECKING:
    from quabla_mlx.backend import MlxBackend

__all__ = ["quabla_backend"]

REMEDY = (
    "on Linux install the extra with the library for CPUs: pip install 'mlx[cpu]' (it needs glibc 2.35 or newer); "
    "on macOS, with Apple silicon, pip install mlx; for other systems there is no MLX"
)


@hookimpl
def quabla_backend() -> MlxBackend:
    """The MLX backend.

    Raises:
        BackendUnavailable: MLX cannot be imported here.
    """
    # Where the library is missing the import itself fails, so whether there is a device is not known without it.
    try:
        import mlx.core
    except (ImportError, OSError) as error:
        raise BackendUnavailable(f"MLX cannot be imported ({error})", REMEDY) from error
    del mlx

    from quabla_mlx.backend import MlxBackend
    from quabla_mlx.target import default_target

    return MlxBackend(default_target())
