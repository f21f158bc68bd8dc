"""Shaped mixing α V + β attend(Q, K, V) − γ mean(V): one fused rule around the Triton kernels, or plain torch.

The fused rule computes W V with W = α I + β P − γ C inside the attention kernels (`fused`). As in `rules`, `_Shaped` is
the value and `_ShapedGrad` its reverse rule, each with a forward rule; the softmax part O is a second output, so that
Δ = rowsum(dO ∘ O) and its tangent come by the chain rule, and ⟨dO, W V⟩ has a symmetric Jacobian of its gradient in
(Q, K, V, α, β, γ), so reverse over reverse is the tangent with dȮ = 0. Source: [own]; the mixing [HH24, Eq. 5].
"""

from __future__ import annotations

import torch
from torch import Tensor


def weights(alpha, beta, gamma, heads: int, device: torch.device) -> Tensor:
    """(1, heads, 3) in float32: α, β, γ of every head; None means 0, 1, 0."""
    columns = []
    for w, absent in ((alpha, 0.0), (beta, 1.0), (gamma, 0.0)):
        w = absent if w is None else w
        if isinstance(w, Tensor):
            columns.append(w.to(device, torch.float32).expand(heads))
        else:
            columns.append(torch.full((heads,), float(w), device=device))
    return torch.stack(columns, -1)[None]


TILE_TOKENS, TILE_WIDTH = 128, 64
"""Longest sequence and widest head whose scores and accumulators stay in the registers of one program."""


def fits_one_tile(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernels of `short` can be taken: 16 bits, a head in one tile, and keys of its own for each."""
    same = q.shape[:3] == k.shape[:3] and bias is None and q.dtype in (torch.bfloat16, torch.float16)
    return same and q.shape[2] <= TILE_TOKENS and max(q.shape[3], v.shape[3]) <= TILE_WIDTH


def _row_products(a: Tensor, b: Tensor) -> Tensor:
    return (a.float() * b.float()).sum(-1)


def _zeros(t: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if t is None else t


class _Shaped(torch.autograd.Function):
    """(Q, K, V, mix; B) -> (W V, O, ℓ)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, mix, bias, causal, scale, precision):
        from .ops import _attend

        return _attend(q, k, v, bias, None, mix, causal, scale, precision)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, mix, bias, *ctx.options = inputs
        ctx.save_for_backward(q, k, v, mix, bias, *output[1:])
        ctx.save_for_forward(q, k, v, mix, bias, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, *_):
        q, k, v, mix, bias, O, lse = ctx.saved_tensors
        g = _zeros(g, O)
        out = _ShapedGrad.apply(q, k, v, mix, bias, O, lse, _row_products(g, O), g, *ctx.options)
        return (*out, None, None, None, None)

    @staticmethod
    def jvp(ctx, tq, tk, tv, tmix, *_):
        from .ops import _attend_tangent

        q, k, v, mix, bias, O, lse = ctx.saved_tensors
        tangents = (_zeros(t, x)[None] for t, x in ((tq, q), (tk, k), (tv, v), (tmix, mix)))
        return tuple(t[0] for t in _attend_tangent(q, k, v, bias, None, mix, O, lse, *tangents, *ctx.options))


