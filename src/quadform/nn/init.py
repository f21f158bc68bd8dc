"""Starting values. Every tensor draws from its own named stream, so adding one never moves another."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quadform.core.rng import stream
from quadform.core.spec import ModelConfig, Projection

from .attention import Attention
from .block import MLP, Block


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Set every parameter and fixed matrix of a `Transformer` from its description and a seed.

    Matrices follow `config.init` unless their block names another start; W_Q = 0 where the design says so (its bias
    too); all biases 0, norm gains 1, scalars at their written values, relative positions 0. Embeddings
    have standard deviation `init_std` for init "normal" and d^{-1/2} otherwise; learned positions match the embedding
    after `embed_scale`, and scaled sinusoids start at embed_scale d^{-1/2} (the d^{-1/2} of the crammed BERT's code,
    where it is 1).
    """
    d = config.d_model
    std = config.init_std if config.init == "normal" else d**-0.5
    for name, parameter in model.named_parameters():
        generator = stream(seed, name)
        tail = name.rsplit(".", 1)[-1]
        if tail == "W_E":
            _set(parameter, std * _normal(parameter.shape, generator))
        elif tail == "W_pos":
            _set(parameter, std * config.embed_scale * _normal(parameter.shape, generator))
        elif tail in ("W_U", "W_C", "W_T"):
            _set(parameter, _matrix(config, parameter.shape, generator))
        elif tail.startswith("b_") or tail in ("bias", "W_R"):
            parameter.zero_()
        elif tail == "pos_scale":
            parameter.fill_(config.embed_scale * d**-0.5)
        elif tail == "weight":
            parameter.fill_(1.0)
    for name, module in model.named_modules():
        if isinstance(module, Block):
            _block(module, name, config, seed)


def _block(block: Block, name: str, config: ModelConfig, seed: int) -> None:
    spec = block.spec
    for branch, gain in (("attn", spec.attn), ("cross", spec.cross), ("mlp", None if spec.tie_gains else spec.mlp)):
        for scalar in gain.learn if gain else ():
            getattr(block, f"{branch}_{scalar}").fill_(getattr(gain, scalar))
    _attention(block.attn, f"{name}.attn", config, seed, spec.query_init, spec.init_gain)
    if block.cross is not None:
        _attention(block.cross, f"{name}.cross", config, seed, "default", spec.init_gain)
    if isinstance(block.mlp, MLP):
        for letter in ("W_1", "W_2"):
            W = getattr(block.mlp, letter)
            _set(W, spec.init_gain * _matrix(config, W.shape, stream(seed, f"{name}.mlp.{letter}")))


def _attention(layer: Attention, name: str, config: ModelConfig, seed: int, query_init: str, gain: float) -> None:
    for scalar in layer.mixing.learn:
        getattr(layer, scalar).fill_(getattr(layer.mixing, scalar))
    d, wide, narrow = config.d_model, config.heads * config.head_width, config.key_heads * config.head_width
    W_Q = _start(query_init, config, (d, wide), stream(seed, f"{name}.W_Q"))
    W_K = _start("default", config, (d, narrow), stream(seed, f"{name}.W_K"))
    if layer.mixing.scores == "merged":  # the product per head: at the start both forms are the same function
        groups = config.heads // config.key_heads
        by_head = W_K.unflatten(-1, (config.key_heads, -1)).repeat_interleave(groups, dim=-2)
        _set(layer.W_QK, torch.einsum("dhk,ehk->hde", W_Q.unflatten(-1, (config.heads, -1)), by_head))
    else:
        _set(layer.W_Q, W_Q)
        _set(layer.W_K, W_K)
    for letter, spec in (("V", layer.value), ("O", layer.proj)):
        if spec is None:
            continue
        W = getattr(layer, f"W_{letter}")
        start = gain * _start(spec.init, config, W.shape, stream(seed, f"{name}.W_{letter}"))
        _projection(layer, letter, spec, W, start)


def _projection(layer: Attention, letter: str, spec: Projection, W: Tensor, start: Tensor) -> None:
    if not spec.split:
        _set(W, start)
        return
    W.zero_()
    if spec.init != "identity":
        _set(getattr(layer, f"W_{letter}_init"), start)
    for scalar in spec.learn:
        getattr(layer, f"{letter}_{scalar}").fill_(getattr(spec, scalar))


def _start(kind: str, config: ModelConfig, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if kind == "zero":
        return torch.zeros(shape, dtype=torch.float64)
    if kind == "identity":
        return torch.eye(shape[-2], shape[-1], dtype=torch.float64).expand(shape)
    if kind == "orthogonal":
        return orthogonal(shape, generator)
    return _matrix(config, shape, generator)


def _matrix(config: ModelConfig, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    fan_in, fan_out = shape[-2], shape[-1]
    if config.init == "orthogonal":
        return orthogonal(shape, generator)
    if config.init == "xavier":
        bound = math.sqrt(6 / (fan_in + fan_out))
        return bound * (2 * torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") - 1)
    return (config.init_std if config.init == "normal" else fan_in**-0.5) * _normal(shape, generator)


def orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform random orthogonal (..., in, out), scaled by max(sqrt(out/in), 1) so X W keeps the entries' second moment.

    Source: the convention of [HMZ23] (scale-corrected uniform orthogonal initialisation).
    """
    rows, columns = shape[-2], shape[-1]
    tall = (*shape[:-2], max(rows, columns), min(rows, columns))
    Q, R = torch.linalg.qr(_normal(tall, generator))
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return (Q if rows >= columns else Q.mT) * max(math.sqrt(columns / rows), 1.0)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.to(parameter.dtype))
