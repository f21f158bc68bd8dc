"""The question of `quadform compare`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.designs import DESIGNS
from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import option, seconds_of, whole_numbers
from .shared import LongWork, Numerics

#: What rows can be sorted by.
SORTS = ("design", "loss", "lr_ceiling", "rank", "cosine", "gradient", "parameters", "speed")


def design_names(text: str) -> tuple[str, ...]:
    """`pre-ln,sas-p` as designs."""
    names = tuple(dict.fromkeys(n.strip().replace("_", "-") for n in text.split(",") if n.strip()))
    for name in names:
        if name not in DESIGNS:
            raise UnknownName(
                f"`--designs {name}` is not a block design.{did_you_mean(name, DESIGNS)} See `quadform ls designs`."
            )
    if not names:
        raise InputError("`--designs` is empty; give at least one design. See `quadform ls designs`.")
    return names


@dataclass(frozen=True, kw_only=True)
class CompareConfig(LongWork, Numerics):
    """Which block before spending GPU money: designs and depths side by side under a budget of time.

    At initialisation: token cosine, rank and gradient ratio through depth, lambda_max, the AdamW ceiling; parameters,
    FLOPs, memory. Then a short training of equal time each: loss on held-out data, tokens a second.
    """

    designs: str = option("pre-ln,post-ln,parallel,sas-p,v-skipinit", "Block designs, commas between.")
    depths: str = option("2,6", "Numbers of blocks, commas between.")
    dim: int = option(64, "Width of the stream.")
    heads: int = option(4, "Attention heads.")
    data: str = option("add", "Data set (`quadform ls data`), with settings as in `add:digits=3`.")
    batch: int = option(32, "Sequences in a batch.")
    lr: float = option(
        0.001, "Learning rate of the short training (AdamW, warm-up 5 %, linear decay), the same for all."
    )
    budget: float = option(
        300.0,
        "Time for everything together, as far as it can be planned (`90s`, `5m`).",
        parse=seconds_of,
        shown="(default: 5m)",
    )
    sort: str = option(
        "loss",
        "Order of the rows.",
        choices=("design", "loss", "lr_ceiling", "rank", "cosine", "gradient", "parameters", "speed"),
    )
    dtype: str = option("float32", "Number format of the computation.", choices=("float32", "float64"))

    def check(self) -> None:
        _ = self.names, self.each_depth
        for name in ("dim", "heads", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"`--{name} {getattr(self, name)}`: give at least 1.")
        if self.dim % self.heads:
            raise InputError(f"`--dim {self.dim}` does not divide into `--heads {self.heads}`. Change one of them.")
        if not 0 < self.lr < math.inf:
            raise InputError(f"`--lr {self.lr:g}`: a learning rate is positive and finite.")

    @property
    def names(self) -> tuple[str, ...]:
        return design_names(self.designs)

    @property
    def each_depth(self) -> tuple[int, ...]:
        found = whole_numbers(self.depths)
        if found[0] < 1:
            raise InputError(f"`--depths {self.depths}`: give numbers of at least 1.")
        return found

    @property
    def budget_seconds(self) -> float:
        return self.budget
