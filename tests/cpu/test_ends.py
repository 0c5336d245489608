"""Programs that are compiled for the first time while the process ends."""

from __future__ import annotations

import pytest

LATE = """
import atexit
import quabla as qb

def late():
    x = qb.ones(50)
    print(qb.jit(lambda x: qb.sum(x * 2.0))(x).item())
    print(qb.jit(lambda x: qb.sum(x @ x))(qb.ones((600, 600))).item())          # by several threads
    print(qb.jit(qb.linalg.solve)(2.0 * qb.eye(3), qb.ones(3)).tolist())         # by LAPACK
    trainer = qb.optim.Trainer(lambda w, x: qb.sum(w * x), qb.array(1.0), qb.optim.SGD(0.5), x)
    trainer.step()
    print(trainer.loss().item())

atexit.register(late)
"""


@pytest.mark.parametrize("tiers", ["0", "1"])
@pytest.mark.parametrize("cache", ["0", "1"])
def test_a_handler_of_the_end_computes_in_silence(tiers, cache, run_python, monkeypatch, tmp_path):
    monkeypatch.setenv("QUABLA_TIERS", tiers)
    monkeypatch.setenv("QUABLA_CACHE", cache)
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    done = run_python(LATE)
    assert done.stdout.split("\n") == ["100.0", "216000000.0", "[0.5, 0.5, 0.5]", "50.0", ""]
    assert done.stderr == ""


@pytest.mark.parametrize("given", ["abc", "0"])
def test_a_small_program_says_that_the_number_of_threads_is_none(given, run_python, monkeypatch):
    monkeypatch.setenv("QUABLA_NUM_THREADS", given)
    code = """
import quabla as qb
for _ in range(2):
    try:
        qb.jit(lambda x: x * 2.0)(1.0)
    except qb.UnsupportedOperationError as error:
        print(error)
"""
    first, second = run_python(code).stdout.splitlines()
    assert first == second and f"QUABLA_NUM_THREADS is '{given}'" in first
