"""The measurement behind a monitor: a risk over what the optimizer trains, and the eigenvectors followed so far."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ...answers.step_size import FLOOR
from ...core.errors import InputError, UnknownName
from ...core.operator import Operator
from ...core.space import layer_of
from ...curvature.calling import Loss, bare, loss_on
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...curvature.settings import measured
from ...estimate.vectors import multiply, probes
from ..step_size.measure import is_plain
from ..step_size.rules import Stepper, floor_share, read_optimizer
from .heads import observed, qk_norms, stacks_of
from .reading import Reading
from .tracking import Pair, follow, search


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's and others'."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


class Measuring:
    """Everything that is measured of one training run; it reads weights and optimizer state and writes neither."""

    def __init__(self, model: nn.Module, optimizer: Any, batches: Any, loss: Loss | None, traces: int) -> None:
        self.model, self.optimizer, self.loss, self.traces = bare(model), unwrapped(optimizer), loss, traces
        self.note, self.pairs = "", dict[str, Pair]()
        stepper = self._stepper()
        self.rule = "" if stepper is None else stepper.rule.name
        self.risk = self._risk(batches)
        self.places = self._places()
        self.watched = self.risk.batches[0]
        with measured(self.model, device=self.risk.device):
            self.stacks = stacks_of(self.model, self._forward)

    # --- the point ---------------------------------------------------------------------------------------------------
    def _trained(self) -> dict[str, Tensor]:
        held = {id(p) for g in self.optimizer.param_groups for p in g["params"]}
        return {n: p for n, p in self.model.named_parameters() if id(p) in held and p.requires_grad}

    def _places(self) -> dict[str, int]:
        return {n: p.data_ptr() for n, p in self._trained().items()}

    def _risk(self, batches: Any) -> Risk:
        names = list(self._trained())
        if not names:
            raise InputError("the optimizer trains no parameter of this model; give the one that trains it.")
        return Risk(self.model, self.loss, batches, names, quiet=True)

    def _stepper(self) -> Stepper | None:
        """The optimizer as it stands; None where no ceiling is known for it."""
        try:
            return read_optimizer(self.optimizer, self.model)
        except UnknownName as error:
            self.note = str(error)
            return None

    def _current(self) -> None:
        """Weights that were unfrozen, frozen or moved make a new risk; vectors over other weights are dropped."""
        places = self._places()
        if places == self.places:
            return
        if list(places) != list(self.places):
            self.pairs.clear()
        self.risk, self.places = self._risk(self.risk.batches), places

    def _forward(self) -> Any:
        return loss_on(self.model, self.watched, self.loss)

    # --- the measurement ---------------------------------------------------------------------------------------------
    def read(self, step: int, full: bool) -> Reading:
        """One reading; `seconds` is for the caller to fill in."""
        self._current()
        risk, stepper = self.risk, self._stepper()
        with torch.no_grad():
            loss = float(risk.value())
        if not torch.isfinite(torch.tensor(loss)):
            raise InputError(f"the loss on the held batches is {loss}")
        H = hessian(risk)
        top = self._pair("H", H, full)
        lr, lam, ceiling = self._rate(), None, None
        if stepper is not None:
            lam, ceiling = self._ceiling(dataclasses.replace(stepper, names=tuple(risk.params)), H, top, full)
        with measured(self.model, device=risk.device):
            logits, entropy = observed(self.model, self.stacks, self._forward)
        qk = qk_norms(self.model, risk.space.views, risk.params)
        shares = self._shares(H, step) if self.traces else {}
        estimate = None if lam is None else lam.estimate
        return Reading(step, 0.0, full, loss, lr, top.estimate, estimate, ceiling, logits, entropy, qk, shares)

    def _rate(self) -> float | None:
        """The largest learning rate of the next step."""
        return max(float(g["lr"]) for g in self.optimizer.param_groups)

    def _pair(self, name: str, A: Operator, full: bool) -> Pair:
        known = self.pairs.get(name)
        start = None if known is None else A.domain.unflatten(known.v.to(A.dtype))
        self.pairs[name] = search(A, start) if full or known is None else follow(A, known.v)
        return self.pairs[name]

    def _ceiling(self, stepper: Stepper, H: Operator, top: Pair, full: bool) -> tuple[Pair, float | None]:
        """lambda_max of the optimizer's operator and the ceiling; none where it curves down, or where the top direction
        lies in entries Adam has seen no gradient for."""
        lam, unseen = top, 0.0
        if not is_plain(stepper):
            P = stepper.preconditioner(self.risk.gradient(), self.risk.params)
            A = stepper.operator(H, P)
            lam = self._pair("P^-1 H", A, full)
            if stepper.rule.adaptive:
                unseen = floor_share(P, stepper.eps, A.domain.unflatten(lam.v.to(A.dtype)))
        return lam, stepper.rule.factor / lam.theta if lam.theta > 0 and unseen <= FLOOR else None

    def _shares(self, H: Operator, step: int) -> dict[str, float]:
        """Shares of tr H by layer: the mean of z . H z over `traces` vectors of random signs; none where tr H <= 0."""
        Z = probes(H, 0, f"monitor/{step}", range(self.traces), "rademacher")
        inner = H.domain.unflatten((Z * multiply(H, Z)).T)
        sums: dict[str, float] = {}
        for n, t in inner.items():
            layer = layer_of(n) or n.partition(".")[0]
            sums[layer] = sums.get(layer, 0.0) + float(t.sum())
        total = sum(sums.values())
        return {n: s / total for n, s in sums.items()} if total > 0 else {}
