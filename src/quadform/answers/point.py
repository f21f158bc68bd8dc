"""What kind of point a spectrum was measured at. Minimum and saddle are words for stationary points alone.

A step of gradient descent at 1 / lambda_max lowers the quadratic model by at least |g|^2 / (2 lambda_max), since no
direction curves up more than lambda_max. A point where this is more than `STATIONARY` of the loss still descends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.number import Estimate
from .numbers import number
from .verdict import Said, say

#: The share of the loss that a step may still take off at a point that is called stationary.
STATIONARY = 1e-8

#: An eigenvalue this close to 0, of the largest, cannot be told from it in float32.
ROUNDING = 1e-6

Kind = Literal["descends", "saddle", "minimum"]


def descent(gradient_norm: float, lambda_max: float) -> float | None:
    """What a step at 1 / lambda_max takes off the quadratic model at least; None where nothing curves up."""
    return gradient_norm**2 / (2 * lambda_max) if lambda_max > 0 else None


@dataclass(frozen=True)
class Point:
    """A point of the loss: its slope, what a step takes off there, and both ends of its spectrum."""

    loss: Estimate
    gradient_norm: Estimate
    descent: Estimate
    top: Estimate
    bottom: Estimate

    @property
    def kind(self) -> Kind | None:
        """None where the smallest eigenvalue is not known well enough."""
        if self.descent.value > STATIONARY * abs(self.loss.value):
            return "descends"
        low = self.bottom
        if low.value < -low.reach - ROUNDING * abs(self.top.value):
            return "saddle"
        return "minimum" if low.converged else None

    @property
    def said(self) -> Said | None:
        """The kind in words."""
        if self.kind is None:
            return None
        if self.kind == "descends":
            told = {"slope": self.gradient_norm, "drop": self.descent, "loss": self.loss}
            return say("point_descends", **{name: number(e.value) for name, e in told.items()})
        return say(f"point_{self.kind}", limit=number(STATIONARY), low=number(self.bottom.value))
