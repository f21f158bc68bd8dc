"""What can be moved in a step: sliders, a sentence to edit, choices, buttons. A wrong value is told at its control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..explorer import message
from .texts import LANGUAGES, Texts

#: Words of a sentence that are looked at, and letters that are read.
MOST_WORDS, MOST_LETTERS = 8, 200


class Refused(message.Refused):
    """A value a step of the lecture cannot use."""

    languages = LANGUAGES


@dataclass(frozen=True, kw_only=True)
class Slider:
    """A number between `low` and `high`: whole where both are, in equal steps of the logarithm where `log`."""

    name: str
    low: float
    high: float
    start: float
    log: bool = False

    def read(self, value: Any, lang: str) -> float:
        whole = isinstance(self.low, int)
        good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not self.low <= value <= self.high:
            limits = {"low": f"{self.low:g}", "high": f"{self.high:g}"}
            raise Refused(self.name, "whole" if whole else "range", **limits, got=str(value)[:40])
        return int(value) if whole else float(value)

    def first(self, lang: str) -> float:
        return self.start

    def json(self, value: Any, texts: Texts, most: float | None) -> dict[str, Any]:
        high = self.high if most is None else most
        return {"kind": "slider", "low": self.low, "high": high, "log": self.log, "whole": isinstance(self.low, int)}


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """Words to edit; each language begins with its own."""

    name: str = "sentence"

    def read(self, value: Any, lang: str) -> str:
        if not isinstance(value, str) or len(value) > MOST_LETTERS:
            raise Refused(self.name, "letters", most=str(MOST_LETTERS))
        if not value.split():
            raise Refused(self.name, "words")
        return value

    def first(self, lang: str) -> str:
        return LANGUAGES[lang](f"first_{self.name}")

    def json(self, value: Any, texts: Texts, most: float | None) -> dict[str, Any]:
        left = max(0, len(value.split()) - MOST_WORDS)
        note = texts("note_words", most=MOST_WORDS) if left else ""
        return {"kind": "sentence", "most": MOST_LETTERS, "note": note}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several words (`choice_WORD`) or numbers; the first one stands at the start unless `start` is given."""

    name: str
    values: tuple[str, ...]
    start: str = ""

    def read(self, value: Any, lang: str) -> str:
        value = str(value)
        if value not in self.values:
            raise Refused(self.name, "choice", got=value[:40], known=", ".join(self.values))
        return value

    def first(self, lang: str) -> str:
        return self.start or self.values[0]

    def json(self, value: Any, texts: Texts, most: float | None) -> dict[str, Any]:
        labels = [v if v.isdigit() else texts(f"choice_{v}") for v in self.values]
        choices = [{"value": v, "label": label} for v, label in zip(self.values, labels, strict=True)]
        return {"kind": "choice", "choices": choices}


@dataclass(frozen=True, kw_only=True)
class Button:
    """Something to start or stop (`action_NAME`); it has no value."""

    name: str

    def read(self, value: Any, lang: str) -> None:
        return None

    def first(self, lang: str) -> None:
        return None

    def json(self, value: Any, texts: Texts, most: float | None) -> dict[str, Any]:
        return {"kind": "button"}


Control = Slider | Sentence | Choice | Button


def read(controls: tuple[Control, ...], given: Any, lang: str) -> dict[str, Any]:
    """The value of every control: as given, else as the step begins."""
    if not isinstance(given, Mapping):
        raise Refused("", "message")
    known = {c.name for c in controls}
    if unknown := [name for name in given if name not in known]:
        raise Refused("", "control", got=str(unknown[0])[:40])
    return {c.name: c.read(given[c.name], lang) if c.name in given else c.first(lang) for c in controls}
