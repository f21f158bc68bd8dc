"""What questions have in common: numerics, long work, a model as the subject, where the answer goes."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.question import Fields, option, seconds_of


@dataclass(frozen=True, kw_only=True)
class Numerics(Fields):
    """Where and how the numbers are made."""

    seed: int = option(0, "Seed of everything that is drawn.")
    dtype: str = option(
        "float64",
        "Number format of the computation; half precision is refused, it underflows.",
        choices=("float32", "float64"),
    )
    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:0, ...")


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
