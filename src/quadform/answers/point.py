"""What kind of point this is: the one judgement of `point` and `spectrum`. Minimum and saddle are words for stationary
points alone.

A step of gradient descent at 1 / lambda_max lowers the quadratic model by at least |g|^2 / (2 lambda_max), since no
direction curves up more than lambda_max; a Newton step lowers it by half the square of the Newton decrement. A point
where this is more than `STATIONARY` of the loss still descends, unless its gradient has vanished (`POLISHED`): a loss
that goes to 0 is all descent to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.number import Estimate
from .numbers import number
from .verdict import Said, say

#: The share of the loss that a step may still take off at a point that is called stationary.
STATIONARY = 1e-8

#: A gradient up to this has vanished, whatever the loss is.
POLISHED = 1e-9

#: An eigenvalue this close to 0, of the largest, cannot be told from it in float32.
ROUNDING = 1e-6

Kind = Literal["descends", "saddle", "minimum"]


def descent(gradient_norm: float, top: Estimate) -> Estimate | None:
    """What a step at 1 / lambda_max takes off the quadratic model at least; None where nothing curves up, or where
    lambda_max is not known."""
    most = top.value + top.reach
    if not top.converged or most <= 0:
        return None
    note = "to second order, one step at 1 / lambda_max, at least"
    return Estimate(gradient_norm**2 / (2 * most), kind="bound", note=note)


@dataclass(frozen=True)
class Point:
    """A point of the loss: its slope, what a step takes off there, and both ends of its spectrum.

    `newton` says which step; `zero` is the size below which an eigenvalue counts as zero, where it is known.
    """

    loss: Estimate
    gradient_norm: Estimate
    descent: Estimate
    top: Estimate
    bottom: Estimate
    zero: float | None = None
    newton: bool = False

    @property
    def stationary(self) -> bool:
        slope = self.gradient_norm.value
        return slope <= POLISHED or self.descent.value <= STATIONARY * abs(self.loss.value)

    @property
    def kind(self) -> Kind | None:
        """None where the smallest eigenvalue is not known well enough."""
        if not self.stationary:
            return "descends"
        low = self.bottom
        if low.value < -low.reach - (ROUNDING * abs(self.top.value) if self.zero is None else self.zero):
            return "saddle"
        return "minimum" if low.converged else None

    @property
    def said(self) -> Said | None:
        """The kind in words."""
        if self.kind is None:
            return None
        told = {"slope": self.gradient_norm, "drop": self.descent, "loss": self.loss, "low": self.bottom}
        key = f"point_{self.kind}"
        if self.newton and self.kind == "descends":
            key = "point_descends_far" if 0 <= self.loss.value < self.descent.value else "point_descends_newton"
        return say(key, **{name: number(e.value) for name, e in told.items()})
