"""How many loss terms a batch of a risk has."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batches import IGNORED, targets
from .calling import own_loss

if TYPE_CHECKING:
    from .risk import Risk


def terms(risk: Risk, batch: Any) -> float:
    """Sum over mean of a model's own loss that takes `reduction=`; else the targets of the batch."""
    if risk.loss is None and isinstance(risk.model, nn.Module):
        own = own_loss(risk.model)
        if own is not None and "reduction" in inspect.signature(own).parameters:
            with torch.no_grad(), risk.context():
                total, mean = (risk.runner.cutting(partial(own, batch, reduction=r)) for r in ("sum", "mean"))
            counted = float(total / mean) if float(mean) else math.nan
            return counted if math.isfinite(counted) else targets(batch, shifted=False)
    return targets(batch, shifted=risk.shifted)


def shifts(risk: Risk) -> tuple[int, list[Tensor], bool] | None:
    """Whether the loss leaves out the first label of every row, as that of the next token does: then the number of a
    batch, two equal losses of it, and whether attention was replaced."""
    for i, batch in enumerate(risk.batches):
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
            return None
        other = _other_first(labels)
        if other is not None:
            with torch.no_grad(), risk.context() as attention:
                pair = [risk.run(risk.params, {**batch, "labels": t})[0] for t in (labels, other)]
            equal = isinstance(pair[0], Tensor) and torch.equal(*pair)
            return (i, pair, attention.calls > 0) if equal else None
    return None


def _other_first(labels: Tensor) -> Tensor | None:
    """The labels with another in the first place of every row that has one; None where nothing is to be learnt.

    Another label of the same batch: -100 is one that not every loss knows (segmentation leaves out 255).
    """
    first, rest = labels[..., 0], labels[..., 1:]
    used = labels[labels != IGNORED].unique()
    if len(used) < 2 or not bool((first != IGNORED).any()) or not bool((rest != IGNORED).any()):
        return None
    other = labels.clone()
    other[..., 0] = torch.where(first == IGNORED, first, torch.where(first == used[0], used[1], used[0]))
    return other
