"""The kernel of every layer of a model at initialisation, from its description alone: no weights are drawn.

`predict(config)` walks the blocks of a `ModelConfig` with the mean-field maps of `kernels`; cost O(depth T^3), no width
anywhere. It follows the formulas of `BlockSpec` branch by branch. Left out: rotary positions, grouped keys, biases
and relative positions (zero at initialisation), dropout, and encoder-decoders (an error).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quadform.core.errors import InputError
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.spec import GATED, BlockSpec, Mixing, ModelConfig, Projection

from . import kernels, shaping
from .collapse import kernel_cosine, kernel_participation

NOTE = "mean field: the limit of large width at initialisation"


def predict(config: ModelConfig, seq_len: int = 64, Sigma_0: Tensor | None = None, keep: bool = False) -> Record:
    """Depth profile of the token kernel: what `cosine`, `rms`, `participation` will be after 0, 1, ..., depth blocks.

    `Sigma_0` (T, T), Sigma_0_ij = <x_i, x_j> / d, is the kernel of the embedded tokens; None: the identity (unit,
    uncorrelated). Record "signal-prediction": tensors `cosine`, `rms`, `participation` (depth + 1,), with `keep` also
    `kernels` (depth + 1, T, T); scalars are the last entries.
    """
    Sigmas = list(layer_kernels(config, seq_len, Sigma_0))
    stack = torch.stack(Sigmas)
    tensors = {
        "cosine": kernel_cosine(stack),
        "rms": torch.sqrt(stack.diagonal(dim1=-2, dim2=-1).mean(-1)),
        "participation": kernel_participation(stack),
    }
    scalars = {name: Estimate(float(t[-1]), note=NOTE) for name, t in tensors.items()}
    return Record(
        kind="signal-prediction",
        inputs={"config": config.to_dict(), "seq_len": stack.shape[-1], "Sigma_0": "I" if Sigma_0 is None else "given"},
        scalars=scalars,
        tensors={**tensors, "kernels": stack} if keep else tensors,
        made=Provenance.collect(dtype=torch.float64),
    )


def layer_kernels(config: ModelConfig, seq_len: int = 64, Sigma_0: Tensor | None = None) -> Iterator[Tensor]:
    """Sigma_0, Sigma_1, ..., Sigma_depth, each (T, T) float64."""
    if config.kind == "encoder-decoder":
        raise InputError("a prediction covers one stack; give an encoder or a decoder, not an encoder-decoder.")
    if Sigma_0 is None:
        Sigma = shaping.target("u-spa", 0.0, seq_len)
    else:
        Sigma = Sigma_0.detach().to("cpu", torch.float64)
    if Sigma.ndim != 2 or Sigma.shape[0] != Sigma.shape[1]:
        raise InputError(f"Sigma_0 is a square kernel (T, T); got {tuple(Sigma.shape)}.")
    if not bool(torch.isfinite(Sigma).all()) or not bool((Sigma.diagonal() >= 0).all()):
        raise InputError("Sigma_0 holds squared sizes of tokens: finite, and none negative on its diagonal.")
    yield Sigma
    for layer, block in enumerate(config.blocks, start=1):
        Sigma = block_map(config, block, layer, Sigma)
        yield Sigma


def block_map(config: ModelConfig, block: BlockSpec, layer: int, Sigma: Tensor) -> Tensor:
    """The kernel after one block (number `layer`, from 1) of a model, from the kernel before it."""

    def branches() -> Iterator[tuple[float, float, Callable[[Tensor], tuple[Tensor, Tensor | None]]]]:
        yield block.attn.skip, block.attn.branch, lambda N: _attention(config, block, layer, N)
        if block.mlp is not None:
            yield block.mlp.skip, block.mlp.branch, lambda N: (_mlp(config, block, N), None)

    if block.layout == "parallel":
        N, scale = _norm(config, block, Sigma)
        total = block.attn.skip**2 * Sigma
        for _, gain, branch in branches():
            total = total + _branch(block.attn.skip, gain, *branch(N), scale, Sigma)
        return total
    for skip, gain, branch in branches():
        before = Sigma
        N, scale = _norm(config, block, Sigma) if block.norm_at == "pre" else (Sigma, None)
        Sigma = skip**2 * Sigma + _branch(skip, gain, *branch(N), scale, before)
        if block.norm_at == "post" and block.norm != "none":
            Sigma = kernels.normalise(Sigma, config.eps)
    return Sigma


def _branch(skip: float, gain: float, out: Tensor, M: Tensor | None, scale: Tensor | None, Sigma: Tensor) -> Tensor:
    """gain^2 f + cross terms with the skip; M is E[mixing] when the branch keeps the features of X (W_V = W_O = I)."""
    total = gain**2 * out
    if M is not None and skip and gain:
        mixing = M if scale is None else M * scale
        cross = skip * gain * (Sigma @ mixing.T)
        total = total + cross + cross.T
    return total


def _norm(config: ModelConfig, block: BlockSpec, Sigma: Tensor) -> tuple[Tensor, Tensor | None]:
    if block.norm == "none":
        return Sigma, None
    return kernels.normalise(Sigma, config.eps), kernels.inverse_rms(Sigma, config.eps)


def _mlp(config: ModelConfig, block: BlockSpec, N: Tensor) -> Tensor:
    d, inner = config.d_model, config.d_ff * (2 if block.activation in GATED else 1)
    gain = block.init_gain**2
    gain_in, gain_out = matrix_gain(config, d, inner), matrix_gain(config, config.d_ff, d)
    return kernels.mlp(N, block.activation, block.slope, gain * gain_in, gain * gain_out)


def _attention(config: ModelConfig, block: BlockSpec, layer: int, N: Tensor) -> tuple[Tensor, Tensor | None]:
    mixing, d = block.mixing, config.d_model
    k = config.head_width
    wide, narrow = config.heads * k, config.key_heads * k
    causal = config.kind == "decoder"
    tau2 = _start_gain(config, block.query_init, d, wide) * matrix_gain(config, d, narrow)
    tau2 *= 1 if config.attn_scale is None else config.attn_scale**2 * k
    value = _projection_gain(config, block, block.value, d, narrow)
    value *= _projection_gain(config, block, block.proj, wide, d)
    matrices = [p for p in (block.value, block.proj) if p is not None]
    features_kept = all(p.init == "identity" for p in matrices)
    kept = value**0.5 * math.prod(math.copysign(1.0, p.skip) for p in matrices if p.split)
    if mixing.kind == "linear":
        out = mixing.alpha**2 * N + mixing.beta**2 * kernels.linear_attend(N, causal=causal, tau2=tau2)
        return value * out, kept * mixing.alpha * torch.eye(len(N), dtype=N.dtype) if features_kept else None
    P, D = _spa(mixing, layer, config.depth, len(N), causal)
    out, M = kernels.attend(
        N, causal=causal, P=P, D=D, tau2=tau2, alpha=mixing.alpha, beta=mixing.beta, gamma=mixing.gamma
    )
    return value * out, (kept * M if features_kept else None)


def _spa(mixing: Mixing, layer: int, depth: int, T: int, causal: bool) -> tuple[Tensor | None, Tensor | None]:
    bias = mixing.bias
    if bias is None:
        return None, None
    schedule = shaping.u_spa_schedule if bias.family == "u-spa" else shaping.e_spa_schedule
    start = shaping.START[bias.family] if bias.start is None else bias.start
    strengths = schedule(bias.final, depth, start)
    A = shaping.spa_matrix(bias.family, strengths[layer - 1], strengths[layer], T, causal)
    D = A.sum(-1)
    return A / D[:, None], D


def matrix_gain(config: ModelConfig, fan_in: int, fan_out: int) -> float:
    """(second moment of an entry) x fan-in of a matrix under the model's own initialisation; 1 keeps the kernel."""
    if config.init == "normal":
        return config.init_std**2 * fan_in
    if config.init == "xavier":
        return 2 * fan_in / (fan_in + fan_out)
    return 1.0  # fan-in; orthogonal is scaled to the same


def _start_gain(config: ModelConfig, init: str, fan_in: int, fan_out: int) -> float:
    if init == "zero":
        return 0.0
    return matrix_gain(config, fan_in, fan_out) if init == "default" else 1.0


def _projection_gain(
    config: ModelConfig, block: BlockSpec, projection: Projection | None, fan_in: int, fan_out: int
) -> float:
    if projection is None:
        return 1.0
    skip = projection.skip if projection.split else 1.0
    if projection.split and projection.init == "identity":  # not stored, so not scaled
        return skip**2
    return (skip * block.init_gain) ** 2 * _start_gain(config, projection.init, fan_in, fan_out)