class _ShapedGrad(torch.autograd.Function):
    """(Q, K, V, mix; B, O, ℓ, Δ, dO) -> (dQ, dK, dV, dmix)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, mix, bias, O, lse, delta, g, causal, scale, precision):
        from .ops import _attend_grad, mix_gradient

        *out, c = _attend_grad(q, k, v, bias, None, mix, O, lse, delta, g, causal, scale, precision)
        return (*out, mix_gradient(v, mix, g, delta, c))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, causal, scale, precision = inputs
        ctx.options = (causal, scale, precision)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, tq, tk, tv, tmix):
        from .ops import _attend_tangent

        q, k, v, mix, bias, O, lse, _, g = ctx.saved_tensors
        tq, tk, tv, tmix = (_zeros(t, x) for t, x in ((tq, q), (tk, k), (tv, v), (tmix, mix)))
        lead = (tq[None], tk[None], tv[None], tmix[None])
        tout, tO, tlse = (a[0] for a in _attend_tangent(q, k, v, bias, None, mix, O, lse, *lead, *ctx.options))
        out = _tangent(ctx, tq, tk, tv, tmix, tlse, _row_products(g, tO), torch.zeros_like(g))
        return (*out, None, None, None, None, tout, None, None, None)

    @staticmethod
    def jvp(ctx, tq, tk, tv, tmix, tbias, tO, tlse, tdelta, tg, *_):
        q, k, v, mix, _, _, lse, delta, g = ctx.saved_tensors
        pairs = ((tq, q), (tk, k), (tv, v), (tmix, mix), (tlse, lse), (tdelta, delta), (tg, g))
        return _tangent(ctx, *(_zeros(t, x) for t, x in pairs))


def _tangent(ctx, tq, tk, tv, tmix, tlse, tdelta, tg):
    """dQ̇, dK̇, dV̇ and the tangent of dmix, which is linear in (dO, V, Δ, c)."""
    from .ops import _attend_grad_tangent, mix_gradient

    q, k, v, mix, bias, _, lse, delta, g = ctx.saved_tensors
    lead = (a[None] for a in (tq, tk, tv, tmix, tlse, tdelta, tg))
    *out, tc = (a[0] for a in _attend_grad_tangent(q, k, v, bias, None, mix, lse, delta, g, *lead, *ctx.options))
    tdmix = mix_gradient(v, mix, tg, tdelta, tc) + mix_gradient(tv, mix, g, tdelta * 0, tc * 0)
    return (*out, tdmix)


def shaped(q, k, v, mix, bias, causal: bool, scale: float, precision: str) -> Tensor:
    """W V by the kernels; `mix` (1, heads, 3) from `weights`."""
    return _Shaped.apply(q, k, v, mix, bias, causal, scale, precision)[0]


def plain(O: Tensor, V: Tensor, mask: Tensor | None, causal: bool, alpha, beta, gamma) -> Tensor:
    """alpha V + beta O − gamma mean(V), with per-head weights; plain torch, so every derivative is there."""

    def weight(w):
        return w[:, None, None].to(O.dtype) if isinstance(w, Tensor) and w.dim() == 1 else w

    out = O if beta is None else weight(beta) * O
    if alpha is not None:
        out = out + weight(alpha) * V
    if gamma is not None:
        out = out - weight(gamma) * visible_mean(V, mask, causal, O.shape[-2])
    return out


def visible_mean(V: Tensor, mask: Tensor | None, causal: bool, rows: int) -> Tensor:
    """Mean of the values each row may see: (batch, heads, rows or 1, width). The running mean when causal.

    Linear in the tokens unless `mask` itself is given per row. A row that sees nothing gets zeros.
    """
    columns = V.shape[-2]
    wide = V if V.dtype in (torch.float32, torch.float64) else V.float()
    if mask is not None and mask.shape[-2] != 1:
        seen = mask
        if causal:
            i, j = (torch.arange(n, device=V.device) for n in (rows, columns))
            seen = seen & (j <= i[:, None])
        weights = seen.to(wide.dtype)
        return (weights @ wide / weights.sum(-1, keepdim=True).clamp_min(1)).to(V.dtype)
    if mask is None:
        count = torch.ones(columns, 1, dtype=wide.dtype, device=V.device)
    else:
        count = mask.mT.to(wide.dtype)
        wide = wide * count
    if not causal:
        return (wide.sum(-2, keepdim=True) / count.sum(-2, keepdim=True).clamp_min(1)).to(V.dtype)
    last = torch.arange(rows, device=V.device).clamp_max(columns - 1)
    total, count = wide.cumsum(-2), count.cumsum(-2)
    if rows != columns:
        total, count = total[..., last, :], count[..., last, :]
    return (total / count.clamp_min(1)).to(V.dtype)
