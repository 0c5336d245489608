"""What the tests of the MLX backend share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def narrow() -> Iterator[Any]:
    """The device "mlx" as it is where there is no float64, on a GPU, put on the CPU that is here."""
    from quabla.backends import registry
    from quabla.backends.hookspec import hookimpl
    from quabla.backends.loading import Source
    from quabla_mlx.backend import MlxBackend
    from quabla_mlx.target import Target

    backend = MlxBackend(Target(gpu=False, double=False, fused=False))

    class Plugin:
        @hookimpl
        def quabla_backend(self) -> MlxBackend:
            return backend

    with registry.override([Source("mlx", Plugin, "narrow", "1.0")]):
        yield backend
