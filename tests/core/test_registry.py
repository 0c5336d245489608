"""The registry: what is found, when, how often, and what becomes of plugins that fail."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.backends import registry
from quabla.backends.hookspec import BackendUnavailable, hookimpl
from quabla.backends.loading import Source
from quabla.backends.reference import ReferenceBackend


class Box(ReferenceBackend):
    """A backend of any name with any devices, which counts what it is asked."""

    def __init__(self, platform: Any = "box", devices: Any = None) -> None:
        self.platform = platform
        self.given = (platform,) if devices is None else devices
        self.asked: Counter[str] = Counter()

    def devices(self) -> Any:
        self.asked["devices"] += 1
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


class UnprintableError(Exception):
    """An error whose text is another error."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Plugin:
    """A plugin that brings a backend and counts the calls of its hook."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.calls = 0

    @hookimpl
    def quabla_backend(self) -> Any:
        self.calls += 1
        if isinstance(self.backend, Exception):
            raise self.backend
        return self.backend


class Names:
    """A plugin that brings public names alone."""

    def __init__(self, names: Any) -> None:
        self.names = names
        self.calls = 0

    @hookimpl
    def quabla_public_names(self) -> Any:
        self.calls += 1
        if isinstance(self.names, Exception):
            raise self.names
        return self.names


class NamesAndBackend(Names):
    @hookimpl
    def quabla_backend(self) -> Any:
        return Box()


def source(name: str, plugin: Any, distribution: str = "dist", version: str = "1.0") -> Source:
    """An entry point that leads to `plugin`, or raises it."""

    def load() -> Any:
        if isinstance(plugin, BaseException):
            raise plugin
        return plugin

    return Source(name, load, distribution, version, f"{distribution}.plugin")


def box(name: str = "box", devices: Any = None) -> Source:
    return source(name, Plugin(Box(name, devices)), f"{name}-dist")


# ---- what is there


def test_the_reference_backend_is_there_and_not_listed() -> None:
    with registry.override([]):
        assert qb.devices() == []
        backend, name = registry.backend_for("reference")
        assert (backend.platform, name) == ("reference", "reference")
        (report,) = registry.plugins()
        assert (report.state, report.built_in, report.devices) == ("ready", True, ("reference",))


def test_devices_are_listed_default_first_then_by_name() -> None:
    with registry.override([box("zeta"), box("cpu"), box("alpha", ("alpha:0", "alpha:1"))]):
        assert qb.devices() == ["cpu", "alpha:0", "alpha:1", "zeta"]
        answer = qb.devices()
        answer.clear()
        assert len(qb.devices()) == 4


@pytest.mark.parametrize(
    ("devices", "asked", "expected"),
    [
        (("box",), "box", "box"),
        (("box",), "box:0", "box"),
        (("box:0", "box:1"), "box", "box:0"),
        (("box:0", "box:1"), "box:1", "box:1"),
        (("box", "box:1"), "box:0", "box"),
        (["box:3"], "box:3", "box:3"),
    ],
)
def test_a_device_is_found_by_its_names(devices: Any, asked: str, expected: str) -> None:
    with registry.override([box("box", devices)]):
        assert registry.backend_for(asked)[1] == expected


@pytest.mark.parametrize(
    "asked", ["box:1", "box:00", "box:-1", "box:x", "box: 0", "Box", "", ":", "nobody", "box:0:0"]
)
def test_a_device_that_is_not_there(asked: str) -> None:
    with registry.override([box(), box("other")]):
        with pytest.raises(qb.UnsupportedOperationError) as caught:
            registry.backend_for(asked)
        assert caught.value.device == asked and caught.value.op == "jit"
        assert repr(asked) in str(caught.value) and "'box', 'other'" in str(caught.value)


def test_a_platform_without_the_plain_name_has_no_default_but_zero() -> None:
    with (
        registry.override([box("box", ("box:1",))]),
        pytest.raises(qb.UnsupportedOperationError, match="box:1"),
    ):
        registry.backend_for("box")


@pytest.mark.parametrize("asked", [0, b"cpu", ["cpu"], object()])
def test_a_device_that_is_no_string(asked: Any) -> None:
    with pytest.raises(qb.UnsupportedOperationError, match="named by a string such as 'cpu'"):
        registry.backend_for(asked)


@pytest.mark.parametrize("name", sorted(registry.ADVICE))
def test_well_known_devices_come_with_advice(name: str) -> None:
    with registry.override([]), pytest.raises(qb.UnsupportedOperationError) as caught:
        registry.backend_for(f"{name}:0")
    assert registry.ADVICE[name] in str(caught.value) and f"quabla-{name}" in str(caught.value)


def test_none_is_the_cpu() -> None:
    with registry.override([box("alpha"), box("cpu")]), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.backend_for(None)[1] == "cpu"
        assert registry.default_device() == "cpu"


def test_without_a_cpu_plugin_none_is_the_reference_backend_with_one_warning() -> None:
    with registry.override([box("alpha")]):
        assert registry.default_device() == "reference"
        with pytest.warns(RuntimeWarning, match="install quabla-cpu.* device='alpha'"):
            assert registry.backend_for(None)[1] == "reference"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            registry.backend_for(None)


def test_a_broken_cpu_plugin_is_not_replaced_in_silence() -> None:
    with registry.override([source("cpu", ImportError("no llvm"))]):
        with pytest.raises(qb.BackendError, match="no llvm"):
            registry.backend_for(None)


def test_override_ends() -> None:
    before = registry._registry
    with pytest.raises(KeyError), registry.override([box()]):
        raise KeyError
    assert registry._registry is before


# ---- when, and how often


def test_everything_is_asked_once() -> None:
    scans = 0
    plugin, names = Plugin(Box()), Names({"extra": 1})

    def scan() -> Iterator[Source]:
        nonlocal scans
        scans += 1
        yield source("box", plugin)
        yield source("names", names)

    fresh = registry.Registry(scan)
    assert scans == 0, "a registry scans before it is used"
    for _ in range(3):
        fresh.devices(), fresh.plugins(), fresh.public_names()
        fresh.backend_for("box"), fresh.backend_for("box:0"), fresh.backend_for("reference")
    assert (scans, plugin.calls, plugin.backend.asked["devices"], names.calls) == (1, 1, 1, 1)


def test_one_device_does_not_load_the_plugin_of_another() -> None:
    other = Plugin(Box("other"))
    with registry.override([box(), source("other", other)]):
        registry.backend_for("box")
        assert other.calls == 0
        qb.devices()
        assert other.calls == 1


def test_a_plugin_that_failed_is_not_tried_again() -> None:
    tries = 0

    def load() -> Any:
        nonlocal tries
        tries += 1
        raise ImportError("never")

    with registry.override([Source("box", load)]):
        for _ in range(3):
            with pytest.raises(qb.BackendError):
                registry.backend_for("box")
        qb.devices()
    assert tries == 1


def test_threads_that_ask_at_once_load_once() -> None:
    loads = scans = 0
    plugin = Plugin(Box())

    def load() -> Any:
        nonlocal loads
        loads += 1
        time.sleep(0.05)  # long enough for every thread to arrive
        return plugin

    def scan() -> list[Source]:
        nonlocal scans
        scans += 1
        time.sleep(0.05)
        return [Source("box", load)]

    fresh = registry.Registry(scan)
    barrier = threading.Barrier(16)

    def ask(i: int) -> Any:
        barrier.wait()
        return fresh.backend_for("box")[0] if i % 2 else fresh.devices()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert (scans, loads, plugin.calls) == (1, 1, 1)
    assert all(answer == ["box"] for answer in answers[::2])
    assert len({id(answer) for answer in answers[1::2]}) == 1


def test_a_plugin_may_use_quabla_while_it_loads() -> None:
    seen: dict[str, Any] = {}

    class Curious(Plugin):
        @hookimpl
        def quabla_backend(self) -> Any:
            seen["devices"] = qb.devices()
            seen["name"] = hasattr(qb, "a_name_that_nobody_brings")
            seen["other"] = registry.backend_for("alpha")[1]
            return self.backend

        @hookimpl
        def quabla_public_names(self) -> Any:
            return {"early": 2}

    with registry.override(
        [source("box", Curious(Box())), box("alpha"), source("names", Names({"late": 1}))]
    ):
        assert qb.devices() == ["alpha", "box"]
        assert seen == {"devices": ["alpha"], "name": False, "other": "alpha"}
        assert qb.late == 1 and qb.early == 2  # the look-up while loading did not settle the table


def test_a_plugin_that_waits_for_itself_is_broken() -> None:
    class Loop(Plugin):
        @hookimpl
        def quabla_backend(self) -> Any:
            return registry.backend_for("box")

    with registry.override([source("box", Loop(None)), box("alpha")]):
        assert qb.devices() == ["alpha"]
        with pytest.raises(qb.BackendError, match="its own device while it was being loaded"):
            registry.backend_for("box")


def test_ctrl_c_while_loading_is_the_users_and_loading_can_start_again() -> None:
    answers: list[Any] = [KeyboardInterrupt(), Plugin(Box())]

    def load() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with registry.override([Source("box", load)]):
        with pytest.raises(KeyboardInterrupt):
            registry.backend_for("box")
        assert registry.backend_for("box")[1] == "box"


# ---- plugins that fail


def bad_signature() -> Any:
    class Wrong:
        @hookimpl
        def quabla_backend(self, device: str) -> Any:
            return Box()

    return Wrong()


def unknown_hook() -> Any:
    class Future(Plugin):
        @hookimpl
        def quabla_communicator(self) -> Any:
            return None

    return Future(Box())


def without(*names: str) -> Any:
    kept = {"platform", "capabilities", "devices", "lower", "compile", "training_plan"} - set(names)
    return SimpleNamespace(**{name: "box" if name == "platform" else (lambda *a: ("box",)) for name in kept})


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "import error": (lambda: ImportError("libdriver.so not found"), "ImportError: libdriver.so not found"),
    "syntax error": (lambda: SyntaxError("bad"), "SyntaxError"),
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "panic": (lambda: BaseException("panicked at lib.rs"), "BaseException: panicked at lib.rs"),
    "no text": (lambda: UnprintableError(), "UnprintableError: (its text cannot be had: ZeroDivisionError)"),
    "not a plugin": (lambda: 42, "no hook"),
    "no hook": (lambda: SimpleNamespace(quabla_backend=lambda: Box()), "no hook"),
    "unknown hook": (unknown_hook, "quabla_communicator"),
    "signature": (bad_signature, "device"),
    "hook raises": (lambda: Plugin(RuntimeError("device lost")), "RuntimeError: device lost"),
    "junk": (lambda: Plugin(42), "int, which is no Backend: it lacks platform, devices, lower"),
    "a class": (lambda: Plugin(ReferenceBackend), "platform 'reference'"),
    "no lower": (lambda: Plugin(without("lower")), "it lacks lower "),
    "no plan": (lambda: Plugin(without("training_plan", "compile")), "it lacks compile, training_plan "),
    "no capabilities": (lambda: Plugin(without("capabilities")), "it lacks capabilities "),
    "other platform": (lambda: Plugin(Box("crate")), "'box' and its platform 'crate'"),
    "platform no string": (lambda: Plugin(Box(7)), "it lacks platform"),
    "devices raise": (lambda: Plugin(Box("box", OSError("ioctl"))), "OSError: ioctl"),
    "devices a string": (lambda: Plugin(Box("box", "box")), "devices() returned 'box'"),
    "devices of others": (lambda: Plugin(Box("box", ("cpu",))), "devices() returned ('cpu',)"),
    "device numbers": (lambda: Plugin(Box("box", ("box:01",))), "devices() returned"),
    "devices twice": (lambda: Plugin(Box("box", ("box:1", "box:1"))), "twice"),
    "device aliases": (lambda: Plugin(Box("box", ("box", "box:0"))), "twice"),
    "names raise": (lambda: NamesAndBackend(ValueError("no names")), "ValueError: no names"),
    "names no mapping": (lambda: NamesAndBackend(["a"]), "list; a mapping"),
    "private names": (lambda: NamesAndBackend({"_secret": 1, "ok": 2, "a-b": 3}), "['_secret', 'a-b']"),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_a_broken_plugin_is_contained_and_explained(case: str) -> None:
    make, text = BROKEN[case]
    with registry.override([source("box", make(), "acme-box", "4.2"), box("good")]):
        assert qb.devices() == ["good"]
        report = next(p for p in registry.plugins() if p.name == "box")
        assert report.state == "broken" and text in report.reason, report.reason
        assert (report.distribution, report.version) == ("acme-box", "4.2")
        assert "Traceback" in report.traceback and report.remedy and not report.devices
        with pytest.raises(qb.BackendError) as caught:
            registry.backend_for("box:0")
        assert (
            text in str(caught.value)
            and "acme-box 4.2" in str(caught.value)
            and "doctor" in str(caught.value)
        )
        assert caught.value.plugin is not None and "'box'" in caught.value.plugin
        assert caught.value.__cause__ is not None
        assert registry.backend_for("good")[1] == "good"
        assert not hasattr(qb, "ok")


def test_a_failure_keeps_no_frames_alive() -> None:
    with registry.override([source("box", Plugin(RuntimeError("x")))]) as it:
        registry.plugins()
        (failed,) = [p for p in it._loaded.values() if p.state == "broken"]
        assert failed.error is not None and failed.error.__traceback__ is None


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (None, "nothing to run on"),
        (BackendUnavailable("no driver", "install the driver"), "no driver"),
        (Box("box", ()), "no device"),
    ],
)
def test_an_unavailable_plugin_says_why(backend: Any, text: str) -> None:
    with registry.override([source("box", Plugin(backend)), box("good")]):
        assert qb.devices() == ["good"]
        report = next(p for p in registry.plugins() if p.name == "box")
        assert (report.state, report.traceback) == ("unavailable", "") and text in report.reason
        with pytest.raises(qb.UnsupportedOperationError, match=text) as caught:
            registry.backend_for("box")
        assert caught.value.device == "box" and "'good'" in str(caught.value)
        if isinstance(backend, BackendUnavailable):
            assert "install the driver" in str(caught.value) and report.remedy == "install the driver"


def test_metadata_that_cannot_be_scanned_is_not_hidden() -> None:
    def scan() -> Any:
        raise OSError("disk")

    fresh = registry.Registry(scan)
    with pytest.raises(OSError, match="disk"):
        fresh.devices()


def test_two_plugins_that_claim_one_platform() -> None:
    first, second = Plugin(Box()), Plugin(Box())
    rivals = [source("box", second, "zeta", "2.0"), source("box", first, "acme", "1.0"), box("good")]
    with registry.override(rivals):
        assert qb.devices() == ["good"]
        assert registry.backend_for("good")[1] == "good"
        with pytest.raises(qb.BackendError, match=r"acme 1\.0 and 'box' of zeta 2\.0.*Uninstall"):
            registry.backend_for("box:0")
        states = [(p.distribution, p.state) for p in registry.plugins() if p.name == "box"]
        assert states == [("acme", "conflict"), ("zeta", "conflict")]
        assert "zeta 2.0" in next(p.reason for p in registry.plugins() if p.distribution == "acme")
    assert first.calls == second.calls == 0


def test_nobody_replaces_the_reference_backend() -> None:
    with registry.override([source("reference", Plugin(ReferenceBackend()), "acme")]):
        with pytest.raises(qb.BackendError, match=r"acme 1\.0 and 'reference' of quabla-core"):
            registry.backend_for("reference")


# ---- public names


def test_public_names_are_attributes_of_quabla() -> None:
    thing = object()
    with registry.override([source("old", Names({"legacy_grad": thing}))]):
        assert qb.legacy_grad is thing
        assert registry.public_names() == ("legacy_grad",)
        assert "legacy_grad" not in vars(qb)
    assert not hasattr(qb, "legacy_grad")


def test_own_names_are_never_asked_for() -> None:
    plugin = Names({"tanh": None})
    tanh = qb.tanh
    with registry.override([source("old", plugin)]):
        assert qb.tanh is tanh and plugin.calls == 0


def test_missing_and_private_names() -> None:
    plugin = Names({"legacy": 1})
    with registry.override([source("old", plugin)]):
        with pytest.raises(AttributeError, match="no attribute '_private'"):
            registry.public_name("_private")
        assert plugin.calls == 0
        with pytest.raises(AttributeError, match="no attribute 'missing'"):
            registry.public_name("missing")


def test_a_name_that_two_plugins_bring() -> None:
    with registry.override(
        [source("a", Names({"f": 1, "g": 2}), "first"), source("b", Names({"f": 3}), "second")]
    ):
        assert registry.public_name("g") == 2
        with pytest.raises(AttributeError, match=r"'a' of first 1\.0 and 'b' of second 1\.0"):
            registry.public_name("f")


def test_a_plugin_of_names_alone_has_no_device() -> None:
    with registry.override([source("old", Names({"f": 1}))]):
        assert qb.devices() == []
        with pytest.raises(qb.UnsupportedOperationError, match="brings no device"):
            registry.backend_for("old")


def test_names_come_even_where_the_device_cannot_run() -> None:
    class Half(Names):
        @hookimpl
        def quabla_backend(self) -> Any:
            raise BackendUnavailable("no driver")

    with registry.override([source("box", Half({"f": 1}))]):
        assert registry.public_name("f") == 1 and qb.devices() == []


# ---- through real metadata, in a process of its own

PROBE = """
import json, os, sys
scans = 0
found = os.listdir
def counted(folder):
    global scans
    scans += "quabla-plugins" in str(folder)
    return found(folder)
