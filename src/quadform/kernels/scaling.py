"""Largest magnitudes and scaled float16 copies of tensors: one launch for the one, one for the other.

`halve` serves the products of a whole program (`products`), `operands` those inside the attention kernels.

A second-order product is linear in dO and in its tangents, so one power of two for dO (`units[0]`) and one for each
tangent n (`units[1 + n]`) bring every operand near 1/8, far from both ends of float16; Q, K, V stay as they are. The
kernels of `fused` scale their row numbers (Δ, ℓ̇, Δ̇) and take the units out of what they write. Source: [own].
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import interpreted
from .direct import start

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
    device = tensors[0].device
    of, count, scaled, grid, args, constants = _layout(tuple((tuple(x.shape), x.stride()) for x in tensors), units)
    tops, values = torch.zeros(1 + 2 * count, device=device), torch.empty(1 + count, device=device)
    if mix is not None:
        xs = (*(tensors[i] for i in of), mix.contiguous()[:, :, :, None])
        kinds = (*(units[i] for i in of), TANGENT)
        _, _, scaled, *_ = _layout(tuple((tuple(x.shape), x.stride()) for x in xs), kinds)
    else:
        xs = tuple(tensors[i] for i in of)
    if xs:
        start(_tops, scaled[0], (xs, *scaled[1], tops), scaled[2])
    outs = tuple(torch.empty(x.shape, dtype=torch.float16, device=device) for x in tensors)
    start(_halves, grid, (tensors, *args, outs, tops, values), constants)
    return outs, values


@functools.lru_cache(maxsize=512)
def _layout(layouts: tuple, units: tuple[int, ...]) -> tuple:
    """Which operands are scaled, how many tangents there are, and (grid, (strides, shapes), constants) of a kernel over
    those and of one over all of them; `layouts` are (shape, strides) pairs. Remembered, as `launch._plan` is."""
    five = [((1, *shape), (0, *strides)) if len(shape) == 4 else (shape, strides) for shape, strides in layouts]
    count = max(shape[0] for shape, _ in five)

    def kernel(which: tuple[int, ...]) -> tuple:
        shapes, strides = (tuple(five[i][part] for i in which) for part in (0, 1))
        BD = 1 << (max(shape[-1] for shape in shapes) - 1).bit_length()
        BR = max(1, 4096 // BD)
        blocks = max(-(-math.prod(shape[1:4]) // BR) for shape in shapes)
        kinds = {"UNITS": tuple(units[i] for i in which), "COUNTS": tuple(shape[0] for shape in shapes)}
        grid = (blocks, len(which), count)
        return grid, (strides, tuple(shape[1:] for shape in shapes)), {**kinds, "BR": BR, "BD": BD}

    of = tuple(i for i, unit in enumerate(units) if unit != AS_IS)
    return of, count, kernel(of) if of else None, *kernel(tuple(range(len(five))))
