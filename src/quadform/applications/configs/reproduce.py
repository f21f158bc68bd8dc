"""The question of `quadform reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ...core.errors import InputError
from .shared import seconds_of


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """The papers' figures and tables, made again, and each of their claims: met, not met, undecided or not tested.

    Every experiment is saved, drawn (SVG, PNG, HTML) and judged. What is finished in `--out` is kept, what was stopped
    goes on. Exit code 3 means that a claim is not met.
    """

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="ID [ID ...] | all", help_behavior_hint="")] = ()
    """Experiments by id (`quadform ls experiments`), or `all`."""
    preset: Literal["smoke", "cpu", "paper"] = "smoke"
    """smoke: seconds; cpu: minutes on two cores; paper: the published sizes, where a CPU can reach them."""
    seed: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the experiment's own)")] = None
    """Seed of everything that is drawn."""
    again: bool = False
    """Compute again what is finished in `--out`."""
    max_time: Annotated[str | None, arg(metavar="TIME", help_behavior_hint="")] = None
    """Stop after this long (`90s`, `10m`, `2h`); the same command goes on."""
    dry_run: bool = False
    """Print what would be run and what it cost when it was last recorded, and stop."""

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError(
                "which experiment? `quadform ls experiments` lists them; `quadform reproduce all` runs all."
            )
        _ = self.seconds

    @property
    def seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else seconds_of(self.max_time)
