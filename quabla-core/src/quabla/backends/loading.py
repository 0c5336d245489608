"""Loading one plugin: import it, call its hooks, check what came back, and keep whatever went wrong."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quabla.backends.discovery import entry_points
from quabla.backends.guard import GuardedBackend, in_words
from quabla.errors import BackendError

__all__ = ["GROUP", "Loaded", "Source", "installed", "load"]

GROUP = "quabla.backends"

_METHODS = ("devices", "lower", "compile", "training_plan")


@dataclass(frozen=True, eq=False)
class Source:
    """Where a plugin comes from.

    Attributes:
        name: the name of the entry point, which is the platform.
        load: imports the plugin and returns it.
        distribution: the name of the distribution that brings it.
        version: the distribution's version.
        value: what the entry point points to.
        built_in: whether it belongs to Quabla's core.
    """

    name: str
    load: Callable[[], Any]
    distribution: str = "unknown"
    version: str = "unknown"
    value: str = ""
    built_in: bool = False

    @property
    def label(self) -> str:
        """How errors name the plugin."""
        return f"{self.name!r} of {self.distribution} {self.version}"


@dataclass(frozen=True, eq=False)
class Loaded:
    """What became of a plugin.

    Attributes:
        source: where it comes from.
        state: "ready", "unavailable" (it works, but not on this machine) or "broken".
        reason: why it is not ready.
        remedy: what the user can do, where the plugin says so.
        backend: its backend, where it has one that is ready.
        hookspec: the version of the hooks that it was written for; None where it could not be imported.
        devices: the devices that can run.
        names: what it adds to the public namespace.
        error: what it raised, without traceback.
        trace: the traceback as text.
    """

    source: Source
    state: str
    reason: str = ""
    remedy: str = ""
    backend: GuardedBackend | None = None
    devices: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    trace: str = ""
    hookspec: int | None = None


def installed() -> Iterator[Source]:
    """The plugins of the installed distributions, without importing any."""
    seen: set[tuple[str, str]] = set()
    for point in entry_points(GROUP):
        # A distribution that is found twice on the path is imported from the first place alone.
        key = (re.sub(r"[-_.]+", "-", point.distribution).lower(), point.name)
        if key not in seen:
            seen.add(key)
            yield Source(point.name, point.load, point.distribution, point.version, point.value)


def load(source: Source) -> Loaded:
    """Import a plugin and call its hooks, each once. Never raises for what the plugin does."""
    from quabla.backends.hookspec import BackendUnavailable

    try:
        return _load(source, BackendUnavailable)
    except (KeyboardInterrupt, GeneratorExit):  # the user's, and nobody's
        raise
    # A plugin that calls sys.exit(), or panics in native code, must not take the user's program with it.
    except BaseException as e:
        trace = "".join(traceback.format_exception(e))
        junk = isinstance(e, _JunkError)
        reason = str(e) if junk else in_words(e)
        # The frames would keep everything alive that the plugin held when it failed.
        return Loaded(
            source,
            "broken",
            reason,
            getattr(e, "remedy", "") if junk else "",
            error=e.with_traceback(None),
            trace=trace,
            hookspec=getattr(e, "hookspec", None) if junk else None,
        )


class _JunkError(BackendError):
    """The plugin answered, and the answer is of no use."""


class _VersionError(_JunkError):
    """The plugin was written for another version of the hooks."""

    def __init__(self, source: Source, made: Any, here: int) -> None:
        super().__init__(
            f"it was written for version {made!r} of the backend hooks, and this quabla-core has version {here}"
        )
        self.hookspec = made if type(made) is int else None
        newer = self.hookspec is not None and self.hookspec > here
        fitting = f"a release of {source.distribution} that was made for version {here} of the hooks"
        self.remedy = (
            f"install a newer quabla-core, or {fitting}"
            if newer
            else f"install {fitting}, or ask its authors for one"
        )


def _load(source: Source, unavailable_error: type[Any]) -> Loaded:
    import pluggy

    from quabla.backends import hookspec

    plugin = source.load()
    made = getattr(plugin, "quabla_hookspec_version", 1)
    if made != hookspec.HOOKSPEC_VERSION or type(made) is not int:
        raise _VersionError(source, made, hookspec.HOOKSPEC_VERSION)
    # A manager for each plugin, so that one that fails half-way leaves nothing behind in a table of all.
    manager = pluggy.PluginManager("quabla")
    manager.add_hookspecs(hookspec)
    manager.register(plugin, name=source.name)
    callers = manager.get_hookcallers(plugin) or []
    unknown = sorted(caller.name for caller in callers if not caller.has_spec())
    if unknown:
        raise _JunkError(
            f"it implements {', '.join(unknown)}, which hook version {hookspec.HOOKSPEC_VERSION} of this Quabla "
            "does not have; install versions that fit together"
        )
    if not callers:
        raise _JunkError("it implements no hook; mark its functions with quabla.backends.hookspec.hookimpl")

    state, reason, remedy = "ready", "", ""
    backend: GuardedBackend | None = None
    found: tuple[str, ...] = ()
    if _implements(manager, "quabla_backend"):
        try:
            brought = manager.hook.quabla_backend()  # pluggy leaves out None
            if not brought:
                state, reason = "unavailable", "it says that there is nothing to run on here"
            else:
                backend = _checked(brought[0], source)
                found = _checked_devices(backend.inner.devices(), source)
                if not found:
                    state, reason, backend = "unavailable", "it found no device", None
        except unavailable_error as e:
            state, reason, remedy, backend = "unavailable", e.reason, e.remedy, None

    names: Mapping[str, Any] = {}
    if _implements(manager, "quabla_public_names"):
        for given in manager.hook.quabla_public_names():
            names = _checked_names(given)
    return Loaded(source, state, reason, remedy, backend, found, names, hookspec=made)


def _implements(manager: Any, hook: str) -> bool:
    return bool(getattr(manager.hook, hook).get_hookimpls())


def _checked(backend: Any, source: Source) -> GuardedBackend:
    platform = getattr(backend, "platform", None)
    missing = [name for name in _METHODS if not callable(getattr(backend, name, None))]
    # Looked up without evaluating it: describing a backend takes pydantic, which running one does not need.
    if inspect.getattr_static(backend, "capabilities", None) is None and not hasattr(backend, "capabilities"):
        missing.append("capabilities")
    if not isinstance(platform, str):
        missing.insert(0, "platform")
    if missing:
        raise _JunkError(
            f"quabla_backend returned {type(backend).__name__}, which is no Backend: it lacks {', '.join(missing)} "
            "(quabla.backends.protocol describes it)"
        )
    if platform != source.name:
        raise _JunkError(
            f"its entry point is called {source.name!r} and its platform {platform!r}; give both the same name"
        )
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", platform):
        raise _JunkError(f"{platform!r} is no name for a platform; use letters, digits and _")
    return GuardedBackend(backend, source.label)


def _checked_devices(devices: Any, source: Source) -> tuple[str, ...]:
    pattern = re.compile(re.escape(source.name) + r"(:(0|[1-9][0-9]*))?")
    given = tuple(devices) if isinstance(devices, (list, tuple)) else None
    if given is None or not all(isinstance(d, str) and pattern.fullmatch(d) for d in given):
        raise _JunkError(
            f"devices() returned {devices!r}; a list of {source.name!r} or {source.name + ':N'!r} is wanted"
        )
    both = source.name in given and f"{source.name}:0" in given
    if both or len(set(given)) != len(given):
        raise _JunkError(f"devices() names a device twice: {devices!r}")
    return given


def _checked_names(names: Any) -> Mapping[str, Any]:
    if not isinstance(names, Mapping):
        raise _JunkError(
            f"quabla_public_names returned {type(names).__name__}; a mapping from names to objects is wanted"
        )
    wrong = [n for n in names if not (isinstance(n, str) and n.isidentifier() and not n.startswith("_"))]
    if wrong:
        raise _JunkError(f"quabla_public_names returned names that are not public identifiers: {wrong!r}")
    return dict(names)
