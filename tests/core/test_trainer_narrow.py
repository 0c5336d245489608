"""`Trainer` on a device that computes float64 in float32: what an optimiser adds to float32 parameters is float32."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.backends.capabilities import BackendCapabilities
from quabla.backends.hookspec import hookimpl
from quabla.backends.loading import Source, installed
from quabla.backends.reference import ReferenceBackend
from quabla.backends.registry import override
from quabla.errors import DtypeError, ShapeError
from quabla.optim import SGD, Adam, Trainer

WARNING = "computes float64 in float32"


class Single(ReferenceBackend):
    """A device that says it has no float64, though it computes in it."""

    platform = "single"

    @property
    def capabilities(self) -> BackendCapabilities:
        return super().capabilities.model_copy(update={"native_float64": False})


class Plugin:
    @hookimpl
    def quabla_backend(self) -> Any:
        return Single()


@pytest.fixture(autouse=True)
def single() -> Iterator[None]:
    with override([*installed(), Source("single", Plugin, "test", "0")]):
        yield


X = np.linspace(-1.0, 1.0, 11)


def line(w: Any, x: Any, y: Any) -> Any:
    """The squared error of a line."""
    return qb.mean((w["slope"] * x + w["offset"] - y) ** 2)


def start(slope: Any, offset: Any) -> Any:
    return {"slope": qb.array(0.25, dtype=slope), "offset": qb.array(0.0, dtype=offset)}


def make(opt: Any = None, dtype: Any = qb.float32, device: str = "single") -> Trainer:
    data = (qb.array(X, dtype=dtype), qb.array(3.0 * X + 0.5, dtype=dtype))
    return Trainer(line, start(dtype, dtype), opt or Adam(0.05), *data, device=device)


def dtypes(state: Any) -> list[str]:
    return [x.dtype.name for x in qb.tree.flatten(state)[0]]


def same(a: Any, b: Any) -> bool:
    return [x.numpy().tobytes() for x in qb.tree.flatten(a)[0]] == [
        x.numpy().tobytes() for x in qb.tree.flatten(b)[0]
    ]


@pytest.mark.parametrize("opt", [Adam(0.05), Adam(qb.array(0.05), b1=0.5), SGD(0.05)])
def test_float32_parameters_have_float32_moments_and_nobody_is_warned(opt: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make(opt)
        trainer.run(30)
        trainer.set_state(trainer.get_state())
        trainer.step()
    assert set(dtypes(trainer.get_state())) == {"float32"}
    assert all(a.dtype is qb.float32 for a in (*trainer.program.in_avals, *trainer.program.out_avals))
    wide = make(opt, device="reference")
    wide.run(31)
    for name, value in trainer.params.items():
        assert value.item() == pytest.approx(wide.params[name].item(), rel=1e-4)


def test_float64_parameters_are_what_the_warning_is_about() -> None:
    with pytest.warns(UserWarning, match=WARNING) as seen:
        trainer = make(dtype=qb.float64)
    assert len(seen) == 1
    trainer.step()
    assert set(dtypes(trainer.get_state())) == {"float64"}


def test_one_float64_parameter_is_enough() -> None:
    loss = lambda w: (w["slope"] - 1.0) ** 2 + (w["offset"] - 1.0).astype("float32") ** 2
    with pytest.warns(UserWarning, match=WARNING):
        trainer = Trainer(loss, start(qb.float32, qb.float64), Adam(0.05), device="single")
    trainer.step()
    assert dtypes(trainer.params) == ["float64", "float32"]
    assert set(dtypes(trainer.get_state().optimizer)) == {"float64"}


def test_float64_data_are_still_warned_of() -> None:
    loss = lambda w, x: (w - qb.mean(x).astype("float32")) ** 2
    with pytest.warns(UserWarning, match=WARNING):
        trainer = Trainer(loss, qb.array(0.0, dtype=qb.float32), Adam(), qb.array(X), device="single")
    assert set(dtypes(trainer.get_state())) == {"float32"}


def test_an_optimiser_of_ones_own_sees_the_types_that_it_gave() -> None:
    seen: list[str] = []

    class Momentum:
        def init(self, params: Any) -> Any:
            return {
                "v": qb.tree.map(lambda p: qb.zeros(p.shape), params),
                "n": qb.array(0.0),
                "on": qb.array(True),
            }

        def update(self, params: Any, grads: Any, state: Any) -> Any:
            seen.extend(dtypes(state))
            v = qb.tree.map(lambda v, g: 0.5 * v + g.astype("float64"), state["v"], grads)
            new = qb.tree.map(lambda p, v: p - (0.1 * v).astype("float32"), params, v)
            return new, {"v": v, "n": state["n"] + 1.0, "on": state["on"]}

    trainer = make(Momentum())
    assert seen == ["float64", "bool", "float64", "float64"]
    trainer.run(3)
    state = trainer.get_state().optimizer
    assert dtypes(state) == ["float32", "bool", "float32", "float32"] and state["n"].item() == 3.0


@pytest.mark.parametrize(("here", "there"), [("single", "reference"), ("reference", "single")])
def test_a_state_moves_to_another_device(here: str, there: str) -> None:
    a, b = make(device=here), make(device=there)
    a.run(5)
    saved = pickle.loads(pickle.dumps(a.get_state()))
    assert same(saved, a.get_state())
    before = dtypes(b.get_state())
    b.set_state(saved)
    assert dtypes(b.get_state()) == before
    for x, y in zip(*(qb.tree.flatten(s)[0] for s in (saved, b.get_state())), strict=True):
        narrow = min(x.numpy(), y.numpy(), key=lambda v: v.dtype.itemsize).dtype  # rounded once, or exact
        np.testing.assert_array_equal(x.numpy().astype(narrow), y.numpy().astype(narrow))


@pytest.mark.parametrize("device", ["single", "reference"])
def test_a_state_of_an_earlier_version_is_gone_on_from(device: str) -> None:
    # That had moments in the dtype of the parameters, and the count in float64.
    trainer = make(device=device)
    trainer.run(5)
    state = trainer.get_state()
    narrow = lambda moments: qb.tree.map(lambda m: m.astype("float32"), moments)
    adam = state.optimizer
    old = adam._replace(
        count=adam.count.astype("float64"), first=narrow(adam.first), second=narrow(adam.second)
    )
    trainer.set_state(state._replace(optimizer=old))
    trainer.step()
    assert dtypes(trainer.get_state()) == dtypes(state) and trainer.get_state().optimizer.count.item() == 6.0


@pytest.mark.parametrize("device", ["single", "reference"])
@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        (
            lambda s: s._replace(params=start(qb.float32, qb.float64)),
            DtypeError,
            ["params/offset", "float64"],
        ),
        (
            lambda s: s._replace(optimizer=s.optimizer._replace(count=qb.array(True))),
            DtypeError,
            ["optimizer/count", "bool"],
        ),
        (
            lambda s: s._replace(optimizer=s.optimizer._replace(first={"slope": qb.ones(2), "offset": 0.0})),
            ShapeError,
            ["optimizer/first/slope", "[2]"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_still(device: str, change: Any, error: Any, names: list[str]) -> None:
    trainer = make(device=device)
    trainer.run(2)
    before = trainer.get_state()
    with pytest.raises(error) as caught:
        trainer.set_state(change(before))
    assert all(name in str(caught.value) for name in names)
    assert same(trainer.get_state(), before)


def test_the_state_of_a_device_without_float64_is_taken_by_update() -> None:
    opt, trainer = Adam(0.05), make()
    trainer.run(3)
    w, state = trainer.get_state()
    new, after = opt.update(w, w, state)
    assert dtypes((new, after)) == dtypes((w, state)) and after.count.item() == 4.0


def test_nans_are_found_there_too() -> None:
    with qb.debug_nans():
        trainer = Trainer(
            lambda w: qb.sum(qb.sqrt(w)), qb.array([-1.0], dtype=qb.float32), Adam(), device="single"
        )
        with pytest.raises(FloatingPointError, match="sqrt"):
            trainer.step()
