"""A preconditioner of a few eigenpairs: |A| on their span, one number on the rest.

P = V |L| V^T + rest (I - V V^T),    f(P) = V (f(|L|) - f(rest)) V^T + f(rest) I
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space, Vector
from ..estimate.lanczos import Eigenpairs


@final
class Spectral(Operator):
    """V diag(s) V^T + rest (I - V V^T), V `(n, k)` with orthonormal columns; functions of it are of the same form."""

    def __init__(self, V: Tensor, s: Tensor, rest: float, domain: Space) -> None:
        if tuple(V.shape) != (domain.size, len(s)):
            raise InputError(f"{len(s)} eigenvalues over {domain} have vectors {(domain.size, len(s))}; got {V.shape}.")
        psd = bool((s >= 0).all()) and rest >= 0
        super().__init__(domain, dtype=V.dtype, device=V.device, symmetric=True, psd=psd)
        self.V, self.s, self.rest = V, s.to(V), rest

    def apply(self, V: Vector) -> dict[str, Tensor]:
        x = self.domain.flatten(V)
        inside = (self.s - self.rest)[:, None] * (self.V.mT @ x)
        return self.domain.unflatten(self.rest * x + self.V @ inside)

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator:
        k, n = self.V.shape[1], self.domain.size
        values = f(torch.cat([self.s, self.s.new_full((n - k,), self.rest)]))  # all n, each as often as it is there
        return Spectral(self.V, values[:k], float(values[-1]), self.domain)


def of_eigenpairs(A: Operator, pairs: Eigenpairs, rest: float | None = None) -> Spectral:
    """|A| from the eigenpairs that `eigenpairs` found; `rest` is what all other directions get, by default the smallest
    |eigenvalue| among them: a step there is then never longer than along a known one."""
    V = torch.linalg.qr(A.domain.flatten(pairs.vectors).to(A.dtype))[0]
    s = torch.tensor([abs(e.value) for e in pairs.values], dtype=torch.float64)
    return Spectral(V, s, float(s.min()) if rest is None else rest, A.domain)
