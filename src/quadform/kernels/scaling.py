"""Largest magnitudes and scaled float16 copies of tensors: one launch for the one, one for the other.

`halve` serves the products of a whole program (`products`), `operands` those inside the attention kernels.

A second-order product is linear in dO and in its tangents, so one power of two for dO (`units[0]`) and one for each
tangent n (`units[1 + n]`) bring every operand near 1/8, far from both ends of float16; Q, K, V stay as they are. The
kernels of `fused` scale their row numbers (Δ, ℓ̇, Δ̇) and take the units out of what they write. Source: [own].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import interpreted

AS_IS, COTANGENT, TANGENT, BOTH = 0, 1, 2, 3
"""Units of an operand: none (Q, K, V), that of dO, that of its tangent, the product of the two (dȮ)."""


@triton.jit
def _largest(x, top, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """top = max(top, max |x|) over STEPS blocks, all of them in flight at once."""
    seen = tl.zeros((BLOCK,), tl.float32)
    start = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS)
    for step in tl.static_range(STEPS):
        at = start + step * BLOCK + tl.arange(0, BLOCK)
        seen = tl.maximum(seen, tl.abs(tl.load(x + at, mask=at < n, other=0.0)))
    tl.atomic_max(top, tl.max(seen, 0))


@triton.jit
def _scale(x, top, half, back, n, BLOCK: tl.constexpr):
    """half = 2^(14 − e) x in float16 with e = floor(log2 top), and back = 2^(e − 14)."""
    power = tl.floor(tl.log2(tl.maximum(tl.load(top), 1e-30)))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0) * tl.exp2(14.0 - power)
    tl.store(half + at, value.to(tl.float16), mask=at < n)
    if tl.program_id(0) == 0:
        tl.store(back, tl.exp2(power - 14.0))


def halve(x: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Fill `half` (laid out as the dense x) and return it with the factor that undoes the scale."""
    top, back = torch.zeros((), device=x.device), torch.empty((), device=x.device)
    n, block, steps = x.numel(), 1024 if interpreted() else 2048, 8
    _largest[(triton.cdiv(n, block * steps),)](x, top, n, BLOCK=block, STEPS=steps)
    _scale[(triton.cdiv(n, block),)](x, top, half, back, n, BLOCK=block)
    return half, back


@triton.jit
def _read(x, st, shape, n, BR: tl.constexpr, BD: tl.constexpr):
    """Rows of this program's block of a (tangents, batch, heads, tokens, width) tensor at tangent n; where; which."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    rest = r // shape[2]
    at = n * st[0] + (rest // shape[1]).to(tl.int64) * st[1] + (rest % shape[1]) * st[2] + (r % shape[2]) * st[3]
    rows = shape[0] * shape[1] * shape[2]
    inside = (r < rows)[:, None] & (d < shape[3])[None, :]
    value = tl.load(x + at[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    return value, (n * rows + r)[:, None] * shape[3] + d[None, :], inside


@triton.jit
def _unit(top):
    """The power of two that brings `top` near 1/8."""
    return tl.exp2(-3.0 - tl.floor(tl.log2(tl.maximum(top, 1e-30))))


@triton.jit
def _mine(which, shape, n, COUNT: tl.constexpr, BR: tl.constexpr):
    """Whether this program has rows of operand `which`."""
    return (tl.program_id(1) == which) & (n < COUNT) & (tl.program_id(0) * BR < shape[0] * shape[1] * shape[2])


@triton.jit
def _tops(xs, strides, shapes, tops, UNITS: tl.constexpr, COUNTS: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """Largest magnitudes: tops[0] of dO, tops[1 + n] of the operands of tangent n, tops[1 + N + n] of dȮ."""
    n = tl.program_id(2).to(tl.int64)
    for which in tl.static_range(len(UNITS)):
        if _mine(which, shapes[which], n, COUNTS[which], BR):
            value, _, _ = _read(xs[which], strides[which], shapes[which], n, BR, BD)
            top = tl.max(tl.max(tl.abs(value), 1), 0)
            if UNITS[which] == 1:
                tl.atomic_max(tops, top)
            elif UNITS[which] == 2:
                tl.atomic_max(tops + 1 + n, top)
            else:
                tl.atomic_max(tops + 1 + tl.num_programs(2) + n, top)


@triton.jit
def _halves(
    xs, strides, shapes, outs, tops, units,
    UNITS: tl.constexpr, COUNTS: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Every operand in float16 times its unit, dense; and the units."""
    n = tl.program_id(2).to(tl.int64)
    first = _unit(tl.load(tops))
    own = _unit(tl.maximum(tl.load(tops + 1 + n), tl.load(tops + 1 + tl.num_programs(2) + n) * first))
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(units + 1 + n, own)
        tl.store(units, first)
    for which in tl.static_range(len(UNITS)):
        if _mine(which, shapes[which], n, COUNTS[which], BR):
            value, at, inside = _read(xs[which], strides[which], shapes[which], n, BR, BD)
            if UNITS[which] == 1:
                value = value * first
            elif UNITS[which] == 2:
                value = value * own
            elif UNITS[which] == 3:
                value = value * (own * first)
            tl.store(outs[which] + at, value.to(tl.float16), mask=inside)


def operands(
    tensors: tuple[Tensor, ...], units: tuple[int, ...], mix: Tensor | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """`tensors` in float16 times their units, and the units (float32, that of dO, then one per tangent).

    tensors    float32, unit stride along the width: (batch, heads, tokens, width), or with a tangent axis in front
    units      AS_IS, COTANGENT, TANGENT or BOTH of each
    mix        tangents of the mixing weights (tangents, 1 or batch, heads, 3): count among the tangents, stay float32
    """
    device, count = tensors[0].device, max(x.shape[0] if x.dim() == 5 else 1 for x in tensors)
    tops, values = torch.zeros(1 + 2 * count, device=device), torch.empty(1 + count, device=device)
    scaled = [(x, unit) for x, unit in zip(tensors, units, strict=True) if unit != AS_IS]
    if mix is not None:
        scaled.append((mix.contiguous()[:, :, :, None], TANGENT))
    if scaled:
        xs, of = zip(*scaled, strict=True)
        grid, args, constants = _layout(xs, count)
        _tops[grid](xs, *args, tops, UNITS=of, **constants)
    outs = tuple(torch.empty(x.shape, dtype=torch.float16, device=device) for x in tensors)
    grid, args, constants = _layout(tensors, count)
    _halves[grid](tensors, *args, outs, tops, values, UNITS=units, **constants)
    return outs, values


def _layout(xs: tuple[Tensor, ...], count: int) -> tuple[tuple, tuple, dict]:
    """Grid, strides and shapes, and constants of a kernel over all rows of all of `xs`."""
    xs = tuple(x if x.dim() == 5 else x[None] for x in xs)
    BD = triton.next_power_of_2(max(x.shape[-1] for x in xs))
    BR = max(1, 4096 // BD)
    blocks = max(triton.cdiv(x[0].numel() // x.shape[-1], BR) for x in xs)
    constants = {"COUNTS": tuple(x.shape[0] for x in xs), "BR": BR, "BD": BD}
    return (blocks, len(xs), count), (tuple(x.stride() for x in xs), tuple(tuple(x.shape[1:]) for x in xs)), constants
