"""The hooks are a contract: each is documented, has its exact signature, is tested, and is implemented for real."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pluggy
import pytest

from quabla.backends import hookspec
from quabla.backends.capabilities import BackendCapabilities

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
    assert can.hookspec == VERSION
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
        {"hookspec": 0},
    ):
        with pytest.raises(ValidationError):
            BackendCapabilities(**{"dtypes": ("float32",), "ops": ("add",), "native_float64": True, **wrong})
