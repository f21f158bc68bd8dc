"""What the page of a model measures: panels as values, each one record of an application, shown as the report shows it.

A new panel is a line in PANELS: its name and a function from the opened model to a Record of a kind the report draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...applications.asking import ask
from ...applications.landscape.question import LandscapeQuestion
from ...applications.spectrum.question import SpectrumQuestion
from ...applications.subject import Subject
from ...core.progress import Report
from ...core.question import Question
from ...core.record import Record
from ...core.work import Work
from ...report.page import page_of
from ...report.style import STYLES
from ..texts import LANGUAGES


@dataclass(frozen=True)
class Panel:
    """One measurement of the page; its title is the sentence `panel_NAME`."""

    name: str
    measure: Callable[[Subject, Report], Record]


def asked(question: Question, subject: Subject, progress: Report) -> Record:
    """The record of a question about the opened model, nothing written to disk."""
    with Work(None, progress=progress) as work:
        found: Record = ask(question, work, subject).record
    return found


#: In the order they are measured. The spectrum has the block map, the eigenvalues and where the top eigenvector lives.
PANELS: tuple[Panel, ...] = (
    Panel("spectrum", partial(asked, SpectrumQuestion(top=3, density=True))),
    Panel("landscape", partial(asked, LandscapeQuestion(points=15))),
)


def shown(record: Record, lang: str, theme: str) -> dict[str, Any]:
    """The sentences and pictures of a record."""
    t, page = LANGUAGES[lang], page_of(record)
    figures = [draw(record, t, STYLES[theme]) for draw in page.figures(record)]
    return {
        "says": page.summary(record, t),
        "figures": [
            {
                "name": f.name,
                "title": f.title,
                "headline": f.headline,
                "reading": f.reading,
                "caption": f.caption,
                "svg": f.svg(),
            }
            for f in figures
        ],
    }
