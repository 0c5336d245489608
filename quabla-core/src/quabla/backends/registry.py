"""The registry: from the name of a device to the backend that runs it.

The installed distributions are asked for entry points of the group `quabla.backends` once, on first use. A plugin
is loaded (imported, its hooks called) when one of its devices is first asked for, so running on one device never
starts the driver of another. After that, everything here is a look-up in a plain dictionary.

A plugin that fails in any way is kept with its failure: it is absent from `devices()`, it never makes an import or
another device fail, and asking for its own devices says what went wrong.

The reference backend is a plugin like any other and can always be asked for by its name, "reference". It is not
listed by `devices()`, which answers "what is there to run on": it is the definition of the results, not a place to
run at speed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from quabla import elsewhere
from quabla.backends.discovery import version
from quabla.backends.guard import GuardedBackend
from quabla.backends.loading import Loaded, Source, installed, load
from quabla.errors import BackendError, UnsupportedOperationError

__all__ = [
    "ADVICE",
    "DEFAULT",
    "PluginReport",
    "backend_for",
    "default_device",
    "devices",
    "override",
    "plugins",
    "public_name",
    "public_names",
]

DEFAULT = "cpu"
FALLBACK = "reference"

# What to do where a well-known device is asked for and no plugin brings it. Core knows nothing else of any backend.
ADVICE: Mapping[str, str] = {
    "cpu": "install quabla-cpu from the same checkout or the same folder of wheels as quabla-core, for example: "
    "python -m pip install ./quabla-core ./quabla-cpu",
    "cuda": "NVIDIA GPUs need a distribution quabla-cuda, which this version of Quabla does not come with",
    "mlx": "GPUs of Apple need quabla-mlx: install it from the same checkout or the same folder of wheels as "
    "quabla-core, for example: python -m pip install ./quabla-core ./quabla-mlx",
}


@dataclass(frozen=True)
class PluginReport:
    """What `python -m quabla doctor` shows of a plugin.

    Attributes:
        name: its platform, the name of its entry point.
        distribution: the distribution that brings it.
        version: that distribution's version.
        value: what the entry point points to.
        state: "ready", "unavailable", "broken" or "conflict".
        reason: why it is not ready.
        remedy: what to do about it.
        devices: its devices that can run.
        names: the public names that it adds.
        traceback: where it failed, as text.
        built_in: whether it is part of Quabla's core.
        hookspec: the version of the backend hooks that it was written for, where it says so.
    """

    name: str
    distribution: str
    version: str
    value: str
    state: str
    reason: str
    remedy: str
    devices: tuple[str, ...]
    names: tuple[str, ...]
    traceback: str
    built_in: bool
    hookspec: int | None = None


def _reference() -> Any:
    from quabla.backends import reference

    return reference


def _built_in() -> Source:
    number = version("quabla-core") or "unknown"  # used from a source folder
    return Source(FALLBACK, _reference, "quabla-core", number, "quabla.backends.reference", built_in=True)


class Registry:
    """The plugins of a process. `scan` finds them, on first use; it is called once."""

    def __init__(self, scan: Callable[[], Iterable[Source]] = installed) -> None:
        self._scan = scan
        # Reentrant: a plugin's import may reach for names of `quabla`. Held while a plugin loads, so each loads once.
        self._lock = threading.RLock()
        self._sources: dict[str, list[Source]] | None = None
        self._loaded: dict[Source, Loaded] = {}
        self._loading: set[Source] = set()
        self._resolved: dict[str | None, tuple[GuardedBackend, str]] = {}
        self._names: dict[str, list[tuple[Source, Any]]] | None = None

    def sources(self) -> dict[str, list[Source]]:
        """The plugins by platform, more than one where they conflict."""
        with self._lock:
            if self._sources is None:
                found: dict[str, list[Source]] = {}
                for source in (_built_in(), *self._scan()):
                    found.setdefault(source.name, []).append(source)
                # The default device first, then by name: the order of `devices()`.
                order = sorted(found, key=lambda name: (name != DEFAULT, name))
                self._sources = {
                    name: sorted(found[name], key=lambda s: (s.distribution, s.value)) for name in order
                }
            return self._sources

    def loaded(self, source: Source) -> Loaded:
        """The plugin of a source, loaded at most once."""
        with self._lock:
            found = self._loaded.get(source)
            if found is None:
                if source in self._loading:
                    raise BackendError(
                        f"the plugin {source.label} asked for its own device while it was being loaded",
                        plugin=source.label,
                    )
                self._loading.add(source)
                try:
                    found = self._loaded[source] = load(source)
                finally:
                    self._loading.discard(source)
            return found

    def usable(self) -> Iterator[Loaded]:
        """All plugins without a rival, loaded; those that are being loaded right now are left out."""
        with self._lock:
            for rivals in self.sources().values():
                if len(rivals) == 1 and rivals[0] not in self._loading:
                    yield self.loaded(rivals[0])

    def devices(self) -> list[str]:
        """What is there to run on."""
        return [d for plugin in self.usable() if not plugin.source.built_in for d in plugin.devices]

    def backend_for(self, device: str | None, where: str = "jit") -> tuple[GuardedBackend, str]:
        """The backend of a device, and the device's own name."""
        if device is not None and not isinstance(device, str):
            raise UnsupportedOperationError(
                f"{where}: a device is named by a string such as 'cpu', got {device!r}",
                op=where,
                device=repr(device),
            )
        found = self._resolved.get(device)
        if found is None:
            with self._lock:
                found = self._resolved[device] = self._resolve(
                    self._default() if device is None else device, where
                )
        return found

    def _default(self) -> str:
        if DEFAULT in self.sources():
            return DEFAULT
        others = [f"device={name!r}" for name in self.sources() if name != FALLBACK]
        or_else = f"; or name another device, as in {' or '.join(others)}" if others else ""
        warnings.warn(
            f"no plugin brings the device {DEFAULT!r}, so programs run node by node on the slow reference backend; "
            f"{ADVICE[DEFAULT]}{or_else}",
            RuntimeWarning,
            stacklevel=2,
        )
        return FALLBACK

    def _resolve(self, device: str, where: str) -> tuple[GuardedBackend, str]:
        platform, _, index = device.partition(":")
        rivals = self.sources().get(platform, [])
        if not rivals:
            advice = ADVICE.get(platform)
            why = f"no plugin brings {platform!r}" + (f": {advice}" if advice else "")
            raise self._absent(device, why, where)
        if len(rivals) > 1:
            both = " and ".join(s.label for s in rivals)
            raise BackendError(
                f"{where}: {len(rivals)} plugins claim the device {platform!r}: {both}. Uninstall all but one of these "
                "distributions",
                plugin=both,
            )
        plugin = self.loaded(rivals[0])
        if plugin.state == "broken":
            remedy = f"; {plugin.remedy}" if plugin.remedy else ""
            raise BackendError(
                f"{where}: the device {device!r} cannot be used: its plugin {plugin.source.label} is broken: "
                f"{plugin.reason}{remedy}. `python -m quabla doctor` shows where",
                plugin=plugin.source.label,
            ) from plugin.error
        if plugin.state == "unavailable":
            remedy = f"; {plugin.remedy}" if plugin.remedy else ""
            why = f"its plugin {plugin.source.label} cannot run here: {plugin.reason}{remedy}"
            raise self._absent(device, why, where)
        if plugin.backend is None:
            raise self._absent(device, f"the plugin {plugin.source.label} brings no device", where)
        # "name" and "name:0" are one device, whichever of the two the backend calls it.
        for name in (device, f"{platform}:0" if not index else "", platform if index == "0" else ""):
            if name in plugin.devices:
                return plugin.backend, name
        raise self._absent(device, f"{platform!r} has {', '.join(plugin.devices)}", where)

    def _absent(self, device: str, why: str, where: str) -> UnsupportedOperationError:
        there = ", ".join(map(repr, self.devices())) or "none"
        return UnsupportedOperationError(
            f"{where}: there is no device {device!r}: {why}. Devices here: {there}", op=where, device=device
        )

    def plugins(self) -> list[PluginReport]:
        """All plugins with their states."""
        reports = []
        for rivals in self.sources().values():
            for source in rivals:
                if len(rivals) > 1:
                    others = ", ".join(s.label for s in rivals if s is not source)
                    reason, remedy = (
                        f"{others} claims the same device",
                        "uninstall all but one of these distributions",
                    )
                    plugin = Loaded(source, "conflict", reason, remedy)
                else:
                    plugin = self.loaded(source)
                reports.append(_report(plugin))
        return reports

    def public_names(self) -> Mapping[str, list[tuple[Source, Any]]]:
        """What plugins add to the public namespace, with the plugin of each."""
        with self._lock:
            if self._names is not None:
                return self._names
            names: dict[str, list[tuple[Source, Any]]] = {}
            for plugin in self.usable():
                for name, value in plugin.names.items():
                    names.setdefault(name, []).append((plugin.source, value))
            if not self._loading:  # else the table lacks those of the plugin that is asking
                self._names = names
            return names


