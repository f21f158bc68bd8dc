"""Whether a loss is a cross-entropy of the network's output, and the weight of each of its terms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def label_weights(F: Tensor, curve: Callable[[Tensor], Tensor]) -> Tensor | None:
    """w_n of a token-wise cross-entropy, read off its Hessian w_n (diag p - p p^T); None for other losses.

    `curve(d)` is (d2l/dF2) d. Read in the column of the class whose p (1 - p) is largest; a token whose prediction is
    certain has no weight left to read and no score that needs one.
    """
    p = F.detach().softmax(-1)
    unit = torch.zeros_like(p).scatter_(-1, (p * (1 - p)).argmax(-1, keepdim=True), 1)
    column, constant = (curve(d).detach() for d in (unit, torch.ones_like(p)))
    own = (p * unit).sum(-1, keepdim=True)
    room = own * (1 - own)
    weight = torch.where(room > 0, (column * unit).sum(-1, keepdim=True) / room, 0).clamp_min(0)
    off = max(float((column - weight * p * (unit - own)).abs().max()), float(constant.abs().max()))
    if not off <= 1e-3 * float(column.abs().max()):
        return None
    return weight.squeeze(-1)
