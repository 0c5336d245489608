"""The checks of this repository, one session each; `python -m nox --list` shows them.

The sessions `core`, `cpu`, `mlx`, `reference`, `template` and `peers` exist once per Python version, the others once.
Each backend has a session, which installs the core, the backend and nothing else of ours, and writes the conformance
report of its device into the folder `.reports`. Arguments
after `--` go to pytest: `python -m nox -s cpu-3.12 -- -m "not slow"`. The GitHub workflow takes its matrix
from the list of sessions, so a new session needs no second entry.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.12", "3.13")
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
VERSION = PROJECT["project"]["version"]
DISTRIBUTIONS = ("quabla-core", "quabla-cpu", "quabla-mlx")
# How a test file says that it compares with another library.
PEER = re.compile(r"""importorskip\(["']jax["'.]""")
EXAMPLE_BACKEND = ROOT / "examples" / "quabla-reference-backend"

nox.needs_version = ">=2025.5.1"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"


def group(name: str) -> list[str]:
    """The requirements of a dependency group of the root pyproject."""
    return list(nox.project.dependency_groups(PROJECT, name))


def install(session: nox.Session, paths: Sequence[str | Path], *requirements: str) -> None:
    """Install our own by path, all in one call, where their exact pins find each other and no index."""
    session.install("--quiet", *(part for path in paths for part in ("-e", str(path))), *requirements)
    session.run("python", "tools/check_installed.py", VERSION, silent=True)


def pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest against installed distributions only; arguments of the command line go last."""
    session.run("python", "-m", "pytest", *arguments, *session.posargs, env={"QUABLA_REQUIRE_INSTALLED": "1"})


def report(device: str) -> list[str]:
    """Options of pytest: where the conformance report of a device goes."""
    return [f"--quabla-report={ROOT / '.reports' / device}{suffix}" for suffix in (".html", ".json")]


def existing(*folders: str) -> list[str]:
    """Those of the test folders that this checkout has."""
    return [folder for folder in folders if (ROOT / folder).is_dir()]


@nox.session(python=PYTHONS, tags=["everywhere"])
def core(session: nox.Session) -> None:
    """The core alone, without any backend distribution."""
    install(session, ["quabla-core"], *group("test"))
    pytest(session, *existing("tests/core", "tests/structure"))


@nox.session(python=PYTHONS, tags=["everywhere"])
def cpu(session: nox.Session) -> None:
    """The whole suite with the CPU backend."""
    install(session, ["quabla-core", "quabla-cpu", ".[viz]"], *group("test"))
    pytest(session, "tests", *report("report"))


@nox.session(python=PYTHONS)
def mlx(session: nox.Session) -> None:
    """The MLX backend: its own tests, and the conformance suite. Needs a system that MLX has wheels for."""
    install(session, ["quabla-core", "quabla-mlx"], *group("test"))
    session.run("python", "-c", "import quabla as qb; assert 'mlx' in qb.devices(), qb.devices()")
    suite = ("--pyargs", "quabla.testing.conformance", "--quabla-device=mlx", *report("mlx"))
    pytest(session, "tests/mlx", *suite)


@nox.session(python=PYTHONS)
def reference(session: nox.Session) -> None:
    """The example of a third party's backend, its own distribution: its tests, and the conformance suite."""
    install(session, ["quabla-core", EXAMPLE_BACKEND], *group("test"))
    own = str(EXAMPLE_BACKEND / "tests")
    pytest(session, own, "--pyargs", "quabla.testing.conformance", "--quabla-device=numpy", *report("numpy"))


@nox.session(python=PYTHONS)
def template(session: nox.Session) -> None:
    """What `python -m quabla new-backend` writes, installed by its author: its tests, and the conformance suite."""
    install(session, ["quabla-core"], *group("test"))
    folder = Path(session.create_tmp()).resolve() / "new"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "quabla", "new-backend", "sand", "--into", str(folder))
    session.install("--quiet", "--no-deps", "-e", str(folder / "sand-quabla"))
    with session.chdir(folder / "sand-quabla"):
        pytest(session, *report("sand"))


@nox.session(python=PYTHONS)
def peers(session: nox.Session) -> None:
    """The tests that compare with JAX, which the other sessions skip."""
    install(session, ["quabla-core", "quabla-cpu", ".[viz]"], *group("test"), *group("peers"))
    session.run("python", "-c", "import jax; print('jax', jax.__version__)")
    comparing = [path for path in (ROOT / "tests").rglob("test_*.py") if PEER.search(path.read_text("utf-8"))]
    session.env["QUABLA_TIERS"] = "1"  # thousands of random programs, run by the code of first calls, too
    pytest(session, *(str(path.relative_to(ROOT)) for path in sorted(comparing)))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, as linter and as formatter."""
    session.install("--quiet", *group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over every distribution and the scripts of the repository."""
    install(session, ["quabla-core", "quabla-cpu"], *group("types"))
    session.run("mypy")
    # The scripts are programs of their own, not modules of a package.
    for script in (
        "run.py",
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "tools").glob("*.py"))),
    ):
        session.run("mypy", "--config-file=", "--strict", script)


