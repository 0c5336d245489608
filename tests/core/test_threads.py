"""The number of threads: where it comes from, what is refused, and who is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.backends import threads

COUNT = "import quabla as qb; print(qb.get_num_threads())"


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = qb.get_num_threads()
    yield
    qb.set_num_threads(before)


def started(variable: str) -> subprocess.CompletedProcess[str]:
    import os

    environment = {**os.environ, "QUABLA_NUM_THREADS": variable}
    return subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("n", [1, 3, np.int64(2)])
def test_a_number_is_kept_and_told(n: Any) -> None:
    told: list[int] = []
    threads.on_change(told.append)
    try:
        qb.set_num_threads(n)
    finally:
        threads._listeners.remove(told.append)
    assert qb.get_num_threads() == n and told == [n]


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None, True, 10**6])
def test_what_is_no_number_of_threads(n: Any) -> None:
    before = qb.get_num_threads()
    with pytest.raises(qb.DtypeError, match=r"set_num_threads.*whole number from 1"):
        qb.set_num_threads(n)
    assert qb.get_num_threads() == before


def test_the_environment_says_it() -> None:
    assert started("3").stdout.strip() == "3"
    assert int(started("").stdout) >= 1


@pytest.mark.parametrize("given", ["many", "-1", "0", "1.5", "999999", "1_0", "+2", "\u00b2", "9" * 5000])
def test_an_environment_that_says_nonsense_is_named(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", None)
    monkeypatch.setenv("QUABLA_NUM_THREADS", given)
    with pytest.raises(qb.UnsupportedOperationError, match=r"QUABLA_NUM_THREADS is '.*whole number from 1"):
        qb.get_num_threads()
    monkeypatch.delenv("QUABLA_NUM_THREADS")
    assert qb.get_num_threads() >= 1
