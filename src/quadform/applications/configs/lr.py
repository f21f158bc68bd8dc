"""The question of `quadform lr`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.errors import InputError
from ...core.question import option
from .shared import ModelQuestion


@dataclass(frozen=True, kw_only=True)
class LrConfig(ModelQuestion):
    """The largest stable learning rate here and now: a ceiling from curvature, not a recommendation.

    SGD 2 / lambda_max(H), momentum (2 + 2b) / lambda_max(H), Adam and AdamW (2 + 2 b1) / (1 - b1) / lambda_max(P^-1 H)
    with P from the optimizer state. Above it, steps along the sharpest direction of the probe's loss grow.
    """

    batches: int = option(
        4, "Probe batches; their mean is the loss, and the interval is the range of the ceilings on each alone."
    )
    optimizer: str = option(
        "auto",
        "Whose ceiling; `auto` is the run's own optimizer, AdamW where there is none.",
        choices=("auto", "sgd", "momentum", "adam", "adamw"),
    )
    state: str | None = option(
        None,
        "Optimizer state for P: a run folder, or torch's optimizer.pt (read without running any code in it).",
        metavar="CKPT",
    )
    momentum: float = option(0.9, "Momentum of SGD.")
    beta1: float = option(0.9, "First decay rate of Adam, where no state says.")
    beta2: float = option(0.999, "Second decay rate of Adam, where no state says.")
    weight_decay: float = option(0.0, "Weight decay of matrices, where no state says.")
    lr: float | None = option(
        None, "Your learning rate, to be held against the ceiling.", metavar="FLOAT", shown="(default: the run's)"
    )
    verify: int = option(20, "Steps of each trial on a copy of the model (0.5x, 1x, 2x the ceiling); 0 tries nothing.")
    products: int = option(60, "Most Hessian-vector products for one eigenvalue.")

    def check(self) -> None:
        super().check()
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"`--{name} {getattr(self, name):g}`: give a number from 0 up to, not including, 1.")
        if self.verify < 0 or self.products < 5:
            raise InputError(
                f"`--verify {self.verify} --products {self.products}`: steps are at least 0, products at least 5."
            )
        if not 0 <= self.weight_decay < math.inf or (self.lr is not None and not 0 < self.lr < math.inf):
            raise InputError("`--weight-decay` is at least 0 and `--lr` positive, both finite.")