os.listdir = counted
import quabla as qb
assert scans == 0 and "plug_good" not in sys.modules and "pydantic" not in sys.modules
first = qb.devices()
assert 0 < scans
scans = 0
from quabla.backends import registry
states = {p.name: (p.state, p.reason) for p in registry.plugins()}
qb.devices(); registry.backend_for("good")
assert "pydantic" not in sys.modules, "running a device takes pydantic"
print(json.dumps({"devices": first, "states": states, "scans": scans}))
"""


def install(folder: Any, name: str, entry_points: str, code: str | None = None) -> None:
    """What an installer leaves behind: metadata, and perhaps a module."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    if code is not None:
        (folder / f"{name.replace('-', '_')}.py").write_text(code, encoding="utf-8")


GOOD = """
from quabla.backends.hookspec import hookimpl
from quabla.backends.reference import ReferenceBackend

class Good(ReferenceBackend):
    platform = "good"

@hookimpl
def quabla_backend():
    return Good()
"""


def test_entry_points_of_installed_distributions(run_python: Any, tmp_path: Any, monkeypatch: Any) -> None:
    group = "[quabla.backends]\n"
    tmp_path = tmp_path / "quabla-plugins"
    tmp_path.mkdir()
    install(tmp_path, "plug-good", group + "good = plug_good", GOOD)
    install(tmp_path, "plug-raises", group + "raises = plug_raises", "raise RuntimeError('at import')")
    install(tmp_path, "plug-exits", group + "exits = plug_exits", "import sys; sys.exit(1)")
    install(tmp_path, "plug-lost", group + "lost = no_such_module")
    install(tmp_path, "plug-attribute", group + "attribute = plug_good:missing")
    install(tmp_path, "plug-garbled", group + "this line says nothing")
    install(tmp_path, "plug-other", "[console_scripts]\nthis line says nothing either")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import json

    report = json.loads(run_python(PROBE).stdout)
    assert report["scans"] == 0  # after the first
    assert "good" in report["devices"]
    assert not {"raises", "exits", "lost", "attribute"} & set(report["devices"])
    for name, text in {
        "raises": "RuntimeError: at import",
        "exits": "SystemExit: 1",
        "lost": "ModuleNotFoundError",
        "attribute": "AttributeError",
        "plug-garbled": "",
    }.items():
        state, reason = report["states"][name]
        assert state == "broken" and text in reason, (name, reason)
    assert report["states"]["good"] == ["ready", ""]
    assert "plug-other" not in report["states"]


def test_a_backend_that_was_found_runs() -> None:
    with registry.override([box()]):
        x = np.array([0.5, -1.0])
        y = qb.jit(lambda v: qb.tanh(v) * v, device="box")(qb.array(x))
        np.testing.assert_allclose(y.numpy(), np.tanh(x) * x, rtol=1e-15)
