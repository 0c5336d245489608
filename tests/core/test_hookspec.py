"""The hooks are a contract: each is documented, has its exact signature, is tested, and is implemented for real."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pluggy
import pytest

import quabla as qb
from quabla import doctor
from quabla.backends import hookspec, registry
from quabla.backends.capabilities import BackendCapabilities
from tests.core.test_registry import Box, Plugin, box, source

ROOT = Path(__file__).resolve().parents[2]

# A change here is a change for every third party: raise HOOKSPEC_VERSION with it.
SIGNATURES = {
    "quabla_backend": "() -> 'Backend | None'",
    "quabla_public_names": "() -> 'Mapping[str, Any]'",
}
VERSION = 1


def hooks() -> list[str]:
    """The names of all hooks, as pluggy finds them."""
    manager = pluggy.PluginManager("quabla")
    manager.add_hookspecs(hookspec)
    return sorted(name for name in vars(manager.hook) if not name.startswith("_"))


def implementations(paths: Iterator[Path]) -> dict[str, list[ast.FunctionDef]]:
    """The functions marked with `hookimpl` in some files, by name."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                "hookimpl" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                found.setdefault(node.name, []).append(node)
    return found


def outside_core() -> Iterator[Path]:
    """The sources of every distribution of the repository but core's."""
    for folder in [*ROOT.glob("quabla-*"), *ROOT.glob("examples/quabla-*")]:
        if folder.name != "quabla-core":
            yield from (folder / "src").rglob("*.py")


def test_the_list_of_hooks_is_the_contract() -> None:
    assert hooks() == sorted(SIGNATURES)
    assert set(hooks()) < set(hookspec.__all__)
    assert hookspec.HOOKSPEC_VERSION == VERSION


@pytest.mark.parametrize("name", hooks())
def test_a_hook_has_its_exact_signature(name: str) -> None:
    assert str(inspect.signature(getattr(hookspec, name))) == SIGNATURES[name]


@pytest.mark.parametrize("name", hooks())
def test_a_hook_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(hookspec, name)) or ""
    for part in ("When: ", "How often: ", "Returns:", "Raises:"):
        assert part in text, f"{name} does not say {part!r}"
    readme = (ROOT / "examples" / "quabla-reference-backend" / "README.md").read_text("utf-8")
    assert f"`{name}()`" in readme, f"the example of a third party's backend does not explain {name}"


@pytest.mark.parametrize("name", hooks())
def test_a_hook_has_an_implementation_outside_core(name: str) -> None:
    found = implementations(outside_core()).get(name, [])
    assert found, f"no distribution but core implements {name}"
    for function in found:
        assert not function.args.args, f"{function.name} takes arguments that the hook does not have"


@pytest.mark.parametrize("name", hooks())
def test_a_hook_is_tested(name: str) -> None:
    tests = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    assert implementations(tests).get(name), f"no test implements {name}"


def test_no_implementation_is_of_a_hook_that_does_not_exist() -> None:
    assert set(implementations(outside_core())) <= set(hooks())


def test_the_search_finds_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(
        "@hookimpl(tryfirst=True)\ndef one(): ...\n\ndef two(): ...\n\n@spec.hookimpl\ndef three(): ...\n"
    )
    assert sorted(implementations(iter([file]))) == ["one", "three"]


def test_capabilities_are_frozen_and_checked() -> None:
    from pydantic import ValidationError

    can = BackendCapabilities(dtypes=("float32",), ops=("add",), native_float64=False)
    assert can.supports("add", "float32") and not can.supports("mul", "float32")
    with pytest.raises(ValidationError):
        can.native_float64 = True  # type: ignore[misc]
    for wrong in (
        {"dtypes": ("float16",)},
        {"dtypes": ()},
        {"ops": ()},
        {"native_float64": "yes"},
        {"determinism": "mostly"},
        {"surprise": 1},
    ):
        with pytest.raises(ValidationError):
            BackendCapabilities(**{"dtypes": ("float32",), "ops": ("add",), "native_float64": True, **wrong})


# --- the version ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "remedies"),
    [
        (VERSION + 1, ("install a newer quabla-core, or a release of acme-box that was made for version 1",)),
        (0, ("install a release of acme-box that was made for version 1 of the hooks, or ask its authors",)),
        ("1", ("install a release of acme-box",)),
        (True, ("install a release of acme-box",)),
    ],
)
def test_a_plugin_for_other_hooks_is_not_loaded(made: Any, remedies: tuple[str, ...], capsys: Any) -> None:
    plugin = Plugin(Box())
    plugin.quabla_hookspec_version = made  # type: ignore[attr-defined]
    with registry.override([source("box", plugin, "acme-box", "4.2"), box("good")]):
        assert qb.devices() == ["good"] and plugin.calls == 0
        report = next(p for p in registry.plugins() if p.name == "box")
        assert report.state == "broken"
        assert report.reason == (
            f"it was written for version {made!r} of the backend hooks, and this quabla-core has version 1"
        )
        assert all(text in report.remedy for text in remedies)
        with pytest.raises(qb.BackendError) as caught:
            registry.backend_for("box")
        for text in ("'box' of acme-box 4.2", f"version {made!r}", "has version 1", *remedies):
            assert text in str(caught.value)
        assert registry.backend_for("good")[1] == "good"
        doctor.main([])
        shown = capsys.readouterr().out
        assert "hooks    version 1" in shown and report.reason in shown and report.remedy in shown


def test_a_plugin_says_for_which_hooks_it_was_written() -> None:
    plugin = Plugin(Box())
    plugin.quabla_hookspec_version = VERSION  # type: ignore[attr-defined]
    with registry.override([source("box", plugin), box("silent"), source("gone", ImportError("x"))]):
        reports = {p.name: p for p in registry.plugins()}
        assert [reports[n].hookspec for n in ("box", "silent", "gone")] == [1, 1, None]
        assert reports["box"].state == "ready"
