"""The question of `quadform doctor` and `qf.doctor`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.question import Question
from ..opening import Numerics


@dataclass(frozen=True, kw_only=True)
class DoctorQuestion(Numerics, Question):
    """Versions, devices, memory, largest model sizes, optional packages and known problems."""

    verb = "doctor"
    takes = frozenset({"out"})

    def measurement(self, subject: Any = None) -> Any:
        from .measure import DoctorMeasurement

        return DoctorMeasurement(self)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from .answer import Diagnosis

        return Diagnosis(record)
