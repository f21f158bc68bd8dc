"""What `quadform explore` is asked. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..core.question import Task, option

if TYPE_CHECKING:
    from ..core.work import Work
    from .serving import Make, Served


@dataclass(frozen=True, kw_only=True)
class ExploreTask(Task):
    """The live page: move a slider and see the exact Hessian of attention, its spectrum and its blocks change.

    With a MODEL, the page of that model: attention maps of a sentence you type, its block map, its eigenvalues, where
    the top eigenvector lives, and the loss on a plane, measured in the background. With the folder of a monitor's
    record (`qf.Monitor(out=...)`), the page of its run while it trains.

    Serves one page on this machine only (127.0.0.1, a secret address) until Ctrl-C or the time limit. Nothing leaves
    the machine. The page computes on the CPU.
    """

    verb = "explore"
    takes = frozenset({"max_time"})

    model: str | None = option(
        None,
        "A run folder, a Hugging Face folder, or the folder of a monitor's record.",
        positional=True,
        metavar="[MODEL|RUN]",
    )
    data: str = option("auto", "MODEL: a data set, a text file, or `auto` (what the run was trained on).")
    port: int = option(8765, "Port of the page; the next free one if it is taken; 0: any free port.")
    no_open: bool = option(False, "Print the address, but open no browser.")
    seed: int = option(0, "Seed of all random numbers.")
    lang: str = option("en", "Language of the page.", choices=("en", "ko"))

    def check(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"port={self.port}: a port is a number from 0 to 65535.")
        if not 0 <= self.seed <= 999:
            raise InputError(f"seed={self.seed}: the page takes seeds from 0 to 999.")

    def run(self, work: Work) -> Served:
        from .serving import Served, find_place

        make = page_of(self.model, self.data, self.seed)
        seconds = None if work.deadline.until is None else work.deadline.left
        return Served(find_place(self.port), make, self.lang, seconds, browser=not self.no_open)


def page_of(model: str | None, data: str, seed: int) -> Make:
    """The page of one attention layer, of a run that a monitor watches, or of a model, which is opened now."""
    from ..core.record import JSON_NAME

    if model is None:
        from .server import application
        from .state import State

        return lambda place: application(place, start=State(seed=seed))
    if (Path(model) / JSON_NAME).exists():
        from . import watch

        folder = watch.watched(model)
        return lambda place: watch.application(place, folder)
    from ..applications.opening import Opening
    from .model.engine import ModelEngine
    from .model.server import application as of_model

    engine = ModelEngine(Opening(model=model, data=data, seed=seed).open())
    return lambda place: of_model(place, engine)
