"""The learning rate over time, as a value; torch-free.

With w warm-up steps of n in all, step t = 0, ..., n - 1, and t' = (t - w) / (n - w), the factor on the base rate is

    warm-up       (t + 1) / (w + 1)                     for t < w, so that step w is the first at the full rate
    linear        1 - (1 - final) t'
    cosine        final + (1 - final) (1 + cos(pi t')) / 2
    constant      1
    inverse-sqrt  min((t + 1) / w, sqrt(w / (t + 1)))   warm-up and decay in one; w is at least 1, `final` is not used

Source: linear warm-up and decay as in [HH24, App.]; inverse square root as in [VSP17, Sec. 5.3], where steps count
from 1 and step w has the full rate, scaled to peak at 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from quadform.core.codec import changed
from quadform.core.errors import InputError
from quadform.core.spec import choose

Decay = Literal["linear", "cosine", "inverse-sqrt", "constant"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up, then decay. `warmup` below 1 is a share of all steps, from 1 on a number of steps."""

    decay: Decay = "linear"
    warmup: float = 0.05
    final: float = 0.0

    __repr__ = changed

    def __post_init__(self) -> None:
        choose("decay", self.decay, ("linear", "cosine", "inverse-sqrt", "constant"))
        if not 0 <= self.warmup < math.inf or not 0 <= self.final <= 1:
            raise InputError(
                f"warmup is at least 0 and finite, final between 0 and 1; got {self.warmup}, {self.final}."
            )

    def warmup_steps(self, steps: int) -> int:
        """The number of warm-up steps of a run of `steps`."""
        return min(round(self.warmup * steps) if self.warmup < 1 else round(self.warmup), steps)

    def factor(self, step: int, steps: int) -> float:
        """The factor on the base learning rate at step 0, ..., steps - 1."""
        w = self.warmup_steps(steps)
        if self.decay == "inverse-sqrt":
            ratio = (step + 1) / max(w, 1)
            return min(ratio, ratio**-0.5)
        if step < w:
            return (step + 1) / (w + 1)
        if self.decay == "constant":
            return 1.0
        done = (step - w) / (steps - w)
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final + (1 - self.final) * left
