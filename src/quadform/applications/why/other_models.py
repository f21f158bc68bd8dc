"""Models of others without their norms or their softmax, with the weights of the model they come from.

`norm`: every module whose class is called ...Norm is the identity. `softmax`: A = Q K^T scale, hidden keys 0, through
the attention registry of transformers. Skips and the product W_Q W_K^T are written into the code of a model and stay.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import InputError, needing, pass_on_memory
from ...curvature.settings import LINEAR_ATTENTION
from ...nn.transformer import Transformer
from .ablation import config_without, model_without
from .question import REMOVABLE

#: What can be taken out of a model of others.
TAKEN = ("softmax", "norm")


def module_without(model: nn.Module, what: str) -> nn.Module:
    """A copy of `model` without `what`; `what` "nothing" is a plain copy. What cannot be taken out is an error."""
    if what != "nothing" and what not in TAKEN:
        raise InputError(
            f"{type(model).__name__} is not a quadform model: of {', '.join(REMOVABLE)} only {' and '.join(TAKEN)}"
            " can be removed from it."
        )
    twin = copy.deepcopy(model)
    if what == "norm":
        _drop_norms(twin)
    elif what == "softmax":
        _linear(twin)
    return twin.eval()


def _drop_norms(model: nn.Module) -> None:
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if re.search(r"(?<!Batch)Norm\d*$", type(child).__name__)
    ]
    if not found:
        raise InputError("this model has no norm to remove.")
    for parent, name in found:
        setattr(parent, name, nn.Identity())


def _linear(model: nn.Module) -> None:
    held: list[Any] = [getattr(m, "config", None) for m in model.modules()]
    configs = {id(c): c for c in held if hasattr(c, "_attn_implementation")}
    if not configs:
        raise InputError(
            "its attention does not use the attention registry of transformers, so its softmax cannot be removed."
        )
    with needing("Taking the softmax out of Hugging Face models"):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(LINEAR_ATTENTION, linear_attention)
    AttentionMaskInterface.register(LINEAR_ATTENTION, sdpa_mask)
    for config in configs.values():
        config._attn_implementation = LINEAR_ATTENTION


def linear_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """softmax(S) V without its softmax, in the calling convention of the registry: (batch, heads, tokens, width) in,
    (batch, tokens, heads, width) out."""
    for name in ("softcap", "s_aux", "sinks", "position_bias"):
        if options.get(name) is not None:
            raise InputError(f"{type(module).__name__} adds {name} to its scores, so its softmax cannot be removed.")
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    A = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        columns = attention_mask[..., : key.shape[-2]]
        A = A.masked_fill(~columns if columns.dtype == torch.bool else columns < 0, 0.0)
    elif (getattr(module, "is_causal", True) if is_causal is None else is_causal) and query.shape[2] > 1:
        A = A.tril(key.shape[-2] - query.shape[-2])
    return (A @ value).transpose(1, 2).contiguous(), None


@torch.no_grad()
def refuse_unchanged(model: nn.Module, what: str, batch: Any) -> None:
    """An error where the model without `what` cannot be run, or says the same: then nothing was taken out."""
    try:
        losses = [_loss(m, batch) for m in (module_without(model, "nothing"), module_without(model, what))]
    except InputError:
        raise
    except Exception as error:
        pass_on_memory(error)
        raise InputError(f"without {what} this model cannot be run ({type(error).__name__}: {error}).") from error
    if not losses[0].is_meta and float(losses[0]) == float(losses[1]):  # without numbers nothing can be told
        raise InputError(f"without {what} the loss of this model is the same, so nothing was removed.")


def _loss(model: nn.Module, batch: Any) -> Tensor:
    out = model(**batch)
    loss = getattr(out, "loss", None)
    if loss is None:
        raise InputError("the model returned no loss; give labels in the batch.")
    return loss


# --- any model --------------------------------------------------------------------------------------------------------
def without(model: nn.Module, what: str) -> Any:
    """A copy of a model of ours or of others without `what`."""
    return model_without(model, what) if isinstance(model, Transformer) else module_without(model, what)


def removable(model: nn.Module, remove: Sequence[str], batch: Any) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """What of `remove` can be taken out, and `left_out`: why the rest cannot. Nothing at all of a model of others is an
    error."""
    kept: list[str] = []
    left: dict[str, str] = {}
    for name in dict.fromkeys(remove):
        try:
            if isinstance(model, Transformer):
                described: Any = model.config
                config_without(described, name)
            else:
                refuse_unchanged(model, name, batch)
            kept.append(name)
        except InputError as error:
            if name not in REMOVABLE:
                raise
            left[name] = str(error)
    if not kept and left and not isinstance(model, Transformer):
        raise InputError(
            f"nothing can be removed from {type(model).__name__}: {' '.join(dict.fromkeys(left.values()))}"
        )
    return tuple(kept), {"left_out": left} if left else {}
