"""Attention maps of a whole model: what every attention layer was given is noted, and its matrix is made of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .attention import Attention
from .block import Block
from .frame import Memory
from .transformer import Transformer


def cross_matrix(attn: Attention, N: Tensor, memory: Memory) -> Tensor:
    """softmax(scale Q K^T), queries from N and keys from the memory: (batch, heads, n, m)."""
    return (attn.scale * attn.queries(N) @ attn.keys(memory.X).mT).softmax(-1)


@torch.no_grad()
def maps_of(model: Transformer, tokens: list[int], source: list[int] | None = None) -> dict[str, Tensor]:
    """(heads, rows, columns) of every layer, as the model reads `tokens`: `layer.0`, ...; with a `source` `encoder.0`,
    `decoder.0`, `cross.0`, ..."""
    found: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(attn: nn.Module, given: tuple[Any, ...]) -> None:
            assert isinstance(attn, Attention)
            N, frame, memory = given[0], given[1], given[3] if len(given) > 3 else None
            found[name] = (attn.matrix(N, frame) if memory is None else cross_matrix(attn, N, memory))[0]

        return hook

    handles = []
    for kind, stack in (("encoder", model.encoder_layers), ("layer" if source is None else "decoder", model.layers)):
        for i, block in enumerate(stack):
            assert isinstance(block, Block)
            handles.append(block.attn.register_forward_pre_hook(note(f"{kind}.{i}")))
            if block.cross is not None:
                handles.append(block.cross.register_forward_pre_hook(note(f"cross.{i}")))
    try:
        more = {} if source is None else {"source": torch.tensor([source])}
        model(torch.tensor([tokens]), **more)
    finally:
        for handle in handles:
            handle.remove()
    return found
