"""What the kernels of `fused` share: loading and storing tiles, scores, who sees whom, the ranges a tile walks over."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(base, rows, cols, stride, n_rows, n_cols, EVEN_R: tl.constexpr, EVEN_C: tl.constexpr):
    """Tile of a (n_rows, n_cols) matrix, zeros outside it."""
    at = base + rows[:, None] * stride + cols[None, :]
    if EVEN_R and EVEN_C:
        return tl.load(at)
    elif EVEN_C:
        return tl.load(at, mask=rows[:, None] < n_rows, other=0.0)
    elif EVEN_R:
        return tl.load(at, mask=cols[None, :] < n_cols, other=0.0)
    else:
        return tl.load(at, mask=(rows[:, None] < n_rows) & (cols[None, :] < n_cols), other=0.0)


@triton.jit
def _put(base, x, rows, cols, stride, n_rows, n_cols):
    """Store a tile of a (n_rows, n_cols) matrix."""
    at = base + rows[:, None] * stride + cols[None, :]
    tl.store(at, x.to(base.dtype.element_ty), mask=(rows[:, None] < n_rows) & (cols[None, :] < n_cols))


@triton.jit
def _vector(base, i, n, EVEN: tl.constexpr):
    """Entries i of a vector of length n, zeros outside it."""
    if EVEN:
        return tl.load(base + i)
    else:
        return tl.load(base + i, mask=i < n, other=0.0)


@triton.jit
def _log2_scores(s, i, j, bias, bias_st, scale, HAS_BIAS: tl.constexpr, rows, columns):
    """(scale s + bias) log2(e); i and j broadcast to the tile."""
    s = s * (scale * 1.4426950408889634)
    if HAS_BIAS:
        inside = (i < rows) & (j < columns)
        b = tl.load(bias + i * bias_st[2] + j * bias_st[3], mask=inside, other=0.0)
        s += b.to(tl.float32) * 1.4426950408889634
    return s


@triton.jit
def _seen(i, j, mask, mask_st, rows, columns, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which pairs of the tile exist and are not hidden."""
    seen = (i < rows) & (j < columns)
    if CAUSAL:
        seen = seen & (j <= i)
    if HAS_MASK:
        seen = seen & (tl.load(mask + i * mask_st[2] + j * mask_st[3], mask=seen, other=0) != 0)
    return seen


@triton.jit
def _count(i, columns, CAUSAL: tl.constexpr):
    """How many keys each row sees."""
    if CAUSAL:
        return tl.minimum(i + 1, columns).to(tl.float32)
    else:
        return (i * 0 + columns).to(tl.float32)


@triton.jit
def _weights(mix, unit):
    """α, β, γ of one head, times `unit`."""
    return tl.load(mix) * unit, tl.load(mix + 1) * unit, tl.load(mix + 2) * unit


@triton.jit
def _units(units, n, SCALED: tl.constexpr, TANGENT: tl.constexpr):
    """The units of dO and of tangent n; see `scaling`."""
    first, unit = 1.0, 1.0
    if SCALED:
        first = tl.load(units)
        if TANGENT:
            unit = tl.load(units + 1 + n)
    return first, unit


@triton.jit
def _mixed(p, i, j, seen, count, alpha, beta, gamma, EDGE: tl.constexpr, CAUSAL: tl.constexpr):
    """A tile of α I + β P − γ C; `EDGE` tiles have unseen pairs, and the diagonal when causal."""
    w = gamma / count
    if EDGE:
        w = tl.where(seen, w, 0.0)
    p = beta * p - w
    if EDGE or not CAUSAL:
        p += tl.where(i == j, alpha, 0.0)
    return p


@triton.jit
def _row_range(phase: tl.constexpr, m, columns, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, HAS_MASK):
    """Columns that row tile m walks over: phase 0 those that need no check, phase 1 the rest."""
    end = columns
    if CAUSAL:
        end = tl.minimum((m + 1) * BM, columns)
    free = columns
    if CAUSAL:
        free = tl.minimum(m * BM + 1, columns)
    free = 0 if HAS_MASK else (free // BN) * BN
    return (0, free) if phase == 0 else (free, end)


@triton.jit
def _column_range(phase: tl.constexpr, n, rows, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, HAS_MASK):
    """Rows that column tile n walks over: phase 0 those that need a check, phase 1 the rest."""
    first = 0
    checked = 0
    if CAUSAL:
        first = (n * BN // BM) * BM
        checked = tl.maximum(tl.minimum(tl.cdiv((n + 1) * BN, BM) * BM, rows), first)
    checked = rows if HAS_MASK else checked
    return (first, checked) if phase == 0 else (checked, rows)
