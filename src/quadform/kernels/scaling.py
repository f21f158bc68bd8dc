"""Largest magnitude and scaled float16 copy of a tensor, each in one pass: the Triton side of `products.halve`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import interpreted


@triton.jit
def _largest(x, top, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """top = max(top, max |x|) over STEPS blocks."""
    seen = tl.zeros((BLOCK,), tl.float32)
    start = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS)
    for step in range(STEPS):
        at = start + step * BLOCK + tl.arange(0, BLOCK)
        seen = tl.maximum(seen, tl.abs(tl.load(x + at, mask=at < n, other=0.0)))
    tl.atomic_max(top, tl.max(seen, 0))


@triton.jit
def _scale(x, top, half, back, n, BLOCK: tl.constexpr):
    """half = 2^(14 − e) x in float16 with e = floor(log2 top), and back = 2^(e − 14)."""
    power = tl.floor(tl.log2(tl.maximum(tl.load(top), 1e-30)))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0) * tl.exp2(14.0 - power)
    tl.store(half + at, value.to(tl.float16), mask=at < n)
    if tl.program_id(0) == 0:
        tl.store(back, tl.exp2(power - 14.0))


def halve(x: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Fill `half` (laid out as the dense x) and return it with the factor that undoes the scale."""
    top, back = torch.zeros((), device=x.device), torch.empty((), device=x.device)
    n, block, steps = x.numel(), 1024 if interpreted() else 2048, 8
    _largest[(triton.cdiv(n, block * steps),)](x, top, n, BLOCK=block, STEPS=steps)
    _scale[(triton.cdiv(n, block),)](x, top, half, back, n, BLOCK=block)
    return half, back
