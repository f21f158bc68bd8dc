"""What the words of a report name: saved studies, and models that are opened once for all their sections.

FOLDER/training  spectrum  point  prune  lr  signal  why  attention     one record each
FOLDER/run                                                the training run, where the study trained the model itself
FOLDER/record.json                                        what was asked
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import FileError, did_you_mean
from ...core.record import JSON_NAME, Record
from ...core.work import MODEL_FILES, begun
from ...train.folder import is_run
from ..opening import Opening
from ..subject import TRAINED, Subject
from .answer import Report, Study
from .question import ReportOpening, ReportQuestion

#: The sections of a study of one model, in the order of the page; `attention` is a study of its own beside it.
SECTIONS = ("lr", "spectrum", "point", "prune", "signal", "training", "why")
EXACT = "attention"
#: What the built-in default is called where a model is named.
DEFAULT = "the built-in default"


class Once:
    """A model that is opened when it is first asked for, and never again."""

    def __init__(self, opening: Opening | Subject) -> None:
        ways: list[Callable[[], Any]] = [lambda: opening, lambda: opening, lambda: None]
        if isinstance(opening, Opening):
            ways = [functools.cache(way) for way in (opening.open, opening.light, opening.outline)]
        self.open, self.light, self.outline = ways


@dataclass(frozen=True)
class Target:
    """One word: studies that were `saved`, or a model to be measured (none for the built-in default).

    `home` is the folder the word names, if it names one; `stale` says why the study there is not of the model as it is.
    """

    word: str
    saved: tuple[Study, ...] = ()
    model: Once | None = None
    home: Path | None = None
    stale: str = ""

    @property
    def measured(self) -> bool:
        return self.model is not None or self.word == DEFAULT


@dataclass(frozen=True)
class Targets:
    """What a report is asked of. `light` plans on less than what is measured, where that tells the cost too."""

    each: tuple[Target, ...]
    opening: ReportOpening
    light: bool = False

    @classmethod
    def of(cls, asked: ReportQuestion, subject: Targets | Subject) -> Targets:
        """A model of Python's is the one target."""
        if isinstance(subject, Targets):
            return subject
        return cls((Target(subject.name, model=Once(subject)),), ReportOpening(runs=(subject.name,), seed=asked.seed))

    @property
    def named(self) -> str:
        return ", ".join(target.word for target in self.each)

    @property
    def measured(self) -> bool:
        """Whether anything is measured; what is saved is drawn again."""
        return any(target.measured for target in self.each)

    @property
    def page(self) -> Path | None:
        """The folder of the HTML file where no work is kept; what was saved is drawn beside it."""
        at = Path(self.opening.out) if self.opening.out is not None else None if self.measured else self.each[0].home
        return at.parent if at is not None and at.suffix == ".json" else at

    def identity(self) -> dict[str, Any]:
        """What a resumed run must find again; of several models each study has its own."""
        from .sections import sections_of

        if len(self.each) > 1:
            return {"model": self.named}
        (target,) = self.each
        asked = {name: getattr(self.opening, name) for name in ("data", "batch_size", "batches", "length", "dtype")}
        found = {"model": target.word, **asked, "sections": []}
        if target.measured:
            found["sections"] = [section.name for section in sections_of(self, Path())]
        return found | ({} if target.model is None else {"weights": target.model.open().source["weights"]})


def resolved(asked: ReportOpening) -> tuple[Target, ...]:
    """Saved studies are read, models are to be measured; a study that is resumed goes on with what it was asked."""
    return tuple(_target(word, asked) for word in dict.fromkeys(asked.runs)) if asked.runs else (Target(DEFAULT),)


def _target(word: str, asked: ReportOpening) -> Target:
    path = Path(word)
    saved = tuple(records_in(path)) if path.exists() else ()
    before = asked_in(path)
    if asked.resume and "sections" in before and (not saved or any(s.missing for s in saved)):
        model = str(before["model"])
        return Target(model, (), None if model == DEFAULT else Once(asked.of_model(model)), path)
    stale = _stale(word, before, asked) if saved and is_run(path) else ""
    if saved and not stale:
        return Target(word, saved, home=path)
    if not path.exists() and ":" not in word and word not in TRAINED:
        raise _missing(path)
    if path.exists() and not is_run(path) and not _holds_model(path):
        raise FileError(f"`{word}` holds neither a record nor a model. Give a run, a saved answer or a model.")
    return Target(word, (), Once(asked.of_model(word)), path if is_run(path) else None, stale)


def _stale(word: str, before: dict[str, Any], asked: ReportOpening) -> str:
    """What to say of a run that was trained further after it was studied."""
    if "weights" not in before:
        return ""
    now = asked.of_model(word, dtype=before["dtype"]).open().source["weights"]
    hashes = f"{before['weights'][:8]} / {now[:8]}"
    return "" if before["weights"] == now else f"`{word}` was studied with other weights (hash {hashes})."


def _holds_model(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in MODEL_FILES)


def _missing(path: Path) -> FileError:
    try:
        beside = [str(path.parent / p.name) for p in sorted(path.parent.iterdir()) if holds_run(p)]
    except OSError:
        beside = []
    there = f" Runs here: {', '.join(f'`{p}`' for p in beside[:5])}." if beside else ""
    return FileError(
        f"there is no run at `{path}`.{did_you_mean(str(path), beside)}{there}"
        " `quadform attention --out DIR` makes one; `quadform report` alone measures a default."
    )


# --- what is saved ----------------------------------------------------------------------------------------------------
def records_in(folder: str | Path) -> list[Study]:
    """The studies saved in `folder`: its own record, or those of its sections; empty where there is none."""
    folder = Path(folder)
    if folder.suffix == ".json" or (folder / JSON_NAME).exists():
        own = Record.load(folder)
        if own.kind != Report.kind:
            return [Study((own,))]
        several = [records_in(folder / name) for name in own.inputs["folders"]]
        if several:
            return [study for studies in several for study in studies]
    found = {n: Record.load(folder / n) for n in (*SECTIONS, EXACT) if (folder / n / JSON_NAME).exists()}
    return studies_of(found, asked_in(folder).get("sections", ()))


def studies_of(found: dict[str, Record], asked: Sequence[str]) -> list[Study]:
    """The sections of the model as one study, the exact layer as another; those not measured to their end by name."""
    missing = tuple(name for name in asked if name not in found or found[name].inputs.get("partial"))
    groups = [tuple(found[n] for n in names if n in found) for names in (SECTIONS, (EXACT,))]
    there = [records for records in groups if records]
    return [Study(records, missing if i == 0 else ()) for i, records in enumerate(there)]


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a record, the records of a study, or a training run; nothing is read."""
    return is_run(folder) or any((folder / name / JSON_NAME).exists() for name in ("", *SECTIONS, EXACT))


def asked_in(folder: Path) -> dict[str, Any]:
    """What the study in `folder` was asked; empty where there is none."""
    found = begun(folder)
    if found is None and (folder / JSON_NAME).exists():
        with contextlib.suppress(FileError):  # told when it is read
            found = Record.load(folder).inputs.get("question")
    return dict(found) if isinstance(found, dict) and found.get("verb") == ReportQuestion.verb else {}
