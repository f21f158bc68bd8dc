"""The question of `quadform why`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import LARGEST, option
from .shared import ModelQuestion

#: What can be taken out of a block, one at a time.
REMOVABLE = ("softmax", "norm", "skip", "qk")


def removals(text: str) -> tuple[str, ...]:
    """`softmax,norm` as names."""
    names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    for name in names:
        if name not in REMOVABLE:
            raise UnknownName(
                f"`--remove {name}` is not something a block can lose ({', '.join(REMOVABLE)})."
                f"{did_you_mean(name, REMOVABLE)}"
            )
    return names


def whole_numbers(flag: str, text: str, least: int) -> tuple[int, ...]:
    """`0,100,1000` as rising whole numbers."""
    try:
        found = sorted({int(n) for n in text.split(",")})
    except ValueError as error:
        raise InputError(f"`{flag} {text}`: give whole numbers with commas between, such as `{flag} 0,100`.") from error
    if found[-1] > LARGEST:
        raise InputError(f"`{flag} {text}`: a whole number is at most {LARGEST:,}.")
    if found[0] < least:
        raise InputError(f"`{flag} {text}`: give numbers of at least {least}.")
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class WhyConfig(ModelQuestion):
    """What softmax, norm, skip and the product W_Q W_K^T each do to curvature: one at a time is taken out.

    Every variant has the weights, the data and the seed of the model itself; where `--steps` asks for later moments it
    is trained there first, with the same batches.
    """

    remove: str = option("softmax,norm,skip,qk", "What to take out, one at a time, commas between.")
    steps: str = option("0", "Moments of training at which to measure, commas between (`0,100,1000`).")
    lr: float = option(0.001, "Learning rate of that training (AdamW).")

    def check(self) -> None:
        super().check()
        _ = self.parts, self.moments
        if not 0 < self.lr < math.inf:
            raise InputError(f"`--lr {self.lr:g}`: a learning rate is positive and finite.")

    @property
    def parts(self) -> tuple[str, ...]:
        return removals(self.remove)

    @property
    def moments(self) -> tuple[int, ...]:
        return whole_numbers("--steps", self.steps, 0)
