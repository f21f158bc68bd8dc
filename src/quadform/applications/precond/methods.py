"""The preconditioners of a question: how each is made for one model, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ... import preconditioners as pre
from ...core.errors import InputError, TooLarge
from ...core.memory import free_bytes, in_words
from ...core.operator import Operator
from ...core.space import Vector
from ...core.structured import Diagonal
from ...curvature.operators import gauss_newton, hessian
from ...curvature.risk import Risk
from ..step_size.fresh import each_gradient
from ..step_size.rules import Stepper
from ..subject import Subject
from .question import SAVED, PrecondQuestion
from .saved import saved_metric, stepper_of

#: P that have an epsilon of their own, and are tried without a damping too; the others may be singular.
OWN = ("adam", "adafactor")
#: The most products that exact blocks may take, one for each parameter.
MOST = 4096


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
                f"exact blocks take one product per parameter, {self.risk.space.size:,} here; the limit is {MOST:,}."
                " Choose fewer parameters."
            )
        need, free = self.bytes(name), free_bytes(self.risk.device)
        if need > free / 2:
            raise TooLarge(f"its factors need {in_words(need)}; {in_words(free)} are free.")

    def grid(self, name: str) -> tuple[float, ...]:
        """The dampings that are tried, as shares of the mean eigenvalue of P."""
        if name == "none":
            return (0.0,)
        return tuple(dict.fromkeys((0.0, *self.asked.damping))) if name in OWN else self.asked.damping

    def make(self, name: str, gradient: Vector) -> tuple[Operator, tuple[str, ...]]:
        """P of one preconditioner at this point, and what it is made of."""
        self.require(name)
        risk, asked = self.risk, self.asked
        if name == "none":
            return Diagonal({n: torch.ones_like(t) for n, t in risk.params.items()}, risk.space), ()
        if name == "adam" and (stepper := stepper_of(asked, self.subject)) is not None:
            return self._adam(stepper, gradient), (stepper.source,)
        if name in SAVED and (saved := saved_metric(name, asked, self.subject, risk)) is not None:
            return saved, saved.notes
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
