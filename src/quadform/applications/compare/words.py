"""What `quadform compare` counts and says: sizes, and a verdict from the limits below alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.parameters import count_parameters
from ...core.record import Estimate
from ...nn.transformer import Transformer
from ...report.compare import COSINE

if TYPE_CHECKING:
    from .answer import Compare

#: Tokens have collapsed when their mean cosine after the last block is above this.
COLLAPSED = COSINE[1]
#: A gradient is lost when its norm at the input is this many times smaller or larger than at the last block.
LOST = 100.0


def size(model: Transformer, batch: dict[str, Tensor]) -> dict[str, Estimate]:
    """Parameters, FLOPs a token of one forward pass (matrix products, counted), bytes of one training step in MB.

    Memory: weights, gradients and both moments of Adam, and the tensors autograd keeps for the backward pass.
    """
    from torch.utils.flop_counter import FlopCounterMode

    config: Any = model.config
    tokens = next(iter(batch.values())).numel()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]), counter:
        model.loss(batch)
    kept: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = model.loss(batch)
    activations = sum(n for where, n in kept.items() if where not in own)
    del loss
    parameters = count_parameters(config)
    weights = 4 * sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "parameters": Estimate(parameters),
        "flops": Estimate(counter.get_total_flops() / tokens, note="one forward pass, matrix products"),
        "memory": Estimate((weights + activations) / 1e6, note="weights, gradients, moments, kept activations"),
    }


def verdict(answer: Compare) -> list[str]:
    """Lowest loss (all within two standard errors of it), collapsed tokens, lost gradients, lowest ceiling."""
    said = []
    losses = {c: e for c in answer.cells if (e := answer.get(*c, "loss")) is not None and math.isfinite(e.value)}
    if losses:
        best = min(losses, key=lambda c: losses[c].value)
        ties = [c for c in losses if c != best and _within(losses[best], losses[c])]
        beside = f"; within its error: {_names(ties)}" if ties else ""
        said.append(f"lowest loss in equal time: {_names([best])} ({losses[best].value:.3g}){beside}")
    collapsed = [c for c in answer.cells if (e := answer.get(*c, "cosine")) is not None and e.value > COLLAPSED]
    if collapsed:
        said.append(f"tokens collapse at initialisation (cosine above {COLLAPSED:g}): {_names(collapsed)}")
    lost = [
        c for c in answer.cells if (e := answer.get(*c, "gradient")) is not None and not 1 / LOST <= e.value <= LOST
    ]
    if lost:
        said.append(f"gradients change more than {LOST:g}x between input and last block: {_names(lost)}")
    ceilings = {c: e.value for c in answer.cells if (e := answer.get(*c, "lr_ceiling")) is not None}
    above = [c for c, v in ceilings.items() if v < answer.record.inputs["lr"]]
    if above:
        said.append(f"the learning rate {answer.record.inputs['lr']:g} is above the first ceiling of: {_names(above)}")
    if losses and not collapsed and not lost:
        said.append("no design collapses or loses its gradient at these depths")
    return said


def _within(best: Estimate, other: Estimate) -> bool:
    return other.value - best.value <= 2 * math.hypot(best.stderr or 0.0, other.stderr or 0.0)


def _names(cells: list[tuple[str, int]]) -> str:
    return ", ".join(f"{design} x {depth}" for design, depth in cells)
