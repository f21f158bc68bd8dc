"""`attn_implementation="quadform"` for Hugging Face models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadform.core.errors import InputError, needing
from quadform.kernels.rules import attention

NAME = "quadform"


def register_hf() -> str:
    """Make `attention` known to transformers as "quadform" and return that name.

        AutoModelForCausalLM.from_pretrained(name, attn_implementation=register_hf())

    Masks are asked for in the boolean form of SDPA, or none at all where causality says everything. Calling it twice
    changes nothing.
    """
    with needing('attn_implementation="quadform"'):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def _forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The registry's calling convention: (batch, heads, tokens, width) in, (batch, tokens, heads, width) out."""
    if dropout:
        raise InputError(f"attention with dropout ({dropout}) has no fixed second derivative; call model.eval().")
    for name in ("softcap", "s_aux", "sinks"):
        if options.get(name) is not None:
            raise InputError(f"{type(module).__name__} uses {name}, which `quadform` attention does not have.")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    mask = bias = None
    if attention_mask is not None:
        columns = attention_mask[..., : key.shape[-2]]
        mask, bias = (columns, None) if columns.dtype == torch.bool else (None, columns)
    if position_bias is not None:  # T5 and its kin: learned, added to the scores
        position_bias = position_bias[..., : key.shape[-2]]
        bias = position_bias if bias is None else bias + position_bias
    out = attention(query, key, value, causal=causal, mask=mask, bias=bias, scale=scaling)
    return out.transpose(1, 2).contiguous(), None
