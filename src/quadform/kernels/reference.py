"""Softmax attention, its gradient, and the directional derivative of both, in plain torch: the twin of `fused`.

With S = scale Q K^T + B (−inf where hidden), ℓ = logsumexp(S) per row, P = exp(S − ℓ), O = P V, and for a cotangent dO
with Δ = rowsum(dO ∘ O):

    dP = dO V^T    dS = P ∘ (dP − Δ)    dQ = scale dS K    dK = scale dS^T Q    dV = P^T dO    dB = dS

A dot marks the derivative along tangents (Q̇, K̇, V̇, Ḃ, dȮ); ℓ̇ = rowsum(P ∘ Ṡ) is the tangent of the log-sum-exp:

    Ṡ = scale (Q̇ K^T + Q K̇^T) + Ḃ    Ṗ = P ∘ (Ṡ − ℓ̇)    Ȯ = Ṗ V + P V̇
    dṖ = dȮ V^T + dO V̇^T    dṠ = Ṗ ∘ (dP − Δ) + P ∘ (dṖ − Δ̇)
    dQ̇ = scale (dṠ K + dS K̇)    dK̇ = scale (dṠ^T Q + dS^T Q̇)    dV̇ = Ṗ^T dO + P^T dȮ    dḂ = dṠ

Every function walks over blocks of rows, so nothing of size (tokens × tokens) lives longer than one block. Inputs are
(batch, heads, tokens, width); `bias` and `mask` are 4-D and broadcast; a row that sees no key gives zeros. bfloat16 and
float16 are computed in float32. Source: [Dao22, Alg. 4] for the gradient; the tangents are [own].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24
"""Largest number of scores held at once."""


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in a type that matrix products keep precise: float32, or float64 where it came in."""
    return [t.float() if t is not None and t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors]


def _blocks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Row blocks of at most BLOCK_ELEMENTS scores each; one block when everything fits."""
    rows, columns = q.shape[-2], k.shape[-2]
    step = max(1, BLOCK_ELEMENTS // max(1, q.shape[0] * q.shape[1] * columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _rows(x: Tensor, r: slice) -> Tensor:
    """Rows `r` of something that broadcasts over rows."""
    return x if x.shape[-2] == 1 else x[..., r, :]


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None, causal: bool, scale: float, r: slice):
    """Rows `r` of S, −inf where a key is hidden."""
    S = scale * (q[..., r, :] @ k.mT)
    if bias is not None:
        S = S + _rows(bias, r)
    if mask is not None:
        S = S.masked_fill(~_rows(mask, r), float("-inf"))
    if causal:
        i = torch.arange(r.start, r.stop, device=q.device)[:, None]
        j = torch.arange(k.shape[-2], device=q.device)[None, :]
        S = S.masked_fill(j > i, float("-inf"))
    return S


def _tangent_scores(q, k, dq, dk, dbias, scale, r):
    """Rows `r` of Ṡ."""
    T = scale * (dq[..., r, :] @ k.mT + q[..., r, :] @ dk.mT)
    return T if dbias is None else T + _rows(dbias, r)


def reduce_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The adjoint of broadcasting `shape` to `x.shape` (equal number of axes)."""
    axes = [a for a, n in enumerate(shape) if n == 1 and x.shape[a] != 1]
    return x.sum(axes, keepdim=True) if axes else x


def _gather_bias(blocks: list[Tensor], bias: Tensor) -> Tensor:
    """dB from its row blocks, summed over the axes along which B was broadcast."""
    if bias.shape[-2] == 1:
        return sum(blocks[1:], blocks[0])
    return torch.cat(blocks, -2) if len(blocks) > 1 else blocks[0]


def _bias_block(dS: Tensor, bias: Tensor) -> Tensor:
    shape = (*bias.shape[:2], dS.shape[-2] if bias.shape[-2] != 1 else 1, bias.shape[-1])
    return reduce_to(dS, shape)


def _cat(blocks: list[Tensor], dim: int) -> Tensor:
    return torch.cat(blocks, dim) if len(blocks) > 1 else blocks[0]


