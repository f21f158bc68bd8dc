"""Second derivatives for code that calls `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.core.errors import InputError

from .calls import AttentionBy
from .rules import attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's function of that name through `attention`, with its signature.

    A row that sees no key gives zeros. Dropout is refused: a Hessian of a random loss is none.
    """
    if dropout_p:
        raise InputError(
            f"attention with dropout ({dropout_p}) has no fixed second derivative; set the model to eval()."
        )
    lead = query.shape[:-2]
    if query.dim() == 2:
        query, key, value = (t[None] for t in (query, key, value))
    heads = query.shape[-3]
    if not enable_gqa and query.shape[:-2] != key.shape[:-2]:
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        query, key, value = (t.expand(*batch, *t.shape[-2:]) for t in (query, key, value))
        lead, heads = batch, batch[-1]
    if attn_mask is None:
        mask, bias = None, None
    else:
        mask, bias = (attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)
    out = attention(query, key, value, causal=is_causal, mask=mask, bias=bias, scale=scale)
    return out.reshape(*lead, *out.shape[-2:]) if heads else out


def second_order_sdpa() -> AttentionBy:
    """Inside the scope `F.scaled_dot_product_attention` can be differentiated twice, at linear memory.

        with second_order_sdpa():
            loss = model(x)
            g = torch.autograd.grad(loss, params, create_graph=True)

    The scope belongs to the thread that enters it; other threads keep torch's own.
    """
    return AttentionBy(scaled_dot_product_attention)
