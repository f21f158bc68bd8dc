"""The preconditioners of a question: how each is made for one model, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ... import preconditioners as pre
from ...core.errors import InputError, QuadformError, TooLarge
from ...core.memory import free_bytes, in_words
from ...core.operator import Operator
from ...core.space import Vector
from ...core.structured import Diagonal
from ...curvature.operators import gauss_newton, hessian
from ...curvature.risk import Risk
from ..step_size.chosen import identity_of, opened
from ..step_size.measure import each_gradient
from ..step_size.question import StepSizeQuestion
from ..step_size.rules import Stepper
from ..subject import Subject
from .question import PrecondQuestion

#: P that have an epsilon of their own; the others may be singular and are damped.
OWN = ("none", "adam", "adafactor")
#: The most products that exact blocks may take, one for each parameter.
MOST = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Metric:
    """S = P^-1/2 of one preconditioner, what it is made of, and the damping that was added to P."""

    S: Operator
    notes: tuple[str, ...]
    damping: float = 0.0


class Methods:
    """What is shared by the preconditioners of one question: the loss, its gradient, the optimizer of the run."""

    def __init__(self, asked: PrecondQuestion, subject: Subject, risk: Risk) -> None:
        self.asked, self.subject, self.risk = asked, subject, risk

    def products(self, name: str) -> int:
        """Products it takes to make P, as a rule."""
        batches, fit = len(self.risk.batches), self.asked.fit
        own = {"none": 0, "diagonal": fit, "kfac": fit + 2, "ekfac": fit + 4, "psgd": fit}
        return self.risk.space.size if name == "blocks" else own.get(name, batches)

    def bytes(self, name: str) -> float:
        """Bytes of P, its eigenvectors and its root."""
        shapes, each = [shape for _, shape in self.risk.space], self.risk.dtype.itemsize
        if name == "blocks":
            return 3.0 * each * sum(torch.Size(s).numel() ** 2 for s in shapes)
        if name in ("shampoo", "soap", "kfac", "ekfac", "psgd"):
            return 3.0 * each * sum(n * n for s in shapes for n in s if n <= 8192) + each * self.risk.space.size
        return 2.0 * each * self.risk.space.size

    def require(self, name: str) -> None:
        """Refuse what would not end, or would not fit."""
        if name == "blocks" and self.risk.space.size > MOST:
            raise TooLarge(
                f"exact blocks take one product a parameter, {self.risk.space.size:,} here; at most {MOST:,} are made."
                " Choose fewer parameters."
            )
        need, free = self.bytes(name), free_bytes(self.risk.device)
        if need > free / 2:
            raise TooLarge(f"its factors need {in_words(need)}; {in_words(free)} are free.")

    def make(self, name: str, gradient: Vector) -> Metric:
        """P^-1/2 of one preconditioner at this point."""
        self.require(name)
        P, notes = self._metric(name, gradient)
        damping = self.asked.damping * pre.mean_eigenvalue(P) if name not in OWN else 0.0
        return Metric(P.sqrt_inverse(damping=damping), notes, damping)

    def _metric(self, name: str, gradient: Vector) -> tuple[Operator, tuple[str, ...]]:
        risk, asked = self.risk, self.asked
        if name == "none":
            return Diagonal({n: torch.ones_like(t) for n, t in risk.params.items()}, risk.space), ()
        if name == "adam" and (stepper := adam_of(asked, self.subject)) is not None:
            return self._adam(stepper, gradient), (stepper.source,)
        made: Mapping[str, Any] = {
            "diagonal": lambda: pre.diagonal(gauss_newton(risk), asked.fit, seed=asked.seed),
            "adam": lambda: pre.adam_after(each_gradient(risk)),
            "adafactor": lambda: pre.adafactor_after(each_gradient(risk)),
            "shampoo": lambda: pre.shampoo(each_gradient(risk)),
            "soap": lambda: pre.soap(each_gradient(risk)),
            "kfac": lambda: pre.kfac(risk, seed=asked.seed, products=asked.fit),
            "ekfac": lambda: pre.ekfac(risk, seed=asked.seed, products=asked.fit),
            "psgd": lambda: pre.psgd(hessian(risk), steps=asked.fit, seed=asked.seed),
            "blocks": lambda: pre.block_diagonal(gauss_newton(risk)),
        }
        P = made[name]()
        return P, P.notes

    def _adam(self, stepper: Stepper, gradient: Vector) -> Operator:
        """P of the run's next step, over its learning rates where groups differ."""
        missing = [n for n in self.risk.space.names if n not in stepper.names]
        if missing:
            raise InputError(f"the optimizer does not train `{missing[0]}`; choose `params` that it trains.")
        P = stepper.preconditioner(gradient, self.risk.params)
        return Diagonal({n: P[n] / stepper.rates.get(n, 1.0) for n in self.risk.space.names}, self.risk.space)


def as_lr(asked: PrecondQuestion) -> StepSizeQuestion:
    """The question about step sizes that finds the same optimizer."""
    shared: dict[str, Any] = {
        "params": asked.params,
        "include_frozen": asked.include_frozen,
        "train_mode": asked.train_mode,
    }
    return StepSizeQuestion(**shared, seed=asked.seed, state=asked.optimizer_state)


def adam_of(asked: PrecondQuestion, subject: Subject) -> Stepper | None:
    """Adam with the state of the file that was named, or of the run; None where there is none."""
    try:
        stepper = opened(as_lr(asked), subject)[1]
    except QuadformError:
        if asked.optimizer_state is not None:
            raise
        return None
    return stepper if stepper.rule.adaptive and stepper.second else None


def adam_identity(asked: PrecondQuestion, subject: Subject) -> dict[str, Any]:
    """The state that Adam's P is read from, in plain values."""
    try:
        return identity_of(as_lr(asked), subject)
    except QuadformError:
        if asked.optimizer_state is not None:
            raise
        return {}