def forward(q, k, v, bias, mask, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """O (batch, heads, rows, value width) and ℓ (batch, heads, rows); ℓ = 0 for a row that sees no key."""
    kind = q.dtype
    q, k, v, bias = _wide(q, k, v, bias)
    O, lse = [], []
    for r in _blocks(q, k):
        S = _scores(q, k, bias, mask, causal, scale, r)
        top = S.detach().amax(-1, keepdim=True)
        top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
        E = (S - top).exp()
        total = E.sum(-1, keepdim=True)
        empty = total == 0
        total = torch.where(empty, torch.ones_like(total), total)
        lse.append((top + total.log()).squeeze(-1))
        O.append((E / total) @ v)
    return _cat(O, -2).to(kind), _cat(lse, -1)


def backward(q, k, v, bias, mask, O, lse, delta, dO, causal: bool, scale: float) -> tuple[Tensor, ...]:
    """dQ, dK, dV and, where there is a bias, dB. `O` is unused here; the twin may need it."""
    kind = q.dtype
    q, k, v, bias_, dO = _wide(q, k, v, bias, dO)
    dQ, dB = [], []
    dK: Any = None
    dV: Any = None
    for r in _blocks(q, k):
        P = (_scores(q, k, bias_, mask, causal, scale, r) - lse[..., r, None]).exp()
        g = dO[..., r, :]
        dS = P * (g @ v.mT - delta[..., r, None])
        dQ.append(scale * (dS @ k))
        dk, dv = scale * (dS.mT @ q[..., r, :]), P.mT @ g
        dK, dV = (dk, dv) if dK is None else (dK + dk, dV + dv)
        if bias is not None:
            dB.append(_bias_block(dS, bias))
    out = (_cat(dQ, -2).to(kind), dK.to(kind), dV.to(kind))
    return out if bias is None else (*out, _gather_bias(dB, bias).to(bias.dtype))


def forward_tangent(
    q, k, v, bias, mask, O, lse, tq, tk, tv, tbias, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Ȯ and ℓ̇ along (Q̇, K̇, V̇, Ḃ). `O` is unused here; the twin needs it."""
    kind = q.dtype
    q, k, v, bias, tq, tk, tv, tbias = _wide(q, k, v, bias, tq, tk, tv, tbias)
    tO, tlse = [], []
    for r in _blocks(q, k):
        P = (_scores(q, k, bias, mask, causal, scale, r) - lse[..., r, None]).exp()
        T = _tangent_scores(q, k, tq, tk, tbias, scale, r)
        mu = (P * T).sum(-1)
        tlse.append(mu)
        tO.append((P * (T - mu[..., None])) @ v + P @ tv)
    return _cat(tO, -2).to(kind), _cat(tlse, -1)


def backward_tangent(
    q, k, v, bias, mask, lse, delta, dO, tq, tk, tv, tbias, tlse, tdelta, tdO, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    """dQ̇, dK̇, dV̇ and, where there is a bias, dḂ, along (Q̇, K̇, V̇, Ḃ, ℓ̇, Δ̇, dȮ)."""
    kind = q.dtype
    q, k, v, bias_, dO = _wide(q, k, v, bias, dO)
    tq, tk, tv, tbias, tdO = _wide(tq, tk, tv, tbias, tdO)
    dQ, dB = [], []
    dK: Any = None
    dV: Any = None
    for r in _blocks(q, k):
        P = (_scores(q, k, bias_, mask, causal, scale, r) - lse[..., r, None]).exp()
        tP = P * (_tangent_scores(q, k, tq, tk, tbias, scale, r) - tlse[..., r, None])
        g, tg = dO[..., r, :], tdO[..., r, :]
        dP = g @ v.mT - delta[..., r, None]
        tdP = tg @ v.mT + g @ tv.mT - tdelta[..., r, None]
        dS, tdS = P * dP, tP * dP + P * tdP
        dQ.append(scale * (tdS @ k + dS @ tk))
        dk = scale * (tdS.mT @ q[..., r, :] + dS.mT @ tq[..., r, :])
        dv = tP.mT @ g + P.mT @ tg
        dK, dV = (dk, dv) if dK is None else (dK + dk, dV + dv)
        if bias is not None:
            dB.append(_bias_block(tdS, bias))
    out = (_cat(dQ, -2).to(kind), dK.to(kind), dV.to(kind))
    return out if bias is None else (*out, _gather_bias(dB, bias).to(bias.dtype))
