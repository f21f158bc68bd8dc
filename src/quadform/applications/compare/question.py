"""The question of `quadform compare` and `qf.compare`. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...core.designs import DESIGNS
from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import Question, option, seconds_of, whole_numbers, words_of

#: What rows can be sorted by.
SORTS = ("design", "loss", "lr_ceiling", "rank", "cosine", "gradient", "parameters", "speed")


@dataclass(frozen=True, kw_only=True)
class CompareQuestion(Question):
    """Block designs and depths side by side, under a time budget.

    At initialization: token cosine, rank and gradient ratio through depth, lambda_max, the AdamW ceiling; parameters,
    FLOPs, memory. Then a short training run of the same time for each: loss on held-out data, tokens per second.
    """

    verb = "compare"
    again = frozenset({"device", "data"})  # `identity` has the data in plain values

    designs: Sequence[str] = option(
        ("pre-ln", "post-ln", "parallel", "sas-p", "v-skipinit"),
        "Block designs, comma-separated.",
        parse=words_of,
        metavar="NAMES",
    )
    depths: Sequence[int] | int = option(
        (2, 6), "Numbers of blocks, comma-separated.", parse=whole_numbers, metavar="DEPTHS"
    )
    d_model: int = option(64, "Width of the model.", least=1)
    heads: int = option(4, "Attention heads.", least=1)
    data: str | object = option(
        "add", "Data set (`quadform ls data`), with settings as in `add:digits=3`; in Python also a Dataset."
    )
    batch_size: int = option(32, "Sequences per batch.", least=1)
    lr: float = option(
        1e-3, "Learning rate of the short training (AdamW, warm-up 5 %, linear decay), the same for all.", above=0
    )
    budget: float = option(
        300.0,
        "Total time, as far as it can be planned (`90s`, `5m`).",
        parse=seconds_of,
        metavar="TIME",
        shown="(default: 5m)",
        above=0,
    )
    sort: str = option("loss", "Order of the rows.", choices=SORTS)
    seed: int = option(0, "Seed of all random numbers.")
    dtype: str = option("float32", "Floating-point type of the computation.", choices=("float32", "float64"))
    device: str = option("cpu", "Device to compute on: cpu, cuda, cuda:0, ...")

    def check(self) -> None:
        names = tuple(dict.fromkeys(name.replace("_", "-") for name in self.designs))
        depths = (self.depths,) if isinstance(self.depths, int) else tuple(self.depths)
        object.__setattr__(self, "designs", names)
        object.__setattr__(self, "depths", tuple(dict.fromkeys(depths)))
        for name in names:
            if name not in DESIGNS:
                raise UnknownName(f"designs={name!r} is not a block design.{did_you_mean(name, DESIGNS)}")
        if not names or not depths:
            raise InputError("a comparison needs at least one design and one depth.")
        if min(depths) < 1:
            raise InputError(f"depths={list(depths)}: give numbers of at least 1.")
        if self.d_model % self.heads:
            raise InputError(f"d_model={self.d_model} does not divide into heads={self.heads}. Change one of them.")

    @property
    def cells(self) -> list[tuple[str, int]]:
        """(design, depth) of every model."""
        depths = (self.depths,) if isinstance(self.depths, int) else self.depths
        return [(name, depth) for depth in depths for name in self.designs]

    @property
    def about(self) -> str:
        """What the question is about, in words."""
        return ", ".join(self.designs)

    @cached_property
    def dataset(self) -> Any:
        """The data as a Dataset."""
        if not isinstance(self.data, str):
            return self.data
        from ...corpora.datasets import dataset
        from ..subject import parse_data

        name, settings = parse_data(self.data)
        return dataset(name, **settings)

    def identity(self, subject: Any = None) -> dict[str, Any]:
        return super().identity(subject) | {"data": self.dataset.to_dict()}

    def measurement(self, subject: Any = None) -> Any:
        from .measure import CompareMeasurement

        return CompareMeasurement(self)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.compare import Compare

        return Compare(record)
