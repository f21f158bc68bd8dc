"""Ceiling and learning rate along a run: at every checkpoint both of the same step, on the batch of that step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from .numbers import rate_text, times
from .verdict import Limits, Said, Verdict, judged, say

#: The largest share of its ceiling that the rate had. Runs hold themselves near 1, so that 1 to 2 is no alarm.
COURSE = Limits(1.0, 2.0)
#: From this share of the ceiling on a run is at the edge of stability.
EDGE = 0.8


def share_of(rate: float, ceiling: Estimate) -> Estimate:
    """A rate over a ceiling, with the error of the ceiling."""
    if not math.isfinite(ceiling.value):
        return Estimate(0.0)
    value = rate / ceiling.value
    error = None if ceiling.error is None else value * ceiling.error / ceiling.value
    side = {None: None, "upper": "lower", "lower": "upper"}[ceiling.side]
    return Estimate(value, error, ceiling.kind, error_kind=ceiling.error_kind, side=side)  # type: ignore[arg-type]  # a side that is known


@dataclass(frozen=True)
class Stop:
    """One step of a run: the rate its next step took, and the ceiling there."""

    step: int
    rate: float
    ceiling: Estimate

    @property
    def share(self) -> Estimate:
        return share_of(self.rate, self.ceiling)

    @property
    def at_edge(self) -> bool:
        return self.share.value >= EDGE


@dataclass(frozen=True)
class Course:
    """The stops of a run, the peak of its schedule and its warm-up; `short` is the length of a run that was made for
    this on a copy of a fresh model, 0 where they are the checkpoints of the run itself."""

    stops: tuple[Stop, ...]
    peak: float
    warmup: int
    short: int = 0

    @classmethod
    def of(cls, record: Record) -> Course | None:
        """That of a record; None where there is none."""
        t, told = record.tensors, record.inputs.get("along")
        if not told or "along/step" not in t:
            return None
        names = ("step", "rate", "ceiling", "error")
        rows = zip(*(t[f"along/{name}"].tolist() for name in names), strict=True)
        return cls(tuple(Stop(int(s), r, _read(c, e)) for s, r, c, e in rows), **told)

    @property
    def highest(self) -> Stop:
        """The stop whose rate comes closest to its ceiling, or lies furthest above it."""
        return max(self.stops, key=lambda stop: stop.share.value)

    @property
    def room(self) -> float:
        """The largest peak with which the rate stays below the ceilings that were measured, the schedule's shape kept.

        A run with another peak goes elsewhere: this is advice, not a bound.
        """
        return min((s.ceiling.value * self.peak / s.rate for s in self.stops if s.rate), default=math.inf)

    def verdict(self) -> Verdict:
        """The largest share of the ceiling against its limits."""
        e = self.highest.share
        return judged("course", e, COURSE, times(e.value), self._said(COURSE.grade(e)), times)

    def _said(self, status: str) -> Said:
        stop = self.highest
        place = "above" if status == "red" else "edge" if stop.at_edge else "below"
        told = {"share": f"{stop.share.value:.2g}", "step": f"{stop.step:,}", "count": len(self.stops)}
        told |= {"peak": rate_text(self.peak), "room": rate_text(self.room), "short": f"{self.short:,}"}
        said = say(f"course_{'short' if self.short else 'run'}_{place}", **told)
        return said + self._warmup(status, told) if self.short else said

    def _warmup(self, status: str, told: dict[str, object]) -> Said:
        """Whether the warm-up of a schedule that is to come is long enough, or needed."""
        told |= {"warmup": f"{self.warmup:,}"}
        if status == "red":
            return say("course_warm_longer" if self.highest.step <= self.warmup else "course_lower", **told)
        lowest = min(self.stops, key=lambda stop: stop.ceiling.value)
        if lowest.ceiling.value >= self.peak:
            return say("course_warm_free", **told)
        return say("course_warm_needed", at=f"{lowest.step:,}", ceiling=rate_text(lowest.ceiling.value), **told)


def _read(value: float, error: float) -> Estimate:
    if math.isnan(error):
        return Estimate(value)
    return Estimate(value, error, "estimate", error_kind="residual")


def packed_stops(stops: Sequence[Stop]) -> dict[str, Tensor]:
    """Stops as tensors."""
    columns = {
        "step": [float(s.step) for s in stops],
        "rate": [s.rate for s in stops],
        "ceiling": [s.ceiling.value for s in stops],
        "error": [math.nan if s.ceiling.error is None else s.ceiling.error for s in stops],
    }
    return {f"along/{name}": torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
