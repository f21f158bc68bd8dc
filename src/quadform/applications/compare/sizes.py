"""What `quadform compare` counts: parameters, arithmetic and memory of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.parameters import count_parameters
from ...core.record import Estimate
from ...nn.transformer import Transformer


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
