"""`quadform report`: one self-contained HTML file."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...applications.configs.report import ReportConfig
from ...applications.configs.shared import Output
from ...core.errors import CheckFailed, FileError, QuadformError
from ...core.progress import say
from ...core.record import Record
from ..folders import choose_threads, folder_of, resume_command, writable
from ..show import print_json, print_plan

if TYPE_CHECKING:
    from ...applications.study import Study

#: Where `quadform report` keeps the built-in default.
DEFAULT_RUN = Path("runs/default")
REPORT_NAME = "report.html"


def answer(config: ReportConfig, output: Output) -> int:
    from ...applications.study import open_studies, plan
    from ...report import packages, write_report  # noqa: F401  a missing package is told before the work

    choose_threads(0)
    if config.dry_run:
        body = plan(config.runs, config, Path(output.out) if output.out else None if config.runs else DEFAULT_RUN)
        return print_plan(body, output)
    folder = writable(output)
    try:
        if not config.runs:
            folder = folder or writable(dataclasses.replace(output, out=str(DEFAULT_RUN)))
        studies = open_studies(config.runs, config, folder)
        folder = folder or folder_of(config.runs[0])
    except KeyboardInterrupt:
        say(f"stopped and saved; go on with `{resume_command()}`")
        raise
    records = [record for study in studies for record in study.records]
    missing = [name for study in studies for name in study.missing]
    if not records:
        raise CheckFailed(f"the time was over before anything could be drawn; go on with `{resume_command()}`.")
    with _readable(config.runs):
        shown, left = [study.records for study in studies], [study.missing for study in studies]
        path = write_report(shown, folder / REPORT_NAME, lang=config.lang, missing=left)
        drawn = _export(records, config) if config.figures else []
    if config.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    if output.json:
        body = {"report": str(path), "bytes": path.stat().st_size, "records": [r.kind for r in records]}
        print_json(body | {"figures": [str(p) for p in drawn], "missing": missing})
        return _code(missing)
    with _readable(config.runs):
        _verdicts(studies, config.lang)
    if drawn:
        print(f"figures: {len(drawn)} files in {config.figures}")
    if missing:
        print(f"PARTIAL: not measured to the end: {', '.join(missing)}; go on with `{resume_command()}`")
    print(f"report: {path}")
    return _code(missing)


def _code(missing: list[str]) -> int:
    return 3 if missing else 0


@contextlib.contextmanager
def _readable(runs: tuple[str, ...]) -> Iterator[None]:
    """A saved record that lacks what its page needs (an older one, or one changed by hand) is told, not a crash."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, QuadformError) or not runs:
            raise
        named = ", ".join(f"`{run}`" for run in runs)
        raise FileError(
            f"{named}: a record lacks what its page needs ({type(error).__name__}: {error}). Measure it again."
        ) from error


def _export(records: list[Record], config: ReportConfig) -> list[Path]:
    from ...report import export_figures

    assert config.figures is not None
    into = Path(config.figures)
    several = len(records) > 1
    return [
        path
        for i, record in enumerate(records)
        for path in export_figures(record, into / f"{i + 1}-{record.kind}" if several else into, lang=config.lang)
    ]


def _verdicts(studies: list[Study], lang: str) -> None:
    """One line a card: what, its value, the word."""
    from ...applications.attention import AttentionAnswer
    from ...report.page import page_of
    from ...report.texts import language

    texts = language(lang)
    for study in studies:
        if [record.kind for record in study.records] == ["attention"]:
            print("\n".join(AttentionAnswer(study.records[0]).verdict()))
            continue
        for record in study.records:
            for card in page_of(record).cards(record, texts):
                print(f"{card.title}: {card.value} [{texts('tag_' + card.tag)}] - {card.word}")
