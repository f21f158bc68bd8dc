"""Names, shapes and number of a model's trained tensors, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .designs import design
from .spec import GATED, BlockSpec, Mixing, ModelConfig, Projection


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every trained tensor of `quadform.nn.Transformer(config)`, without torch."""
    return dict(_model_shapes(config))


def count_parameters(config: ModelConfig) -> int:
    """Number of trained numbers of `quadform.nn.Transformer(config)`; tied weights count once."""
    return sum(math.prod(shape) for _, shape in _model_shapes(config))


def count_of_design(name: str, depth: int, **settings: Any) -> int:
    """Parameters of a design at a depth of any size: they grow evenly with its blocks, so two small ones tell."""
    one, two = (count_parameters(design(name, depth=n, **settings)) for n in (1, 2))
    return one + (two - one) * (depth - 1)


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _model_shapes(c: ModelConfig) -> Shapes:
    d = c.d_model
    for prefix, vocab in (("embed", c.vocab), ("source_embed", c.source_vocab)):
        if vocab is None:
            continue
        yield f"{prefix}.W_E", (vocab, d)
        if c.positions == "learned":
            yield f"{prefix}.W_pos", (c.seq_len, d)
        if c.positions == "scaled-sinusoidal":
            yield f"{prefix}.pos_scale", ()
        yield from _norm_shapes(f"{prefix}.norm", c.embed_norm, d)
    for stack, table, norm, blocks in (
        ("encoder_layers", "encoder_relative", "encoder_norm", c.encoder_blocks),
        ("layers", "relative", "final_norm", c.blocks),
    ):
        if blocks and c.positions == "relative":
            yield f"{table}.W_R", (c.relative[0], c.heads)
        for i, block in enumerate(blocks):
            yield from ((f"{stack}.{i}.{name}", shape) for name, shape in _block_shapes(c, block))
        if blocks:
            yield from _norm_shapes(norm, c.final_norm, d)
    if c.classes:
        yield "W_C", (d, c.classes)
        yield "b_C", (c.classes,)
        return
    if c.transform is not None:
        yield "transform.W_T", (d, d)
        yield "transform.b_T", (d,)
        yield from _norm_shapes("transform.norm", "layer", d)
    if not c.tied:
        yield "W_U", (d, c.vocab)
    if "out" in c.biases:
        yield "b_U", (c.vocab,)


def _norm_shapes(name: str, kind: str, d: int) -> Shapes:
    if kind != "none":
        yield f"{name}.weight", (d,)
    if kind == "layer":
        yield f"{name}.bias", (d,)


def _block_shapes(c: ModelConfig, block: BlockSpec) -> Shapes:
    for name in block.norms:
        yield from _norm_shapes(name, block.norm, c.d_model)
    gains = {"attn": block.attn, "cross": block.cross, "mlp": None if block.tie_gains else block.mlp}
    for name, gain in gains.items():
        yield from ((f"{name}_{scalar}", ()) for scalar in (gain.learn if gain else ()))
    yield from ((f"attn.{n}", s) for n, s in _attention_shapes(c, block.mixing, block.value, block.proj))
    if block.cross is not None:
        yield from ((f"cross.{n}", s) for n, s in _attention_shapes(c, Mixing(), Projection(), Projection()))
    if block.mlp is not None:
        inner = c.d_ff * (2 if block.activation in GATED else 1)
        yield "mlp.W_1", (c.d_model, inner)
        yield "mlp.W_2", (c.d_ff, c.d_model)
        if "mlp" in c.biases:
            yield "mlp.b_1", (inner,)
            yield "mlp.b_2", (c.d_model,)


def _attention_shapes(c: ModelConfig, mixing: Mixing, value: Projection | None, proj: Projection | None) -> Shapes:
    d, wide, narrow = c.d_model, c.heads * c.head_width, c.key_heads * c.head_width
    if mixing.scores == "merged":
        yield "W_QK", (c.heads, d, d)
    else:
        for letter, width in (("Q", wide), ("K", narrow)):
            yield f"W_{letter}", (d, width)
            if letter.lower() in c.biases:
                yield f"b_{letter}", (width,)
    for letter, spec, rows, width in (("V", value, d, narrow), ("O", proj, wide, d)):
        if spec is not None:
            yield f"W_{letter}", (rows, width)
            yield from ((f"{letter}_{scalar}", ()) for scalar in spec.learn)
        if letter.lower() in c.biases and spec is not None:
            yield f"b_{letter}", (width,)
    yield from ((name, (c.heads,)) for name in mixing.learn)
