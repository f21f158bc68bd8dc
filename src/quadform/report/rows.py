"""Rows of "What was measured": what, its value as text, its tag, and for a check whether it passed."""

from __future__ import annotations

from dataclasses import dataclass

from ..answers.numbers import share_with_error, with_error
from ..answers.verdict import Status
from ..core.record import Estimate


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
    """The value with its error, in the unit people read it in."""
    if name in ("negative_share", "negative_curvature", "entropy"):
        return share_with_error(e)
    return with_error(e) + (" s" if name == "seconds" else "")
