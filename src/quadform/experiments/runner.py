"""Running experiments into a folder: each saved, drawn and judged; what is there already is not computed again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FileError
from ..core.progress import Report, say
from ..core.record import JSON_NAME, Record, strict_json, write_atomically
from ..core.work import WORK, Deadline, Work, begun
from .catalog import CATALOG, experiment
from .claims import Verdict
from .experiment import Experiment
from .gallery import Entry, page

#: Pixels of a PNG per pixel of the figure.
PNG_SCALE = 2


@dataclass(frozen=True)
class Outcome:
    """One experiment that was run: its record, what became of its claims, and whether the record was there before."""

    experiment: Experiment
    record: Record
    verdicts: tuple[Verdict, ...]
    folder: Path | None
    kept: bool

    @property
    def failed(self) -> bool:
        """Whether any claim is not met; one that is undecided has not failed."""
        return any(v.status == "not met" for v in self.verdicts)


def reproduce(
    names: Sequence[str] = ("all",),
    preset: str = "smoke",
    *,
    out: str | Path | None = None,
    seed: int | None = None,
    again: bool = False,
    seconds: float | None = None,
    progress: bool | Report = True,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run experiments by id (or "all") and return what came out; `tell` hears of each as soon as it is finished.

    With `out` every experiment gets a folder with its record, `figure.svg`, `figure.png` and `index.html`, and `out` an
    `index.html` of all of them. A finished record with the same settings is kept unless `again`; a stopped run goes on.
    """
    chosen = list(CATALOG) if "all" in names else list(dict.fromkeys(names))
    found = [experiment(name) for name in chosen]
    if "all" in names:  # one asked for by name says itself what it needs
        for e in found:
            if missing(e, preset):
                how = ", ".join(f"`quadform data fetch {name}`" for name in missing(e, preset))
                say(f"{e.id}: left out, needs fetched data: {how}")
        found = [e for e in found if not missing(e, preset)]
    folder = None if out is None else Path(out)
    deadline = Deadline(seconds)
    outcomes = []
    for e in found:
        outcome = _one(e, preset, None if folder is None else folder / e.id, seed, again, deadline, progress)
        outcomes.append(outcome)
        if tell is not None:
            tell(outcome)
    if folder is not None:
        entries = [Entry(o.experiment, o.record, o.verdicts) for o in outcomes]
        write(folder / "index.html", page(entries, f"quadform reproduce {' '.join(names)} --preset {preset}").encode())
    return outcomes


def missing(e: Experiment, preset: str) -> list[str]:
    """The fetched data an experiment needs for a preset that are not here."""
    from ..corpora.fetch.store import fetched

    return [name for name in e.needs(e.config(preset)) if fetched(name) is None]


def _one(
    e: Experiment,
    preset: str,
    folder: Path | None,
    seed: int | None,
    again: bool,
    deadline: Deadline,
    progress: bool | Report,
) -> Outcome:
    record, kept = _there(e, preset, folder, seed) if folder is not None and not again else None, True
    if record is None:
        deadline.check(advanced=False)
        with work_of(e, preset, folder, seed, progress) as work:
            work.deadline = deadline
            record, kept = e.measure(preset, seed=seed, work=work), False
        if folder is not None:
            record.save(folder)
            shutil.rmtree(folder / WORK, ignore_errors=True)
    outcome = Outcome(e, record, e.verdicts(record), folder, kept)
    if folder is not None:
        draw(outcome, folder)
    return outcome


def work_of(e: Experiment, preset: str, folder: Path | None, seed: int | None, progress: bool | Report) -> Work:
    """The work on a preset: what a stopped run of the same settings has finished is taken up."""
    asked = json.loads(strict_json(e.inputs(preset, e.config(preset, seed))))
    return Work(folder, resume=folder is not None and begun(folder) == asked, progress=progress)


def _there(e: Experiment, preset: str, folder: Path, seed: int | None) -> Record | None:
    """The finished record in the folder, if it answers this very question."""
    if not (folder / JSON_NAME).exists():
        return None
    record = Record.load(folder)
    return record if record.inputs == e.inputs(preset, e.config(preset, seed)) else None


def draw(outcome: Outcome, folder: Path) -> None:
    """`figure.svg`, `figure.png` and `index.html` of one experiment."""
    from ..report.packages import vl_convert

    figure = outcome.experiment.figure(outcome.record)
    png = vl_convert.vegalite_to_png(figure.spec, scale=PNG_SCALE, allowed_base_urls=[])
    write(folder / "figure.svg", figure.svg().encode())
    write(folder / "figure.png", png)
    entry = Entry(outcome.experiment, outcome.record, outcome.verdicts)
    write(folder / "index.html", page([entry], entry.command).encode())


def write(path: Path, blob: bytes) -> None:
    """A file, whole or not at all; a folder that cannot be written is told."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, blob)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}. Choose another folder.") from error


def plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values, for `--json`."""
    return {
        "id": outcome.experiment.id,
        "source": outcome.experiment.source,
        "preset": outcome.record.inputs["preset"],
        "kept": outcome.kept,
        "cpu_seconds": outcome.record.scalars["cpu_seconds"].value,
        "claims": [v.plain() for v in outcome.verdicts],
        "saved": str(outcome.folder) if outcome.folder else None,
    }
