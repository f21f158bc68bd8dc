"""Several processes, one run: what `torchrun --nproc-per-node N quadform train ...` needs, and nothing when N is 1.

A step takes the batches i world + rank of every process; the gradient is that of the mean loss over the targets of all
of them, so N processes with `accumulate` a make the same steps as one process with `accumulate` N a, to rounding.
Process 0 writes, validates and decides; the others follow its numbers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank_and_world() -> tuple[int, int]:
    """(number of this process, number of processes) as torchrun tells them; (0, 1) for a single process."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Group:
    """The processes of one run; use as a context: it begins and ends the process group unless one is there already."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.owned = device, False
        self.rank, self.world = rank_and_world()

    def __enter__(self) -> Group:
        if self.world > 1 and not dist.is_initialized():
            cuda = self.device.type == "cuda"
            dist.init_process_group("nccl" if cuda else "gloo", device_id=self.device if cuda else None)
            self.owned = True
        return self

    def __exit__(self, *error: object) -> None:
        if self.owned:
            dist.destroy_process_group()

    @property
    def writes(self) -> bool:
        """Whether this process owns the files."""
        return self.rank == 0

    def parallel(self, loss_of: Callable[..., Tensor], model: nn.Module) -> Callable[..., Tensor]:
        """A loss function whose backward pass averages the gradients of all processes."""
        if self.world == 1:
            return loss_of
        from torch.nn.parallel import DistributedDataParallel

        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(_LossModule(model, loss_of), device_ids=ids)

    def hold(self, loss_of: Callable[..., Tensor], last: bool) -> contextlib.AbstractContextManager[Any]:
        """Keep gradients in this process until the last of the accumulated batches."""
        return contextlib.nullcontext() if last or self.world == 1 else loss_of.no_sync()  # type: ignore[attr-defined]

    def sum(self, x: Tensor) -> Tensor:
        """The sum of `x` over the processes."""
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def first(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of process 0, in every process; the others give as many of any value."""
        if self.world == 1:
            return list(numbers)
        told = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.broadcast(told, 0)
        return told.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device))) if self.world > 1 else flag

    def wait(self) -> None:
        """Go on when all processes are here."""
        self.any(False)


class _LossModule(nn.Module):
    """A loss as the forward pass of a module, which is what DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, loss_of: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss_of = model, loss_of

    def forward(self, *words: Any, **more: Any) -> Tensor:
        return self.loss_of(*words, **more)
