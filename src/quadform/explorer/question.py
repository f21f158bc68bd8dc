"""What `quadform explore` is asked. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.question import Task, option

if TYPE_CHECKING:
    from ..core.work import Work
    from .serving import Place, Served


@dataclass(frozen=True, kw_only=True)
class ExploreTask(Task):
    """The live page: move a slider and see the exact Hessian of attention, its spectrum and its blocks change.

    Serves one page on this machine only (127.0.0.1, a secret address) until Ctrl-C or the time limit. Nothing leaves
    the machine. The page computes on the CPU in float64.
    """

    verb = "explore"
    takes = frozenset({"max_time"})

    model: str | None = option(
        None,
        "The folder of a monitor's record (`qf.Monitor(out=...)`): its run is shown while it trains.",
        positional=True,
        metavar="[RUN]",
    )
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
        from .state import State

        folder = None if self.model is None else _watched(self.model)

        def make(place: Place) -> Any:
            if folder is not None:
                from . import watch

                return watch.application(place, folder)
            from .server import application

            return application(place, start=State(seed=self.seed))

        seconds = None if work.deadline.until is None else work.deadline.left
        return Served(find_place(self.port), make, self.lang, seconds, browser=not self.no_open)


def _watched(folder: str) -> Path:
    from .watch import watched

    return watched(folder)
