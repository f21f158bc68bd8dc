"""A verdict card: a verdict in one language."""

from __future__ import annotations

from dataclasses import dataclass

from ..answers.verdict import Status, Verdict


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
