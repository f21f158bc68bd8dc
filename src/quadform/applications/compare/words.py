"""What `quadform compare` counts and says: sizes, and a verdict from the limits below alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.parameters import count_parameters
from ...core.record import Estimate
from ...nn.transformer import Transformer
from ...report.compare import COSINE, LONG, Outcome, outcome
from ...train.schedule import Schedule

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
    """Lowest loss where there is a winner, collapsed tokens, lost gradients, lowest ceiling."""
    said = []
    found = outcome(answer.record)
    if found is not None:
        said.append(_ranked(found))
    collapsed = [c for c in answer.cells if (e := answer.get(*c, "cosine")) is not None and e.value > COLLAPSED]
    if collapsed:
        said.append(f"tokens collapse at initialisation (cosine above {COLLAPSED:g}): {_names(collapsed)}")
    lost = [
        c for c in answer.cells if (e := answer.get(*c, "gradient")) is not None and not 1 / LOST <= e.value <= LOST
    ]
    if lost:
        said.append(f"gradients change more than {LOST:g}x between input and last block: {_names(lost)}")
    said += _rates(answer)
    if found is not None and not collapsed and not lost:
        said.append("no design collapses or loses its gradient at these depths")
    return said


def _ranked(found: Outcome) -> str:
    """The winner, or why there is none."""
    lowest = f"{_names([found.best])} ({found.loss.value:.3g})"
    if found.kind == "short":
        return (
            f"no winner: the shortest training had {found.steps} steps; losses are ranked from {LONG} steps on. Give a"
            " larger budget, or fewer or smaller models"
        )
    if found.kind == "tie":
        return f"no winner: within two standard errors of the lowest loss, {lowest}: {_names(list(found.ties))}"
    if found.kind == "alone":
        return f"loss after training: {lowest}; there is nothing to compare it with"
    return f"lowest loss in equal time, beyond two standard errors of the held-out loss (one seed): {lowest}"


def _rates(answer: Compare) -> list[str]:
    """The rate of the first step against the ceiling there; the peak by itself, since it comes at a later step."""
    peak = float(answer.record.inputs["lr"])
    at_once: list[tuple[str, int]] = []
    later: list[tuple[str, int]] = []
    for c in answer.cells:
        e, steps = answer.get(*c, "lr_ceiling"), answer.get(*c, "steps")
        if e is None or e.value >= peak:
            continue
        first = peak * (1.0 if steps is None else Schedule().factor(0, int(steps.value)))
        (at_once if first > e.value else later).append(c)
    said = (
        [f"the rate of the first step is above the ceiling at initialisation of: {_names(at_once)}"] if at_once else []
    )
    if later:
        said.append(
            f"the peak rate {peak:g}, which warm-up reaches later, is above the ceiling at initialisation of:"
            f" {_names(later)}"
        )
    return said


def _names(cells: list[tuple[str, int]]) -> str:
    return ", ".join(f"{design} x {depth}" for design, depth in cells)
