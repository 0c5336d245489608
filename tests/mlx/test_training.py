"""Training on MLX: state and data stay on the device, and another backend gives the same run."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.optim import SGD, Adam, Trainer

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx


def network(dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return [
        {"w": qb.array(rng.normal(size=(a, b)) / math.sqrt(a), dtype=dtype), "b": qb.zeros(b, dtype=dtype)}
        for a, b in itertools.pairwise((1, 16, 1))
    ]


def u(x: Any, params: Any) -> Any:
    z = qb.reshape(x, (1,))
    for p in params[:-1]:
        z = qb.tanh(z @ p["w"] + p["b"])
    return x * (1.0 - x) * (z @ params[-1]["w"] + params[-1]["b"])[0]


def loss(params: Any, x: Any) -> Any:
    u_xx = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None))
    return qb.mean((u_xx(x, params) + math.pi**2 * qb.sin(math.pi * x)) ** 2)


OPTIMIZERS = {"adam": Adam(1e-2), "sgd": SGD(1e-4), "decayed": Adam(1e-2, b1=0.8, b2=0.95)}


def trained(device: str, dtype: Any, optimizer: Any, steps: int) -> tuple[list[np.ndarray], float]:
    trainer = Trainer(
        loss, network(dtype), optimizer, qb.linspace(0.05, 0.95, 32, dtype=dtype), device=device
    )
    for _ in range(steps // 2):
        trainer.step()
    trainer.run(steps - steps // 2)
    return [p.numpy() for p in qb.tree.flatten(trainer.params)[0]], trainer.loss().item()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_float64_runs_agree_to_ten_digits(device: str, optimizer: str) -> None:
    here = trained("mlx", qb.float64, OPTIMIZERS[optimizer], 60)
    there = trained(device, qb.float64, OPTIMIZERS[optimizer], 60)
    for a, b in zip(here[0], there[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    assert abs(here[1] / there[1] - 1.0) < 1e-10


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_float32_runs_agree_to_float32(optimizer: str) -> None:
    here = trained("mlx", qb.float32, OPTIMIZERS[optimizer], 40)
    there = trained("reference", qb.float32, OPTIMIZERS[optimizer], 40)
    for a, b in zip(here[0], there[0], strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_without_float64_a_float64_run_is_one_in_float32(narrow: Any) -> None:
    with pytest.warns(UserWarning, match="computes float64 in float32"):
        got, value = trained("mlx", qb.float64, Adam(1e-2), 40)
    expected, other = trained("reference", qb.float64, Adam(1e-2), 40)
    assert all(a.dtype == np.float64 for a in got)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)
    assert abs(value / other - 1.0) < 1e-3


def test_without_float64_a_float32_run_keeps_its_moments_in_float32(narrow: Any) -> None:
    data = qb.linspace(0.05, 0.95, 32, dtype=qb.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer(loss, network(qb.float32), Adam(1e-2), data, device="mlx")
        trainer.run(40)
    state = trainer.get_state()
    assert {x.dtype for x in qb.tree.flatten(state)[0]} == {qb.float32} and state.optimizer.count.item() == 40
    wide = Trainer(loss, network(qb.float32), Adam(1e-2), data, device="reference")
    wide.run(40)
    for a, b in zip(*(qb.tree.flatten(t.params)[0] for t in (trainer, wide)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-3, atol=2e-4)
    trainer.set_state(wide.get_state())
    wide.set_state(state)
    assert {x.dtype for x in qb.tree.flatten(wide.get_state().optimizer)[0]} == {qb.float64}


def test_a_step_copies_nothing_in_or_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from quabla_mlx import executable, plan, target

    trainer = Trainer(loss, network(qb.float64), Adam(1e-2), qb.linspace(0.05, 0.95, 32), device="mlx")
    copies: list[str] = []
    leave = plan.leave

    def spy(*args: Any, **kwargs: Any) -> Any:
        copies.append("out")
        return leave(*args, **kwargs)

    monkeypatch.setattr(target.Target, "array", lambda self, x: copies.append("in"))
    monkeypatch.setattr(plan, "leave", spy)
    monkeypatch.setattr(executable, "leave", spy)
    trainer.step()
    trainer.run(3)
    assert copies == []
    trainer.loss()
    assert copies == ["out"]


def test_batches_replace_data_and_keep_the_state() -> None:
    fit = lambda w, x, y: qb.mean((w * x - y) ** 2)
    x, y = np.arange(1.0, 5.0), 3.0 * np.arange(1.0, 5.0)
    trainers = [
        Trainer(fit, qb.array(0.0), Adam(0.3), x, y, device=device, batch_argnums=(0, 1))
        for device in ("mlx", "reference")
    ]
    for k in range(30):
        for trainer in trainers:
            trainer.step(x + k % 3, y + 3.0 * (k % 3))
    values = [t.params.item() for t in trainers]
    assert abs(values[0] - values[1]) < 1e-12 and abs(values[0] - 3.0) < 0.3


def test_state_can_be_read_put_back_and_is_a_copy() -> None:
    trainer = Trainer(lambda w: (w - 1.0) ** 2, qb.array(0.0), Adam(0.1), device="mlx")
    assert math.isnan(trainer.loss().item())
    saved = trainer.get_state()
    before = trainer.params
    trainer.run(5)
    after = trainer.params.item()
    assert before.item() == 0.0 and after != 0.0
    trainer.set_state(saved)
    assert trainer.params.item() == 0.0
    trainer.run(5)
    assert trainer.params.item() == after


def test_threads_share_a_trainer_without_losing_a_step() -> None:
    trainer = Trainer(lambda w: qb.sum(w), qb.zeros(3), SGD(1.0), device="mlx")

    def work() -> None:
        for _ in range(50):
            trainer.step()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert trainer.params.tolist() == [-200.0] * 3


@pytest.mark.parametrize("steps", [1, 5])
def test_a_step_within_a_step_is_not_lost(steps: int) -> None:
    # As a signal's handler makes one, between two instructions of Python.
    trainer = Trainer(lambda w: qb.sum(w), qb.zeros(2), SGD(1.0), device="mlx")
    plan = trainer._plan.inner
    run, interrupted = plan._run, False

    def interrupting(*arrays: Any) -> Any:
        nonlocal interrupted
        out = run(*arrays)
        if not interrupted:
            interrupted = True
            plan.step()
        return out

    plan._run = interrupting
    plan.run(steps) if steps > 1 else plan.step()
    assert trainer.params.tolist() == [-1.0 - steps] * 2


def test_a_plan_refuses_what_does_not_fit() -> None:
    trainer = Trainer(lambda w, x: qb.sum(w * x), qb.zeros(3), SGD(1.0), qb.ones(3), device="mlx")
    plan = trainer._plan
    with pytest.raises(qb.errors.ShapeError, match="data inputs"):
        plan.replace(1, qb.ones(3))
    with pytest.raises(qb.errors.ShapeError):
        plan.replace(0, qb.ones(4))
    with pytest.raises(qb.errors.DtypeError):
        plan.replace(0, qb.ones(3, dtype=qb.float32))
    with pytest.raises(qb.errors.ShapeError):
        plan.set_state([qb.zeros(3), qb.zeros(3)])
