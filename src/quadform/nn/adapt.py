"""Weights of `torch.nn.Transformer` in our modules: equal outputs, plus a cache, beams and curvature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.errors import InputError
from quadform.core.spec import BlockSpec, Gain, ModelConfig

from .attention import Attention
from .transformer import Transformer


@torch.no_grad()
def from_torch(
    module: nn.Transformer | nn.TransformerEncoder,
    embedding: Tensor,
    output: nn.Linear | None = None,
    *,
    source_embedding: Tensor | None = None,
    **settings: Any,
) -> Transformer:
    """A `Transformer` that computes what `module` does between an embedding and an output layer.

    `module` is an `nn.Transformer` (-> encoder-decoder) or an `nn.TransformerEncoder` (-> encoder). `embedding`
    (vocab, d) is the target side's (the only one of an encoder); `source_embedding` the source side's, where it is
    another. `output` is the final linear layer; None ties it to `embedding`. `settings` are the fields of `ModelConfig`
    that those modules do not know: positions ("none" unless given), embed_scale, pad, bos, eos, seq_len.
    """
    both = isinstance(module, nn.Transformer)
    if not both and not isinstance(module, nn.TransformerEncoder):
        raise InputError(f"expected nn.Transformer or nn.TransformerEncoder; got {type(module).__name__}.")
    stacks: tuple[Any, ...] = (module.encoder, module.decoder) if both else (module,)
    first = stacks[-1].layers[0]
    d_ff, d = first.linear1.weight.shape
    if (stacks[-1].norm is None) != (stacks[0].norm is None):
        raise InputError("one of the two stacks has a final norm and the other has none; both or neither is supported.")
    norms = [m for m in module.modules() if type(m).__name__.endswith("Norm")]
    if {type(m) for m in norms} != {nn.LayerNorm} or len({getattr(m, "eps", None) for m in norms}) > 1:
        raise InputError(f"all norms must be LayerNorm with one eps; got {', '.join(sorted({str(m) for m in norms}))}.")
    biased = first.linear1.bias is not None
    config = ModelConfig(
        kind="encoder-decoder" if both else "encoder",
        blocks=tuple(_block(layer, Gain() if both else None) for layer in stacks[-1].layers),
        encoder_blocks=tuple(_block(layer, None) for layer in stacks[0].layers) if both else (),
        d_model=d,
        heads=first.self_attn.num_heads,
        d_ff=d_ff,
        vocab=len(embedding),
        source_vocab=None if source_embedding is None else len(source_embedding),
        tied=output is None,
        biases=(*(("q", "k", "v", "o", "mlp") if biased else ()), *(("out",) if _has_bias(output) else ())),
        final_norm="none" if stacks[-1].norm is None else "layer",
        eps=first.norm1.eps,
        **{"positions": "none", **settings},
    )
    like = first.linear1.weight
    model = Transformer(config, dtype=like.dtype, device=like.device)
    model.embed.W_E.copy_(embedding)
    if source_embedding is not None:
        model.source_embed.W_E.copy_(source_embedding)
    if output is not None:
        model.W_U.copy_(output.weight.mT)
        if output.bias is not None:
            model.b_U.copy_(output.bias)
    for ours, theirs in zip(model.layers, stacks[-1].layers, strict=True):
        _layer(ours, theirs)
    if both:
        for ours, theirs in zip(model.encoder_layers, stacks[0].layers, strict=True):
            _layer(ours, theirs)
    if config.final_norm != "none":
        _norm(model.final_norm, stacks[-1].norm)
        if both:
            _norm(model.encoder_norm, stacks[0].norm)
    return model


def _has_bias(output: nn.Linear | None) -> bool:
    return output is not None and output.bias is not None


def _block(layer: Any, cross: Gain | None) -> BlockSpec:
    """The block of one layer. Each is asked: torch's decoder layers, copied, forget an activation that is a module."""
    name: Any = getattr(layer.activation, "__name__", type(layer.activation).__name__).lower()
    if name not in ("relu", "gelu"):
        raise InputError(f"torch.nn layers with activation {name!r} are not supported; relu and gelu are.")
    return BlockSpec(norm_at="pre" if layer.norm_first else "post", activation=name, cross=cross)


def _layer(ours: Any, theirs: Any) -> None:
    _attention(ours.attn, theirs.self_attn)
    norms = [theirs.norm1, theirs.norm2]
    _norm(ours.norm_attn, norms[0])
    if ours.cross is not None:
        _attention(ours.cross, theirs.multihead_attn)
        _norm(ours.norm_cross, theirs.norm2)
        norms[1] = theirs.norm3
    _norm(ours.norm_mlp, norms[1])
    for number, linear in (("1", theirs.linear1), ("2", theirs.linear2)):
        getattr(ours.mlp, f"W_{number}").copy_(linear.weight.mT)
        if linear.bias is not None:
            getattr(ours.mlp, f"b_{number}").copy_(linear.bias)


def _attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    if theirs.in_proj_weight is None:
        raise InputError("this attention has keys or values of another width (kdim, vdim), which is not supported.")
    for letter, weight in zip("QKV", theirs.in_proj_weight.chunk(3), strict=True):
        getattr(ours, f"W_{letter}").copy_(weight.mT)
    ours.W_O.copy_(theirs.out_proj.weight.mT)
    if theirs.in_proj_bias is not None:
        for letter, bias in zip("QKV", theirs.in_proj_bias.chunk(3), strict=True):
            getattr(ours, f"b_{letter}").copy_(bias)
        ours.b_O.copy_(theirs.out_proj.bias)


def _norm(ours: Any, theirs: nn.LayerNorm) -> None:
    ours.weight.copy_(theirs.weight)
    if theirs.bias is None:
        ours.bias.zero_()
    else:
        ours.bias.copy_(theirs.bias)
