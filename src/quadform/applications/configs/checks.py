"""The questions of `quadform verify` and `quadform doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InputError
from ...core.question import option
from .shared import Numerics


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(Numerics):
    """Is the mathematics right on this machine? Closed form against autodiff and finite differences, random shapes."""

    shapes: int = option(12, "How many random layers to try.")
    largest: int = option(6, "No width or number of tokens is drawn above this.")

    def check(self) -> None:
        if self.shapes < 1 or self.largest < 1:
            raise InputError(f"`--shapes {self.shapes} --largest {self.largest}`: give at least 1 for both.")
        if self.dtype != "float64":
            raise InputError(f"`--dtype {self.dtype}`: the checks are about formulas, so they run in float64 only.")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(Numerics):
    """Will it run here, and how large may I go: versions, devices, memory, optional parts, known traps."""
