"""Rows of "What was measured": what, its value as text, its tag, and for a check whether it passed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.record import Estimate
from .card import Status
from .numbers import number, percent


@dataclass(frozen=True)
class Row:
    """One line: what, its value as text, its tag (`given` for a setting), and for a check whether it passed."""

    group: str
    label: str
    value: str
    tag: str = "given"
    status: Status | None = None
    note: str = ""


def tag(e: Estimate) -> str:
    return e.kind if e.converged else "unconverged"


def estimate(name: str, e: Estimate) -> str:
    """The value with its standard error, in the unit people read it in."""
    if name in ("negative_share", "negative_curvature", "entropy") and math.isfinite(e.value):
        return percent(e.value) + (f" ± {percent(e.stderr)}" if e.stderr else "")
    spread = f" ± {number(e.stderr, 2)}" if e.stderr else ""
    return number(e.value, 4) + spread + (" s" if name == "seconds" else "")
