"""TrainConfig: everything that decides how a model is trained, as one frozen value; torch-free."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quadform.core.codec import changed, decode, encode
from quadform.core.errors import InputError
from quadform.core.spec import choose

from .schedule import Schedule

OPTIMIZERS = ("adamw", "adam", "sgd", "muon", "gauss-newton")
DECOUPLED = ("adamw", "muon")
"""Optimizers whose weight decay is no part of the gradient."""

EARLIER_NAMES = {"optimiser": "optimizer"}
"""What run folders of version 0.1 call a setting."""
MOST = 10**9
"""Steps of a run, or questions of a validation: more would take years."""
PRECISIONS = ("full", "bf16")
WHOLE = ("steps", "batch_size", "accumulate", "log_every", "valid_every", "valid_batches", "save_every", "bucket")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. The defaults are the small-model recipe of [HH24]: AdamW, 5 % warm-up, linear decay, clip 1.

    One step takes `accumulate` batches of `batch_size`; the gradient is that of the mean loss over all their targets.
    `clip` is the largest gradient norm (0: none), `smoothing` the label smoothing of the training loss; validation is
    always plain. Every `valid_every` steps the loss on `valid_batches` held-out batches is taken, and, where
    `questions` is not 0, the share of so many held-out questions that greedy decoding answers exactly. Training stops
    after `patience` validations without a better one (0: never), or once `goal` of the questions are answered exactly.
    `bucket` pads rows and lengths of a batch up to a multiple, so that compiled code meets few shapes (1: no padding).
    Every `watch_every` steps the token cosine of every layer is measured; `collapse_at` is the value that warns.
    The run is given up when the mean loss of `log_every` steps exceeds `diverged_at` times max(first loss, log vocab).

    With `average` the last so many models, one every `save_every` steps, are kept, and their mean at the end.
    `weight_decay` is 0.1 for adamw and muon, which shrink the weights apart from the gradient, and 0 for adam and sgd.
    Asked for there, it is added to the gradient (an L2 penalty on the matrices), as `torch.optim.Adam` and `SGD` do.
    """

    steps: int = 1000
    batch_size: int = 64
    accumulate: int = 1
    optimizer: Literal["adamw", "adam", "sgd", "muon", "gauss-newton"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    clip: float = 1.0
    smoothing: float = 0.0
    precision: Literal["full", "bf16"] = "full"
    compile: bool = False
    bucket: int = 1
    seed: int = 0
    log_every: int = 10
    valid_every: int = 200
    valid_batches: int = 8
    questions: int = 0
    patience: int = 0
    goal: float = 0.0
    save_every: int = 200
    average: int | None = None
    watch_every: int = 100
    collapse_at: float = 0.95
    diverged_at: float = 3.0

    __repr__ = changed

    def __post_init__(self) -> None:
        choose("optimizer", self.optimizer, OPTIMIZERS)
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", 0.1 if self.optimizer in DECOUPLED else 0.0)
        choose("precision", self.precision, PRECISIONS)
        for name in WHOLE:
            self._whole(name, 1)
        if self.average is not None:
            self._whole("average", 1)
        for name in ("watch_every", "questions", "patience"):
            self._whole(name, 0)
        for name in ("clip", "weight_decay", "lr", "eps", "momentum"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is at least 0 and finite; got {getattr(self, name)}.")
        if len(self.betas) != 2 or not all(isinstance(b, float | int) and 0 <= b < 1 for b in self.betas):
            raise InputError(f"betas are two numbers from 0 to below 1; got {self.betas}.")
        if not 0 <= self.smoothing < 1:
            raise InputError(f"smoothing is a share below 1; got {self.smoothing}.")
        if self.optimizer == "gauss-newton" and (self.smoothing or self.weight_decay or self.precision == "bf16"):
            raise InputError("gauss-newton minimizes the plain loss: leave out smoothing, weight decay and bf16.")
        if not 0 <= self.goal <= 1:
            raise InputError(f"goal is a share of exact answers, from 0 to 1; got {self.goal}.")
        if self.goal and not self.questions:
            raise InputError("a goal is a share of exact answers; say how many `questions` to ask at each validation.")
        if not self.diverged_at > 1:
            raise InputError(f"diverged_at is a factor above 1; got {self.diverged_at}.")

    @property
    def update(self) -> str:
        """The optimizer in words: `adamw at 0.001, weight decay 0.1`."""
        way = "" if self.optimizer in DECOUPLED else " as an L2 penalty in the gradient"
        decay = f"weight decay {self.weight_decay:g}{way}" if self.weight_decay else "no weight decay"
        return f"{self.optimizer} at {self.lr:g}, {decay}"

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or value < least:
            raise InputError(f"{name} is at least {least} and a whole number; got {value}.")
        if name in ("steps", "questions") and value > MOST:
            raise InputError(f"{name} is at most {MOST:,}; got {value:,}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, texts and lists."""
        return encode(self)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; an unknown setting is an error that names the nearest known one."""
        return decode(cls, {EARLIER_NAMES.get(k, k): v for k, v in body.items()}, "training")

    def differs(self, other: TrainConfig) -> list[str]:
        """The names of the settings in which two configs differ."""
        return [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(other, f.name)]
