"""The tests of the backend itself; that it computes the right numbers is the conformance suite's business."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from quabla_reference_backend.plugin import NumpyBackend

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.errors import UnsupportedOperationError


def program():
    made, _ = trace(lambda x: (qb.tanh(x) * x,), [qb.ShapeDtype((3,))])
    return made


def test_it_is_found() -> None:
    assert "numpy" in qb.devices()
    x = np.linspace(-1.0, 1.0, 5)
    y = qb.jit(lambda v: qb.tanh(v) * v, device="numpy")(qb.array(x))
    np.testing.assert_array_equal(y.numpy(), np.tanh(x) * x)


def test_it_counts_what_it_runs_on_every_thread() -> None:
    backend = NumpyBackend()
    executable = backend.compile(backend.lower(program(), "numpy"))
    assert backend.counts.read() == {}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: executable(qb.array([1.0, 2.0, 3.0])), range(200)))
    assert backend.counts.read() == {"tanh": 200, "mul": 200}


def test_its_public_name_counts_the_device_of_the_registry() -> None:
    before = qb.evaluated_nodes().get("exp", 0)
    f = qb.jit(qb.exp, device="numpy")
    f(qb.array([1.0, 2.0]))
    f(qb.array([3.0, 4.0]))
    assert qb.evaluated_nodes()["exp"] == before + 2


def test_it_refuses_by_name_before_anything_runs() -> None:
    backend = NumpyBackend(refused=frozenset({"tanh"}))
    assert not backend.capabilities.supports("tanh", "float64")
    with pytest.raises(
        UnsupportedOperationError, match=r"tanh: device 'numpy' has no code .* float64\[3\]"
    ) as caught:
        backend.lower(program(), "numpy")
    assert (caught.value.op, caught.value.device) == ("tanh", "numpy")


def test_its_text_says_who_evaluates_what() -> None:
    text = NumpyBackend().lower(program(), "numpy").as_text()
    assert text.splitlines() == ["device numpy", "tanh: own rule", "mul: own rule"]
