"""`import quabla` stays small: what a program may not need is imported when it is needed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

# Modules that only compiling, describing a backend, linear algebra or another library needs.
LAZY = (
    "pydantic",
    "llvmlite",
    "scipy",
    "threadpoolctl",
    "asyncio",
    "matplotlib",
    "jax",
    "torch",
    "quabla_cpu",
    "mlx",
    "quabla_mlx",
)

# `importlib.metadata` itself is imported by pluggy; scanning the installed distributions is what costs time.
PROBE = """
import importlib.metadata, json, sys, time

def scan(*arguments, **named):
    raise AssertionError("import quabla scanned the installed distributions")

importlib.metadata.entry_points = scan
importlib.metadata.distributions = scan
importlib.metadata.Distribution.discover = scan
import numpy
start = time.perf_counter()
import quabla
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_import_leaves_the_rest_alone(run_python: Run, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run_python(PROBE).stdout)
    with capsys.disabled():
        print(f"\nimport quabla: {report['seconds'] * 1e3:.0f} ms after numpy")
    eager = sorted(set(LAZY) & set(report["modules"]))
    assert not eager, f"import quabla imports {', '.join(eager)}; import them in the function that needs them"


# Modules of the standard library that take milliseconds, and that only saving, forking or describing needs.
SLOW = (
    "zipfile",
    "pathlib",
    "urllib.parse",
    "hashlib",
    "tempfile",
    "subprocess",
    "inspect",
    "asyncio",
    "decimal",
)

ADDED = """
import json, sys
import numpy
before = set(sys.modules)
import quabla
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_takes_little_of_the_standard_library(run_python: Run) -> None:
    added = json.loads(run_python(ADDED).stdout)
    assert not set(SLOW) & set(added), "import it in the function that needs it"
    assert "quabla.transforms.storage" in added  # which needs archives when it reads or writes one


def test_the_probe_would_notice(run_python: Run) -> None:
    found = json.loads(run_python(PROBE.replace("import quabla\n", "import asyncio\n")).stdout)["modules"]
    assert "asyncio" in found
    scanned = run_python(
        PROBE.replace("import quabla\n", "importlib.metadata.entry_points(group='quabla.backends')\n"),
        check=False,
    )
    assert scanned.returncode != 0 and "scanned the installed distributions" in scanned.stderr
