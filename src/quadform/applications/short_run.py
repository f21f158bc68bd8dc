"""A short training run that stops at given steps, is measured there, and goes on: for before/after comparisons.

Step i takes batch i of the data's train split, whatever was measured in between; a run that was killed is trained again
from its last stop and ends with the same weights (bit for bit on a CPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from ..core.errors import InputError
from ..core.interrupts import gently
from ..core.record import Provenance
from ..core.work import TimeUp
from ..corpora.datasets import Dataset
from ..nn.transformer import Transformer
from ..train.checkpoint import load_checkpoint, restore, save_checkpoint
from ..train.config import TrainConfig
from ..train.optimiser import Optimiser
from .machine import busy_seconds, guard_kept
from .step_size.rules import Stepper, adam, read_optimizer


class ShortRun:
    """AdamW with the schedule and clipping of `config`. `broken` says at which step a loss was not finite."""

    def __init__(self, model: Transformer, data: Dataset | None, config: TrainConfig, folder: Path | None) -> None:
        guard_kept(config.steps, f"the course of {config.steps:,} training steps")
        self.model, self.data, self.config, self.folder = model, data, config, folder
        self.optimiser = Optimiser(model, config)
        self.step, self.broken = 0, ""
        self.speeds: list[float] = []  # tokens a second of work, step by step of this process
        self.losses: list[float] = []
        found = load_checkpoint(folder) if folder is not None else None
        if found is not None:
            state, tensors = found
            restore(model, self.optimiser, tensors)
            self.step, self.broken, self.losses = int(state["step"]), str(state["broken"]), list(state["losses"])

    def to(self, step: int, check: Callable[[], None] = lambda: None) -> None:
        """Train up to a step; `check` may raise after any step. Ctrl-C once: the step is finished and saved first."""
        if step <= self.step or self.broken:
            return
        if self.data is None:
            raise InputError("training to a later step needs a data set.")
        device = self.model.embed.W_E.device
        stream = self.data.batches("train", self.config.batch_size, self.config.seed, self.step)
        self.model.train()
        try:
            with gently() as asked:
                while self.step < step and not self.broken and not asked.once:
                    batch = {k: v.to(device) for k, v in next(stream).items()}
                    began = busy_seconds(device)
                    self._update(batch)
                    self.speeds.append(next(iter(batch.values())).numel() / (busy_seconds(device) - began))
                    check()
        except TimeUp:
            self.save()
            raise
        finally:
            self.model.eval()
            self.model.zero_grad(set_to_none=True)
        self.save()
        if asked.once:
            raise KeyboardInterrupt

    def _update(self, batch: dict[str, torch.Tensor]) -> None:
        c = self.config
        loss = self.model.loss(batch)
        loss.backward()
        trained = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        value = float(loss.detach())
        if not (math.isfinite(value) and math.isfinite(float(norm))):
            self.broken = f"diverged at training step {self.step + 1}: the loss or its gradient is not finite"
            return
        if c.clip:
            torch.nn.utils.clip_grads_with_norm_(trained, c.clip, norm)
        self.optimiser.step(c.lr * c.schedule.factor(self.step, c.steps))
        self.step += 1
        self.losses.append(value)

    def save(self) -> None:
        if self.folder is not None:
            state = {"step": self.step, "broken": self.broken, "losses": self.losses}
            made = Provenance.collect(seed=self.config.seed, dtype=self.model.embed.W_E.dtype)
            save_checkpoint(self.folder, self.model, self.optimiser, state, made)

    def stepper(self) -> Stepper:
        """Its optimiser as the ceiling sees it: the state it has, or that of the first step; decay left out."""
        names = tuple(n for n, p in self.model.named_parameters() if p.requires_grad)
        if not self.step:
            return Stepper(adam(self.config.betas[0], "AdamW"), names, beta2=self.config.betas[1], eps=self.config.eps)
        return read_optimizer(self.optimiser.parts[0], self.model)
