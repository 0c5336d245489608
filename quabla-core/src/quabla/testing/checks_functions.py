"""Functions of users under every transform, and the training of small models, on a device and on the reference."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import quabla.optim as optim
from quabla import tree
from quabla.dtypes import dtype, float32, float64
from quabla.ir.program import Program
from quabla.ops.elementwise import tanh
from quabla.ops.matmul import matmul
from quabla.ops.reduce import mean
from quabla.optim.trainer import Trainer
from quabla.testing.checks import Check
from quabla.testing.functions import LANES, TRANSFORMS, Function, functions
from quabla.testing.numeric import assert_close
from quabla.testing.table import run_reference, tensors
from quabla.testing.target import TOLERANCES, Target
from quabla.transforms.jit import jit

__all__ = ["function_checks", "optimizers", "training_checks"]

FLOATS = (float64, float32)
STEPS = 10


def function_checks() -> Iterator[Check]:
    """The checks of all functions."""
    for f in functions():
        for name in TRANSFORMS:
            if name not in f.without:
                for d in FLOATS:
                    yield Check("function", f.name, "", str(d), name, partial(_function, f, name, d))


def _function(f: Function, name: str, d: dtype, target: Target) -> None:
    make, letters = TRANSFORMS[name]
    rng = np.random.default_rng(zlib.crc32(f.name.encode()))
    arrays = [rng.normal(size=(LANES, 4) if c.isupper() else (4,)).astype(d.numpy) for c in letters]
    given = tensors(arrays)
    # A function of its own, so that nothing is found that an earlier run compiled.
    transformed = make(lambda x, w: f.fun(x, w))
    program: Program = jit(transformed, device="reference").lower(*given).program.graph
    missing = target.lacks(program)
    compiled = jit(transformed, device=target.device)
    if missing:
        target.refuses(program, missing, lambda: compiled(*given))
    expected = run_reference(program, arrays)
    # The second call takes the short way past all that the first one did.
    for call in ("first", "second"):
        got = [t.numpy() for t in tree.flatten(compiled(*given))[0]]
        _close(f"{name} of {f.name} on {target.device}, {call} call", target, got, expected)


def _close(what: str, target: Target, got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    eps, allowed = target.eps(expected), TOLERANCES["program"]
    assert_close(what, got, expected, allowed.each * eps, allowed.largest * eps)


# --- training ---------------------------------------------------------------------------------------------------------


def optimizers() -> dict[str, Any]:
    """An optimiser of every class of `quabla.optim`, by name."""
    found = {}
    for name in optim.__all__:
        cls = getattr(optim, name)
        if (
            isinstance(cls, type)
            and cls is not optim.Optimizer
            and hasattr(cls, "init")
            and hasattr(cls, "update")
        ):
            found[name] = cls(learning_rate=0.05)
    return found


class _Averaged:
    """An optimiser of somebody else's: it moves by the mean of the last two gradients."""

    def init(self, params: Any) -> Any:
        return tree.map(lambda p: p * 0.0, params)

    def update(self, params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        return tree.map(lambda p, g, before: p - 0.05 * (g + before), params, grads, state), grads


def _loss(params: Any, x: Any, y: Any) -> Any:
    hidden = tanh(matmul(x, params["w"]) + params["b"])
    return mean((matmul(hidden, params["v"]) - y) ** 2)


def training_checks() -> Iterator[Check]:
    """A model trained with every optimiser, step by step, in one go, and on batches that change."""
    for name, optimizer in {**optimizers(), "an optimiser of the user": _Averaged()}.items():
        for d in FLOATS:
            for way in ("step", "run", "batches"):
                test = partial(_training, optimizer, d, way)
                yield Check("training", name, "", str(d), way, test)


def _training(optimizer: Any, d: dtype, way: str, target: Target) -> None:
    trainer = _trainer(optimizer, d, way, "reference")
    missing = target.lacks(trainer.program)
    if missing:
        target.refuses(trainer.program, missing, lambda: _trainer(optimizer, d, way, target.device))
    other = _trainer(optimizer, d, way, target.device)
    results = [_trained(t, d, way) for t in (other, trainer)]
    _close(f"{way} with {type(optimizer).__name__} on {target.device}", target, *results)


def _data(d: dtype, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return tensors([rng.normal(size=(6, 2)).astype(d.numpy), rng.normal(size=(6, 1)).astype(d.numpy)])


def _trainer(optimizer: Any, d: dtype, way: str, device: str) -> Trainer:
    rng = np.random.default_rng(5)
    names, shapes = ("w", "b", "v"), ((2, 5), (5,), (5, 1))
    params = dict(zip(names, tensors([rng.normal(size=s).astype(d.numpy) for s in shapes]), strict=True))
    batches = (0, 1) if way == "batches" else ()
    return Trainer(_loss, params, optimizer, *_data(d, 0), device=device, batch_argnums=batches)


def _trained(trainer: Trainer, d: dtype, way: str) -> list[np.ndarray]:
    """Parameters, optimiser's state and loss after some steps, going back to a saved state on the way."""
    start = trainer.get_state()
    trainer.run(2)
    trainer.set_state(start)
    if way == "run":
        trainer.run(STEPS)
    for k in range(0 if way == "run" else STEPS):
        trainer.step(*(_data(d, k) if way == "batches" else ()))
    trainer.step()  # where batches come in, on the last of them
    return [t.numpy() for t in tree.flatten((trainer.get_state(), trainer.loss()))[0]]