@nox.session
def docs(session: nox.Session) -> None:
    """The manual, with warnings as errors; the pages land in docs/_build."""
    install(session, ["quabla-core", "quabla-cpu"], *group("docs"))
    session.run("sphinx-build", "-W", "--keep-going", "-q", "-b", "html", "docs", "docs/_build")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all wheels, install them alone into a clean environment, and run the examples there."""
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.install("--quiet", "build")
    sources = [ROOT, *(ROOT / name for name in DISTRIBUTIONS)]
    if EXAMPLE_BACKEND.is_dir():
        sources.append(EXAMPLE_BACKEND)
    for source in sources:
        # Through the sdist, so that what an sdist lacks is noticed too.
        session.run("python", "-m", "build", "--outdir", str(dist), str(source), silent=True)
    built = sorted(path.name for path in dist.iterdir())
    session.log("built %s", ", ".join(built))

    # What ours depend on comes from an index first; ours then come from the folder alone.
    foreign: list[str] = []
    for source in sources:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        listed = [*project.get("dependencies", ())]
        for extra in project.get("optional-dependencies", {}).values():
            listed += extra
        foreign += [entry for entry in listed if not entry.startswith("quabla")]
    clean = Path(session.create_tmp()).resolve() / "clean"
    shutil.rmtree(clean, ignore_errors=True)
    session.run("python", "-m", "venv", str(clean))
    python = str(clean / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    session.run(*pip, *foreign, external=True)
    names = [
        tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
        for source in sources
    ]
    exact = [f"{name}=={VERSION}" for name in names if name != "quabla"] + [f"quabla[viz]=={VERSION}"]
    # PIP_FIND_LINKS and the like of the machine must not widen the search.
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(dist),
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_CONFIG_FILE": os.devnull,
    }
    session.run(*pip, "--no-index", "--find-links", str(dist), *exact, env=offline, external=True)
    session.run(python, str(ROOT / "tools" / "check_installed.py"), VERSION, *names, external=True)

    # Away from the checkout, so that nothing is imported from its folders.
    away = Path(session.create_tmp()).resolve() / "away"
    shutil.rmtree(away, ignore_errors=True)
    away.mkdir()
    examples = [shutil.copy(path, away) for path in sorted((ROOT / "examples").glob("*.py"))]
    with session.chdir(away):
        session.run(python, "-c", "import quabla as qb; print(qb.devices())", external=True)
        for example in examples:
            session.run(python, example, external=True, env={"MPLBACKEND": "Agg"})
        # The template is not Python, so nothing else notices where a wheel lacks it.
        session.run(python, "-m", "quabla", "new-backend", "sand", external=True)
