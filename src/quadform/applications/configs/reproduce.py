"""The question of `quadform reproduce`."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InputError
from ...core.question import Fields, option, seconds_of


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig(Fields):
    """The papers' figures and tables, made again, and each of their claims: met, not met, undecided or not tested.

    Every experiment is saved, drawn (SVG, PNG, HTML) and judged. What is finished in `--out` is kept, what was stopped
    goes on. Exit code 3 means that a claim is not met.
    """

    names: tuple[str, ...] = option(
        (), "Experiments by id (`quadform ls experiments`), or `all`.", positional=True, metavar="ID [ID ...] | all"
    )
    preset: str = option(
        "smoke",
        "smoke: seconds; cpu: minutes on two cores; paper: the published sizes, where a CPU can reach them.",
        choices=("smoke", "cpu", "paper"),
    )
    seed: int | None = option(
        None, "Seed of everything that is drawn.", metavar="INT", shown="(default: the experiment's own)"
    )
    again: bool = option(False, "Compute again what is finished in `--out`.")
    max_time: float | None = option(
        None, "Stop after this long (`90s`, `10m`, `2h`); the same command goes on.", metavar="TIME", parse=seconds_of
    )
    dry_run: bool = option(False, "Print what would be run and what it cost when it was last recorded, and stop.")

    def check(self) -> None:
        if not self.names:
            raise InputError(
                "which experiment? `quadform ls experiments` lists them; `quadform reproduce all` runs all."
            )

    @property
    def seconds(self) -> float | None:
        return self.max_time
