"""The hooks: every place where another distribution can extend Quabla, on one page.

A plugin is a module or an object that an entry point of the group `quabla.backends` names:

    [project.entry-points."quabla.backends"]
    numpy = "my_package.plugin"

Its functions marked with `hookimpl` implement the hooks below. A plugin must implement at least one of them, and
no hook that is not on this page. It says for which version of this page it was written:

    quabla_hookspec_version = 1

and is not loaded where the version is another; without that line it was written for version 1. The name of the entry
point is the platform that the plugin brings (`numpy` above); a plugin that brings no device may have any name that is
no platform.

Loading a plugin means to import it and to call its hooks, each once. It happens at most once per process, when one
of the plugin's devices is first asked for (or all devices are listed, or a name is looked for that the module
`quabla` itself does not have), never on `import quabla`. It happens under a lock, so a plugin does not wait there for
another thread that uses Quabla. Whatever a plugin raises then marks all of it as broken: it is kept, shown by
`python -m quabla doctor`, and affects no other plugin. Listing devices loads every plugin, so importing one stays
cheap: heavy libraries are imported when a program is first compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from quabla.backends.protocol import Backend

__all__ = ["HOOKSPEC_VERSION", "BackendUnavailable", "hookimpl", "quabla_backend", "quabla_public_names"]

HOOKSPEC_VERSION = 1
"""Counts the incompatible changes of this page, of `backends/protocol.py` and of `BackendCapabilities`."""

hookspec = pluggy.HookspecMarker("quabla")
hookimpl = pluggy.HookimplMarker("quabla")


class BackendUnavailable(Exception):  # noqa: N818 - a plugin that says "not here" has not made an error
    """Raised by a plugin's `quabla_backend` on a machine that lacks what it needs.

    Args:
        reason: what is missing, such as "no driver".
        remedy: what the user can do about it.

    Example:
        >>> from quabla.backends.hookspec import BackendUnavailable
        >>> str(BackendUnavailable("no driver", remedy="install the driver"))
        'no driver'
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@hookspec
def quabla_backend() -> Backend | None:
    """Bring the devices of one platform.

    When: once per process, when the plugin is loaded. How often: exactly once; the object is kept for the life of the
    process and used from many threads.

    Returns:
        A `Backend` whose `platform` is the name of the plugin's entry point, and whose `devices()`, asked once and
        right away, is a list or tuple of distinct names, each `platform` or `platform:N`. None, or no device at
        all, says that there is nothing to run on here.

    Raises:
        BackendUnavailable: like None, with the reason and the remedy that the user gets to read. Any other exception
            marks the plugin as broken.
    """


@hookspec
def quabla_public_names() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Add names to the module `quabla`, such as those of an earlier version.

    When: once per process, when the plugin is loaded, after `quabla_backend`. How often: exactly once; later
    look-ups go to the table.

    Returns:
        A mapping from public names (identifiers without a leading underscore) to the objects they stand for. A name
        that `quabla` itself defines is never asked for, so it cannot be replaced. A name that two plugins bring is
        an error that names both, when it is used.

    Raises:
        Exception: any marks the plugin as broken.
    """
