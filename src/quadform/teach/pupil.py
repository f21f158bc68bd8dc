"""The model that is trained in the lecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Pupil:
    """An encoder-decoder that learns to translate number words."""

    seed: int = 0
