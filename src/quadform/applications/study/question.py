"""The question of `quadform report` and `qf.study`, and what it is asked of: models, and what is saved. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import FileError
from ...core.question import Question, option, options
from ..opening import Opening, Probe

if TYPE_CHECKING:
    from .targets import Target, Targets

#: Where the study of the built-in default is kept.
DEFAULT_RUN = Path("runs/default")


@dataclass(frozen=True, kw_only=True)
class ReportQuestion(Question):
    """One self-contained HTML file. Without a MODEL it trains a built-in default (two-digit addition) and measures it.

    A MODEL (a run folder, a local Hugging Face folder, `new:pre-ln,depth=6`) is measured first: learning rate,
    spectrum, signal, and what each component does. Folders with saved records are drawn again without computing;
    several are shown side by side. A resumed report keeps finished sections. If the time is up, the page shows the
    sections that are ready and names those that are missing. The exact layer of the default is in float64.
    """

    verb = "report"
    again = frozenset({"figures", "open", "lang"})

    figures: str | None = option(None, "Also write every figure to this folder, as SVG, PNG and PDF.", metavar="DIR")
    open: bool = option(False, "Open the file in the browser when it is ready.")
    lang: str = option("en", "Language of the report.", choices=("en", "ko"))
    seed: int = option(0, "Seed of all random numbers.")

    def folder(self, opening: Any, out: str | None) -> str | None:
        """A study is kept in the folder it was begun in, a training run's beside the run; a page alone has no work."""
        found: str | None = opening.folder
        return found

    def identity(self, subject: Any = None) -> dict[str, Any]:
        from .targets import Targets

        return super().identity(Targets.of(self, subject))

    def measurement(self, subject: Any = None) -> Any:
        from .measure import ReportMeasurement

        return ReportMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from .answer import Report

        return Report(record)


@dataclass(frozen=True, kw_only=True)
class ReportOpening(Probe):
    """Models to be measured, all sections on the same batches, and folders of saved records."""

    runs: tuple[str, ...] = option(
        (),
        "Saved studies or single records (`--out DIR` of any verb), or models to be measured.",
        positional=True,
        metavar="[MODEL|RUN ...]",
    )
    batch_size: int = option(16, "Sequences per batch.", least=1)
    batches: int = option(4, "Number of batches; the loss is their mean.", least=1)
    out: str | None = option(None, "Folder for the results; created if missing.", metavar="DIR")
    resume: bool = option(False, "Resume the unfinished run in `--out`.")

    @classmethod
    def naming(cls, model: Any) -> dict[str, Any] | None:
        words = () if model is None else (model,) if isinstance(model, str | Path) else model
        if isinstance(words, list | tuple) and all(isinstance(word, str | Path) for word in words):
            return {"runs": tuple(map(str, words))}
        return None

    @property
    def named(self) -> str:
        return self.open().named

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """What the words name."""
        from .targets import resolved

        return resolved(self)

    @property
    def folder(self) -> str | None:
        """Where the work is kept; None where nothing is measured."""
        if not self.open().measured:
            return None
        if self.out is not None or not self.runs:
            return str(DEFAULT_RUN) if self.out is None else self.out
        if len(self.targets) == 1 and self.targets[0].home is not None:
            if self.targets[0].stale:
                raise FileError(f"{self.targets[0].stale} Choose another folder to study it as it is.")
            return str(self.targets[0].home)
        return self.usual_folder("report")

    def of_model(self, word: str, **changed: Any) -> Opening:
        """What opens a model."""
        return Opening(model=word, **{name: getattr(self, name) for name in options(Probe)} | changed)

    def open(self) -> Targets:
        from ...report import packages  # noqa: F401  a missing one is told before the work
        from .targets import Targets

        return Targets(self.targets, self)

    def light(self) -> Targets:
        return replace(self.open(), light=True)
