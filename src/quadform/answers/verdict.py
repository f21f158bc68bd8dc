"""A verdict: what a number means for whoever trains the model, and the limits that decided.

Green means nothing to watch, yellow look, red act or beware. `undecided`: within its error the number lies on both
sides of a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..core.number import Estimate
from .numbers import number
from .texts import EN, LANGUAGES, spoken

Status = Literal["green", "yellow", "red", "undecided"]


@dataclass(frozen=True)
class Limits:
    """Green up to `green`, red above `red`; where `green` is the larger one, green from it on and red below `red`.

    `either_way` judges a ratio by its distance from 1: 0.1 as 10.
    """

    green: float
    red: float
    either_way: bool = False

    def of(self, value: float) -> Status:
        """The status of a number without error; what is not a number is red."""
        value = max(value, 1 / value) if self.either_way and value > 0 else value
        sign = 1 if self.green <= self.red else -1
        if sign * value <= sign * self.green:
            return "green"
        return "yellow" if sign * value <= sign * self.red else "red"

    def grade(self, e: Estimate) -> Status:
        """The status that holds wherever the truth may be: 2 standard errors, a residual, the open side of a bound."""
        if math.isnan(e.value):
            return "red"
        low, high = span(e)
        ends = [low, high]
        if self.either_way and low < 1 < high:
            ends.append(1.0)
        found = {self.of(max(end, 1e-300) if self.either_way else end) for end in ends}
        return found.pop() if len(found) == 1 else "undecided"


def span(e: Estimate) -> tuple[float, float]:
    """The smallest and the largest value the truth may have; a bound is open to one side."""
    low, high = e.value - e.reach, e.value + e.reach
    return (low if e.side != "upper" else -math.inf, high if e.side != "lower" else math.inf)


@dataclass(frozen=True)
class Said:
    """One sentence in both languages; called without one, it is in the language that is spoken."""

    en: str
    ko: str

    def __call__(self, lang: str = "") -> str:
        return {"en": self.en, "ko": self.ko}[lang or spoken().lang]

    def __add__(self, more: Said) -> Said:
        return Said(f"{self.en} {more.en}".strip(), f"{self.ko} {more.ko}".strip())


NOTHING = Said("", "")


def say(key: str, **values: Any) -> Said:
    """A sentence of `texts`; a value that is a function is asked for its word in each language."""
    return Said(*(texts(key, **values) for texts in LANGUAGES.values()))


@dataclass(frozen=True)
class Verdict:
    """One number judged. `value` is the number as people read it; a `check` that is red makes the answer not ok.

    `name` names its words in `texts`: `card_NAME_title`, `card_NAME_STATUS`, `card_NAME_rule`.
    """

    name: str
    status: Status
    value: str
    number: Estimate
    said: Said
    limits: Limits | None = None
    shown_limits: tuple[str, ...] = ()
    check: bool = False

    def title(self, lang: str = "en") -> str:
        return LANGUAGES[lang](f"card_{self.name}_title")

    def word(self, lang: str = "en") -> str:
        """What the status means for this number, in a word."""
        key = f"card_{self.name}_{self.status}"
        return LANGUAGES[lang](key if key in EN.sentences else f"verdict_{self.status}")

    @property
    def both(self) -> Said:
        """What it means and, where it is undecided, what would decide it."""
        if self.status != "undecided":
            return self.said
        return self.said + say("verdict_open" if self.number.kind == "bound" else "verdict_unsure")

    def sentence(self, lang: str = "") -> str:
        """`both` in one language."""
        return self.both(lang)

    def rule(self, lang: str = "en") -> str:
        """The limits in words."""
        limits = {f"limit{i}": shown for i, shown in enumerate(self.shown_limits)}
        return LANGUAGES[lang](f"card_{self.name}_rule", **limits)

    @property
    def tag(self) -> str:
        """`exact`, `estimate`, `bound` or `unconverged`."""
        return self.number.kind if self.number.converged else "unconverged"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs: what was judged, how, by which limits."""
        limits = None if self.limits is None else asdict(self.limits)
        told = {"en": self.sentence("en"), "ko": self.sentence("ko")}
        return {"name": self.name, "status": self.status, "number": asdict(self.number), "limits": limits} | {
            "sentence": told,
            "check": self.check,
        }


def judged(
    name: str, e: Estimate, limits: Limits, value: str, said: Said, write: Callable[[float], str] = number
) -> Verdict:
    """The verdict of a number by its limits; `write` is how the limits are shown."""
    return Verdict(name, limits.grade(e), value, e, said, limits, (write(limits.green), write(limits.red)))
