"""What every test can ask for: the repository's root, and an interpreter to start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# Compiled code of tests is kept apart from the user's, for this run only; processes that tests start inherit it.
_cache = tempfile.TemporaryDirectory(prefix="quabla-test-cache-")
os.environ["QUABLA_CACHE_DIR"] = _cache.name

# Most programs of tests run once, and it is the good code that is to be tested. `tests/cpu/test_tiers.py` compares it
# with the quick code; so does whoever sets this to 1.
os.environ.setdefault("QUABLA_TIERS", "0")

# An example may compile, so none has a deadline. `.ci/run` asks for the same examples on every run.
settings.register_profile("quabla", deadline=None, derandomize=os.environ.get("QUABLA_SAME_EXAMPLES") == "1")
settings.load_profile("quabla")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Start this interpreter on some code in a process of its own; fail with its output if it fails."""

    def run(
        code: str, *, cwd: Path | None = None, check: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        # The sources in use travel along, whether they were installed or put on the path.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
        return done

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs the CPU backend where there is none: tests marked `cpu`, and cases called "cpu"."""
    import quabla as qb

    if "cpu" in qb.devices():
        return
    for item in items:
        case = getattr(item, "callspec", None)
        if item.get_closest_marker("cpu") or (case is not None and "cpu" in map(str, case.params.values())):
            item.add_marker(pytest.mark.skip(reason="needs the CPU backend"))
