"""What `quadform teach` is asked. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.question import Task, option

if TYPE_CHECKING:
    from ..core.work import Work
    from ..explorer.serving import Place, Served


@dataclass(frozen=True, kw_only=True)
class TeachTask(Task):
    """The Transformer as a lecture in the browser: tokens, attention, encoder and decoder, training, beam search.

    Every picture is computed when you move its slider. A small model is trained while you watch, then decoded and
    measured: its Hessian, its signal, its learning-rate ceiling. Serves one page on this machine only (127.0.0.1, a
    secret address) until Ctrl-C or the time limit. Nothing leaves the machine.
    """

    verb = "teach"
    takes = frozenset({"max_time"})

    port: int = option(8775, "Port of the page; the next free one if it is taken; 0: any free port.")
    no_open: bool = option(False, "Print the address, but open no browser.")
    seed: int = option(0, "Seed of the model that is trained.", least=0)
    lang: str = option("en", "Language of the page.", choices=("en", "ko"))

    def check(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"port={self.port}: a port is a number from 0 to 65535.")

    def run(self, work: Work) -> Served:
        from ..explorer.serving import Served, find_place

        def make(place: Place) -> Any:
            from .server import application

            return application(place, seed=self.seed)

        seconds = None if work.deadline.until is None else work.deadline.left
        return Served(find_place(self.port), make, self.lang, seconds, browser=not self.no_open)
