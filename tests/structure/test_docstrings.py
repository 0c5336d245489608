"""Every public name explains itself, with an example, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

import quabla

PACKAGES = ("quabla", "quabla_cpu")
# Public names that `import *` leaves out, since they shadow builtins.
SHADOWING = ("abs", "all", "any", "divmod", "max", "min", "round", "sum")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def needs_example(thing: object) -> bool:
    """Functions and classes are called or caught, so they show it; modules and values are not."""
    if inspect.isclass(thing):
        return True
    return callable(thing) and not isinstance(thing, ModuleType) and bool(getattr(thing, "__name__", ""))


def is_own(thing: object) -> bool:
    """Whether the thing was written here; a dtype of NumPy has NumPy's docstring."""
    return (getattr(thing, "__module__", None) or "quabla").split(".")[0] in PACKAGES


@pytest.mark.parametrize("name", sorted(quabla.__all__))
def test_public_names_have_a_docstring_with_an_example(name: str) -> None:
    thing = getattr(quabla, name)
    if isinstance(thing, str | int | float | tuple):
        pytest.skip("a plain value")
    if not is_own(thing):
        pytest.skip("defined elsewhere")
    text = inspect.getdoc(thing)
    assert text, f"quabla.{name} has no docstring"
    if needs_example(thing):
        assert ">>>" in text, f"quabla.{name} shows no example"


def test_public_names_exist() -> None:
    missing = [name for name in quabla.__all__ if not hasattr(quabla, name)]
    assert not missing
    assert len(quabla.__all__) == len(set(quabla.__all__))


def module_names() -> Iterator[str]:
    """Every module of the installed packages, without the programs."""
    for package in PACKAGES:
        try:
            folder = importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        yield package
        for item in pkgutil.walk_packages(folder.__path__, f"{package}."):
            if not item.name.endswith("__main__"):
                yield item.name


SHOWS_THE_CPU = ("quabla.backends.registry", "quabla.transforms.jit", "quabla.transforms.programs")


@pytest.mark.parametrize("name", list(module_names()))
def test_examples_in_docstrings_run(name: str) -> None:
    if name in SHOWS_THE_CPU and "cpu" not in quabla.devices():
        pytest.skip("its examples show the CPU backend")
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=FLAGS, verbose=False)
    assert failed == 0, f"{failed} of {tried} examples failed, see the captured output"


def says_what_it_takes_and_raises(function: object) -> list[str]:
    """What the docstring of a function lacks. "as for `name`" refers to another that has it."""
    text = inspect.getdoc(function) or ""
    if re.search(r"as\s+for `\w+`|The same as `", text):
        return []
    lacks = []
    if inspect.signature(function).parameters:  # type: ignore[arg-type]
        lacks += ["Args"] if "Args:" not in text and "Takes " not in text else []
        lacks += ["Raises"] if "Raises:" not in text else []
    return lacks


# They read structures, and there is nothing that they refuse.
RAISES_NOTHING = {"quabla.tree.difference", "quabla.tree.paths", "quabla.tree.flatten"}


@pytest.mark.parametrize(
    "module", ["quabla", "quabla.linalg", "quabla.tree", "quabla.optim", "quabla.testing"]
)
def test_functions_say_what_they_take_and_raise(module: str) -> None:
    public = importlib.import_module(module)
    names = sorted(set(public.__all__) | {n for n in SHADOWING if module == "quabla"})
    found = {n: getattr(public, n) for n in names}
    functions = {f"{module}.{n}": f for n, f in found.items() if inspect.isfunction(f) and is_own(f)}
    lacking = {name: says_what_it_takes_and_raises(f) for name, f in functions.items()}
    expected = {
        name: ["Raises"] for name in RAISES_NOTHING if name in functions and lacking[name] == ["Raises"]
    }
    assert {name: lacks for name, lacks in lacking.items() if lacks} == expected


def test_references_between_docstrings_lead_somewhere() -> None:
    for name in sorted({*quabla.__all__, *SHADOWING}):
        thing = getattr(quabla, name)
        if not inspect.isfunction(thing):
            continue
        for other in re.findall(r"as\s+for `(\w+)`", inspect.getdoc(thing) or ""):
            there = inspect.getdoc(getattr(quabla, other)) or ""
            assert "Raises:" in there or re.search(r"as\s+for `\w+`", there), f"{name} refers to {other}"
