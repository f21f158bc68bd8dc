"""The centring matrix C of shaped attention, and the mixing alpha I + beta A - gamma C.

C is the attention matrix when all logits are zero: uniform over the keys a query may see. Source: [HH24, Sec. 4]; the
padding-aware form and the matrix-free product are [own].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform.core.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def centring(
    mask_or_seq_len: Tensor | int,
    causal: bool = True,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """C, uniform over visible keys: causal C_ij = 1/i for j <= i, bidirectional C = 11^T / T.

    Given a number of tokens: (T, T). Given a boolean padding mask (..., T), True = a real token: (..., T, T) with
    C_ij = visible_j / (number of visible keys of query i). The row of a query that sees no key is zero.
    """
    if isinstance(mask_or_seq_len, Tensor):
        visible = _padding(mask_or_seq_len)
        device = visible.device if device is None else device
        visible = visible.to(device)[..., None, :].expand(*visible.shape, visible.shape[-1])
    else:
        T = int(mask_or_seq_len)
        if T < 1:
            raise InputError(f"a sequence has at least one token; got {mask_or_seq_len}.")
        visible = torch.ones(T, T, dtype=torch.bool, device=device)
    return uniform(torch.tril(visible) if causal else visible, dtype)


def uniform(
    visible: Bool[Tensor, "*batch queries keys"], dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*batch queries keys"]:
    """C for any boolean attention mask (..., queries, keys): visible / row count; zero where a row sees nothing."""
    if visible.dtype != torch.bool:
        raise InputError(f"an attention mask is boolean (True = visible); got {visible.dtype}.")
    weight = visible.to(dtype)
    return weight / weight.sum(-1, keepdim=True).clamp_min(1)


def running_mean(
    V: Float[Tensor, "*batch T d"], mask: Bool[Tensor, ...] | None = None, causal: bool = True
) -> Float[Tensor, "*batch T d"]:
    """C V without the (T, T) matrix: V (..., T, d); mask (..., T) broadcasts to V's leading axes, True = a real token.

    Causal: the mean of the visible rows so far. In cached decoding it is one running sum and one count.
    """
    if mask is None:
        if not causal:
            return V.mean(-2, keepdim=True).expand_as(V)
        count = torch.arange(1, V.shape[-2] + 1, device=V.device, dtype=V.dtype)[:, None]
        return V.cumsum(-2) / count
    weight = _padding(mask).to(V.dtype)[..., None]
    # torch.where, not a product: a padded row may hold anything, NaN included
    total, count = torch.where(weight > 0, V, torch.zeros((), dtype=V.dtype, device=V.device)), weight
    if causal:
        return total.cumsum(-2) / count.cumsum(-2).clamp_min(1)
    return (total.sum(-2, keepdim=True) / count.sum(-2, keepdim=True).clamp_min(1)).expand_as(V)


def mix(A: Tensor, C: Tensor, alpha: float | Tensor, beta: float | Tensor, gamma: float | Tensor) -> Tensor:
    """alpha I + beta A - gamma C for A (..., T, T); scalars, or tensors that broadcast against A (per head: (H, 1, 1)).

    V-SkipInit is (1, 0, 0) at the start, shaped attention (1, 1, 1). Rows sum to alpha + beta - gamma.
    Source: [HMZ23, Sec. 3], [HH24, Eq. 5].
    """
    return alpha * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) + beta * A - gamma * C


def _padding(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise InputError(f"a padding mask is boolean (True = a real token); got {mask.dtype}. Use `tokens != pad_id`.")
    if mask.ndim < 1:
        raise InputError("a padding mask has shape (..., tokens); got a scalar.")
    return mask
