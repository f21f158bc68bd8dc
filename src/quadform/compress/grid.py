"""Grid: the integers of a quantized matrix. Rows are cut into groups of columns, each with a scale and a zero point.

    w = scale (code - zero),   code in 0 .. 2^bits - 1

Scales are numbers of 16 bits (bfloat16), so what is stored is what was measured (`core.packed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.packed import Layout, pack, require_bits

#: Bits that a group of weights takes beside its codes: its scale and its zero point.
BESIDE = 16 + 8


@dataclass(frozen=True)
class Grid:
    """The values a matrix (out, in) may take: `scale` and `zero` are (out, groups), `group` columns share one."""

    scale: Tensor
    zero: Tensor
    bits: int
    group: int

    @classmethod
    def of(cls, W: Tensor, bits: int, group: int | None = None) -> Grid:
        """The grid that spans the values of each group, zero included. `group=None` is one group a row."""
        require_bits(bits)
        group = W.shape[1] if group is None else min(group, W.shape[1])
        if group < 1:
            raise InputError(f"group={group}: give the number of columns that share a scale, at least 1.")
        scale, zero = zip(*(span(part, bits) for part in W.split(group, dim=1)), strict=True)
        return cls(torch.cat(scale, 1), torch.cat(zero, 1), bits, group)

    def columns(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Scale and zero of the columns `start .. stop`, (out, stop - start)."""
        where = torch.arange(start, stop, device=self.scale.device) // self.group
        return self.scale[:, where], self.zero[:, where]

    def codes(self, W: Tensor) -> Tensor:
        """The nearest codes."""
        scale, zero = self.columns(0, W.shape[1])
        return to_codes(W, scale, zero, self.bits)

    def values(self, codes: Tensor) -> Tensor:
        """The weights that the codes stand for."""
        scale, zero = self.columns(0, codes.shape[1])
        return scale * (codes.to(scale.dtype) - zero)

    def nearest(self, W: Tensor) -> Tensor:
        """Round to nearest."""
        return self.values(self.codes(W))

    def bits_per_weight(self, columns: int) -> float:
        """Bits stored for each weight: its code, and its share of the scale and zero point of its group."""
        return self.bits + BESIDE * self.scale.shape[1] / columns

    def stored(self, codes: Tensor, *, turned: bool) -> tuple[dict[str, Tensor], Layout]:
        """Codes, scale and zero as a file has them, and how they lie; `turned` where the model has (in, out)."""
        parts = {"codes": pack(codes, self.bits), "scale": self.scale.bfloat16(), "zero": self.zero.to(torch.uint8)}
        return parts, Layout(self.bits, self.group, codes.shape[1], turned)


def span(W: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale (of 16 bits) and zero point (out, 1) of the columns given, from their least and greatest values."""
    top = 2**bits - 1
    low, high = W.amin(1, keepdim=True).clamp_max(0), W.amax(1, keepdim=True).clamp_min(0)
    scale = ((high - low) / top).bfloat16().to(W.dtype)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return scale, (-low / scale).round().clamp(0, top)


def to_codes(W: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The nearest codes, uint8."""
    return ((W / scale).round() + zero).clamp(0, 2**bits - 1).to(torch.uint8)
