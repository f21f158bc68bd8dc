"""Shaped attention of sequences that fit one tile (up to 128 tokens): value and gradient, one program for each head.

    out = α V + (β P − γ C) V    one kernel, two products; only ℓ is kept
    dV = α dO + (β P − γ C)^T dO    dS = β P ∘ (dP − Δ)    dQ = scale dS K    dK = scale dS^T Q    one kernel, five

With every column in the tile, Δ = rowsum(P ∘ dP) needs no O, and (dα, dβ, dγ) = Σ (dP_ii, Δ_i, −(C ∘ dP)_i) falls out:
each operand is read once and nothing else is written. Compiled training steps take it; second derivatives go through
`mixing`. Source: [own]; the mixing [HH24, Eq. 5].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import interpreted
from .launch import _dense, _rows_first
from .tiling import _count, _put, _tile, _vector, _weights


@triton.jit
def _forward(
    q, q_st, k, k_st, v, v_st, mix, out, out_st, lse, scale, tokens, heads, D, DV,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """out and ℓ (base 2) of one head."""
    z = tl.program_id(0)
    b, h = (z // heads).to(tl.int64), z % heads
    i, d, dv = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BDV)
    Q = _tile(q + b * q_st[0] + h * q_st[1], i, d, q_st[2], tokens, D, EVEN, EVEN_D)
    K = _tile(k + b * k_st[0] + h * k_st[1], i, d, k_st[2], tokens, D, EVEN, EVEN_D)
    V = _tile(v + b * v_st[0] + h * v_st[1], i, dv, v_st[2], tokens, DV, EVEN, EVEN_D)
    s = tl.dot(Q, K.T, input_precision=PRECISION) * (scale * 1.4426950408889634)
    seen = i[None, :] < tokens
    if CAUSAL:
        seen = seen & (i[None, :] <= i[:, None])
    s = tl.where(seen, s, float("-inf"))
    top = tl.max(s, 1)
    p = tl.exp2(s - top[:, None])
    total = tl.sum(p, 1)
    alpha, beta, gamma = _weights(mix + h * 3, 1.0)
    p = p * (beta / total)[:, None] - tl.where(seen, (gamma / _count(i, tokens, CAUSAL))[:, None], 0.0)
    acc = tl.dot(p.to(V.dtype), V, alpha * V.to(tl.float32), input_precision=PRECISION)
    _put(out + b * out_st[0] + h * out_st[1], acc, i, dv, out_st[2], tokens, DV)
    tl.store(lse + z.to(tl.int64) * tokens + i, top + tl.log2(total), mask=i < tokens)


@triton.jit
def _backward(
    q, q_st, k, k_st, v, v_st, mix, lse, g, g_st, dq, dq_st, dk, dk_st, dvalue, dv_st, dmix,
    scale, tokens, heads, D, DV,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """dQ, dK, dV and (dα, dβ, dγ) of one head; tiles are transposed, rows run along the second axis."""
    z = tl.program_id(0)
    b, h = (z // heads).to(tl.int64), z % heads
    i, d, dv = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BDV)
    Q = _tile(q + b * q_st[0] + h * q_st[1], i, d, q_st[2], tokens, D, EVEN, EVEN_D)
    K = _tile(k + b * k_st[0] + h * k_st[1], i, d, k_st[2], tokens, D, EVEN, EVEN_D)
    V = _tile(v + b * v_st[0] + h * v_st[1], i, dv, v_st[2], tokens, DV, EVEN, EVEN_D)
    G = _tile(g + b * g_st[0] + h * g_st[1], i, dv, g_st[2], tokens, DV, EVEN, EVEN_D)
    base = _vector(lse + z.to(tl.int64) * tokens, i, tokens, EVEN)
    alpha, beta, gamma = _weights(mix + h * 3, 1.0)
    seen = (i[None, :] < tokens) & (i[:, None] < tokens)
    if CAUSAL:
        seen = seen & (i[:, None] <= i[None, :])
    pT = tl.dot(K, Q.T, input_precision=PRECISION) * (scale * 1.4426950408889634)
    pT = tl.where(seen, tl.exp2(pT - base[None, :]), 0.0)
    count = _count(i, tokens, CAUSAL)
    wT = beta * pT - tl.where(seen, (gamma / count)[None, :], 0.0)
    acc = tl.dot(wT.to(G.dtype), G, alpha * G.to(tl.float32), input_precision=PRECISION)
    _put(dvalue + b * dv_st[0] + h * dv_st[1], acc, i, dv, dv_st[2], tokens, DV)
    dpT = tl.dot(V, G.T, input_precision=PRECISION)
    delta = tl.sum(pT * dpT, 0)
    at = dmix + z * 3
    tl.store(at, tl.sum(tl.sum(tl.where(i[:, None] == i[None, :], dpT, 0.0), 0), 0))
    tl.store(at + 1, tl.sum(delta, 0))
    tl.store(at + 2, -tl.sum(tl.sum(tl.where(seen, dpT, 0.0), 0) / count, 0))
    dsT = (beta * scale * pT * (dpT - delta[None, :])).to(Q.dtype)
    acc = tl.dot(dsT, Q, input_precision=PRECISION)
    _put(dk + b * dk_st[0] + h * dk_st[1], acc, i, d, dk_st[2], tokens, D)
    acc = tl.dot(dsT.T, K, input_precision=PRECISION)
    _put(dq + b * dq_st[0] + h * dq_st[1], acc, i, d, dq_st[2], tokens, D)


def _launch(program, q: Tensor, v: Tensor, args: tuple, causal: bool, scale: float) -> None:
    tokens = q.shape[2]
    BM, BD, BDV = (max(16, triton.next_power_of_2(n)) for n in (tokens, q.shape[3], v.shape[3]))
    even = {"EVEN": tokens == BM, "EVEN_D": q.shape[3] == BD and v.shape[3] == BDV}
    program[(q.shape[0] * q.shape[1],)](
        *args, float(scale), tokens, q.shape[1], q.shape[3], v.shape[3], CAUSAL=causal, **even,
        PRECISION="ieee" if interpreted() else "tf32", BM=BM, BD=BD, BDV=BDV, num_warps=8 if BM > 64 else 4,
        num_stages=1,
    )  # fmt: skip


@torch.library.custom_op("quadform::short", mutates_args=())
def short(q: Tensor, k: Tensor, v: Tensor, mix: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """W V and ℓ in base 2, for inputs that `mixing.fits_one_tile`; mix (1, heads, 3) in float32."""
    q, k, v = _dense(q, k, v)
    out, lse = _empty(q, k, v, mix, causal, scale)
    args = (q, q.stride(), k, k.stride(), v, v.stride(), mix.contiguous(), out, out.stride(), lse)
    _launch(_forward, q, v, args, causal, scale)
    return out, lse


@short.register_fake
def _empty(q, k, v, mix, causal, scale):
    out = _rows_first(q.shape[:1], q.shape[1], q.shape[2], v.shape[3], q)
    return out, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


@torch.library.custom_op("quadform::short_grad", mutates_args=())
def short_grad(
    q: Tensor, k: Tensor, v: Tensor, mix: Tensor, lse: Tensor, dO: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV and (dα, dβ, dγ) of each sequence and head, (batch, heads, 3)."""
    q, k, v, g = _dense(q, k, v, dO)
    dq, dk, dv, dmix = _empty_gradients(q, k, v, mix, lse, g, causal, scale)
    given = (q, q.stride(), k, k.stride(), v, v.stride(), mix.contiguous(), lse.contiguous(), g, g.stride())
    out = (dq, dq.stride(), dk, dk.stride(), dv, dv.stride(), dmix)
    _launch(_backward, q, v, given + out, causal, scale)
    return dq, dk, dv, dmix


@short_grad.register_fake
def _empty_gradients(q, k, v, mix, lse, dO, causal, scale):
    out = (_rows_first(x.shape[:1], x.shape[1], x.shape[2], x.shape[3], x) for x in (q, k, v))
    return (*out, torch.empty(*q.shape[:2], 3, dtype=torch.float32, device=q.device))


def _save(ctx, inputs, output):
    q, k, v, mix, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mix, output[1])
    ctx.set_materialize_grads(False)


def _reverse(ctx, dO, dlse):
    dq, dk, dv, dmix = short_grad(*ctx.saved_tensors, dO, ctx.causal, ctx.scale)
    return dq, dk, dv, dmix.sum(0, keepdim=True), None, None


torch.library.register_autograd("quadform::short", _reverse, setup_context=_save)
