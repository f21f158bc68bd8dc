"""What the signal is measured in: designs that are drawn, models that were opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...core.designs import DESIGNS, design
from ...core.errors import UnknownName, did_you_mean
from ...core.spec import ModelConfig
from ..machine import DTYPES, device_of, guard_design, guard_kept, guard_tokens
from ..subject import Subject
from .question import VOCAB, SignalOpening, is_design


@dataclass(frozen=True)
class Drawing:
    """A design and what is drawn of it: `networks` networks, each on `batch` random sequences of `tokens` tokens."""

    config: ModelConfig
    networks: int
    batch: int
    tokens: int
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def label(self) -> str:
        depth = self.config.depth
        return f"{self.config.design}, {depth} block{'s' * (depth > 1)}"

    def identity(self) -> dict[str, Any]:
        """What a resumed run must find again."""
        sizes = {"networks": self.networks, "batch": self.batch, "tokens": self.tokens, "seed": self.seed}
        return {"config": self.config.to_dict(), **sizes, "dtype": str(self.dtype).removeprefix("torch.")}


@dataclass(frozen=True)
class Subjects:
    """Designs and models in the order they were named."""

    names: tuple[str, ...]
    each: tuple[Drawing | Subject, ...]

    def identity(self) -> dict[str, Any]:
        """What a resumed run must find again."""
        models = [s.identity() for s in self.each if isinstance(s, Subject)]
        drawn = [s.identity() for s in self.each if isinstance(s, Drawing)]
        found = {"subjects": list(self.names), "drawn": drawn}
        return found | (models[0] if len(models) == 1 else {"models": models})


def open_subjects(asked: SignalOpening, opened: Callable[[str], Subject]) -> Subjects:
    """The designs described, the models `opened`; designs that do not fit the memory are refused first."""
    names = asked.subjects
    for name in names:
        _known(name)
    for name in filter(is_design, names):
        _guard(asked, name)
    each: list[Drawing | Subject] = []
    for name in names:
        each += [_drawing(asked, name, depth) for depth in asked.depths] if is_design(name) else [opened(name)]
    return Subjects(names, tuple(each))


def _known(word: str) -> None:
    """A word that looks like a mistyped design is told so, rather than looked for as a model."""
    near = did_you_mean(word, DESIGNS)
    if is_design(word) or not near or word.startswith("new:") or "/" in word or Path(word).exists():
        return
    raise UnknownName(f"`{word}` is neither a block design nor a model here.{near} See `quadform ls designs`.")


def _settings(asked: SignalOpening) -> dict[str, Any]:
    return {"d_model": asked.d_model, "heads": asked.heads, "vocab": VOCAB} | dict(asked.settings or {})


def _guard(asked: SignalOpening, name: str) -> None:
    device, dtype = device_of(asked.device), DTYPES[asked.dtype]
    for depth in asked.depths:
        guard_design(name, depth, device, dtype, **_settings(asked))
    guard_tokens(asked.batch_size, asked.tokens, asked.d_model, asked.heads, device, dtype)
    guard_kept(asked.networks * max(asked.depths), f"the signal of {asked.networks:,} networks")


def _drawing(asked: SignalOpening, name: str, depth: int) -> Drawing:
    return Drawing(
        design(name, depth=depth, **_settings(asked)),
        asked.networks,
        asked.batch_size,
        asked.tokens,
        asked.seed,
        DTYPES[asked.dtype],
        device_of(asked.device),
    )
