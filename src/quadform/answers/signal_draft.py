"""The keys that an answer of `quadform signal` is written with; `answers.signal` reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Provenance
from .answer import Draft
from .signal import ENDS, Signal

F64 = torch.float64


class CurveDraft:
    """Curve `index` of a draft while its numbers are written."""

    def __init__(self, draft: SignalDraft, index: int, label: str) -> None:
        self.scalars, self.tensors, self.index, self.label = draft.scalars, draft.tensors, index, label

    def measured(self, measure: str, layers: Sequence[Estimate]) -> None:
        """One number after 0, 1, ... blocks; of the gradient the first one is told, of the others the last."""
        self._list(measure, [e.value for e in layers])
        self._list(f"{measure}/stderr", [e.stderr for e in layers])
        self.scalars[f"{self.label}/{measure}"] = layers[0] if measure == "gradient" else layers[-1]

    def heads(self, measure: str, rows: Sequence[Sequence[Estimate]], heads: int) -> None:
        """One number a block and head; nan where a block has fewer heads."""
        filled = [[e.value for e in row] + [math.nan] * (heads - len(row)) for row in rows]
        self.tensors[f"{self.index}/heads/{measure}"] = torch.tensor(filled, dtype=F64).reshape(len(rows), heads)

    def predicted(self, measure: str, profile: Tensor) -> None:
        self.tensors[f"{self.index}/predicted/{measure}"] = profile.to(F64)

    def difference(self, found: Estimate) -> None:
        """The largest difference between predicted and measured cosine."""
        self.scalars[f"{self.label}/difference"] = found

    def kernel(self, layer: int, Sigma: Tensor) -> None:
        self.tensors[f"{self.index}/kernel/{layer}"] = Sigma

    def jacobian(
        self, name: str, quantiles: Sequence[float], levels: Sequence[float], ends: Sequence[Estimate]
    ) -> None:
        """Singular values at `levels`, and the smallest, the largest and the mean square."""
        self._list(f"jacobian/{name}", quantiles)
        self.tensors["levels"] = torch.tensor(levels, dtype=F64)
        self.scalars |= {f"{self.label}/jacobian/{name}/{end}": e for end, e in zip(ENDS, ends, strict=True)}

    def _list(self, name: str, values: Sequence[Any]) -> None:
        self.tensors[f"{self.index}/{name}"] = torch.tensor(values, dtype=F64)


class SignalDraft(Draft):
    """The numbers of all curves while they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.about: list[dict[str, Any]] = []

    def curve(self, label: str, **about: Any) -> CurveDraft:
        """The next curve, and what it is of."""
        self.about.append({"label": label, **about})
        return CurveDraft(self, len(self.about) - 1, label)

    def answer(self, inputs: Mapping[str, Any], made: Provenance) -> Signal:
        return Signal(self.record(Signal.kind, {**inputs, "curves": self.about}, made))
