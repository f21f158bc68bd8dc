"""Functions attention is made of: the kernel to take, heads, rotations, and the biases of signal preservation."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.core.spec import Mixing
from quadform.kernels import attention

FEW_QUERIES = 8
"""Up to so many queries (a decoding step) three plain operations are faster on a CPU than the fused kernel."""


@torch.compiler.assume_constant_result
def _transformed() -> bool:
    """Whether a torch.func transform is at work. A constant of the traced program: Dynamo cannot read the stack."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale Q K^T + bias) V by torch's fused kernels, or by `quadform.kernels` inside a torch.func transform.

    The fused kernels have a first derivative only; under `torch.func` (jvp, vmap, grad of grad) the twice
    differentiable one is taken. For plain `autograd.grad(create_graph=True)` set `Transformer.attend` to
    `quadform.kernels.attention`.
    """
    if _transformed():
        return attention(q, k, v, causal=causal, mask=mask, bias=bias, scale=scale)
    if bias is not None and causal and mask is None:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    grouped = q.shape[-3] != k.shape[-3]
    if (
        not torch.is_grad_enabled()  # first: compiled training asks for no shape here
        and q.device.type == "cpu"
        and not grouped
        and not causal
        and q.shape[-2] <= FEW_QUERIES
    ):
        S = (q if scale is None else scale * q) @ k.mT
        S = S / q.shape[-1] ** 0.5 if scale is None else S
        if mask is not None:
            S = S + mask if mask.is_floating_point() else S.masked_fill(~mask, float("-inf"))
        return S.softmax(-1) @ v
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
    )


def linear_attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    """scale (Q K^T, zero where masked) V; without any mask as Q (K^T V), no (tokens x tokens) matrix."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = repeat_heads(k, groups), repeat_heads(v, groups)
    if mask is None and not causal:
        return scale * (q @ (k.mT @ v))
    A = q @ k.mT
    return scale * ((A.masked_fill(~mask, 0.0) if mask is not None else A.tril()) @ v)


def repeat_heads(x: Tensor, groups: int) -> Tensor:
    """(batch, key heads, n, width) -> (batch, heads, n, width): each key head serves `groups` query heads."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)


@lru_cache(maxsize=256)
def spa_bias(
    family: str, prev: float, next: float, tokens: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """B (T, T) and D (T,) of `propagation.shaping.spa_bias`, kept for the next call.

    Built outside any torch.func transform and inference mode, since it outlives them.
    """
    from quadform.propagation import shaping

    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        B, D = shaping.spa_bias(family, prev, next, tokens, causal=causal, dtype=dtype)  # type: ignore[arg-type]  # a checked word
        return B.to(device), D.to(device)


def spa_strengths(mixing: Mixing, depth: int) -> tuple[float, ...]:
    """Strength before block 1, after block 1, ..., after the last: depth + 1 numbers."""
    from quadform.propagation import shaping

    bias = mixing.bias
    assert bias is not None, "asked of mixing with SPA alone"
    schedule = shaping.u_spa_schedule if bias.family == "u-spa" else shaping.e_spa_schedule
    return schedule(bias.final, depth) if bias.start is None else schedule(bias.final, depth, bias.start)


def linear(X: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """X W + b."""
    return X @ W if b is None else F.linear(X, W.mT, b)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: each pair (x_i, x_{i + width/2}) turned by its angle; x (batch, heads, n, width)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
