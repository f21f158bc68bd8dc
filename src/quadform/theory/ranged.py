"""Tensors whose size may leave floating point: a mantissa and the logarithm of its scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError


@dataclass(frozen=True)
class Ranged:
    """A tensor `e^log mantissa`, whatever the size of log."""

    mantissa: Tensor
    log: float

    @classmethod
    def of(cls, tensor: Tensor, log: float = 0.0) -> Ranged:
        """The mantissa scaled to norm 1 (a zero tensor stays as it is)."""
        top = float(tensor.abs().max()) if tensor.numel() else 0.0
        if top == 0.0 or not math.isfinite(top):
            return cls(tensor, log)
        shrunk = tensor / top  # the norm of a very small or large tensor leaves floating point before its entries do
        norm = float(shrunk.norm())
        return cls(shrunk / norm, log + math.log(top) + math.log(norm))

    def __add__(self, other: Ranged) -> Ranged:
        low, high = sorted((self, other), key=lambda r: r.log if bool(r.mantissa.any()) else -math.inf)
        if not bool(low.mantissa.any()):
            return high
        return Ranged(high.mantissa + math.exp(low.log - high.log) * low.mantissa, high.log)

    def log_norm(self) -> float:
        """The natural logarithm of the Frobenius norm; -inf for zero."""
        return Ranged.of(self.mantissa, self.log).log if bool(self.mantissa.any()) else -math.inf

    def value(self) -> Tensor:
        """The tensor itself, where it fits its dtype."""
        info, size = torch.finfo(self.mantissa.dtype), self.log_norm()
        if size > math.log(info.max) or -math.inf < size < math.log(info.tiny):
            raise InputError(
                f"a tensor of norm e^{size:.1f} does not fit {self.mantissa.dtype}; use `mantissa` and `log`, or"
                " `log_norm()`."
            )
        return self.flushed()

    def flushed(self) -> Tensor:
        """The tensor itself in plain floating point: too small becomes 0, too large infinite."""
        half = math.exp(min(max(self.log / 2, -700.0), 700.0))
        return (self.mantissa.double() * half * half).to(self.mantissa.dtype)
