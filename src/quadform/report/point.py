"""What kind of point a spectrum was measured at. Minimum and saddle are words for stationary points alone.

A step of gradient descent at 1 / lambda_max lowers the quadratic model by at least |g|^2 / (2 lambda_max), since no
direction curves up more than lambda_max. A point where this is more than `STATIONARY` of the loss still descends.
"""

from __future__ import annotations

from typing import Literal

from ..core.record import Estimate, Record
from .numbers import number
from .texts import EN, Texts

#: The share of the loss that a step may still take off at a point that is called stationary.
STATIONARY = 1e-8

#: An eigenvalue this close to 0, of the largest, cannot be told from it in float32.
ROUNDING = 1e-6

Kind = Literal["descends", "saddle", "minimum"]


def descent(gradient_norm: float, lambda_max: float) -> float | None:
    """What a step at 1 / lambda_max takes off the quadratic model at least; None where nothing curves up."""
    return gradient_norm**2 / (2 * lambda_max) if lambda_max > 0 else None


def kind(record: Record) -> Kind | None:
    """The kind of the point; None where the gradient or an end of the spectrum is not known."""
    s = record.scalars
    if not {"loss", "descent", "bottom/0"} <= set(s):
        return None
    if s["descent"].value > STATIONARY * abs(s["loss"].value):
        return "descends"
    low: Estimate = s["bottom/0"]
    if low.value < -low.reach - ROUNDING * abs(s["top/0"].value):
        return "saddle"
    return "minimum" if low.converged else None


def sentence(record: Record, texts: Texts = EN) -> str:
    """The kind of the point in words; empty where it is not known."""
    found, s = kind(record), record.scalars
    if found is None:
        return ""
    low = number(s["bottom/0"].value)
    if found != "descends":
        key = {"saddle": "point_saddle", "minimum": "point_minimum"}[found]
        return texts(key, limit=number(STATIONARY), low=low)
    told = {n: number(s[k].value) for n, k in (("slope", "gradient_norm"), ("drop", "descent"), ("loss", "loss"))}
    return texts("point_descends", **told)
