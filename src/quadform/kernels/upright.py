"""dK̇ and dV̇ with score tiles upright, the accumulators lying instead; the plain causal case of `fused._grad_columns`.

There the tiles are Pᵀ and Ṡᵀ, left factors from registers, and the numbers of a row (ℓ, ℓ̇, Δ, Δ̇) lie along the fast
axis, where a thread needs 16 of each. Here the tiles are P and Ṡ, right factors through shared memory, and a thread
needs 2 of each:

    dV̇ᵀ = Σ dȮᵀ P + dOᵀ Ṗ        dK̇ᵀ = scale Σ Q̇ᵀ dS + Qᵀ dṠ

The same products in the same order: results are bit for bit those of the other kernel, on an H200 in 2.34 in place of
2.56 ms (bf16, 96 heads of 64, 4,096 tokens; decision 0318). Source: [own].
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiling import _column_range, _put, _seen, _tile, _vector


@triton.jit
def _tangent_columns(
    q, q_st, k, k_st, v, v_st, bias, bias_st, mask, mask_st, mix, mix_st, lse, delta, g, g_st,
    tq, tq_st, tk, tk_st, tv, tv_st, tmix, tmix_st, tlse, tdelta, tg, tg_st, dk, dk_st, dvalue, dv_st, units,
    scale, rows, columns, heads, D, DV,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """dK̇ and dV̇ of one column tile along one tangent: causal, whole tiles, as many key heads as heads."""
    c = tl.program_id(0)
    z, n = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, h = (z // heads).to(tl.int64), z % heads
    all_rows = n * tl.num_programs(1) * rows
    j = c * BN + tl.arange(0, BN)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    K = _tile(k + b * k_st[0] + h * k_st[1], j, d, k_st[2], columns, D, True, True)
    tK = _tile(tk + n * tk_st[0] + b * tk_st[1] + h * tk_st[2], j, d, tk_st[3], columns, D, True, True)
    V = _tile(v + b * v_st[0] + h * v_st[1], j, dv, v_st[2], columns, DV, True, True)
    tV = _tile(tv + n * tv_st[0] + b * tv_st[1] + h * tv_st[2], j, dv, tv_st[3], columns, DV, True, True)
    acc_k = tl.zeros((BD, BN), tl.float32)
    acc_v = tl.zeros((BDV, BN), tl.float32)
    q += b * q_st[0] + h * q_st[1]
    g += b * g_st[0] + h * g_st[1]
    tq += n * tq_st[0] + b * tq_st[1] + h * tq_st[2]
    tg += n * tg_st[0] + b * tg_st[1] + h * tg_st[2]
    row = (b * heads + h) * rows
    for phase in tl.static_range(2):
        lo, hi = _column_range(phase, c, rows, BM, BN, True, False)
        for start in range(lo, hi, BM):
            i = start + tl.arange(0, BM)
            Q = _tile(q, i, d, q_st[2], rows, D, True, True)
            G = _tile(g, i, dv, g_st[2], rows, DV, True, True)
            tQ = _tile(tq, i, d, tq_st[3], rows, D, True, True)
            tG = _tile(tg, i, dv, tg_st[3], rows, DV, True, True)
            s = tl.dot(Q, K.T)
            t = tl.dot(tQ, K.T)
            t = tl.dot(Q, tK.T, t)
            base = _vector(lse + row, i, rows, True) * 1.4426950408889634
            p = tl.exp2(s * (scale * 1.4426950408889634) - base[:, None])
            if phase == 0:
                p = tl.where(_seen(i[:, None], j[None, :], mask, mask_st, rows, columns, True, False), p, 0.0)
            acc_v = tl.dot(tG.T, p.to(tG.dtype), acc_v)
            tp = p * (t * scale - _vector(tlse + all_rows + row, i, rows, True)[:, None])
            acc_v = tl.dot(G.T, tp.to(G.dtype), acc_v)
            dp = tl.dot(G, V.T) - _vector(delta + row, i, rows, True)[:, None]
            ds = p * dp
            acc_k = tl.dot(tQ.T, ds.to(tQ.dtype), acc_k)
            tdp = tl.dot(tG, V.T)
            tdp = tl.dot(G, tV.T, tdp) - _vector(tdelta + all_rows + row, i, rows, True)[:, None]
            ds = tp * dp + p * tdp
            acc_k = tl.dot(Q.T, ds.to(Q.dtype), acc_k)
    at = dk + n * dk_st[0] + b * dk_st[1] + h * dk_st[2]
    _put(at, (acc_k * scale).T, j, d, dk_st[3], columns, D)
    at = dvalue + n * dv_st[0] + b * dv_st[1] + h * dv_st[2]
    _put(at, acc_v.T, j, dv, dv_st[3], columns, DV)
