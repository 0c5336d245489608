"""The example of a third party's backend, installed as a distribution of its own, is found and runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "quabla-reference-backend"
# With an empty configuration of its own, as in a third party's checkout.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def can_build() -> bool:
    """Whether pip can build the example here without fetching anything."""
    return all(importlib.util.find_spec(name) for name in ("pip", "hatchling"))


def install_with_pip(target: Path, scratch: Path) -> None:
    """What a user does, except that nothing is fetched."""
    source = scratch / "source"  # builders may leave files in the source folder
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "dist", "build"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def install_by_hand(target: Path) -> None:
    """The same files without an installer: the package, and the metadata that its pyproject asks for."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    package = project["name"].replace("-", "_")
    shutil.copytree(EXAMPLE / "src" / package, target / package)
    info = target / f"{package}-{project['version']}.dist-info"
    info.mkdir()
    lines = [
        f"[{group}]" + "".join(f"\n{k} = {v}" for k, v in table.items())
        for group, table in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    metadata = f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(
        metadata + f"Keywords: {','.join(project['keywords'])}\n", encoding="utf-8"
    )


@pytest.fixture(scope="module", params=["pip", "by hand"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed distribution."""
    target = tmp_path_factory.mktemp("installed")
    (target / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    if request.param == "by hand":
        install_by_hand(target)
    elif can_build():
        install_with_pip(target, tmp_path_factory.mktemp("scratch"))
    else:
        pytest.skip("pip and hatchling are not both here; the other way of installing is tested")
    return target


@pytest.fixture
def python(installed: Path) -> Run:
    """Start an interpreter in which the distribution is installed, away from the checkout."""

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(installed), *(p for p in sys.path if p)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=installed,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=600,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_it_is_discovered_and_only_when_asked_for(python: Run) -> None:
    code = """
import sys
import quabla as qb
assert "quabla_reference_backend" not in sys.modules
assert "numpy" in qb.devices()
assert "quabla_reference_backend.plugin" in sys.modules and "pydantic" not in sys.modules
"""
    python("-c", code)


def test_it_runs_transforms_and_counts(python: Run) -> None:
    code = """
import numpy as np, quabla as qb
x = np.linspace(-1.0, 1.0, 7)
loss = lambda w, x: qb.mean(qb.tanh(x * w) ** 2)
step = qb.jit(qb.value_and_grad(loss), device="numpy")
value, slope = step(qb.array(0.5), qb.array(x))
t = np.tanh(0.5 * x)
np.testing.assert_allclose(value.item(), np.mean(t**2), rtol=1e-14)
np.testing.assert_allclose(slope.item(), np.mean(2 * t * (1 - t**2) * x), rtol=1e-13)
first = qb.evaluated_nodes()
assert first["tanh"] == 1, first
step(qb.array(0.25), qb.array(x))
assert qb.evaluated_nodes() == {name: 2 * count for name, count in first.items()}
"""
    python("-c", code)


def test_the_doctor_knows_it(python: Run) -> None:
    text = python("-m", "quabla", "doctor", check=False).stdout
    assert "ok quabla-reference-backend 0.2.0\n" in text
    assert "ok numpy: ready (quabla-reference-backend 0.2.0, quabla_reference_backend.plugin)" in text
    assert "device numpy: works\n" in text and "adds quabla.evaluated_nodes" in text


def test_its_own_tests_pass(python: Run) -> None:
    out = python(*PYTEST, str(EXAMPLE / "tests")).stdout
    assert " passed" in out


def test_the_readme_example_runs_as_printed(python: Run) -> None:
    text = (EXAMPLE / "README.md").read_text("utf-8")
    (code,) = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    lines = python("-c", code).stdout.splitlines()
    assert "'numpy'" in lines[0] and "'tanh': 1" in lines[-1]


@pytest.mark.slow
def test_it_passes_the_conformance_suite(python: Run) -> None:
    if importlib.util.find_spec("quabla.testing.conformance") is None:
        pytest.skip("the conformance suite is not part of this checkout yet")
    suite = ["--pyargs", "quabla.testing.conformance", "--quabla-device=numpy"]
    if not any(point.value == "quabla.testing.plugin" for point in entry_points(group="pytest11")):
        suite += [
            "-p",
            "quabla.testing.plugin",
        ]  # core is used from its folder, so nothing announces its option
    out = python(*PYTEST, *suite).stdout
    assert " passed" in out
