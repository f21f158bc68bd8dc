"""The question of `quadform ls`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ...core.errors import InputError

#: Blocks a design is described with, one by one, to be listed.
DEEPEST = 10_000


@dataclass(frozen=True, kw_only=True)
class LsConfig:
    """What there is: block designs with their formulas, data sets, experiments, and your runs with their verdicts."""

    what: Annotated[Positional[Literal["designs", "data", "experiments", "runs"]], arg(help_behavior_hint="")] = (
        "designs"
    )
    """designs, data, experiments or runs."""
    folder: Annotated[Positional[str], arg(metavar="[DIR]", help_behavior_hint="")] = "runs"
    """runs: the folder to look in."""
    depth: int = 6
    """designs: blocks of the model whose parameters are counted."""
    dim: int = 64
    """designs: its width."""
    heads: int = 4
    """designs: its heads."""
    vocab: int = 256
    """designs: its vocabulary."""

    def __post_init__(self) -> None:
        if self.what != "runs" and self.folder != "runs":
            raise InputError(f"`{self.folder}` is not understood: `quadform ls {self.what}` takes no folder.")
        for name in ("depth", "dim", "heads", "vocab"):
            if getattr(self, name) < 1:
                raise InputError(f"`--{name} {getattr(self, name)}`: give at least 1.")
        if self.depth > DEEPEST:
            raise InputError(f"`--depth {self.depth}`: the list describes up to {DEEPEST:,} blocks.")
