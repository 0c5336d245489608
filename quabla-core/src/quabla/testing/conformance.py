"""The conformance suite, a module of pytest tests.

    pytest --pyargs quabla.testing.conformance --quabla-device=NAME --quabla-report=report.html

runs it on a device; without `--quabla-device` it runs on every device that is there, and on the reference backend. The
first part holds the ops themselves to their laws (`table.py`); the second is the suite of `suite.py`: what a device
computes, refuses and promises. `python -m quabla conformance --device=NAME` runs the second part without pytest.

An item that a device refuses, and says in its capabilities that it lacks, is skipped with the words of the refusal.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from quabla.backends import registry
from quabla.errors import ShapeError
from quabla.shapes import ShapeDtype
from quabla.testing import suite, table
from quabla.testing.checks import Check
from quabla.testing.report import REFUSED, WRONG
from quabla.testing.table import Case
from quabla.testing.target import Target


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `law` and `case` of the table, and `device` with the checks of the suite, to the tests that ask for them."""
    names = metafunc.fixturenames
    if "law" in names:
        pairs = [(c, case) for case in table.cases() for c in table.CHECKS if table.applies(c, case)]
        metafunc.parametrize(("law", "case"), pairs, ids=[f"{c}-{case}" for c, case in pairs])
    if "device" in names:
        devices = metafunc.config.getoption("--quabla-device", default=None)
        metafunc.parametrize("device", list(dict.fromkeys(devices or [*registry.devices(), "reference"])))
    if "check" in names:
        checks = list(suite.checks())
        metafunc.parametrize("check", checks, ids=[f"{c.group}-{c}" for c in checks])


# --- the ops ----------------------------------------------------------------------------------------------------------


def test_every_op_is_in_the_table() -> None:
    """An op without samples is an op without tests."""
    assert table.without_samples() == []


def test_op(law: str, case: Case) -> None:
    """Every op, on every sample, keeps every law."""
    table.CHECKS[law](case)


def test_empty_types_do_not_exist() -> None:
    """No op can be asked about arrays without elements: there is no type for them."""
    with pytest.raises(ShapeError, match="empty arrays are not supported"):
        ShapeDtype((3, 0))


# --- a device ---------------------------------------------------------------------------------------------------------


@cache
def _target(device: str, which: int) -> Target:
    return Target.of(device)


def test_conforms(device: str, check: Check, pytestconfig: pytest.Config) -> None:
    """A device supports what it says that it does, and refuses the rest correctly."""
    target = _target(device, id(registry._registry))
    verdicts = list(check.verdicts(target))
    kept: dict[Any, list[Any]] = getattr(pytestconfig, "quabla_verdicts", {})
    kept.setdefault(target, []).extend(verdicts)
    wrong = [f"{v.item}: {v.detail}" for v in verdicts if v.outcome == WRONG]
    assert not wrong, "\n".join(wrong)
    if verdicts[-1].outcome == REFUSED:
        pytest.skip(f"refused correctly: {verdicts[-1].detail}")
