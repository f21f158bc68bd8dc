"""A verdict card: a number with its tag, a colour, a word, and the thresholds that decided.

Green means nothing to watch, yellow look, red act or beware. The limits a page states are the whole rule; cards print
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..answers.verdict import Status, Verdict
from ..core.record import Estimate
from .texts import Texts


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

    @classmethod
    def of(cls, verdict: Verdict, lang: str) -> Card:
        """A verdict in one language."""
        v = verdict
        return cls(v.name, v.title(lang), v.value, v.tag, v.status, v.word(lang), v.sentence(lang), v.rule(lang))


def grade(value: float, limits: tuple[float, float]) -> Status:
    """`green` up to the first limit, `yellow` up to the second, else `red` (so is anything that is not a number)."""
    return "green" if value <= limits[0] else "yellow" if value <= limits[1] else "red"


def card(name: str, value: str, e: Estimate, status: Status, sentence: str, texts: Texts, *limits: str) -> Card:
    """The card `name` in the words `card_NAME_title`, `card_NAME_STATUS` and `card_NAME_rule` of the language."""
    tag = e.kind if e.converged else "unconverged"
    title, word = texts(f"card_{name}_title"), texts(f"card_{name}_{status}")
    rule = texts(f"card_{name}_rule", **{f"limit{i}": limit for i, limit in enumerate(limits)})
    return Card(name, title, value, tag, status, word, sentence, rule)
