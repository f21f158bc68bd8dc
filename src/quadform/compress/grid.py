"""Grid: the integers of a quantized matrix. Rows are cut into groups of columns, each with a scale and a zero point.

    w = scale (code - zero),   code in 0 .. 2^bits - 1

Codes are stored without gaps: a 3-bit matrix takes 3 bits a weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError

BITS = range(2, 9)


def require_bits(bits: int) -> None:
    """`bits` is one of 2 .. 8."""
    if bits not in BITS:
        raise InputError(f"bits={bits}: give a whole number from {BITS[0]} to {BITS[-1]}.")


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
        """Bits stored for each weight: its code, and its share of the scale (16 bits) and zero point (8 bits)."""
        return self.bits + 24 * self.scale.shape[1] / columns


def span(W: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and zero point (out, 1) of the columns given, from their least and greatest values."""
    top = 2**bits - 1
    low, high = W.amin(1, keepdim=True).clamp_max(0), W.amax(1, keepdim=True).clamp_min(0)
    scale = (high - low) / top
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return scale, (-low / scale).round().clamp(0, top)


def to_codes(W: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The nearest codes, uint8."""
    return ((W / scale).round() + zero).clamp(0, 2**bits - 1).to(torch.uint8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes (out, in) -> bytes (out, ceil(in bits / 8)); the first code in the lowest bits."""
    require_bits(bits)
    bit = (codes[..., None] >> torch.arange(bits, dtype=torch.uint8, device=codes.device)) & 1
    flat = bit.reshape(codes.shape[0], -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).reshape(codes.shape[0], -1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8, device=codes.device)).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, columns: int) -> Tensor:
    """The inverse of `pack`."""
    require_bits(bits)
    needed = -(-columns * bits // 8)
    if packed.shape[1] != needed:
        raise InputError(f"{columns} codes of {bits} bits take {needed} bytes a row; got {packed.shape[1]}.")
    flat = (packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    bit = flat.reshape(packed.shape[0], -1)[:, : columns * bits].reshape(packed.shape[0], columns, bits)
    return (bit << torch.arange(bits, dtype=torch.uint8, device=packed.device)).sum(-1).to(torch.uint8)
