"""What every verb takes beside its fields: limits of long work, and where the answer goes."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.question import Fields, option, seconds_of


@dataclass(frozen=True, kw_only=True)
class LongWork(Fields):
    """Work that takes minutes: it says its cost first, can be stopped and goes on where it was."""

    resume: bool = option(False, "Go on with the unfinished work in `--out`.")
    max_time: float | None = option(
        None,
        "Stop after this long (`90s`, `10m`, `2h`), keep what is there and mark it partial.",
        metavar="TIME",
        parse=seconds_of,
    )
    dry_run: bool = option(False, "Print the plan and its cost, and stop.")

    @property
    def seconds(self) -> float | None:
        return self.max_time


@dataclass(frozen=True, kw_only=True)
class Output(Fields):
    """Where the answer goes."""

    out: str | None = option(None, "Folder that keeps the results; made if it is missing.", metavar="DIR")
    json: bool = option(False, "Print strict JSON and nothing else on stdout.")
    quiet: bool = option(False, "No progress on stderr.")
    debug: bool = option(False, "Show the whole traceback of an error.")
