"""Running experiments into a folder: each saved, drawn and judged; what is there already is not computed again."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..answers.answer import Grid
from ..answers.texts import line
from ..applications.threads import threads_for
from ..core.errors import FileError, MissingExtra
from ..core.progress import Report, say
from ..core.question import Done, Plan
from ..core.record import JSON_NAME, Record, strict_json, write_atomically
from ..core.work import WORK, Work, begun
from ..report.export import writers
from ..report.figure import png
from ..report.fitted import fitted
from ..report.lengths import inches
from .catalog import experiment, recorded
from .claims import Verdict
from .experiment import Experiment
from .gallery import Entry, page, score
from .question import ReproduceTask

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
        """Whether any claim is not met; one that is undecided has not failed, nor has a negative control."""
        return any(v.status == "not met" and not v.claim.control for v in self.verdicts)

    def plain(self) -> dict[str, Any]:
        """The same in plain values."""
        return {
            "id": self.experiment.id,
            "source": self.experiment.source,
            "preset": self.record.inputs["preset"],
            "kept": self.kept,
            "cpu_seconds": self.record.scalars["cpu_seconds"].value,
            "claims": [v.plain() for v in self.verdicts],
            "saved": str(self.folder) if self.folder else None,
        }

    def __str__(self) -> str:
        """What the figure shows, and the claims with their numbers."""
        e, made = self.experiment, self.record.made.made_at
        head = f"{e.id}: {e.title}, {e.source}, preset {self.record.inputs['preset']}"
        said = [(v.status, v.claim.text + (f" ({v.reason})" if v.reason else "")) for v in self.verdicts]
        rows = [(*words, v.number, v.claim.wanted, v.claim.basis) for words, v in zip(said, self.verdicts, strict=True)]
        claims = Grid(("", "claim", "found", "wanted", "source"), tuple(rows))
        return (
            f"{head}, {f'kept from {made}' if self.kept else 'run now'}\n  {e.figure(self.record).headline}\n{claims}"
        )


@dataclass(frozen=True)
class Reproduction(Done):
    """What came of the experiments that were asked for."""

    outcomes: tuple[Outcome, ...]
    folder: Path | None = None
    partial: bool = False

    @property
    def ok(self) -> bool:  # type: ignore[override]  # found, not given
        """Whether all are finished and no claim has failed."""
        return not self.partial and not any(o.failed for o in self.outcomes)

    def plain(self) -> dict[str, Any]:
        return {"experiments": [o.plain() for o in self.outcomes], "partial": self.partial}

    def __str__(self) -> str:
        found = [v for o in self.outcomes for v in o.verdicts]
        lines = [f"{o}\n" for o in self.outcomes]
        lines.append(line("line_score", experiments=len(self.outcomes), claims=len(found), score=score(found)))
        if self.folder is not None:
            lines.append(line("line_page", path=self.folder / "index.html"))
        if self.partial:
            lines.append(line("line_again"))
        return "\n".join(lines)


def reproduced(asked: ReproduceTask, work: Work) -> Reproduction:
    """Run the experiments, in a folder each: its record, `figure.svg`, `figure.png`, `index.html`, and one of all.

    A finished record with the same settings is kept unless `again`; a stopped run goes on.
    """
    from ..report import packages  # noqa: F401  a missing one is told before the work

    found = [experiment(name) for name in asked.chosen]
    if "all" in asked.names:  # one asked for by name says itself what it needs
        for e in found:
            if missing(e, asked.preset):
                how = ", ".join(f"`quadform data fetch {name}`" for name in missing(e, asked.preset))
                say(f"{e.id}: left out, needs fetched data: {how}")
        found = [e for e in found if not missing(e, asked.preset) and _ready(e)]
    else:
        for e in found:
            e.ready()
    outcomes: list[Outcome] = []
    with threads_for(0), work.in_time():  # many small matrices: threads would wait for each other
        for e in found:
            outcomes.append(_one(e, asked, work))
            if work.progress:
                say(f"{e.id}: {', '.join(v.status for v in outcomes[-1].verdicts)}")
    if work.folder is not None:
        entries = [Entry(o.experiment, o.record, o.verdicts) for o in outcomes]
        command = f"quadform reproduce {' '.join(asked.names)} --preset {asked.preset}"
        write(work.folder / "index.html", page(entries, command).encode())
    return Reproduction(tuple(outcomes), work.folder, work.partial)


def plan(asked: ReproduceTask) -> Plan:
    """What would run, and what it cost when it was last recorded, at the preset it was recorded with."""
    rows, table = [], []
    for e in map(experiment, asked.chosen):
        last = recorded().get(e.id)
        cost: dict[str, Any] = {"seconds": last and last.seconds, "preset": last and last.preset}
        needs = list(e.needs(e.config(asked.preset)))
        rows.append({"experiment": e.id, "claims": len(e.claims), **cost, "needs": needs})
        other = "" if cost["preset"] == asked.preset else f" ({cost['preset']})"
        spent = f"{last.seconds:.0f}{other}" if last else "not recorded"
        table.append((e.id, len(e.claims), spent, ", ".join(needs) or "-"))
    text = str(Grid(("experiment", "claims", "processor seconds", "needs"), tuple(table)))
    return Plan(
        text, seconds=sum(row["seconds"] or 0.0 for row in rows), details={"preset": asked.preset, "plan": rows}
    )


def missing(e: Experiment, preset: str) -> list[str]:
    """The fetched data an experiment needs for a preset that are not here."""
    from ..corpora.fetch.store import fetched

    return [name for name in e.needs(e.config(preset)) if fetched(name) is None]


def _ready(e: Experiment) -> bool:
    """Whether its optional packages are here; what is missing is told."""
    try:
        e.ready()
    except MissingExtra as error:
        say(f"{e.id}: left out. {error}")
        return False
    return True


def _one(e: Experiment, asked: ReproduceTask, work: Work) -> Outcome:
    folder = None if work.folder is None else work.folder / e.id
    record, kept = _there(e, asked, folder) if folder is not None and not asked.again else None, True
    if record is None:
        work.deadline.check(advanced=False)
        with work_of(e, asked.preset, folder, asked.seed, work.progress) as part:
            part.deadline = work.deadline
            record, kept = e.measure(asked.preset, seed=asked.seed, work=part), False
        if folder is not None:
            record.save(folder)
            shutil.rmtree(folder / WORK, ignore_errors=True)
    outcome = Outcome(e, record, e.verdicts(record), folder, kept)
    if folder is not None:
        draw(outcome, folder)
        for name in asked.figures:
            column = fitted(e.figure(record).spec, inches(asked.width), asked.font_size)
            write(folder / f"{e.id}.{name}", writers()[name](column))
    return outcome


def work_of(e: Experiment, preset: str, folder: Path | None, seed: int | None, progress: bool | Report) -> Work:
    """The work on a preset: what a stopped run of the same settings has finished is taken up."""
    asked = json.loads(strict_json(e.inputs(preset, e.config(preset, seed))))
    return Work(folder, resume=folder is not None and begun(folder) == asked, progress=progress)


def _there(e: Experiment, asked: ReproduceTask, folder: Path) -> Record | None:
    """The finished record in the folder, if it answers this very question."""
    if not (folder / JSON_NAME).exists():
        return None
    record = Record.load(folder)
    return record if record.inputs == e.inputs(asked.preset, e.config(asked.preset, asked.seed)) else None


def draw(outcome: Outcome, folder: Path) -> None:
    """`figure.svg`, `figure.png` and `index.html` of one experiment."""
    picture = outcome.experiment.figure(outcome.record).svg()
    write(folder / "figure.svg", picture.encode())
    write(folder / "figure.png", png(picture, PNG_SCALE))
    entry = Entry(outcome.experiment, outcome.record, outcome.verdicts)
    write(folder / "index.html", page([entry], entry.command).encode())


def write(path: Path, blob: bytes) -> None:
    """A file, whole or not at all; a folder that cannot be written is told."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, blob)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}. Choose another folder.") from error
