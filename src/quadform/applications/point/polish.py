"""Polishing: a copy of a model is moved until its gradient vanishes.

Saddle-free Newton with a damping that follows the quadratic model, while the loss falls by more than its rounding. Then
the same steps with next to no damping, each kept while |g| falls: the loss no longer tells the last of them apart.
Where all eigenvalues are computed, `move` takes the exact step from them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...answers.point import POLISHED
from ...core.errors import InputError
from ...curvature.risk import Risk
from ...optim import SaddleFreeNewton
from ..subject import Subject

#: Steps of one piece of work.
STEPS = 10
#: Most products of one try of a step; of the last steps, which are to be exact, five times as many.
PRODUCTS = 60
#: Damping of the last steps.
LAST = 1e-10
#: The loss does not tell a fall below this share of it from rounding.
ROUNDING = 1e-12


class Polish:
    """A copy of the subject's model, moved step by step. `state` is all that a resumed run needs."""

    def __init__(
        self, subject: Subject, globs: list[str], *, include_frozen: bool, train_mode: bool, goal: float = POLISHED
    ) -> None:
        if not isinstance(subject.model, nn.Module):
            raise InputError(
                "polish moves a copy of a module; this model is a function with its tensors. Give a module, or move"
                " the tensors before."
            )
        self.subject, self.globs = subject, globs
        self.model: nn.Module = copy.deepcopy(subject.model).train(train_mode)
        if include_frozen:
            self.model.requires_grad_(True)
        self.damping, self.last, self.done, self.taken, self.goal = 1e-3, False, False, 0, goal

    def _risk(self) -> Risk:
        model = self.model
        return Risk(model, self.subject.loss, self.subject.batches, self.globs, quiet=True, train_mode=model.training)

    def slope(self) -> float:
        """|g| where the copy stands."""
        risk = self._risk()
        g = risk.gradient()
        return float(risk.space.inner(g, g).sqrt())

    def advance(self, steps: int) -> dict[str, Any]:
        """So many steps more, or fewer where the gradient vanishes or no step helps."""
        for _ in range(steps):
            if self.done or self.slope() <= self.goal:
                self.done = True
                break
            self.taken += 1
            if self.last:
                self._newton()
            else:
                self._descend()
        return self.state

    def _optimizer(self, damping: float, **options: Any) -> SaddleFreeNewton:
        globs: Any = self.globs
        return SaddleFreeNewton(self.model, self.subject.loss, params=globs, damping=damping, **options)

    def _descend(self) -> None:
        optimizer = self._optimizer(self.damping, tol=1e-2, max_products=PRODUCTS)
        before = optimizer.step(self.subject.batches)
        step = optimizer.last
        self.damping = max(float(optimizer.param_groups[0]["damping"]), LAST)
        self.last = step is None or not step.kept or before - step.after <= ROUNDING * abs(before)

    def _newton(self) -> None:
        kept, slope = {n: p.detach().clone() for n, p in self.model.named_parameters()}, self.slope()
        self._optimizer(LAST, tol=1e-6, max_products=5 * PRODUCTS, adapt=False).step(self.subject.batches)
        if not self.slope() < slope:
            self._put(kept)
            self.done = True

    def move(self, step: dict[str, Tensor]) -> bool:
        """One step, kept if |g| falls; whether it was."""
        kept, slope = {n: p.detach().clone() for n, p in self.model.named_parameters()}, self.slope()
        self._put({n: t + step[n].to(t) if n in step else t for n, t in kept.items()})
        if fell := self.slope() < slope:
            self.taken += 1
        else:
            self._put(kept)
        return fell

    # --- the state --------------------------------------------------------------------------------------------------
    @property
    def state(self) -> dict[str, Any]:
        weights = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        told = {"damping": self.damping, "last": self.last, "done": self.done, "taken": self.taken}
        return {"weights": weights, **told}

    def load(self, state: dict[str, Any]) -> None:
        self._put(state["weights"])
        for name in ("damping", "last", "done", "taken"):
            setattr(self, name, state[name])

    def _put(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                p.copy_(weights[n])
