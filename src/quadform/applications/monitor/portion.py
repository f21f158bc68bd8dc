"""A part of the held batches, and what its eigenvalues say of all of them.

    lambda_max(all)  ~  c lambda_max(part),      c = lambda_max(all) / lambda_max(part) at the last full search

The error of c is how much it has changed from one full search to the next; after the first it is 1 - c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError, pass_on_memory
from ...core.number import Estimate
from ...curvature.risk import Risk
from .tracking import Pair


@dataclass(frozen=True)
class Scale:
    """c and its error."""

    value: float
    error: float

    @classmethod
    def of(cls, value: float, before: Scale | None) -> Scale:
        return cls(value, abs(value - (1.0 if before is None else before.value)))

    def __call__(self, pair: Pair) -> Estimate:
        """The eigenvalue on all held batches; no bound, as c is no constant."""
        error = math.hypot(self.value * pair.residual, self.error * pair.theta)
        return Estimate(
            self.value * pair.theta, error, "estimate", pair.products, pair.estimate.converged, "", "residual"
        )


def part_of(batches: list[Any], share: float) -> list[Any]:
    """The first batches, or of a single one the first rows."""
    if not 0 < share <= 1:
        raise InputError(f"part= is a share of the held batches between 0 and 1; got {share!r}.")
    if len(batches) > 1:
        return batches[: max(1, round(share * len(batches)))]
    rows = _rows(batches[0])
    if not rows:
        raise InputError(
            "part= cuts a batch along the first axis, whose length differs between its tensors. Give several batches."
        )
    return [_cut(batches[0], max(1, round(share * rows)))]


def few_rows(risk: Risk) -> Any:
    """Two rows of the first batch, on which derivatives are checked at a part of the cost; the whole batch where it
    cannot be cut, or the loss of two rows is not finite."""
    batch = risk.batches[0]
    if _rows(batch) <= 2:
        return batch
    few = _cut(batch, 2)
    try:
        with risk.context(), torch.no_grad():
            return few if bool(torch.isfinite(risk.run(risk.params, few)[0])) else batch
    except Exception as error:  # whatever code of a model dislikes about another number of rows
        pass_on_memory(error)
        return batch


def _rows(batch: Any) -> int:
    """The length of the first axis of its tensors; 0 where those differ, or have none."""
    sizes = {len(t) if t.ndim else 0 for t in _tensors(batch)}
    return sizes.pop() if len(sizes) == 1 else 0


def _tensors(batch: Any) -> list[Tensor]:
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    return [t for t in parts if isinstance(t, Tensor)]


def _cut(batch: Any, rows: int) -> Any:
    if isinstance(batch, Mapping):
        return {k: _cut(t, rows) for k, t in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_cut(t, rows) for t in batch)
    return batch[:rows] if isinstance(batch, Tensor) else batch
