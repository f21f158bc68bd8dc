"""The training loop: forward, backward, clip, update, step after step.

`train`, the short runs of comparisons and the runs of experiments are kinds of it: each says in a few hooks how a loss
is made, who judges a step, and what is done between steps.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from quadform.nn.transformer import Transformer

from .config import TrainConfig
from .optimizer import Optimizer
from .watch import Diverged

Food = TypeVar("Food")


class Loop(ABC, Generic[Food]):
    """Steps of a model. Hooks: `backward` (must be given), `judge`, `before`, `after`."""

    def __init__(self, model: Transformer, config: TrainConfig, optimizer: Optimizer) -> None:
        self.model, self.config, self.optimizer = model, config, optimizer
        self.device = next(model.parameters()).device
        self.step = 0

    # --- hooks --------------------------------------------------------------------------------------------------------
    @abstractmethod
    def backward(self, food: Food) -> Tensor:
        """The loss of the batches of a step; its gradient is added to the parameters."""

    def judge(self, loss: Tensor, norm: Tensor, food: Food) -> Tensor | None:
        """Look at loss and gradient norm before the weights change, and raise `Diverged` to leave them as they are.

        A tensor that is given back is 1 where the device itself is to leave them.
        """
        if not (math.isfinite(float(loss)) and math.isfinite(float(norm))):
            at = self.step + 1
            raise Diverged(f"diverged at training step {at}: the loss or its gradient is not finite", at, "")
        return None

    def batches(self, food: Food) -> list[Any]:
        """The batches of a step, for an optimizer that differentiates their loss itself."""
        return [food]

    def before(self) -> None:
        """Done before each step."""

    def after(self, food: Food, lr: float) -> bool:
        """Done after each step; true ends the loop."""
        return False

    # --- the loop -----------------------------------------------------------------------------------------------------
    def run(self, stream: Generator[Food, Any, Any], to: int) -> None:
        """Train up to step `to`, in training mode, unless a hook ends it."""
        training = self.model.training
        self.model.train()
        try:
            with contextlib.closing(stream):
                while self.step < to:
                    self.before()
                    food = next(stream)
                    if self.after(food, self.update(food)):
                        break
        finally:
            self.model.train(training)
            self.model.zero_grad(set_to_none=True)

    def update(self, food: Food) -> float:
        """One step of the optimizer; returns its learning rate."""
        lr = self.config.lr * self.config.schedule.factor(self.step, self.config.steps)
        self.descend(food, lr)
        self.step += 1
        return lr

    def descend(self, food: Food, lr: float | None) -> Tensor:
        """The loss before the step that is made here; without a rate, at the one the optimizer has."""
        loss = self.backward(food)
        trained = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        skip = self.judge(loss, norm, food)
        if self.config.clip:
            torch.nn.utils.clip_grads_with_norm_(trained, self.config.clip, norm)
        self.optimizer.step(lr, skip=skip, batches=self.batches(food))
        return loss
