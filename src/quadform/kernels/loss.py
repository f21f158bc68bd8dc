"""Linear layer + cross-entropy, differentiable twice, that never holds the (tokens × vocabulary) logits.

With z = x W, p = softmax(z) per token, e the one-hot target and g the cotangent of the per-token loss ℓ = lse(z) − z_e:

    dz = g (p − e)    dx = dz W^T    dW = x^T dz
    ż = ẋ W + x Ẇ    ℓ̇ = ⟨p − e, ż⟩    ṗ = p ∘ (ż − ⟨p, ż⟩)    dż = g ṗ + ġ (p − e)
    dẋ = dż W^T + dz Ẇ^T    dẆ = x^T dż + ẋ^T dz

Blocks of tokens see their whole row of logits, so the softmax is local to a block and nothing but x, W and the targets
is kept between the passes. The rules mirror `rules`: ⟨g, ℓ(x, W)⟩ has a symmetric Jacobian of its gradient, so reverse
over reverse uses the tangents with ġ = 0. Source: [own].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.core.errors import InputError

from .products import product
from .rules import _zeros_if_none

BLOCK_ELEMENTS = 1 << 27
"""Largest number of logits held at once."""
ALIGN = 64
"""Large vocabularies are padded to a multiple of this: a row of logits that starts off a 16-byte boundary keeps a GPU's
matrix products from their fast path."""
LARGE = 1024
"""Vocabularies shorter than this are left as they are."""


def _blocks(x: Tensor, W: Tensor) -> Iterator[slice]:
    tokens = x.shape[0]
    step = max(1, BLOCK_ELEMENTS // W.shape[1])
    step = -(-tokens // max(1, -(-tokens // step)))  # equal blocks
    if step > ALIGN:
        step = -(-step // ALIGN) * ALIGN
    for start in range(0, tokens, max(1, step)):
        yield slice(start, min(start + step, tokens))


def _aligned(W: Tensor) -> Tensor:
    """W with columns of zeros up to a multiple of ALIGN, laid out token by token as an embedding is."""
    extra = -W.shape[1] % ALIGN if W.shape[1] >= LARGE else 0
    return F.pad(W.T, (0, 0, 0, extra)).T if extra else W


def _logits(x: Tensor, W: Tensor, vocabulary: int) -> Tensor:
    """x W, the padded columns −inf."""
    z = product(x, W)
    if W.shape[1] == vocabulary:
        return z
    return z.masked_fill(torch.arange(W.shape[1], device=z.device) >= vocabulary, float("-inf"))


def _probabilities(z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """p and p − e of a block."""
    p = z.softmax(-1)
    e = targets[:, None] == torch.arange(z.shape[1], device=z.device)
    return p, p - e.to(p.dtype)


def _losses(x, W, targets, vocabulary):
    """ℓ, one per token."""
    out = []
    for r in _blocks(x, W):
        z = _logits(x[r], W, vocabulary)
        out.append(z.logsumexp(-1) - z.gather(1, targets[r, None]).squeeze(1))
    return torch.cat(out)


def _losses_tangent(x, W, targets, vocabulary, tx, tW):
    """ℓ̇, one per token."""
    out = []
    for r in _blocks(x, W):
        _, residual = _probabilities(_logits(x[r], W, vocabulary), targets[r])
        out.append((residual * (product(tx[r], W) + product(x[r], tW))).sum(-1))
    return torch.cat(out)


def _gradient(x, W, targets, vocabulary, g):
    """dx and dW."""
    dx: list[Tensor] = []
    dW: Any = None
    for r in _blocks(x, W):
        _, residual = _probabilities(_logits(x[r], W, vocabulary), targets[r])
        dz = (g[r, None] * residual).to(x.dtype)
        dx.append(dz @ W.T)
        part = product(x[r].T, dz)
        dW = part if dW is None else dW + part
    return torch.cat(dx), dW.to(W.dtype)


def _gradient_tangent(x, W, targets, vocabulary, g, tx, tW, tg):
    """dẋ and dẆ."""
    out: list[Tensor] = []
    dW: Any = None
    for r in _blocks(x, W):
        p, residual = _probabilities(_logits(x[r], W, vocabulary), targets[r])
        t = product(tx[r], W) + product(x[r], tW)
        tp = p * (t - (p * t).sum(-1, keepdim=True))
        dz = (g[r, None] * residual).to(x.dtype)
        tdz = (g[r, None] * tp + tg[r, None] * residual).to(x.dtype)
        out.append((product(tdz, W.T) + product(dz, tW.T)).to(x.dtype))
        part = product(x[r].T, tdz) + product(tx[r].T, dz)
        dW = part if dW is None else dW + part
    return torch.cat(out), dW.to(W.dtype)


class _Losses(torch.autograd.Function):
    """(x, W; targets, vocabulary) -> ℓ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, W, targets, vocabulary):
        return _losses(x, W, targets, vocabulary)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.vocabulary = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, g):
        return (*_LossesGrad.apply(*ctx.saved_tensors, g, ctx.vocabulary), None, None)

    @staticmethod
    def jvp(ctx, tx, tW, *_):
        x, W, targets = ctx.saved_tensors
        return _losses_tangent(x, W, targets, ctx.vocabulary, _zeros_if_none(tx, x), _zeros_if_none(tW, W))


class _LossesGrad(torch.autograd.Function):
    """(x, W; targets, g, vocabulary) -> (dx, dW)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, W, targets, g, vocabulary):
        return _gradient(x, W, targets, vocabulary, g)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.vocabulary = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, tx, tW):
        x, W, targets, g = ctx.saved_tensors
        tx, tW = _zeros_if_none(tx, x), _zeros_if_none(tW, W)
        dx, dW = _gradient_tangent(x, W, targets, ctx.vocabulary, g, tx, tW, torch.zeros_like(g))
        return dx, dW, None, _losses_tangent(x, W, targets, ctx.vocabulary, tx, tW), None

    @staticmethod
    def jvp(ctx, tx, tW, _, tg, *__):
        x, W, targets, g = ctx.saved_tensors
        tangents = (_zeros_if_none(t, like) for t, like in ((tx, x), (tW, W), (tg, g)))
        return _gradient_tangent(x, W, targets, ctx.vocabulary, g, *tangents)


def linear_cross_entropy(x: Tensor, W: Tensor, targets: Tensor, *, ignore: int = -100) -> Tensor:
    """Mean cross-entropy of the logits x @ W over the tokens whose target is not `ignore`.

    x (..., d), W (d, vocabulary), targets (...) integers. A tied embedding E (vocabulary, d) is given as E.T. Value,
    gradient and second derivative hold one block of logits at a time (BLOCK_ELEMENTS). In bfloat16 and float16 the
    logits, the softmax and the sums over blocks are float32; on a CPU the operands are too.
    """
    if x.shape[-1] != W.shape[0] or W.dim() != 2:
        raise InputError(f"x (..., d) and W (d, vocabulary) must share d; got {tuple(x.shape)} and {tuple(W.shape)}.")
    if targets.shape != x.shape[:-1] or targets.is_floating_point():
        raise InputError(
            f"targets must be integers of shape {tuple(x.shape[:-1])}; got {targets.dtype} {tuple(targets.shape)}."
        )
    if x.dtype in (torch.bfloat16, torch.float16) and x.device.type == "cpu":
        x, W = x.float(), W.float()
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    valid = targets != ignore
    losses = _Losses.apply(x, _aligned(W), torch.where(valid, targets, 0), W.shape[1])
    return (losses * valid.to(losses.dtype)).sum() / valid.sum()
