"""What every verb takes beside its fields: limits of long work, and where the answer goes."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.question import Fields, option, seconds_of


@dataclass(frozen=True, kw_only=True)
class LongWork(Fields):
    """Work that takes minutes: it says its cost first, can be stopped and goes on where it was."""

    resume: bool = option(False, "Resume the unfinished run in `--out`.")
    max_time: float | None = option(
        None,
        "Stop after this time (`90s`, `10m`, `2h`). Results so far are kept and marked partial.",
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

    out: str | None = option(None, "Folder for the results; created if missing.", metavar="DIR")
    lang: str = option("en", "Language of the sentences in the answer.", choices=("en", "ko"))
    json: bool = option(False, "Print strict JSON and nothing else on stdout.")
    quiet: bool = option(False, "Print no progress to stderr.")
    debug: bool = option(False, "Show the whole traceback of an error.")
