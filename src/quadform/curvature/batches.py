"""Batches of a risk: what counts as one, how many targets it holds, and losses of torch on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InputError

IGNORED = -100  # the label torch's cross-entropy leaves out


def batches_of(data: Any) -> list[Any]:
    """One batch or an iterable of batches, as a list."""
    if isinstance(data, Tensor | Mapping) or (
        isinstance(data, tuple) and all(isinstance(t, Tensor | Mapping) for t in data)
    ):
        data = [data]
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise InputError(f"data is one batch or an iterable of batches; got {type(data).__name__}.")
    batches = [dict(b) if isinstance(b, Mapping) else b for b in data]
    if not batches:
        raise InputError("data holds no batches.")
    return batches


def target_of(batch: Any) -> Any:
    """What the model's output is compared with: y of `(x, y)`, or the labels of a mapping."""
    named = ("labels", "target", "targets", "start_positions", "tokens", "input_ids")
    if isinstance(batch, Mapping):
        return next((batch[name] for name in named if name in batch), next(iter(batch.values()), None))
    return batch[min(1, len(batch) - 1)] if isinstance(batch, tuple | list) else batch


def targets(batch: Any, shifted: bool) -> float:
    """How many targets a batch holds: labels that count (all but the first of a row if `shifted`), or entries of y."""
    target = target_of(batch)
    if not isinstance(target, Tensor) or not target.dim():
        return 1.0
    if target.is_floating_point():
        return float(target.numel())
    return float(((target[..., 1:] if shifted else target) != IGNORED).sum())


@dataclass(frozen=True)
class OnTarget:
    """A loss of torch, called with the output (its `logits` where it has them) and the target of the batch."""

    loss: Callable[..., Tensor]

    def __call__(self, output: Any, batch: Any) -> Tensor:
        return self.loss(getattr(output, "logits", output), target_of(batch))


def of_batch(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`loss(output, batch)`; torch's own (`nn.CrossEntropyLoss()`, `F.mse_loss`) compare the output with the target."""
    function = loss.func if isinstance(loss, partial) else loss
    if isinstance(loss, nn.modules.loss._Loss):
        reduction = loss.reduction
    elif getattr(function, "__module__", None) == F.__name__:
        reduction = loss.keywords.get("reduction", "mean") if isinstance(loss, partial) else "mean"
    else:
        return loss
    if reduction not in ("mean", "batchmean"):
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(f"a loss is the mean over a batch; got {name} with reduction={reduction!r}. Use 'mean'.")
    return OnTarget(loss)
