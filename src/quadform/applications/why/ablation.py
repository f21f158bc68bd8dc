"""A model without its softmax, norms, skips or the product W_Q W_K^T, with the weights of the model it comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.spec import BlockSpec, Gain, ModelConfig
from ...nn.transformer import Transformer
from .question import REMOVABLE


def config_without(config: ModelConfig, what: str) -> ModelConfig:
    """The description with one thing taken out of every block, and nothing else changed.

    `softmax`: A = Q K^T / sqrt(d_k). `norm`: no norm anywhere, the final one included. `skip`: X -> branch f(X).
    `qk`: one matrix W_QK a head in place of W_Q W_K^T.
    """
    if what not in REMOVABLE:
        raise InputError(f"cannot remove {what!r}; choose from {', '.join(REMOVABLE)}.")
    changed = {
        "softmax": _linear,
        "norm": lambda b: replace(b, norm="none"),
        "skip": _no_skip,
        "qk": lambda b: replace(b, mixing=replace(b.mixing, scores="merged")),
    }[what]
    blocks, encoder = tuple(map(changed, config.blocks)), tuple(map(changed, config.encoder_blocks))
    norms = {"final_norm": "none", "embed_norm": "none"} if what == "norm" else {}
    made = replace(config, blocks=blocks, encoder_blocks=encoder, **norms)  # type: ignore[arg-type]  # fields by name
    if made == config:
        raise InputError(f"this model has no {what} to remove.")
    return made


def _linear(block: BlockSpec) -> BlockSpec:
    mixing = replace(
        block.mixing, kind="linear", bias=None, gamma=0.0, learn=tuple(n for n in block.mixing.learn if n != "gamma")
    )
    return replace(block, mixing=mixing)


def _no_skip(block: BlockSpec) -> BlockSpec:
    def gone(gain: Gain | None) -> Gain | None:
        return None if gain is None else replace(gain, skip=0.0, learn=tuple(n for n in gain.learn if n != "skip"))

    attn = gone(block.attn)
    assert attn is not None
    return replace(block, attn=attn, mlp=gone(block.mlp), cross=gone(block.cross))


@torch.no_grad()
def model_without(model: Transformer, what: str, seed: int = 0) -> Transformer:
    """A new model without `what`, with the weights of `model`; `what` "nothing" is a plain copy.

    W_QK[h] = W_Q[h] W_K[h]^T, so without `qk` it is the same function at the start.
    """
    described: Any = model.config
    config: ModelConfig = described if what == "nothing" else config_without(described, what)
    first = model.embed.W_E
    made = Transformer(config, seed=seed, dtype=first.dtype, device=first.device)
    own, theirs = made.state_dict(), model.state_dict()
    for name, t in own.items():
        if name in theirs and theirs[name].shape == t.shape:
            t.copy_(theirs[name])
        elif name.endswith(".W_QK"):
            stem = name.removesuffix("W_QK")
            t.copy_(_merged(theirs[f"{stem}W_Q"], theirs[f"{stem}W_K"], config))
    return made.eval()


def _merged(W_Q: Tensor, W_K: Tensor, config: ModelConfig) -> Tensor:
    """(heads, d, d): the product of each head; grouped keys serve several heads."""
    groups = config.heads // config.key_heads
    keys = W_K.unflatten(-1, (config.key_heads, -1)).repeat_interleave(groups, dim=-2)
    return torch.einsum("dhk,ehk->hde", W_Q.unflatten(-1, (config.heads, -1)), keys)
