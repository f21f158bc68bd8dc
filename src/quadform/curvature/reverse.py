"""Reverse passes alone: what remains where forward derivatives are missing, or see what training does not.

J v = d/du (J^T u) . v        two reverse passes in place of one forward pass
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.space import Vector
from .retained import gradients
from .risk import Risk


def through_output(
    risk: Risk, batch: Any, split: str | None, v: Vector, rows: Sequence[str], curve: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    """J_rows^T curve(F, J v) at the weights of the risk, F the output of the module `split`."""
    with torch.enable_grad():
        at = {n: t.detach().requires_grad_() for n, t in risk.params.items()}
        F = risk.output(at, batch, split)
        dF = torch.zeros_like(F)
        if F.requires_grad:
            u = torch.zeros_like(F, requires_grad=True)
            back = torch.autograd.grad(F, [at[n] for n in v], u, create_graph=True, allow_unused=True)
            used = [(g, t) for g, t in zip(back, v.values(), strict=True) if g is not None]
            if used:
                outs, weights = zip(*used, strict=True)
                (dF,) = torch.autograd.grad(outs, u, list(weights), retain_graph=True)
        return gradients(F, {n: at[n] for n in rows}, curve(F.detach(), dF.detach()))


def output_curvature(risk: Risk, batch: Any, split: str | None, F: Tensor, dF: Tensor) -> Tensor:
    """(d2l/dF2) dF for everything behind the split, by two reverse passes."""
    with torch.enable_grad():
        shift = torch.zeros_like(F, requires_grad=True)
        value = risk.run(risk.params, batch, split, shift)[0]
        (g,) = torch.autograd.grad(value, shift, create_graph=True)
        return gradients(g, {"": shift}, dF)[""]
