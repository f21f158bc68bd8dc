"""The question of `quadform verify` and `qf.verify`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.question import Question, option


@dataclass(frozen=True, kw_only=True)
class VerifyQuestion(Question):
    """Is the mathematics right on this machine? Closed form against autodiff and finite differences, random shapes.

    The checks are about formulas, so they run in float64.
    """

    verb = "verify"

    shapes: int = option(12, "How many random layers to try.", least=1)
    largest: int = option(6, "No width or number of tokens is drawn above this.", least=1)
    seed: int = option(0, "Seed of everything that is drawn.")
    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:0, ...")

    def measurement(self, subject: Any = None) -> Any:
        from .measure import VerifyMeasurement

        return VerifyMeasurement(self)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from .answer import Verification

        return Verification(record)
