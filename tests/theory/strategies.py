"""Hypothesis strategies: attention layers with independent sizes (1 included), masks, batches, contexts and losses."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31 - 1)


def randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def weight(generator: torch.Generator, rows: int, cols: int) -> Tensor:
    """N(0, 1/rows): scores of order 1 for inputs ~ N(0, 1)."""
    return randn(generator, rows, cols) / rows**0.5


@st.composite
def attention_problems(draw: st.DrawFn, *, cross: bool = True, losses: tuple[str, ...] = ("mse",)) -> dict[str, Any]:
    """Keyword arguments of `AttentionLayer`."""
    g = torch.Generator().manual_seed(draw(seeds))
    batch, L, d, d_K, d_V = draw(st.integers(1, 3)), *(draw(sizes) for _ in range(4))
    context = cross and draw(st.booleans())
    S, d_Z = (draw(sizes), draw(sizes)) if context else (L, d)
    problem: dict[str, Any] = {
        "X": randn(g, batch, L, d),
        "W_Q": weight(g, d, d_K),
        "W_K": weight(g, d_Z, d_K),
        "W_V": weight(g, d_Z, d_V),
        "temperature": draw(st.sampled_from([1.0, 0.5, 3.0])),
        "context": randn(g, batch, S, d_Z) if context else None,
    }
    mask = draw(st.sampled_from(["none", "padding", "bias"] + ([] if context else ["causal"])))
    if mask == "causal":
        problem["mask"] = "causal"
    elif mask == "padding":
        visible = torch.rand((batch, L, S), generator=g) < 0.6
        visible[..., 0] = True
        problem["mask"] = visible
    elif mask == "bias":
        problem["mask"] = randn(g, L, S)
    problem |= draw_loss(draw(st.sampled_from(losses)), g, (batch, L, d_V))
    return problem


def draw_loss(kind: str, g: torch.Generator, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Targets and loss for an output of the given shape."""
    if kind == "mse":
        return {"Y": randn(g, *shape)}
    if kind == "cross-entropy":
        return {"Y": torch.randint(0, shape[2], shape[:2], generator=g), "loss": "cross-entropy"}
    Hl = randn(g, *shape, shape[2])
    return {"loss": (randn(g, *shape), Hl + Hl.mT)}
