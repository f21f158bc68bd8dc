"""One bar and one deadline over a question of many pieces. The unit is the Hessian-vector product."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..core.progress import Progress, Report
from .journal import Deadline


class Meter:
    """`with meter.piece("full/0", 125): eigenpairs(..., progress=meter.of_estimator())`.

    Every piece has its expected number of products; one that takes fewer or more ends at that number, so that the bar
    never stands still and never goes back. The deadline is looked at after each product.
    """

    def __init__(self, bar: Progress, deadline: Deadline) -> None:
        self.bar, self.deadline = bar, deadline
        self._label, self._start, self._expected, self._weight, self._spent = "", 0, 0.0, 1.0, 0.0

    @contextlib.contextmanager
    def piece(self, label: str, expected: float, weight: float = 1.0) -> Iterator[None]:
        """One piece of `expected` products; each counted one costs `weight` of a whole."""
        self._label, self._start, self._expected, self._weight = label, self.bar.done, expected, weight
        self._spent = 0.0
        yield
        self.bar.step(max(self._start + round(expected) - self.bar.done, 0), label)
        self.deadline.advanced |= expected > 0

    def skip(self, expected: float) -> None:
        """A piece that was there already."""
        self.bar.skip(round(expected))

    def of_estimator(self) -> Report:
        """The `progress=` of one estimator of this piece. Its first step may be what it found on disk."""
        last: list[int] = []

        def told(done: int, total: int, left: float, text: str) -> None:
            new, first = done - sum(last), not last
            last.append(new)
            self.spend(new, text, advanced=not first)

        return told

    def spend(self, products: float, text: str = "", *, advanced: bool = True) -> None:
        """So many products more."""
        self._spent += self._weight * products
        reached = self._start + int(min(self._spent, self._expected))
        self.bar.step(max(reached - self.bar.done, 0), f"{self._label} {text}".rstrip())
        self.deadline.check(advanced=advanced)
