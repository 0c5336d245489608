"""The pytest plugin that adds `--quabla-device`. It is an entry point, so it imports nothing beside this package."""

from __future__ import annotations

from typing import Any

__all__ = ["pytest_addoption"]


def pytest_addoption(parser: Any) -> None:
    """Add the option; called by pytest."""
    parser.getgroup("quabla").addoption(
        "--quabla-device",
        action="append",
        default=None,
        metavar="NAME",
        help="a device on which quabla.testing.conformance runs (may be repeated; default: every device that is there)",
    )
