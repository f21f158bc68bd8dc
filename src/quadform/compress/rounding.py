"""Rounding all matrices together: codes move by single steps while the quadratic model of the loss falls.

    q(d) = g.d + d.B d / 2,   B = H_o + damping I,   d the change of all weights

One step of one code changes a weight by s = +-scale and q by s r + s^2 b / 2, with r = g + B d and b the diagonal of B.
Each round takes the steps that promise most, all at once, and keeps them if q has fallen: one product. Terms between
matrices and between rows are part of it, which rounding one matrix at a time leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.operator import Operator
from .layerwise import Quantized
from .maps import LinearMap

#: Share of the promising steps that are taken at once in the first round; halved when q has not fallen.
SHARE, GROWTH = 0.1, 1.5


@dataclass(frozen=True)
class Descended:
    """The codes found, and the quadratic model before and after."""

    found: dict[str, Quantized]
    before: float
    after: float
    products: int


def descend(
    B: Operator,
    g: Mapping[str, Tensor],
    w: Mapping[str, Tensor],
    maps: Mapping[str, LinearMap],
    start: Mapping[str, Quantized],
    *,
    damping: float,
    diagonal: Mapping[str, Tensor],
    products: int,
    progress: Callable[[int], object] = lambda products: None,
) -> Descended:
    """The codes of `start` improved with at most so many products. `diagonal` is that of B without damping, >= 0."""
    found, share = dict(start), SHARE

    def model(codes: Mapping[str, Quantized]) -> tuple[float, dict[str, Tensor]]:
        d = {n: maps[n].matrix(q.values) - w[n] for n, q in codes.items()}
        Bd = B @ d
        progress(1)
        r = {n: g[n] + Bd[n] + damping * d[n] for n in d}
        return float(sum(((r[n] + g[n]) * d[n]).sum() for n in d)) / 2, r

    b = {n: maps[n].matrix(diagonal[n]) + damping for n in w}
    value, r = model(found)
    first, used = value, 1
    while used < products:
        steps, gain = zip(*(_best_step(found[n], maps[n].matrix(r[n]), b[n]) for n in found), strict=True)
        flat = torch.cat([t.reshape(-1) for t in gain])
        promising = int((flat > 0).sum())
        if not promising:
            break
        count = max(1, int(share * promising))
        least = flat.kthvalue(flat.numel() - count + 1).values
        moved = {
            n: replace(q, codes=(q.codes + torch.where(up >= least, s, 0)).to(torch.uint8))
            for (n, q), s, up in zip(found.items(), steps, gain, strict=True)
        }
        other, slope = model(moved)
        used += 1
        if other < value:
            found, value, r, share = moved, other, slope, min(1.0, GROWTH * share)
        elif count == 1:  # the diagonal is an estimate
            break
        else:
            share /= 4
    return Descended(found, first, value, used)


def _best_step(q: Quantized, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The step of each code against the slope r, +-1 or 0 at an end of the grid, and how much q falls by it."""
    scale, _ = q.grid.columns(0, q.codes.shape[1])
    up = torch.where(r < 0, 1, -1)
    codes = q.codes.long() + up
    inside = (codes >= 0) & (codes < 2**q.grid.bits)
    gain = r.abs() * scale - scale.square() * b / 2
    return up, torch.where(inside, gain, -1.0)