def _report(plugin: Loaded) -> PluginReport:
    source = plugin.source
    return PluginReport(
        name=source.name,
        distribution=source.distribution,
        version=source.version,
        value=source.value,
        state=plugin.state,
        reason=plugin.reason,
        remedy=plugin.remedy
        or (f"repair or uninstall {source.distribution}" if plugin.state == "broken" else ""),
        devices=plugin.devices,
        names=tuple(plugin.names),
        traceback=plugin.trace,
        built_in=source.built_in,
        hookspec=plugin.hookspec,
    )


_registry = Registry()


def devices() -> list[str]:
    """The devices that programs can run on here, the default one first.

    The first call loads all installed backend plugins. One that is broken, or that finds nothing to run on, is left
    out; `python -m quabla doctor` says why. The reference backend can always be asked for by name and is not
    listed.

    Returns:
        Names for `jit(device=...)`, such as `["cpu"]`.

    Example:
        >>> import quabla as qb
        >>> "cpu" in qb.devices()
        True
    """
    return _registry.devices()


def backend_for(device: str | None, where: str = "jit") -> tuple[GuardedBackend, str]:
    """The backend that runs on a device.

    Args:
        device: "name" or "name:N", or None for the default: "cpu", or the reference backend, with a warning, where no
            plugin claims "cpu".
        where: what asks for it, for messages.

    Returns:
        The backend, and the device under the name by which the backend knows it ("cpu" for "cpu:0").

    Raises:
        UnsupportedOperationError: where there is no such device, with the devices that there are and what to install.
        BackendError: where the device's plugin is broken, or two plugins claim it.

    Example:
        >>> from quabla.backends.registry import backend_for
        >>> backend, name = backend_for("reference:0")
        >>> backend.platform, name
        ('reference', 'reference')
    """
    return _registry.backend_for(device, where)


