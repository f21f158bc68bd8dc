"""When to measure: every so many steps, or as often as a share of the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ...core.errors import InputError

Clock = Callable[[], float]
#: Readings from one full search to the next.
REFRESH = 20
#: How many times as long as another measurement the first full search is expected to take.
SEARCHES = 12


class Pace(Protocol):
    """Asked once a step; told how long each measurement took."""

    def full(self, readings: int) -> bool:
        """Whether the next measurement, after so many, is a full search."""

    def due(self, step: int, full: bool) -> bool:
        """Whether to measure now; `full`: the next measurement is a full search."""

    def took(self, seconds: float, full: bool) -> None:
        """A measurement ended."""


class Every:
    """Every `steps` steps."""

    def __init__(self, steps: int) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise InputError(f"every= is a whole number of steps, at least 1; got {steps!r}.")
        self.steps = steps

    def full(self, readings: int) -> bool:
        return readings % REFRESH == 0

    def due(self, step: int, full: bool) -> bool:
        return step % self.steps == 0

    def took(self, seconds: float, full: bool) -> None:
        pass


class Share:
    """As often as the share of the time since the first step stays below `share`.

    The first measurement is made at the first step, because its cost is not known; its time is then waited out. It is
    no full search, which takes over ten times as long: the first of those ends the first `REFRESH` measurements. A
    measurement is due when the time spent, with what the last one of its kind took, is below the share.
    """

    def __init__(self, share: float, clock: Clock = time.perf_counter) -> None:
        if not 0 < share < 1:
            raise InputError(f"overhead= is a share of the time between 0 and 1; got {share!r}.")
        self.share, self.clock = share, clock
        self.start, self.spent = clock(), 0.0
        self.cost: dict[bool, float] = {}

    def full(self, readings: int) -> bool:
        return readings % REFRESH == REFRESH - 1

    def due(self, step: int, full: bool) -> bool:
        if not self.cost:
            return True
        cost = self.cost.get(full, SEARCHES * self.cost[False])
        return self.spent + cost <= self.share * (self.clock() - self.start + cost)

    def took(self, seconds: float, full: bool) -> None:
        self.spent += seconds
        self.cost[full] = seconds
