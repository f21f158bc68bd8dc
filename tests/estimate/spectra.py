"""Operators of prescribed spectrum, and one that counts, fails or is interrupted at a chosen product."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from quadform.core.operator import Operator
from quadform.core.space import Space


class Spectrum(Operator):
    """Q^T diag(d) Q, Q = a Hartley transform after random signs: eigenvalues d, spread eigenvectors, O(n log n).

    `before(count)` is called before each call of `apply` with the products made so far.
    """

    def __init__(
        self, d: Tensor, *, seed: int = 0, psd: bool = False, before: Callable[[int], None] = lambda count: None
    ) -> None:
        n = len(d)
        parts = (("a", (n,)),) if n < 4 else (("a", (2, n // 4)), ("b", (n - 2 * (n // 4),)))
        super().__init__(Space(parts), dtype=d.dtype, device=d.device, symmetric=True, psd=psd)
        self.signs = (2 * torch.randint(0, 2, (n, 1), generator=torch.Generator().manual_seed(seed)) - 1).to(d)
        self.d = d
        self.count = 0
        self.before = before

    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = self.domain.flatten(V)
        self.before(self.count)
        self.count += flat.shape[1]
        return self.domain.unflatten(self.signs * _hartley(self.d[:, None] * _hartley(self.signs * flat)))


def _hartley(x: Tensor) -> Tensor:
    """The discrete Hartley transform of the columns: real, symmetric and orthogonal."""
    f = torch.fft.fft(x, dim=0, norm="ortho")
    return f.real - f.imag


def outliers(n: int, seed: int = 0, top: tuple[float, ...] = (40, 22, 15, 11, 8, 5, 4), low: float = -6.0) -> Tensor:
    """A spectrum like a loss Hessian's: a bulk of both signs around zero with heavy tails, and a few outliers."""
    g = torch.Generator().manual_seed(seed)
    d = torch.randn(n, generator=g, dtype=torch.float64)
    d = 0.2 * d.abs() ** 2 * d.sign()
    d[: len(top)] = torch.tensor(top, dtype=torch.float64)
    d[len(top)] = low
    return d
