"""What the page asks: one frozen, torch-free value. Its fields are the controls; a wrong one is told at its control."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.designs import DESIGNS
from .message import Refused
from .texts import LANGUAGES

#: The design that is attention and nothing else: no skip, no norm, no MLP, no W_O. At depth 1 it has a closed form.
ALONE = "attention"
CHOICES: dict[str, tuple[str, ...]] = {
    "attention": ("softmax", "linear"),
    "factor": ("qk", "single"),
    "data": ("random", "text", "upload"),
    "design": (ALONE, *DESIGNS),
}
#: Smallest and largest value of every control that is a number.
RANGES: dict[str, tuple[float, float]] = {
    "scale": (0.01, 30.0),
    "temperature": (0.1, 10.0),
    "sink": (0.0, 10.0),
    "tokens": (1, 64),
    "dim": (1, 48),
    "depth": (1, 12),
    "layer": (1, 12),
    "seed": (0, 999),
}
#: Controls whose slider is equally spaced in the logarithm.
LOGARITHMIC = ("scale", "temperature")
LONGEST_TEXT = 1000
TEXT = "the cat sat on the mat and slept"


class ControlError(Refused):
    """A value the live page cannot use."""

    languages = LANGUAGES


@dataclass(frozen=True, kw_only=True)
class State:
    """One point to look at.

    `scale` multiplies the tokens, scores are divided by `temperature`, `sink` is added to every score of the first
    token (softmax only). `layer` (from 1) is the one of `depth` whose W_Q, W_K, W_V are looked at. `upload` names
    tokens the server holds in memory. `text` is cut into words, at most `tokens` of them.
    """

    scale: float = 1.0
    temperature: float = 1.0
    sink: float = 0.0
    tokens: int = 8
    dim: int = 8
    depth: int = 1
    layer: int = 1
    design: str = ALONE
    attention: str = "softmax"
    factor: str = "qk"
    data: str = "random"
    text: str = TEXT
    upload: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in RANGES:
                self._number(name, value, int if field.type == "int" else float)
            elif not isinstance(value, str):
                raise ControlError(name, "text", got=type(value).__name__)
            elif name in CHOICES and value not in CHOICES[name]:
                raise ControlError(name, "choice", got=value[:40], known=", ".join(CHOICES[name]))
        if len(self.text) > LONGEST_TEXT:
            raise ControlError("text", "long", count=f"{len(self.text):,}", most=f"{LONGEST_TEXT:,}")
        if self.data == "text" and not self.text.split():
            raise ControlError("text", "words")
        if self.layer > self.depth:
            object.__setattr__(self, "layer", self.depth)

    def _number(self, name: str, value: Any, kind: type) -> None:
        low, high = RANGES[name]
        whole = kind is int
        good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not low <= value <= high:
            limits = {"low": f"{low:g}", "high": f"{high:g}"}
            raise ControlError(name, "whole" if whole else "range", **limits, got=str(value)[:40])
        object.__setattr__(self, name, kind(value))

    @classmethod
    def of(cls, body: Any) -> State:
        """From plain JSON; an unknown name or a wrong value is a `ControlError`."""
        if not isinstance(body, Mapping):
            raise ControlError("", "state", got=type(body).__name__)
        known = [field.name for field in dataclasses.fields(cls)]
        for name in body:
            if name not in known:
                raise ControlError("", "control", got=str(name)[:40])
        return cls(**body)

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def changes(self, other: State | None = None) -> dict[str, Any]:
        """The controls that differ from another state (the default one), with their values here."""
        other = State() if other is None else other
        return {name: value for name, value in self.json().items() if value != getattr(other, name)}

    @property
    def closed(self) -> bool:
        """Whether a closed form answers: one layer of attention alone; linear attention with two matrices only."""
        alone = self.depth == 1 and self.design == ALONE
        return alone and not (self.attention == "linear" and self.factor == "single")
