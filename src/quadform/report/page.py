"""How a kind of record is shown: title, verdict, rows and figures, each a function of the record and a language.

A new kind of record is a module here with a `PAGE`, its sentences in `texts/`, and a line in PAGES.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..answers.answer import Answer
from ..core.errors import UnknownName
from ..core.record import Record
from .card import Card
from .figure import Figure
from .rows import Row
from .texts import Texts

Draw = Callable[..., Figure]


@dataclass(frozen=True)
class Page:
    """How a kind of answer is shown. `figures` are functions (record, texts, style) -> Figure."""

    answer: type[Answer]
    title: Callable[[Record, Texts], str]
    rows: Callable[[Record, Texts], tuple[Row, ...]]
    figures: Callable[[Record], tuple[Draw, ...]]

    def summary(self, record: Record, texts: Texts) -> str:
        """The verdicts in a few sentences."""
        return self.answer(record).said(texts.lang)

    def cards(self, record: Record, texts: Texts) -> tuple[Card, ...]:
        """A card for each verdict."""
        return tuple(Card.of(verdict, texts.lang) for verdict in self.answer(record).verdicts())


#: kind of record -> the module of this room whose PAGE shows it; the order is that of the report.
PAGES = {
    "step-size": "step_size",
    "spectrum": "spectral",
    "point": "point",
    "taylor": "taylor",
    "landscape": "landscape",
    "flat": "flat",
    "prune": "prune",
    "quantize": "quantize",
    "precond": "precond",
    "attention": "attention",
    "signal": "signal",
    "training": "training",
    "monitor": "monitor",
    "why": "why",
    "why-step": "why_step",
    "compare": "compare",
}


def page_of(record: Record) -> Page:
    """The page of a record's kind, or an error naming the kinds that have one."""
    if record.kind not in PAGES:
        raise UnknownName(f"the report does not know records of kind {record.kind!r}; it shows {', '.join(PAGES)}.")
    module: Any = importlib.import_module(f".{PAGES[record.kind]}", __package__)
    return module.PAGE


def drawn(record: Record) -> tuple[Draw, ...]:
    """The figures this record has the data for, in the order of the report."""
    return page_of(record).figures(record)
