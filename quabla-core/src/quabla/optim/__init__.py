"""Optimisers, and the training loop that stays on the device.

An optimiser is a frozen set of hyperparameters with two pure functions: `init` makes a state for parameters, `update`
maps parameters, gradients and state to new parameters and a new state. `Trainer` compiles loss, gradient and update
into one step whose parameters, moments and data stay on the device.
"""

from __future__ import annotations

from quabla.optim.adam import Adam, AdamState
from quabla.optim.optimizer import Optimizer
from quabla.optim.sgd import SGD
from quabla.optim.trainer import Trainer, TrainerState

__all__ = ["Adam", "AdamState", "Optimizer", "SGD", "Trainer", "TrainerState"]
