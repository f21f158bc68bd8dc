"""The question of `quadform explore`."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InputError
from ...core.question import option, seconds_of
from .shared import Numerics


@dataclass(frozen=True, kw_only=True)
class ExploreConfig(Numerics):
    """The live page: move a slider and see the exact Hessian of attention, its spectrum and its blocks change.

    Serves one page on this machine alone (127.0.0.1, a secret address) until Ctrl-C. Nothing leaves the machine.
    """

    port: int = option(8765, "Port of the page; the next free one when it is taken, any free one for 0.")
    no_open: bool = option(False, "Print the address and open no browser.")
    max_time: float | None = option(
        None, "Close the page after this long (`90s`, `10m`, `2h`).", metavar="TIME", parse=seconds_of
    )

    def check(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"`--port {self.port}`: a port is a number from 0 to 65535.")
        if self.dtype != "float64" or self.device != "cpu":
            raise InputError("the live page computes on the CPU in float64; leave out `--device` and `--dtype`.")
        if not 0 <= self.seed <= 999:
            raise InputError(f"`--seed {self.seed}`: the page takes seeds from 0 to 999.")

    @property
    def seconds(self) -> float | None:
        return self.max_time
