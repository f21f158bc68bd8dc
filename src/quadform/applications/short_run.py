"""A short training run that stops at given steps, is measured there, and goes on: for before/after comparisons.

Step i takes batch i of the data's train split, whatever was measured in between; a run that was killed is trained again
from its last stop and ends with the same weights (bit for bit on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from ..core.errors import InputError
from ..core.interrupts import gently
from ..core.record import Provenance
from ..core.work import TimeUp
from ..corpora.datasets import Batch, Dataset
from ..nn.transformer import Transformer
from ..train.checkpoint import load_checkpoint, restore, save_checkpoint
from ..train.config import TrainConfig
from ..train.optimizer import Optimizer
from ..train.score import to_device
from ..train.steps import Loop
from ..train.watch import Diverged
from .machine import busy_seconds, busy_since, guard_kept
from .step_size.rules import Stepper, adam, read_optimizer


class ShortRun(Loop[Batch]):
    """AdamW with the schedule and clipping of `config`. `broken` says at which step a loss was not finite."""

    def __init__(self, model: Transformer, data: Dataset | None, config: TrainConfig, folder: Path | None) -> None:
        guard_kept(config.steps, f"the course of {config.steps:,} training steps")
        super().__init__(model, config, Optimizer(model, config))
        self.data, self.folder, self.broken = data, folder, ""
        self.speeds: list[float] = []  # tokens a second of work, step by step of this process
        self.losses: list[float] = []
        found = load_checkpoint(folder) if folder is not None else None
        if found is not None:
            state, tensors = found
            restore(model, self.optimizer, tensors)
            self.step, self.broken, self.losses = int(state["step"]), str(state["broken"]), list(state["losses"])

    def to(self, step: int, check: Callable[[], None] = lambda: None) -> None:
        """Train up to a step; `check` may raise after any step. Ctrl-C once: the step is finished and saved first."""
        if step <= self.step or self.broken:
            return
        if self.data is None:
            raise InputError("training to a later step needs a data set.")
        batches = self.data.batches("train", self.config.batch_size, self.config.seed, self.step)
        self.check = check
        try:
            with gently() as self.asked:
                self.run((to_device(batch, self.device) for batch in batches), step)
        except Diverged as error:
            self.broken = str(error)
        except TimeUp:
            self.save()
            raise
        finally:
            self.model.eval()
        self.save()
        if self.asked.once:
            raise KeyboardInterrupt

    def update(self, batch: Batch) -> float:
        began = busy_seconds(self.device)
        try:
            return super().update(batch)
        finally:
            self.speeds.append(next(iter(batch.values())).numel() / busy_since(began, self.device))

    def backward(self, batch: Batch) -> Tensor:
        loss = self.model.loss(batch)
        loss.backward()
        return loss.detach()

    def judge(self, loss: Tensor, norm: Tensor, batch: Batch) -> None:
        super().judge(loss, norm, batch)
        self.losses.append(float(loss))

    def after(self, batch: Batch, lr: float) -> bool:
        self.check()
        return self.asked.once

    def save(self) -> None:
        if self.folder is not None:
            state = {"step": self.step, "broken": self.broken, "losses": self.losses}
            made = Provenance.collect(seed=self.config.seed, dtype=self.model.embed.W_E.dtype)
            save_checkpoint(self.folder, self.model, self.optimizer, state, made)

    def stepper(self) -> Stepper:
        """Its optimizer as the ceiling sees it: the state it has, or that of the first step; decay left out."""
        names = tuple(n for n, p in self.model.named_parameters() if p.requires_grad)
        if not self.step:
            return Stepper(adam(self.config.betas[0], "AdamW"), names, beta2=self.config.betas[1], eps=self.config.eps)
        return read_optimizer(self.optimizer.parts[0], self.model)
