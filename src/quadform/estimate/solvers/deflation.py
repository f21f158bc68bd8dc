"""Deflation: known eigenpairs are solved outright, so that the recurrence sees the rest of the spectrum alone."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.operator import Operator
from ...core.space import Vector
from ..lanczos import Eigenpairs


@final
class Deflated(Operator):
    """(I - V V^T) M (I - V V^T) + V |L + damping|^-1 V^T, a preconditioner of A + damping I.

    V are unit eigenvectors of A, L their eigenvalues; M is another preconditioner, I / min |L + damping| by default.
    Positive definite for any V, so that inexact pairs cost products and not the answer.
    """

    def __init__(self, A: Operator, pairs: Eigenpairs, damping: float, M: Operator | None) -> None:
        super().__init__(A.domain, dtype=A.dtype, device=A.device, symmetric=True, psd=True)
        V = A.domain.flatten(pairs.vectors).to(A.dtype)
        values = torch.tensor([e.value for e in pairs.values], dtype=torch.float64) + damping
        if V.shape[1] != len(values):
            raise InputError(
                f"{len(values)} eigenvalues and {V.shape[1]} eigenvectors: give one vector for each value."
            )
        if not bool((values != 0).all()):
            raise InputError("an eigenvalue that is deflated is zero; leave it out or give a damping.")
        self.V, self.scale = torch.linalg.qr(V)[0] if V.dtype.itemsize > 2 else V, values.abs().to(V)[:, None]
        self.least, self.M = float(values.abs().min()), M

    def apply(self, V: Vector) -> dict[str, Tensor]:
        x = self.domain.flatten(V)
        inside = self.V.T @ x
        rest = x - self.V @ inside
        if self.M is None:
            rest = rest / self.least
        else:
            rest = self.domain.flatten(self.M.apply(self.domain.unflatten(rest)))
            rest = rest - self.V @ (self.V.T @ rest)
        return self.domain.unflatten(rest + self.V @ (inside / self.scale))
