"""`Trainer` on the reference backend: what it computes, what it keeps, what it refuses."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.errors import DtypeError, QuablaError, ShapeError, TracerError, UnsupportedOperationError
from quabla.optim import SGD, Adam, Trainer, TrainerState


def make(loss: Any, params: Any, opt: Any, *data: Any, **options: Any) -> Trainer:
    return Trainer(loss, params, opt, *data, device="reference", **options)


def line(w: Any, x: Any, y: Any) -> Any:
    """The squared error of a line."""
    return qb.mean((w["slope"] * x + w["offset"] - y) ** 2)


X, Y = qb.linspace(-1.0, 1.0, 11), qb.linspace(-1.0, 1.0, 11) * 3.0 + 0.5
START = {"slope": qb.array(0.0), "offset": qb.array(0.0)}


def test_it_finds_the_line_of_least_squares() -> None:
    noisy = Y + qb.array(np.random.default_rng(0).normal(size=11))
    trainer = make(line, START, SGD(0.3), X, noisy)
    trainer.run(300)
    slope, offset = np.polyfit(X.numpy(), noisy.numpy(), 1)
    assert trainer.params["slope"].item() == pytest.approx(slope, rel=1e-10)
    assert trainer.params["offset"].item() == pytest.approx(offset, rel=1e-10)
    residual = np.mean((slope * X.numpy() + offset - noisy.numpy()) ** 2)
    assert trainer.loss().item() == pytest.approx(residual, rel=1e-10)


@pytest.mark.parametrize("opt", [Adam(0.05), SGD(0.05), Adam(qb.array(0.05), b1=0.5)])
def test_it_does_what_the_loop_does(opt: Any) -> None:
    trainer, w, state = make(line, START, opt, X, Y), START, opt.init(START)
    step = qb.jit(qb.value_and_grad(line), device="reference")
    for _ in range(25):
        value, g = step(w, X, Y)
        w, state = opt.update(w, g, state)
        trainer.step()
        assert trainer.loss().item() == pytest.approx(value.item(), rel=1e-13)
    for name in w:
        assert trainer.params[name].item() == pytest.approx(w[name].item(), rel=1e-12)


def test_the_loss_is_that_of_the_parameters_before_the_step() -> None:
    trainer = make(lambda w: w * w, 3.0, SGD(0.25))
    assert math.isnan(trainer.loss().item())
    trainer.step()
    assert trainer.loss().item() == 9.0 and trainer.params.item() == 1.5


def test_the_loss_is_traced_once() -> None:
    traces = []

    def loss(w: Any, x: Any) -> Any:
        traces.append(type(w))
        return qb.sum((w - x) ** 2)

    trainer = make(loss, 0.0, Adam(0.1), X, batch_argnums=0)
    trainer.step(X)
    trainer.step(Y)
    trainer.run(3)
    assert traces == [qb.TraceTensor]


def test_run_is_that_many_steps() -> None:
    one, many = make(line, START, Adam(0.1), X, Y), make(line, START, Adam(0.1), X, Y)
    for _ in range(37):
        one.step()
    many.run(30)
    many.run(0)
    many.run(7)
    assert many.get_state().optimizer.count.item() == 37
    assert [x.tolist() for x in qb.tree.flatten(one.get_state())[0]] == [
        x.tolist() for x in qb.tree.flatten(many.get_state())[0]
    ]


@pytest.mark.parametrize("steps", [-1, 2.0, True, "3", None])
def test_run_refuses_what_is_no_number_of_steps(steps: Any) -> None:
    with pytest.raises(DtypeError, match=r"Trainer\.run: steps"):
        make(line, START, SGD(), X, Y).run(steps)


# --- trees, dtypes, constants -----------------------------------------------------------------------------------------


def test_the_structure_of_the_parameters_is_kept() -> None:
    params = {"z": [(qb.ones((2, 3)), None)], "a": {"mask": qb.array([True, False, True])}}

    def loss(p: Any) -> Any:
        return qb.sum(qb.where(p["a"]["mask"], p["z"][0][0], 0.0) ** 2)

    trainer = make(loss, params, SGD(0.25))
    trainer.step()
    new = trainer.params
    assert list(new) == ["z", "a"] and type(new["z"][0]) is tuple and new["z"][0][1] is None
    assert new["z"][0][0].tolist() == [[0.5, 1.0, 0.5]] * 2
    assert new["a"]["mask"].tolist() == [True, False, True]


def test_float32_stays_float32() -> None:
    x = qb.array([1.0, 2.0], dtype=qb.float32)
    trainer = make(lambda w, x: qb.sum((w * x - 1.0) ** 2), qb.array(0.5, dtype=qb.float32), Adam(0.1), x)
    trainer.run(3)
    assert trainer.params.dtype is qb.float32 and trainer.loss().dtype is qb.float32
    assert [x.dtype for x in trainer.get_state().optimizer] == [qb.float64] * 3


def test_numbers_are_parameters_and_constants() -> None:
    powers = []

    def loss(w: Any, x: Any, power: Any) -> Any:
        powers.append(power)
        return qb.sum((w * x) ** power)

    trainer = make(loss, 2, SGD(0.5), np.array([1.0]), 2)
    assert powers == [2] and type(powers[0]) is int
    trainer.step()
    assert trainer.params.item() == 0.0 and trainer.params.dtype is qb.float64


def test_nothing_of_the_caller_changes_and_nothing_is_shared() -> None:
    w, x = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    params = {"w": w}
    trainer = make(lambda p, x: qb.sum((p["w"] - x) ** 2), params, SGD(0.1), x)
    trainer.step()
    assert w.tolist() == [1.0, 2.0] and params["w"] is w
    expected = trainer.params["w"].numpy()
    w[:] = 100.0
    x[:] = 100.0
    first = trainer.params["w"]
    np.testing.assert_array_equal(first.numpy(), expected)
    trainer.step()
    np.testing.assert_allclose(trainer.params["w"].numpy(), expected - 0.2 * (expected - [3.0, 4.0]))
    np.testing.assert_array_equal(first.numpy(), expected)


def test_an_optimiser_of_ones_own() -> None:
    class Momentum:
        def init(self, params: Any) -> Any:
            return {"velocity": qb.tree.map(lambda p: p * 0.0, params), "steps": 0}

        def update(self, params: Any, grads: Any, state: Any) -> Any:
            velocity = qb.tree.map(lambda v, g: 0.9 * v + g, state["velocity"], grads)
            new = qb.tree.map(lambda p, v: p - 0.1 * v, params, velocity)
            return new, {"velocity": velocity, "steps": state["steps"] + 1}

    trainer = make(lambda w: 0.5 * w * w, 1.0, Momentum())
    w, v = 1.0, 0.0
    for _ in range(10):
        v = 0.9 * v + w
        w = w - 0.1 * v
    trainer.run(10)
    assert trainer.params.item() == pytest.approx(w, rel=1e-13)
    assert trainer.get_state().optimizer["steps"].item() == 10


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_are_replaced_per_step() -> None:
    opt, rng = Adam(0.1), np.random.default_rng(0)
    batches = [(rng.normal(size=4), rng.normal(size=4)) for _ in range(6)]
    trainer = make(
        lambda w, a, scale, b: qb.mean((w * a * scale - b) ** 2),
        0.5, opt, qb.zeros(4), qb.array(2.0), qb.zeros(4), batch_argnums=(2, -3),
    )  # fmt: skip
    w, state = qb.array(0.5), opt.init(0.5)
    for a, b in batches:
        trainer.step(b, qb.array(a))  # in the order of batch_argnums
        g = qb.grad(lambda w, a, b: qb.mean((w * a * 2.0 - b) ** 2))(w, a, b)
        w, state = opt.update(w, g, state)
    assert trainer.params.item() == pytest.approx(w.item(), rel=1e-12)


def test_a_batch_may_be_a_tree_and_a_number() -> None:
    def loss(w: Any, batch: Any, scale: Any) -> Any:
        return qb.sum((w * batch["x"] - batch["y"][0]) ** 2) * scale

    batch = {"y": [np.ones(3)], "x": np.ones(3)}
    trainer = make(loss, 0.0, SGD(0.1), batch, 1.0, batch_argnums=(0, 1))
    trainer.step({"x": np.full(3, 2.0), "y": (qb.ones(3),)}, 0.5)
    assert trainer.loss().item() == 1.5
    assert trainer.params.item() == pytest.approx(0.1 * 2 * 2 * 3 * 0.5)
    trainer.step({"x": np.full(3, 2.0), "y": [qb.ones(3)]}, 0)
    assert trainer.loss().item() == 0.0


def test_a_step_without_a_batch_uses_the_last_one_and_at_first_the_data_of_the_start() -> None:
    rng = np.random.default_rng(3)
    batches = [rng.normal(size=(4, 2)) for _ in range(3)]
    loss = lambda w, x, scale: qb.mean((x @ w - scale) ** 2)
    start = qb.array([0.5, -0.25])
    for batched in ((0,), (0, 1)):
        given = [(x, 2.0)[: len(batched)] for x in batches]
        plain, told = (
            make(loss, start, SGD(0.1), qb.array(batches[0]), 2.0, batch_argnums=batched) for _ in range(2)
        )
        for batch in given:
            if batch is not given[0]:
                plain.step(*batch)
                told.step(*batch)
            plain.step()
            told.step(*batch)
            assert plain.params.tolist() == told.params.tolist()
            assert plain.loss().item() == told.loss().item()


def test_run_goes_on_with_the_last_batch() -> None:
    trainer = make(lambda w, x: (w - x) ** 2, 0.0, SGD(0.5), 1.0, batch_argnums=0)
    trainer.run(1)
    assert trainer.params.item() == 1.0
    trainer.step(5.0)
    trainer.run(1)
    assert trainer.params.item() == 5.0


@pytest.mark.parametrize(
    ("batch", "error", "names"),
    [
        ((np.zeros(3),), ShapeError, ["takes 2 batch arguments (data 0, data 1)", "got 1"]),
        ((np.zeros(3), np.zeros(4)), ShapeError, ["data 1", "float64[4]", "float64[3]"]),
        ((np.zeros(3, np.float32), np.zeros(3)), DtypeError, ["data 0", "float32[3]", "astype"]),
        ((np.zeros(3), "no"), DtypeError, ["data 1", "str"]),
        ((np.zeros(3), None), DtypeError, ["data 1", "NoneType"]),
        ((np.zeros(3), {"x": np.zeros(3)}), DtypeError, ["data 1", "dict"]),
    ],
)
def test_batches_that_do_not_fit_change_nothing(batch: Any, error: Any, names: list[str]) -> None:
    trainer = make(
        lambda w, x, y: qb.sum((w * x - y) ** 2), 1.0, SGD(0.1), np.ones(3), np.ones(3), batch_argnums=(0, 1)
    )
    trainer.step(np.full(3, 2.0), np.ones(3))
    before = trainer.get_state()
    with pytest.raises(error) as caught:
        trainer.step(*batch)
    for name in names:
        assert name in str(caught.value)
    assert trainer.params.item() == before.params.item()
    trainer.run(1)  # with the batch from before: had the first array been replaced, the loss would be 3
    assert trainer.loss().item() == pytest.approx(3 * (2 * before.params.item() - 1) ** 2)


def test_a_batch_where_there_are_none_is_refused() -> None:
    trainer = make(line, START, SGD(), X, Y)
    with pytest.raises(ShapeError, match="no batch_argnums"):
        trainer.step(X)
    assert trainer.params["slope"].item() == 0.0


# --- saving, interrupts, threads --------------------------------------------------------------------------------------


def test_a_state_can_be_saved_and_restored() -> None:
    trainer = make(line, START, Adam(0.1), X, Y)
    trainer.run(5)
    saved = trainer.get_state()
    assert type(saved) is TrainerState
    trainer.run(5)
    there = trainer.params["slope"].item()
    trainer.run(9)
    trainer.set_state(qb.tree.map(lambda x: np.array(x), saved))  # as it comes from a file
    assert trainer.params["slope"].item() == saved.params["slope"].item()
    other = make(line, START, Adam(0.1), X, Y)
    other.set_state(saved)
    trainer.run(5)
    other.run(5)
    assert trainer.params["slope"].item() == other.params["slope"].item() == there


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        (lambda s: s.params, QuablaError, ["set_state"]),
        (lambda s: s._replace(params={"slope": 1.0}), QuablaError, ["set_state", "params"]),
        (
            lambda s: s._replace(params={"slope": np.zeros(2), "offset": 0.0}),
            ShapeError,
            ["params/slope", "float64[2]"],
        ),
        (
            lambda s: s._replace(params={"slope": np.float32(0), "offset": 0.0}),
            DtypeError,
            ["params/slope", "float32"],
        ),
        (lambda s: s._replace(optimizer=s.optimizer._replace(count=None)), QuablaError, ["optimizer/count"]),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, error: Any, names: list[str]) -> None:
    trainer = make(line, START, Adam(0.1), X, Y)
    trainer.run(3)
    before = trainer.get_state()
    with pytest.raises(error) as caught:
        trainer.set_state(change(before))
    for name in names:
        assert name in str(caught.value)
    after = trainer.get_state()
    assert [x.tolist() for x in qb.tree.flatten(after)[0]] == [x.tolist() for x in qb.tree.flatten(before)[0]]


def test_an_interrupt_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(line, START, Adam(0.1), X, Y)
    inner = trainer._plan.run
    calls = []

    def interrupted(steps: int) -> None:
        inner(steps)
        calls.append(steps)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        trainer, "_plan", type("Plan", (), {"run": staticmethod(interrupted), "state": trainer._plan.state})
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.run(10**9)
    monkeypatch.undo()
    assert trainer.get_state().optimizer.count.item() == sum(calls)
    trainer.step()
    assert trainer.get_state().optimizer.count.item() == sum(calls) + 1


def test_threads_that_step_together_lose_no_step() -> None:
    trainer = make(lambda w, x: qb.sum((w - x) ** 2), 0.0, Adam(0.01), 1.0, batch_argnums=0)

    def work() -> None:
        for _ in range(50):
            trainer.step(1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alone = make(lambda w, x: qb.sum((w - x) ** 2), 0.0, Adam(0.01), 1.0)
    alone.run(200)
    assert trainer.get_state().optimizer.count.item() == 200
    assert trainer.params.item() == alone.params.item()


# --- refusals ---------------------------------------------------------------------------------------------------------


def wrong_update(returned: Any) -> Any:
    class Wrong:
        def init(self, params: Any) -> Any:
            return ()

        def update(self, params: Any, grads: Any, state: Any) -> Any:
            return returned(params)

    return Wrong()


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ((lambda w: w * qb.ones(3), 1.0, SGD()), ShapeError, ["scalar", "float64[3]"]),
        ((lambda w: (w, w), 1.0, SGD()), DtypeError, ["scalar", "tuple"]),
        ((lambda w: w > 0.0, 1.0, SGD()), DtypeError, ["floating", "bool"]),
        ((lambda w: qb.array(1.0), {"mask": qb.array([True])}, SGD()), DtypeError, ["no floating leaf"]),
        ((lambda w: qb.array(1.0), None, SGD()), DtypeError, ["no floating leaf"]),
        ((lambda w: w, "w", SGD()), DtypeError, ["str"]),
        ((lambda w: w, 1.0, Adam), DtypeError, ["class Adam", "Adam()"]),
        (
            (lambda w: w, 1.0, 0.01),
            DtypeError,
            ["optimizer", "float", "Trainer(loss, params, optimizer, *data)"],
        ),
        ((1.0, lambda w: w, SGD()), DtypeError, ["loss must be a function", "float"]),
        ((lambda w, x: w, 1.0, SGD(), object()), DtypeError, ["object"]),
        ((lambda w, x: w + x, 1.0, SGD(), np.float32(1.0)), DtypeError, ["float32", "float64"]),
        ((lambda w: w, 1.0, wrong_update(lambda p: p)), DtypeError, ["Wrong.update", "pair"]),
        (
            (lambda w: w, 1.0, wrong_update(lambda p: (qb.ones(2), ()))),
            ShapeError,
            ["Wrong.update", "params", "float64[2]"],
        ),
        ((lambda w: w, 1.0, wrong_update(lambda p: (p > 0.0, ()))), DtypeError, ["Wrong.update", "bool[]"]),
        ((lambda w: w, 1.0, wrong_update(lambda p: ([p], ()))), DtypeError, ["Wrong.update", "list"]),
        ((lambda w: w, 1.0, wrong_update(lambda p: (p, (p,)))), QuablaError, ["Wrong.update"]),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, error: Any, names: list[str]) -> None:
    with pytest.raises(error) as caught:
        make(*arguments)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("argnums", "error"),
    [(2, ShapeError), (-3, ShapeError), ((0, -2), ShapeError), ("0", DtypeError), ((0.0,), DtypeError)],
)
def test_positions_of_batches_are_checked(argnums: Any, error: Any) -> None:
    with pytest.raises(error, match="batch_argnums"):
        make(line, START, SGD(), X, Y, batch_argnums=argnums)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"^Trainer: there is no device 'abacus'"):
        Trainer(line, START, SGD(), X, Y, device="abacus")


def test_a_trainer_is_not_made_inside_a_trace() -> None:
    with pytest.raises(TracerError, match="Trainer"):
        qb.jit(lambda w: make(lambda w: w * w, w, SGD()).params)(qb.array(1.0))

    def closes_over(x: Any) -> Any:
        return make(lambda w: w * x, 1.0, SGD()).params

    with pytest.raises(TracerError, match="Trainer"):
        qb.jit(closes_over)(qb.array(1.0))


def test_control_flow_on_a_traced_value_is_refused() -> None:
    with pytest.raises(TracerError):
        make(lambda w: w if w > 0.0 else -w, 1.0, SGD())


def test_a_trainer_describes_itself() -> None:
    trainer = make(line, START, SGD(), X, Y)
    assert repr(trainer) == "<Trainer of line on 'reference', 2 parameters>"
    assert trainer.program.input_names[:4] == ("params/offset", "params/slope", "x", "y")