def default_device() -> str:
    """The name that `device=None` stands for now, without a warning."""
    return DEFAULT if DEFAULT in _registry.sources() else FALLBACK


def plugins() -> list[PluginReport]:
    """All plugins, loaded, with their states: what `python -m quabla doctor` shows."""
    return _registry.plugins()


def public_names() -> tuple[str, ...]:
    """The names that plugins add to the module `quabla`."""
    return tuple(_registry.public_names())


def public_name(name: str) -> Any:
    """The object that a plugin adds to the module `quabla` under a name; for the module's `__getattr__`.

    Raises:
        AttributeError: where no plugin brings the name, or two do.
    """
    found = [] if name.startswith("_") else _registry.public_names().get(name, [])
    if len(found) == 1:
        return found[0][1]
    if not found:
        hint = elsewhere.ADVICE["quabla"].get(name)
        raise AttributeError(f"module 'quabla' has no attribute {name!r}{f'; {hint}' if hint else ''}")
    both = " and ".join(source.label for source, _ in found)
    raise AttributeError(
        f"module 'quabla': {len(found)} plugins bring the name {name!r}: {both}; uninstall all but one"
    )


@contextmanager
def override(sources: Iterable[Source]) -> Iterator[Registry]:
    """Put other plugins in the place of the installed ones, for tests. The reference backend stays.

    Example:
        >>> from quabla.backends import registry
        >>> with registry.override([]):
        ...     registry.devices()
        []
    """
    global _registry
    before = _registry
    given = list(sources)
    _registry = Registry(lambda: given)
    try:
        yield _registry
    finally:
        _registry = before
