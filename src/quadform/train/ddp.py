"""Several processes, one run: what `torchrun --nproc-per-node N quadform train ...` needs, and nothing when N is 1.

A step takes the batches i world + rank of every process; the gradient is that of the mean loss over the targets of all
of them, so N processes with `accumulate` a make the same steps as one process with `accumulate` N a, to rounding.
Process 0 writes, validates and decides; the others follow its numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from quadform.distributed import Group


def parallel(loss_of: Callable[..., Tensor], model: nn.Module, group: Group) -> Callable[..., Tensor]:
    """A loss function whose backward pass averages the gradients of all processes."""
    if group.world == 1:
        return loss_of
    from torch.nn.parallel import DistributedDataParallel

    device = next(model.parameters()).device
    return DistributedDataParallel(
        _LossModule(model, loss_of), device_ids=[device.index] if device.type == "cuda" else None
    )


def hold(loss_of: Callable[..., Tensor], group: Group, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Keep gradients in this process until the last of the accumulated batches."""
    return contextlib.nullcontext() if last or group.world == 1 else loss_of.no_sync()  # type: ignore[attr-defined]  # of DistributedDataParallel


class _LossModule(nn.Module):
    """A loss as the forward pass of a module, which is what DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, loss_of: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss_of = model, loss_of

    def forward(self, *words: Any, **more: Any) -> Tensor:
        return self.loss_of(*words, **more)
