"""Every public name explains itself, with an example, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import quabla

PACKAGES = ("quabla", "quabla_cpu")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def needs_example(thing: object) -> bool:
    """Functions and classes are called, so they show a call; errors, modules and values are not."""
    if inspect.isclass(thing):
        return not issubclass(thing, BaseException)
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


@pytest.mark.parametrize("name", list(module_names()))
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=FLAGS, verbose=False)
    assert failed == 0, f"{failed} of {tried} examples failed, see the captured output"
