"""The pytest plugin: `--quabla-device` and `--quabla-report`. It is an entry point, so it imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["pytest_addoption", "pytest_configure", "pytest_sessionfinish"]

FORMATS = {".json": "as_json", ".html": "as_html", ".txt": "as_text"}


def pytest_addoption(parser: Any) -> None:
    """Add the options; called by pytest."""
    group = parser.getgroup("quabla")
    group.addoption(
        "--quabla-device",
        action="append",
        default=None,
        metavar="NAME",
        help="a device on which quabla.testing.conformance runs (may be repeated; default: every device that is there)",
    )
    group.addoption(
        "--quabla-report",
        action="append",
        default=[],
        metavar="FILE",
        help="write the conformance report to FILE, as its suffix says: .json, .html or .txt (may be repeated); with "
        "several devices the name of each is added to that of the file",
    )


def pytest_configure(config: Any) -> None:
    """Refuse a report that could not be written before any test runs; called by pytest."""
    from pytest import UsageError

    for name in config.getoption("--quabla-report"):
        if Path(name).suffix not in FORMATS:
            raise UsageError(f"--quabla-report: {name} must end in one of {', '.join(FORMATS)}")
    config.quabla_verdicts = {}


def pytest_sessionfinish(session: Any) -> None:
    """Write the reports; called by pytest."""
    files = session.config.getoption("--quabla-report")
    found = getattr(session.config, "quabla_verdicts", {})
    if not (files and found):
        return
    from quabla.testing.report import Report

    for target, verdicts in found.items():
        report = Report.of(target, verdicts)
        for name in files:
            path = Path(name)
            if len(found) > 1:
                path = path.with_stem(f"{path.stem}-{target.device.replace(':', '-')}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(getattr(report, FORMATS[path.suffix])(), encoding="utf-8")
