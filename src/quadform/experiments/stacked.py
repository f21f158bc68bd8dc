"""Nets of one shape side by side: one pass gives the loss and the gradient of each, at its own weights and batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from ..corpora.datasets import Batch


class Stack:
    """`params` are (runs, ...): those of `models`, `copies` times over. `half` computes in bfloat16, keeps float32.

    The loss is the cross-entropy of the labels; a batch has the runs as its first axis.
    """

    def __init__(self, models: Sequence[nn.Module], copies: int = 1, *, half: bool = False) -> None:
        self.model, self.half = models[0], half
        repeated = {n: p.repeat(copies, *(1,) * (p.dim() - 1)) for n, p in stack_module_state(list(models))[0].items()}
        self.params = {n: p.detach().clone() for n, p in repeated.items()}
        self.each = vmap(grad_and_value(self._loss))

    @property
    def device(self) -> torch.device:
        return next(iter(self.params.values())).device

    def _loss(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            logits = functional_call(self.model, dict(params), (batch["tokens"],))
            return nn.functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten())

    def gradients(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Gradient and loss of every run at its own batch, (runs, ...) and (runs,)."""
        gradients, losses = self.each(self.params, batch)
        return gradients, losses.detach()

    def losses(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The loss of every run at one batch for all, (runs,)."""
        with torch.no_grad():
            return vmap(self._loss, in_dims=(0, None))(dict(params or self.params), batch)


def drawn_together(batches: Sequence[Batch], copies: int, device: torch.device) -> Batch:
    """Batches of several seeds as one, (copies * seeds, ...)."""
    stacked = {key: torch.stack([b[key] for b in batches]) for key in batches[0]}
    return {key: t.repeat(copies, *(1,) * (t.dim() - 1)).to(device) for key, t in stacked.items()}
