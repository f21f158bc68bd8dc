"""The Triton twin of `reference`: the same four functions, tiled so that no (tokens × tokens) array ever exists.

Scores are rebuilt from the saved log-sum-exp, as in FlashAttention's backward pass [Dao22, Alg. 4]; what is new [own]
is that the tangents tile the same way. Products per tile pair:

    forward 2    forward_tangent 5     (S, two for Ṡ; (P∘Ṡ)V, P V̇; Ȯ = Σ (P∘Ṡ)V + P V̇ − ℓ̇ O)
    backward     4 for dK, dV and 3 for dQ           backward_tangent  10 for dK̇, dV̇ and 8 for dQ̇

Rows and columns have a kernel each, so every output element has one writer and results repeat bit for bit. `TANGENT`
selects the derivative of the gradient instead of the gradient. Tangents have a leading axis; they are a grid axis.

`SHAPED` mixes: out = W V with W = α I + β P − γ C, C the mean over the keys a row sees, (α, β, γ) one triple a head.
The value is mixed in the epilogue (sums of V ride along; C costs one product in the diagonal tile); the gradients use
W and Ẇ = α̇ I + β̇ P + β Ṗ − γ̇ C where they used P and Ṗ, so no product is added. The rows also give c = rowsum(C ∘ dP),
which is −dγ of that row (dα = Σ dO ∘ V and dβ = Σ Δ need no kernel). Source: [own]; the mixing is [HH24, Eq. 5].
`SCALED` operands are float16 times the units of `scaling`, which the results leave with.
Notation in code: `t` before a name is the tangent (`tq` = Q̇), a trailing `T` the transposed tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiling import (
    _column_range,
    _count,
    _log2_scores,
    _mixed,
    _put,
    _row_range,
    _seen,
    _tile,
    _units,
    _vector,
    _weights,
)


@triton.jit
def _forward(
    q, q_st, k, k_st, v, v_st, bias, bias_st, mask, mask_st, mix, mix_st, O, O_st, lse, out, out_st,
    scale, rows, columns, heads, D, DV,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, SHAPED: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """O and ℓ of one row tile, by the online softmax; W V too where shaped."""
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    z = tl.program_id(1)
    b, h = (z // heads).to(tl.int64), z % heads
    hk = h // GROUP
    i = m * BM + tl.arange(0, BM)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    k += b * k_st[0] + hk * k_st[1]
    v += b * v_st[0] + hk * v_st[1]
    bias += b * bias_st[0] + h * bias_st[1]
    mask += b * mask_st[0] + h * mask_st[1]
    Q = _tile(q + b * q_st[0] + h * q_st[1], i, d, q_st[2], rows, D, EVEN_M, EVEN_D)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BDV), tl.float32)
    if SHAPED:
        full = tl.zeros((BDV,), tl.float32)
        edge = tl.zeros((BM, BDV), tl.float32)
    for phase in tl.static_range(2):
        lo, hi = _row_range(phase, m, columns, BM, BN, CAUSAL, HAS_MASK)
        for start in range(lo, hi, BN):
            j = start + tl.arange(0, BN)
            K = _tile(k, j, d, k_st[2], columns, D, phase == 0, EVEN_D)
            V = _tile(v, j, dv, v_st[2], columns, DV, phase == 0, EVEN_D)
            s = tl.dot(Q, K.T, input_precision=PRECISION)
            s = _log2_scores(s, i[:, None], j[None, :], bias, bias_st, scale, HAS_BIAS, rows, columns)
            if phase == 1:
                seen = _seen(i[:, None], j[None, :], mask, mask_st, rows, columns, CAUSAL, HAS_MASK)
                s = tl.where(seen, s, float("-inf"))
            if SHAPED:
                if phase == 0:
                    full += tl.sum(V.to(tl.float32), 0)
                else:
                    edge = tl.dot(seen.to(V.dtype), V, edge, input_precision=PRECISION)
            new = tl.maximum(top, tl.max(s, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(top - base)
            total = total * shrink + tl.sum(p, 1)
            acc = tl.dot(p.to(V.dtype), V, acc * shrink[:, None], input_precision=PRECISION)
            top = new
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    top = tl.where(empty, 0.0, top)
    acc = acc / total[:, None]
    _put(O + b * O_st[0] + h * O_st[1], acc, i, dv, O_st[2], rows, DV)
    if SHAPED:
        mix += b * mix_st[0] + h * mix_st[1]
        own = _tile(v, i, dv, v_st[2], columns, DV, False, EVEN_D).to(tl.float32)
        mean = (edge + full[None, :]) / _count(i, columns, CAUSAL)[:, None]
        acc = tl.load(mix) * own + tl.load(mix + 1) * acc - tl.load(mix + 2) * mean
        _put(out + b * out_st[0] + h * out_st[1], acc, i, dv, out_st[2], rows, DV)
    tl.store(lse + z.to(tl.int64) * rows + i, (top + tl.log2(total)) * 0.6931471805599453, mask=i < rows)


@triton.jit
def _forward_tangent(
    q, q_st, k, k_st, v, v_st, bias, bias_st, mask, mask_st, mix, mix_st, O, O_st, lse,
    tq, tq_st, tk, tk_st, tv, tv_st, tmix, tmix_st, tO, tO_st, tlse, tout, tout_st, units,
    scale, rows, columns, heads, D, DV,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, SHAPED: tl.constexpr,
    SCALED: tl.constexpr, EVEN_M: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """Ȯ and ℓ̇ of one row tile along one tangent; (W V)˙ too where shaped."""
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    z, n = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, h = (z // heads).to(tl.int64), z % heads
    hk = h // GROUP
    i = m * BM + tl.arange(0, BM)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    k += b * k_st[0] + hk * k_st[1]
    v += b * v_st[0] + hk * v_st[1]
    tk += n * tk_st[0] + b * tk_st[1] + hk * tk_st[2]
    tv += n * tv_st[0] + b * tv_st[1] + hk * tv_st[2]
    bias += b * bias_st[0] + h * bias_st[1]
    mask += b * mask_st[0] + h * mask_st[1]
    row = z.to(tl.int64) * rows
    Q = _tile(q + b * q_st[0] + h * q_st[1], i, d, q_st[2], rows, D, EVEN_M, EVEN_D)
    tQ = _tile(tq + n * tq_st[0] + b * tq_st[1] + h * tq_st[2], i, d, tq_st[3], rows, D, EVEN_M, EVEN_D)
    base = _vector(lse + row, i, rows, EVEN_M) * 1.4426950408889634
    mu = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BDV), tl.float32)
    unit = 1.0
    if SCALED:
        unit = tl.load(units + 1 + n)
    if SHAPED:
        alpha, beta, gamma = _weights(mix + b * mix_st[0] + h * mix_st[1], 1.0)
        talpha, tbeta, tgamma = _weights(tmix + n * tmix_st[0] + b * tmix_st[1] + h * tmix_st[2], unit)
        full = tl.zeros((BDV,), tl.float32)
        edge = tl.zeros((BM, BDV), tl.float32)
    for phase in tl.static_range(2):
        lo, hi = _row_range(phase, m, columns, BM, BN, CAUSAL, HAS_MASK)
        for start in range(lo, hi, BN):
            j = start + tl.arange(0, BN)
            K = _tile(k, j, d, k_st[2], columns, D, phase == 0, EVEN_D)
            tK = _tile(tk, j, d, tk_st[3], columns, D, phase == 0, EVEN_D)
            s = tl.dot(Q, K.T, input_precision=PRECISION)
            t = tl.dot(tQ, K.T, input_precision=PRECISION)
            t = tl.dot(Q, tK.T, t, input_precision=PRECISION) * scale
            s = _log2_scores(s, i[:, None], j[None, :], bias, bias_st, scale, HAS_BIAS, rows, columns)
            p = tl.exp2(s - base[:, None])
            if phase == 1:
                seen = _seen(i[:, None], j[None, :], mask, mask_st, rows, columns, CAUSAL, HAS_MASK)
                p = tl.where(seen, p, 0.0)
            tV = _tile(tv, j, dv, tv_st[3], columns, DV, phase == 0, EVEN_D)
            acc = tl.dot(p.to(tV.dtype), tV, acc, input_precision=PRECISION)
            t = p * t
            mu += tl.sum(t, 1)
            V = _tile(v, j, dv, v_st[2], columns, DV, phase == 0, EVEN_D)
            acc = tl.dot(t.to(V.dtype), V, acc, input_precision=PRECISION)
            if SHAPED:
                both = tgamma * V.to(tl.float32) + gamma * tV.to(tl.float32)
                if phase == 0:
                    full += tl.sum(both, 0)
                else:
                    edge = tl.dot(seen.to(V.dtype), both.to(V.dtype), edge, input_precision=PRECISION)
    soft = _tile(O + b * O_st[0] + h * O_st[1], i, dv, O_st[2], rows, DV, EVEN_M, EVEN_D).to(tl.float32)
    acc -= mu[:, None] * soft
    _put(tO + n * tO_st[0] + b * tO_st[1] + h * tO_st[2], acc / unit, i, dv, tO_st[3], rows, DV)
    if SHAPED:
        own = _tile(v, i, dv, v_st[2], columns, DV, False, EVEN_D).to(tl.float32)
        town = _tile(tv, i, dv, tv_st[3], columns, DV, False, EVEN_D).to(tl.float32)
        acc = talpha * own + alpha * town + tbeta * soft + beta * acc
        acc -= (edge + full[None, :]) / _count(i, columns, CAUSAL)[:, None]
        _put(tout + n * tout_st[0] + b * tout_st[1] + h * tout_st[2], acc / unit, i, dv, tout_st[3], rows, DV)
    tl.store(tlse + n * tl.num_programs(1) * rows + row + i, mu / unit, mask=i < rows)


@triton.jit
def _grad_rows(
    q, q_st, k, k_st, v, v_st, bias, bias_st, mask, mask_st, mix, mix_st, lse, delta, g, g_st,
    tq, tq_st, tk, tk_st, tv, tv_st, tmix, tmix_st, tlse, tdelta, tg, tg_st, dq, dq_st, mean, units,
    scale, rows, columns, heads, D, DV,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, SHAPED: tl.constexpr,
    SCALED: tl.constexpr, TANGENT: tl.constexpr, EVEN_M: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """dQ of one row tile, or dQ̇ along one tangent, and c = rowsum(C ∘ dP) or ċ where shaped. `g` is dO."""
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    z, n = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, h = (z // heads).to(tl.int64), z % heads
    hk = h // GROUP
    i = m * BM + tl.arange(0, BM)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    k += b * k_st[0] + hk * k_st[1]
    v += b * v_st[0] + hk * v_st[1]
    bias += b * bias_st[0] + h * bias_st[1]
    mask += b * mask_st[0] + h * mask_st[1]
    row = z.to(tl.int64) * rows
    Q = _tile(q + b * q_st[0] + h * q_st[1], i, d, q_st[2], rows, D, EVEN_M, EVEN_D)
    G = _tile(g + b * g_st[0] + h * g_st[1], i, dv, g_st[2], rows, DV, EVEN_M, EVEN_D)
    base = _vector(lse + row, i, rows, EVEN_M) * 1.4426950408889634
    first, unit = _units(units, n, SCALED, TANGENT)
    D0 = _vector(delta + row, i, rows, EVEN_M) * first
    if TANGENT:
        tk += n * tk_st[0] + b * tk_st[1] + hk * tk_st[2]
        tv += n * tv_st[0] + b * tv_st[1] + hk * tv_st[2]
        tQ = _tile(tq + n * tq_st[0] + b * tq_st[1] + h * tq_st[2], i, d, tq_st[3], rows, D, EVEN_M, EVEN_D)
        tG = _tile(tg + n * tg_st[0] + b * tg_st[1] + h * tg_st[2], i, dv, tg_st[3], rows, DV, EVEN_M, EVEN_D)
        row += n * tl.num_programs(1) * rows
        mu = _vector(tlse + row, i, rows, EVEN_M) * unit
        D1 = _vector(tdelta + row, i, rows, EVEN_M) * (first * unit)
    if SHAPED:
        beta = tl.load(mix + b * mix_st[0] + h * mix_st[1] + 1)
        if TANGENT:
            tbeta = tl.load(tmix + n * tmix_st[0] + b * tmix_st[1] + h * tmix_st[2] + 1) * unit
        c = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for phase in tl.static_range(2):
        lo, hi = _row_range(phase, m, columns, BM, BN, CAUSAL, HAS_MASK)
        for start in range(lo, hi, BN):
            j = start + tl.arange(0, BN)
            K = _tile(k, j, d, k_st[2], columns, D, phase == 0, EVEN_D)
            V = _tile(v, j, dv, v_st[2], columns, DV, phase == 0, EVEN_D)
            s = tl.dot(Q, K.T, input_precision=PRECISION)
            s = _log2_scores(s, i[:, None], j[None, :], bias, bias_st, scale, HAS_BIAS, rows, columns)
            p = tl.exp2(s - base[:, None])
            if phase == 1:
                seen = _seen(i[:, None], j[None, :], mask, mask_st, rows, columns, CAUSAL, HAS_MASK)
                p = tl.where(seen, p, 0.0)
            dp = tl.dot(G, V.T, input_precision=PRECISION) - D0[:, None]
            ds = p * dp
            if SHAPED:
                if TANGENT:
                    change = tbeta * ds
                else:
                    c += tl.sum(dp if phase == 0 else tl.where(seen, dp, 0.0), 1)
                ds = beta * ds
            if TANGENT:
                tK = _tile(tk, j, d, tk_st[3], columns, D, phase == 0, EVEN_D)
                tV = _tile(tv, j, dv, tv_st[3], columns, DV, phase == 0, EVEN_D)
                t = tl.dot(tQ, K.T, input_precision=PRECISION)
                t = tl.dot(Q, tK.T, t, input_precision=PRECISION) * scale - mu[:, None]
                tdp = tl.dot(tG, V.T, input_precision=PRECISION)
                tdp = tl.dot(G, tV.T, tdp, input_precision=PRECISION) - D1[:, None]
                acc = tl.dot(ds.to(tK.dtype), tK, acc, input_precision=PRECISION)
                if SHAPED:
                    ds = ds * t + beta * p * tdp + change
                    c += tl.sum(tdp if phase == 0 else tl.where(seen, tdp, 0.0), 1)
                else:
                    ds = ds * t + p * tdp
            acc = tl.dot(ds.to(K.dtype), K, acc, input_precision=PRECISION)
    at = dq + n * dq_st[0] + b * dq_st[1] + h * dq_st[2]
    _put(at, acc * (scale / (first * unit)), i, d, dq_st[3], rows, D)
    if SHAPED:
        c = c / _count(i, columns, CAUSAL) + (D1 if TANGENT else D0)
        tl.store(mean + row + i, c / (first * unit), mask=i < rows)


@triton.jit
def _grad_columns(
    q, q_st, k, k_st, v, v_st, bias, bias_st, mask, mask_st, mix, mix_st, lse, delta, g, g_st,
    tq, tq_st, tk, tk_st, tv, tv_st, tmix, tmix_st, tlse, tdelta, tg, tg_st, dk, dk_st, dvalue, dv_st, units,
    scale, rows, columns, heads, D, DV,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, SHAPED: tl.constexpr,
    SCALED: tl.constexpr, TANGENT: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_D: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """dK and dV of one column tile, summed over the query heads that share it, or dK̇ and dV̇ along one tangent."""
    c = tl.program_id(0)
    z, n = tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads_k = heads // GROUP
    b, hk = (z // heads_k).to(tl.int64), z % heads_k
    all_rows = n * (tl.num_programs(1) * GROUP) * rows
    j = c * BN + tl.arange(0, BN)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    first, unit = _units(units, n, SCALED, TANGENT)
    K = _tile(k + b * k_st[0] + hk * k_st[1], j, d, k_st[2], columns, D, EVEN_N, EVEN_D)
    if TANGENT:
        tK = _tile(tk + n * tk_st[0] + b * tk_st[1] + hk * tk_st[2], j, d, tk_st[3], columns, D, EVEN_N, EVEN_D)
    V = _tile(v + b * v_st[0] + hk * v_st[1], j, dv, v_st[2], columns, DV, EVEN_N, EVEN_D)
    if TANGENT:
        tV = _tile(tv + n * tv_st[0] + b * tv_st[1] + hk * tv_st[2], j, dv, tv_st[3], columns, DV, EVEN_N, EVEN_D)
    acc_k = tl.zeros((BN, BD), tl.float32)
    acc_v = tl.zeros((BN, BDV), tl.float32)
    for member in range(GROUP):
        h = hk * GROUP + member
        q_at = q + b * q_st[0] + h * q_st[1]
        g_at = g + b * g_st[0] + h * g_st[1]
        tq_at = tq + n * tq_st[0] + b * tq_st[1] + h * tq_st[2]
        tg_at = tg + n * tg_st[0] + b * tg_st[1] + h * tg_st[2]
        bias_at = bias + b * bias_st[0] + h * bias_st[1]
        mask_at = mask + b * mask_st[0] + h * mask_st[1]
        row = (b * heads + h) * rows
        if SHAPED:
            alpha, beta, gamma = _weights(mix + b * mix_st[0] + h * mix_st[1], 1.0)
            if TANGENT:
                talpha, tbeta, tgamma = _weights(tmix + n * tmix_st[0] + b * tmix_st[1] + h * tmix_st[2], unit)
        for phase in tl.static_range(2):
            lo, hi = _column_range(phase, c, rows, BM, BN, CAUSAL, HAS_MASK)
            for start in range(lo, hi, BM):
                i = start + tl.arange(0, BM)
                Q = _tile(q_at, i, d, q_st[2], rows, D, EVEN_M, EVEN_D)
                G = _tile(g_at, i, dv, g_st[2], rows, DV, EVEN_M, EVEN_D)
                sT = tl.dot(K, Q.T, input_precision=PRECISION)
                if TANGENT:
                    tQ = _tile(tq_at, i, d, tq_st[3], rows, D, EVEN_M, EVEN_D)
                    tG = _tile(tg_at, i, dv, tg_st[3], rows, DV, EVEN_M, EVEN_D)
                    tT = tl.dot(K, tQ.T, input_precision=PRECISION)
                    tT = tl.dot(tK, Q.T, tT, input_precision=PRECISION)
                sT = _log2_scores(sT, i[None, :], j[:, None], bias_at, bias_st, scale, HAS_BIAS, rows, columns)
                pT = tl.exp2(sT - _vector(lse + row, i, rows, EVEN_M)[None, :] * 1.4426950408889634)
                seen = True
                if phase == 0:
                    seen = _seen(i[None, :], j[:, None], mask_at, mask_st, rows, columns, CAUSAL, HAS_MASK)
                    pT = tl.where(seen, pT, 0.0)
                wT = pT
                if SHAPED:
                    count = _count(i, columns, CAUSAL)[None, :]
                    wT = _mixed(pT, i[None, :], j[:, None], seen, count, alpha, beta, gamma, phase == 0, CAUSAL)
                if TANGENT:
                    acc_v = tl.dot(wT.to(tG.dtype), tG, acc_v, input_precision=PRECISION)
                    tpT = pT * (tT * scale - (_vector(tlse + all_rows + row, i, rows, EVEN_M) * unit)[None, :])
                    wT = tpT
                    if SHAPED:
                        wT = _mixed(pT, i[None, :], j[:, None], seen, count, talpha, tbeta, tgamma, phase == 0, CAUSAL)
                        wT += beta * tpT
                acc_v = tl.dot(wT.to(G.dtype), G, acc_v, input_precision=PRECISION)
                dpT = tl.dot(V, G.T, input_precision=PRECISION)
                if TANGENT:
                    tdpT = tl.dot(V, tG.T, input_precision=PRECISION)
                    tdpT = tl.dot(tV, G.T, tdpT, input_precision=PRECISION)
                dpT -= (_vector(delta + row, i, rows, EVEN_M) * first)[None, :]
                if SHAPED:
                    if TANGENT:
                        tpT = beta * tpT + tbeta * pT
                    pT = beta * pT
                dsT = pT * dpT
                if TANGENT:
                    acc_k = tl.dot(dsT.to(tQ.dtype), tQ, acc_k, input_precision=PRECISION)
                    tdpT -= (_vector(tdelta + all_rows + row, i, rows, EVEN_M) * (first * unit))[None, :]
                    dsT = tpT * dpT + pT * tdpT
                acc_k = tl.dot(dsT.to(Q.dtype), Q, acc_k, input_precision=PRECISION)
    back = 1.0 / (first * unit)
    at = dk + n * dk_st[0] + b * dk_st[1] + hk * dk_st[2]
    _put(at, acc_k * (scale * back), j, d, dk_st[3], columns, D)
    at = dvalue + n * dv_st[0] + b * dv_st[1] + hk * dv_st[2]
    _put(at, acc_v * back, j, dv, dv_st[3], columns, DV)
