"""A ceiling from an eigenvalue, for whoever has measured one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ...answers.step_size import FLOOR
from ...core.number import Estimate, Side
from ...core.operator import Operator
from ...core.progress import Report
from ...curvature.operators import hessian
from ...curvature.outline import Outline
from ...curvature.risk import Risk
from ...estimate.lanczos import ROWS, eigenpairs
from ...nn.transformer import Transformer
from ..machine import least_seconds, vector_seconds
from .rules import Stepper, floor_share


def ceiling_of(factor: float, lam: Estimate) -> Estimate:
    """factor / lambda with the error of lambda; an upper bound where lambda is a lower one; no ceiling below 0."""
    if lam.value <= 0:
        return Estimate(math.inf, note="no direction curves up: curvature sets no ceiling", converged=lam.converged)
    value = factor / lam.value
    if lam.kind == "exact":
        return Estimate(value, matvecs=lam.matvecs, note=lam.note)
    side: Side | None = None if lam.side is None else "upper" if lam.side == "lower" else "lower"
    return dataclasses.replace(lam, value=value, error=value / lam.value * (lam.error or 0.0), side=side)


UNSEEN = "no AdamW ceiling: Adam has seen no gradient along its top direction yet (P = eps)"
#: Batches whose gradients Adam is taken to have seen where it has no state yet.
SEEN = 8


def seen_first(stepper: Stepper, model: Transformer, batches: Iterable[dict[str, Tensor]]) -> Stepper:
    """An optimizer that has not stepped, as it is after the first batches of training, the weights held.

    One gradient a batch and nothing else: a `Risk` for each, which evaluates its loss four times before, takes longer.
    """
    device, training = model.embed.W_E.device, model.training
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}

    def gradient(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.enable_grad():
            loss = model.loss({k: v.to(device) for k, v in batch.items()})
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}

    model.eval()
    try:
        return stepper.after(map(gradient, itertools.islice(batches, SEEN)))
    finally:
        model.train(training)


def adamw_ceiling(
    H: Operator,
    risk: Risk,
    stepper: Stepper,
    products: int,
    *,
    tol: float = 1e-3,
    progress: Report,
    resume: Path | None,
) -> Estimate | None:
    """The ceiling of AdamW; None where its top direction lies in entries Adam has seen no gradient for (P = eps)."""
    P = stepper.preconditioner(risk.gradient(), risk.params)
    pairs = eigenpairs(stepper.operator(H, P), top=1, max_products=products, tol=tol, progress=progress, resume=resume)
    if floor_share(P, stepper.eps, {n: t[0] for n, t in pairs.vectors.items()}) > FLOOR:
        return None
    return ceiling_of(stepper.rule.factor, pairs.top[0])


def seconds_of_product(risk: Risk, vector_work: float = 0.75, scale: float = 1.0) -> float:
    """Time of one Hessian-vector product, the first left out, and of the work with vectors that comes with it.

    `vector_work`: by that of orthogonalising to half a full basis; 0.75 in a search, as measured. `scale`: how many
    times longer a product takes on the batches that are meant than on these.
    """
    vectors = vector_seconds(risk.space.size, risk.dtype, risk.device, ROWS // 2)
    if isinstance(risk, Outline):
        return risk.seconds() + vector_work * vectors
    H = hessian(risk)
    v = {n: t[None] for n, t in risk.params.items()}
    H.apply(v)
    return scale * least_seconds(lambda: H.apply(v), risk.device) + vector_work * vectors
