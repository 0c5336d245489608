"""The conformance suite on every device that is here, and what the suite itself promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.ir.op import OPS, Op, define
from quabla.testing import check_grads, table
from quabla.testing.conformance import *  # noqa: F403 - the tests of the suite are tests of this file
from quabla.testing.conformance import pytest_generate_tests as pytest_generate_tests
from quabla.testing.numeric import MismatchError, assert_close, assert_dot_identity, central_difference

# From a source folder nothing announces the plugin.
PLUGIN = (
    [] if any(e.name == "quabla" for e in entry_points(group="pytest11")) else ["-p", "quabla.testing.plugin"]
)


@pytest.fixture
def unsampled() -> Iterator[Op]:
    """An op without samples, for the time of a test."""
    op = define(Op("unsampled", lambda x: x, lambda x: x, jvp=lambda p, t, o: t[0], batch=lambda x, m, n: x,
                   samples=lambda: iter(())))  # fmt: skip
    yield op
    del OPS["unsampled"]


def test_an_op_without_samples_is_found(unsampled: Op) -> None:
    assert table.without_samples() == [unsampled.name]


def test_the_table_has_many_rows() -> None:
    rows = list(table.cases())
    assert {case.op.name for case in rows} | table.SOURCES == set(OPS)
    assert {case.dtype.name for case in rows} == {"float64", "float32"}
    assert any(not case.sample.smooth for case in rows)


def test_sources_stand_alone() -> None:
    for name in table.SOURCES:
        assert OPS[name].family == "source"


def test_the_suite_runs_by_its_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, "--pyargs", "quabla.testing.conformance",
         "--quabla-device=reference", "-k", "add or reduce_max", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_device_that_is_not_there_fails_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, "--pyargs", "quabla.testing.conformance",
         "--quabla-device=abacus", "-k", "capabilities", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "abacus" in done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


# --- the numbers that decide ------------------------------------------------------------------------------------------


def test_central_differences_of_a_known_function() -> None:
    x, t = np.array([0.3, 1.1]), np.array([0.5, -1.0])
    (got,) = central_difference(lambda a: [np.sin(a[0]) * a[0]], [x], [t], 2e-4)
    np.testing.assert_allclose(got, (np.cos(x) * x + np.sin(x)) * t, rtol=1e-10)


def test_close_means_close() -> None:
    nan, inf = np.array([np.nan, 1.0]), np.array([np.inf, 1.0])
    assert_close("same", [nan, inf], [nan.copy(), inf.copy()], 0.0, 0.0)
    for a, b in [
        (nan, np.array([0.0, 1.0])),
        (np.array([0.0, 1.0]), nan),
        (inf, -inf),
        (inf, np.array([1.0, 1.0])),
        (np.array([1.0, 1.0]), inf),
        (np.array([1.0]), np.array([1.0 + 1e-9])),
        (np.array([1.0]), np.array([[1.0]])),
        (np.array([1.0], np.float32), np.array([1.0])),
        (np.array([True]), np.array([False])),
    ]:
        with pytest.raises(MismatchError):
            assert_close("different", [a], [b], 1e-12, 1e-12)
    with pytest.raises(MismatchError, match="1 results, expected 2"):
        assert_close("counts", [nan], [nan, nan], 0.0, 0.0)


def test_the_dot_identity_of_a_matrix() -> None:
    rng = np.random.default_rng(0)
    a, t, ct = rng.normal(size=(3, 4)), rng.normal(size=4), rng.normal(size=3)
    assert_dot_identity("matrix", [ct], [a @ t], [a.T @ ct], [t], 1e-13)
    with pytest.raises(MismatchError, match="<ct, J t>"):
        assert_dot_identity("matrix", [ct], [a @ t], [a.T @ ct * 1.001], [t], 1e-13)
    with pytest.raises(MismatchError):
        assert_dot_identity("NaN", [ct], [a @ t], [a.T @ ct * np.nan], [t], 1e-13)


# --- the gradient checker ---------------------------------------------------------------------------------------------


def test_check_grads_accepts_what_is_right() -> None:
    x = qb.asarray(np.random.default_rng(0).normal(size=(3, 3)))
    check_grads(lambda a: qb.einsum("ii,ij,j->i", a, a, a[0, ::-1]), (x,), order=3)
    check_grads(lambda a: qb.norm(a, axis=0), (x,), order=2)
    check_grads(
        lambda p, m: {"y": qb.where(m, p["u"] ** 2, p["v"])}, ({"u": x, "v": 2.0 * x}, x > 0.0), order=2
    )
    check_grads(lambda a: qb.tanh(a), (qb.astype(x, qb.float32),), order=2)


def test_check_grads_finds_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match="JVP of order 1 against differences"):
        check_grads(lambda a: qb.stop_gradient(a) * a, (1.5,), order=1)

    def half_right(a: Any) -> Any:
        """a**3 with a first derivative that is right, and a second one that lacks a term."""
        still = qb.stop_gradient(a)
        return still**3 + 3.0 * still * still * (a - still)

    check_grads(lambda a: a**3, (1.5,), order=2)
    with pytest.raises(AssertionError, match=r"JVP of order 2 \(JVP\) against differences"):
        check_grads(half_right, (1.5,), order=2)


def test_check_grads_refuses_what_it_cannot_check() -> None:
    with pytest.raises(TypeError, match=r"write \(x,\) for one"):
        check_grads(qb.sin, qb.ones(3))
    with pytest.raises(TypeError, match="no argument is floating"):
        check_grads(lambda a: a, (True,))
    with pytest.raises(TypeError, match="no floating result"):
        check_grads(lambda a: a > 0.0, (qb.ones(3),))
