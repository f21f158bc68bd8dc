"""The answer of `quadform report`: studies, each the records of one subject, and the page that shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...answers.answer import Answer, Grid
from ...answers.texts import line
from ...core.errors import FileError, QuadformError, out_of_memory
from ...core.record import Record

PAGE = "report.html"


@dataclass(frozen=True)
class Study:
    """Records of one subject, shown as one, and the sections that are not measured, or not to their end."""

    records: tuple[Record, ...]
    missing: tuple[str, ...] = ()


class Report(Answer):
    """Studies side by side. `drawn` is the HTML file, `exported` are the figures that were written."""

    kind = "report"

    def __init__(self, record: Record, studies: Sequence[Study] = (), lang: str = "en") -> None:
        super().__init__(record)
        self.studies, self.lang = tuple(studies), lang
        self.exported: list[Path] = []

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The studies saved in a folder."""
        from .targets import records_in

        return cls(Record.load(folder), records_in(folder))

    @property
    def records(self) -> list[Record]:
        return [record for study in self.studies for record in study.records]

    @property
    def missing(self) -> list[str]:
        """The sections that are not measured, or not to their end."""
        return [name for study in self.studies for name in study.missing]

    @property
    def complete(self) -> bool:
        """A record alone does not hold the sections: a resumed run reads them again."""
        return bool(self.studies) and not self.missing

    ok = complete

    def table(self) -> Grid:
        """One row a verdict: of which record, what, its value, the word."""
        from ...report.page import page_of
        from ...report.texts import language

        texts = language(self.lang)
        cards = [(record.kind, card) for record in self.records for card in page_of(record).cards(record, texts)]
        rows = [(kind, c.title, f"{c.value} [{texts('tag_' + c.tag)}]", c.word) for kind, c in cards]
        return Grid(("record", "what", "value", "verdict"), tuple(rows))

    def lines(self) -> Sequence[str]:
        found = [f"{what}: {value} - {word}" for _, what, value, word in self.table()]
        if self.exported:
            found.append(line("line_figures", count=len(self.exported), folder=self.record.inputs["figures"]))
        if self.missing:
            found.append(line("line_missing", names=", ".join(self.missing)))
        return found

    def report(self, path: str | Path, lang: str = "en") -> Path:
        """One HTML file with everything in it."""
        from ...report import write_report

        with readable():
            shown, missing = [s.records for s in self.studies], [s.missing for s in self.studies]
            return write_report(shown, path, lang=lang, missing=missing)

    def export(self, folder: str | Path) -> list[Path]:
        """Every figure as SVG, PNG and PDF; several records have a folder each."""
        from ...report import export_figures

        into, many = Path(folder), len(self.records) > 1
        with readable():
            return [
                path
                for i, r in enumerate(self.records)
                for path in export_figures(r, into / f"{i + 1}-{r.kind}" if many else into, lang=self.lang)
            ]


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """A saved record that lacks what its page needs (an older one, or one changed by hand) is told, not a crash."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, QuadformError) or out_of_memory(error):
            raise
        raise FileError(
            f"a record lacks what its page needs ({type(error).__name__}: {error}). Measure it again."
        ) from error
