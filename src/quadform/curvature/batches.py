"""Batches of a risk: what counts as one, and how many targets it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

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


def targets(batch: Any, shifted: bool) -> float:
    """How many targets a batch holds: labels that count (all but the first of a row if `shifted`), or entries of y."""
    named = ("labels", "target", "targets", "start_positions", "tokens", "input_ids")
    if isinstance(batch, Mapping):
        target = next((batch[name] for name in named if name in batch), next(iter(batch.values()), None))
    else:
        target = batch[min(1, len(batch) - 1)] if isinstance(batch, tuple | list) else batch
    if not isinstance(target, Tensor) or not target.dim():
        return 1.0
    if target.is_floating_point():
        return float(target.numel())
    return float(((target[..., 1:] if shifted else target) != IGNORED).sum())
