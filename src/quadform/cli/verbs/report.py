"""`quadform report`: one self-contained HTML file."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ...applications.configs.report import ReportConfig
from ...applications.configs.shared import Output
from ...core.errors import FileError, QuadformError
from ...core.progress import say
from ...core.record import Record
from ..folders import choose_threads, folder_of, writable
from ..show import print_json
from .attention import attention_verdict

#: Where `quadform report` keeps the built-in default.
DEFAULT_RUN = Path("runs/default")
REPORT_NAME = "report.html"


def answer(config: ReportConfig, output: Output) -> int:
    from ...applications.study import measure_default, open_studies
    from ...report import write_report

    folder = writable(output)
    choose_threads(0)
    try:
        if config.runs:
            studies = open_studies(config.runs, config, folder)
            folder = folder or folder_of(config.runs[0])
        else:
            folder = folder or writable(dataclasses.replace(output, out=str(DEFAULT_RUN)))
            assert folder is not None
            studies = measure_default(config, folder)
    except KeyboardInterrupt:
        say("stopped; the same command with `--resume` goes on")
        raise
    records = [record for study in studies for record in study]
    with _readable(config.runs):
        path = write_report(studies, folder / REPORT_NAME, lang=output.lang)
        drawn = _export(records, config, output) if config.figures else []
    if config.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    if output.json:
        body = {"report": str(path), "bytes": path.stat().st_size, "records": [r.kind for r in records]}
        print_json(body | {"figures": [str(p) for p in drawn]})
        return 0
    with _readable(config.runs):
        _verdicts(studies, output)
    if drawn:
        print(f"figures: {len(drawn)} files in {config.figures}")
    print(f"report: {path}")
    return 0


@contextlib.contextmanager
def _readable(runs: tuple[str, ...]) -> Iterator[None]:
    """A saved record that lacks what its page needs (an older one, or one changed by hand) is told, not a crash."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, QuadformError) or not runs:
            raise
        named = ", ".join(f"`{run}`" for run in runs)
        raise FileError(
            f"{named}: a record lacks what its page needs ({type(error).__name__}: {error}). Measure it again."
        ) from error


def _export(records: list[Record], config: ReportConfig, output: Output) -> list[Path]:
    from ...report import export_figures

    assert config.figures is not None
    into = Path(config.figures)
    several = len(records) > 1
    return [
        path
        for i, record in enumerate(records)
        for path in export_figures(record, into / f"{i + 1}-{record.kind}" if several else into, lang=output.lang)
    ]


def _verdicts(studies: list[list[Record]], output: Output) -> None:
    """One line a card: what, its value, the word."""
    from ...report.page import page_of
    from ...report.texts import language

    texts = language(output.lang)
    for study in studies:
        if [record.kind for record in study] == ["attention"]:
            attention_verdict(study[0])
            continue
        for record in study:
            for card in page_of(record).cards(record, texts):
                print(f"{card.title}: {card.value} [{texts('tag_' + card.tag)}] - {card.word}")
