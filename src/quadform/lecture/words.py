"""The sentence of the lecture as tokens of a small model: one word, one id, one vector."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from ..nn.tokens import SPECIALS
from ..nn.transformer import Transformer
from .controls import MOST_WORDS

VOCAB = 1000


def words_of(sentence: str) -> list[str]:
    """The words that are looked at."""
    return sentence.split()[:MOST_WORDS]


def ids(words: list[str]) -> list[int]:
    """An id for every word, by its hash: equal words have equal ids."""
    return [len(SPECIALS) + zlib.crc32(word.lower().encode()) % (VOCAB - len(SPECIALS)) for word in words]


def sentence_model(sentence: str, d_model: int = 8, **settings: Any) -> tuple[Transformer, Tensor]:
    """A small untrained Transformer as of [VSP17], and the sentence as its tokens.

    Post-LN, sinusoidal positions, embeddings times sqrt(d_model).
    """
    usual: dict[str, Any] = {"design": "post-ln", "kind": "encoder", "depth": 1, "heads": 1, "vocab": VOCAB}
    inputs = {"positions": "sinusoidal", "embed_norm": "none", "embed_scale": d_model**0.5}
    model = Transformer(**usual | inputs | settings, d_model=d_model, seed=0, dtype=torch.float64)
    return model.eval().requires_grad_(False), torch.tensor([ids(words_of(sentence))])
