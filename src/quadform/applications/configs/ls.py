"""The question of `quadform ls`."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InputError
from ...core.question import Fields, option

#: Blocks a design is described with, one by one, to be listed.
DEEPEST = 10_000


@dataclass(frozen=True, kw_only=True)
class LsConfig(Fields):
    """What there is: block designs with their formulas, data sets, experiments, and your runs with their verdicts."""

    what: str = option(
        "designs",
        "designs, data, experiments or runs.",
        positional=True,
        choices=("designs", "data", "experiments", "runs"),
    )
    folder: str = option("runs", "runs: the folder to look in.", positional=True, metavar="[DIR]")
    depth: int = option(6, "designs: blocks of the model whose parameters are counted.")
    dim: int = option(64, "designs: its width.")
    heads: int = option(4, "designs: its heads.")
    vocab: int = option(256, "designs: its vocabulary.")

    def check(self) -> None:
        if self.what != "runs" and self.folder != "runs":
            raise InputError(f"`{self.folder}` is not understood: `quadform ls {self.what}` takes no folder.")
        for name in ("depth", "dim", "heads", "vocab"):
            if getattr(self, name) < 1:
                raise InputError(f"`--{name} {getattr(self, name)}`: give at least 1.")
        if self.depth > DEEPEST:
            raise InputError(f"`--depth {self.depth}`: the list describes up to {DEEPEST:,} blocks.")
