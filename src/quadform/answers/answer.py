"""What every answer can do: a table, figures, a report, JSON, a folder to be saved to and loaded from.

An answer is a Record with a name for each thing people ask of it; it computes nothing.
"""

from __future__ import annotations

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from ..core.errors import FileError, UnknownName, did_you_mean
from ..core.record import Estimate, Provenance, Record, strict_json
from ..core.showing import data_frame, html_table
from ..core.work import is_complete
from .measured import data_words, probe_words
from .texts import Texts, line
from .verdict import NOTHING, Said, Verdict, say


@dataclass(frozen=True)
class Grid:
    """A small table: prints as aligned text, shows as HTML in a notebook, gives its rows as values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        cells = [self.columns, *([cell(v) for v in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        right = [all(isinstance(row[i], int | float | None) for row in self.rows) for i in range(len(self.columns))]
        lines = []
        for row in cells:
            parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
            lines.append("  ".join(parts).rstrip())
        return "\n".join(lines)

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        return data_frame(self.columns, self.rows)

    def column(self, name: str) -> tuple[Any, ...]:
        """The values of one column."""
        if name not in self.columns:
            raise UnknownName(f"no column {name!r}; there are {', '.join(self.columns)}.")
        return tuple(row[self.columns.index(name)] for row in self.rows)

    def _repr_html_(self) -> str:
        return html_table(self.columns, ([cell(v) for v in row] for row in self.rows))


def cell(value: Any) -> str:
    """A value for people: three significant digits, a dash where there is nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:.3g}" if size == 0 or 1e-2 <= size < 1e4 else f"{value:.2e}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class Answer(ABC):
    """A Record of one kind, and what people ask of it."""

    kind: ClassVar[str]
    drawn: Path | None = None  # the page, where there is one already

    def __init__(self, record: Record) -> None:
        if record.kind != self.kind:
            raise FileError(f"this is a record of kind {record.kind!r}, not {self.kind!r}.")
        self.record = record

    # --- what each kind gives ---------------------------------------------------------------------------------------
    @abstractmethod
    def table(self) -> Grid:
        """The numbers, one row each."""

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """The answer as the command line prints it."""

    @property
    def partial(self) -> bool:
        """Whether the time was up before everything was measured."""
        return bool(self.record.inputs.get("partial"))

    @property
    def complete(self) -> bool:
        """Whether a resumed run has nothing left to do."""
        return is_complete(self.record)

    def verdicts(self) -> tuple[Verdict, ...]:
        """What the numbers mean for whoever trains the model, by stated limits."""
        return ()

    @property
    def ok(self) -> bool:
        """Whether nothing is missing and no check of the measurement itself is red; decides the exit code."""
        return self.complete and not any(v.check and v.status == "red" for v in self.verdicts())

    @property
    def said(self) -> Said:
        """The verdicts in a few sentences, in both languages."""
        return sum((v.both for v in self.verdicts()), NOTHING) + self.cut_short

    @property
    def cut_short(self) -> Said:
        """What is said where the time was up."""
        return say("answer_partial") if self.partial else NOTHING

    def verdict_lines(self) -> list[str]:
        """The verdicts as the terminal shows them, and that the time was up."""
        told = [f"{v.status}: {v.sentence()}" for v in self.verdicts()]
        return told + ([line("line_partial", said=self.cut_short())] if self.partial else [])

    # --- what was measured on ---------------------------------------------------------------------------------------
    @property
    def source(self) -> Mapping[str, Any]:
        """Where model and data come from."""
        return dict(self.record.inputs.get("source", {}))

    @property
    def model(self) -> str:
        """The model as it was named; empty where it had no name."""
        return str(self.source.get("model", ""))

    @property
    def notes(self) -> tuple[str, ...]:
        """What else is to be known of the measurement."""
        return tuple(self.record.inputs.get("notes", ()))

    @property
    def probe(self) -> str:
        """`probe 4 batches of 8 x 9 tokens, step 500, float32`."""
        return probe_words(self.record)

    def data(self, texts: Texts | None = None) -> str:
        """The data in words."""
        return data_words(self.source, texts)

    def measured_lines(self) -> list[str]:
        """What was measured and on what: coverage and notes, the probe, the data."""
        covered = "; ".join([str(self.record.inputs["coverage"]), *self.notes])
        return [covered, line("line_untouched", probe=self.probe), line("line_data", data=self.data())]

    # --- written once -----------------------------------------------------------------------------------------------
    def to_dataframe(self) -> Any:
        """The rows of `table()` as a pandas DataFrame."""
        return self.table().to_dataframe()

    def figures(self, lang: str = "en") -> dict[str, Any]:
        """All figures by name."""
        from .. import report

        found = [draw(self.record, report.texts.language(lang)) for draw in report.drawn(self.record)]
        return {figure.name: figure for figure in found}

    def plot(self, name: str | None = None) -> Any:
        """The figure of that name (the first without one) as an Altair chart; nothing is written to disk."""
        found = self.figures()
        if name is None:
            return next(iter(found.values())).chart
        if name not in found:
            raise UnknownName(f"no figure {name!r}; there are {', '.join(found)}.{did_you_mean(name, found)}")
        return found[name].chart

    def report(self, path: str | Path, lang: str = "en") -> Path:
        """One HTML file with everything in it."""
        from .. import report

        return report.write_report(self.record, path, lang=lang)

    def save(self, folder: str | Path) -> Path:
        """Keep it in a folder; `load` reads it back."""
        folder = self.record.save(folder)
        self.save_beside(folder)
        return folder

    def save_beside(self, folder: Path) -> None:
        """Write what does not belong into a record, such as eigenvectors; most answers have nothing of the kind."""
        return

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        return cls(Record.load(folder))

    def json(self) -> str:
        """Everything as strict JSON."""
        r = self.record
        return strict_json(
            {
                "kind": r.kind,
                "inputs": dict(r.inputs),
                "scalars": {name: asdict(e) for name, e in r.scalars.items()},
                "tensors": {name: {"shape": list(t.shape), "values": t.tolist()} for name, t in r.tensors.items()},
                "made": asdict(r.made),
                "schema": r.schema,
            }
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {next(iter(self.lines()), repr(self.record))}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Draft:
    """The numbers of an answer while they are measured."""

    def __init__(self) -> None:
        self.scalars: dict[str, Estimate] = {}
        self.tensors: dict[str, Tensor] = {}

    def record(self, kind: str, inputs: Mapping[str, Any], made: Provenance) -> Record:
        return Record(kind, inputs, self.scalars, self.tensors, made)
