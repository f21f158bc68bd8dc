"""Attention maps of the lecture's model, as it predicts a target."""

from __future__ import annotations

from torch import Tensor

from ..nn.maps import cross_matrix as cross_matrix
from ..nn.maps import maps_of
from ..nn.transformer import Transformer


def attention_maps(model: Transformer, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """(heads, rows, columns) of every layer, as the model reads `source` and predicts `target` after its first token:
    `encoder.0`, `decoder.0`, `cross.0`, ..."""
    return maps_of(model, target[:-1], source)
