"""The question of `quadform verify` and `qf.verify`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.question import Question, option


@dataclass(frozen=True, kw_only=True)
class VerifyQuestion(Question):
    """Check the closed forms on this machine against automatic differentiation and finite differences.

    The layers have random shapes. The checks run in float64.
    """

    verb = "verify"

    shapes: int = option(12, "Number of random layers to check.", least=1)
    largest: int = option(6, "Largest width and number of tokens.", least=1)
    seed: int = option(0, "Seed of all random numbers.")
    device: str = option("cpu", "Device to compute on: cpu, cuda, cuda:0, ...")

    def measurement(self, subject: Any = None) -> Any:
        from .measure import VerifyMeasurement

        return VerifyMeasurement(self)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from .answer import Verification

        return Verification(record)
