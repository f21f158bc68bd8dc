"""The trial of a ceiling on a copy: by how much a step multiplies a perturbation, and what the loss did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .texts import Texts, line

Word = Literal["shrinks", "holds", "grows"]
#: A step multiplies a perturbation by less than 1 - HOLDS: shrinks; by more than 1 + HOLDS: grows; else it holds.
HOLDS = 0.005
#: What theory says at these fractions of the ceiling.
EXPECTED: dict[float, Word] = {0.5: "shrinks", 1.0: "holds", 2.0: "grows"}
#: Growth above the ceiling may differ from theory by this share of it, and its tolerance.
GROWTH = 0.1


@dataclass(frozen=True)
class Trial:
    """One learning rate tried: by how much a step multiplies the pair's distance, measured and predicted.

    `tolerance` is how far from theory it may lie: `HOLDS`, and what the resolution of the pair's gradients makes
    of it. `losses` are those of the plain run from theta, its start included; it ends early where it diverges.
    """

    fraction: float
    measured: float
    predicted: float
    losses: tuple[float, ...]
    tolerance: float = HOLDS

    @property
    def word(self) -> Word:
        """What a step makes of a perturbation."""
        if self.measured < 1 - self.tolerance:
            return "shrinks"
        return "holds" if self.measured <= 1 + self.tolerance else "grows"

    @property
    def as_expected(self) -> bool:
        if self.word != EXPECTED.get(self.fraction, self.word):
            return False
        off = abs(self.measured - self.predicted)
        return self.word != "grows" or not math.isfinite(off) or off <= GROWTH * self.predicted + self.tolerance

    def said(self, texts: Texts) -> str:
        """`at 2x the ceiling a perturbation grows 5.5x per step`."""
        return texts(f"trial_{self.word}", fraction=f"{self.fraction:g}", factor=f"{self.measured:.2g}")

    def last_loss(self, steps: int) -> str:
        """The last loss of the plain run; `diverges` where it was given up."""
        last = self.losses[-1]
        return f"{last:.4g}" if len(self.losses) - 1 == steps and math.isfinite(last) else line("line_diverges")


def packed(trials: Sequence[Trial]) -> dict[str, Tensor]:
    """Trials as tensors; runs that ended early are filled up with NaN."""
    length = max(len(t.losses) for t in trials)
    found = {
        "fractions": [t.fraction for t in trials],
        "measured": [t.measured for t in trials],
        "predicted": [t.predicted for t in trials],
        "losses": [[*t.losses, *[math.nan] * (length - len(t.losses))] for t in trials],
        "tolerance": [t.tolerance for t in trials],
        "fine": [float(t.as_expected) for t in trials],
    }
    return {n: torch.tensor(values, dtype=torch.float64) for n, values in found.items()}
