"""A verdict card: a number with its tag, a colour, a word, and the thresholds that decided.

Green means nothing to watch, amber look, red act or beware. The limits a page states are the whole rule; cards print
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.record import Estimate
from .texts import Texts

Status = Literal["good", "fair", "poor"]


@dataclass(frozen=True)
class Card:
    """One verdict. `word` says in a word what the colour says."""

    name: str
    title: str
    value: str
    tag: str
    status: Status
    word: str
    sentence: str
    rule: str


def grade(value: float, limits: tuple[float, float]) -> Status:
    """`good` up to the first limit, `fair` up to the second, else `poor` (so is anything that is not a number)."""
    return "good" if value <= limits[0] else "fair" if value <= limits[1] else "poor"


def card(name: str, value: str, e: Estimate, status: Status, sentence: str, texts: Texts, *limits: str) -> Card:
    """The card `name` in the words `card_NAME_title`, `card_NAME_STATUS` and `card_NAME_rule` of the language."""
    tag = e.kind if e.converged else "unconverged"
    title, word = texts(f"card_{name}_title"), texts(f"card_{name}_{status}")
    rule = texts(f"card_{name}_rule", **{f"limit{i}": limit for i, limit in enumerate(limits)})
    return Card(name, title, value, tag, status, word, sentence, rule)
