"""What `quadform reproduce` and `qf.reproduce` are asked. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..core.question import Plan, Task, option, words_of
from ..core.spec import choose
from ..report.lengths import FORMATS, inches
from . import catalog

if TYPE_CHECKING:
    from ..core.work import Work
    from .runner import Reproduction


@dataclass(frozen=True, kw_only=True)
class ReproduceTask(Task):
    """Reproduce figures and tables of the papers; each claim is met, not met, undecided or not tested.

    Every experiment is saved, drawn (SVG, PNG, HTML) and judged. Finished experiments in the folder are kept,
    stopped ones are resumed. Exit code 3 means that a claim is not met, or that the time was up.
    """

    verb = "reproduce"
    takes = frozenset({"out", "max_time", "dry_run"})

    names: tuple[str, ...] = option(
        (), "Experiments by id (`quadform ls experiments`), or `all`.", positional=True, metavar="ID [ID ...] | all"
    )
    preset: str = option(
        "smoke",
        "smoke: seconds; cpu: minutes on two cores; paper: the published sizes, where a CPU can reach them.",
        choices=("smoke", "cpu", "paper"),
    )
    seed: int | None = option(
        None, "Seed of all random numbers.", metavar="INT", shown="(default: the experiment's own)"
    )
    again: bool = option(False, "Compute finished experiments again.")
    figures: tuple[str, ...] = option(
        (), "Also write the figure of each experiment for a paper, in these formats.", metavar="pdf,svg,png"
    )
    width: str = option("3.25in", "Width of the figures for a paper, in inches (in), cm, mm or pt.", metavar="LENGTH")
    font_size: float = option(8.0, "Font size in the figures for a paper, in points.", metavar="POINTS")

    def check(self) -> None:
        names = words_of(self.names) if isinstance(self.names, str) else tuple(dict.fromkeys(self.names))
        object.__setattr__(self, "names", names)
        if not names:
            raise InputError("which experiment? `quadform ls experiments` lists them; `all` runs all.")
        for name in self.chosen:
            catalog.module_of(name)
        formats = words_of(self.figures if isinstance(self.figures, str) else ",".join(self.figures))
        object.__setattr__(self, "figures", tuple(choose("figure format", f, FORMATS) for f in formats))
        inches(self.width)
        if not 4 <= self.font_size <= 24:
            raise InputError(f"letters of a figure are 4 to 24 points; got {self.font_size:g}.")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The experiments by id."""
        return tuple(catalog.CATALOG) if "all" in self.names else self.names

    def folder(self, out: str | None) -> str | None:
        return out or str(Path("runs") / "reproduce" / self.preset)

    def plan(self) -> Plan:
        from .runner import plan

        return plan(self)

    def run(self, work: Work) -> Reproduction:
        from .runner import reproduced

        return reproduced(self, work)
