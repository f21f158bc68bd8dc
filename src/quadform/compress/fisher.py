"""WoodFisher: the empirical Fisher matrix of each row of a matrix, from gradients of single sequences.

    F = delta I + sum_k g_k g_k^T / m,   F^-1 = (I - G^T (m delta I + G G^T)^-1 G) / delta,   G (m, in) the gradients

Inverse by Woodbury, one row of the matrix at a time [Singh, Alistarh 2020, with rows as blocks]. Removing the weights S
of a row costs the quadratic model least with d = -F^-1 E (E^T F^-1 E)^-1 w_S, one weight w_q^2 / (2 [F^-1]_qq).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def singles(batch: Any) -> list[Any]:
    """The batch cut into its sequences: every tensor as long as the first one is."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    count = next((len(t) for t in parts if isinstance(t, Tensor) and t.dim()), 1)

    def cut(value: Any, i: int) -> Any:
        if isinstance(value, Tensor):
            return value[i : i + 1] if value.dim() and len(value) == count else value
        if isinstance(value, Mapping):
            return {name: cut(v, i) for name, v in value.items()}
        return type(value)(cut(v, i) for v in value) if isinstance(value, tuple | list) else value

    return [cut(batch, i) for i in range(count)]


@dataclass(frozen=True)
class RowFisher:
    """The Fisher matrices of the rows of one matrix: gradients G (m, out, in), damping delta > 0."""

    G: Tensor
    damping: float

    def inverse_diagonal(self) -> Tensor:
        """[F^-1]_qq of every weight, (out, in)."""
        G, m = self.G.transpose(0, 1), len(self.G)  # (out, m, in)
        K = G @ G.mT + m * self.damping * torch.eye(m, dtype=G.dtype, device=G.device)
        return (1 - (G * torch.linalg.solve(K, G)).sum(1)).clamp_min(torch.finfo(G.dtype).eps) / self.damping

    def matrices(self, start: int, stop: int) -> Tensor:
        """F of the rows `start .. stop`, (rows, in, in)."""
        G = self.G[:, start:stop].transpose(0, 1)
        eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        return G.mT @ G / len(self.G) + self.damping * eye

    def compensate(self, W: Tensor, keep: Tensor, rows: int = 16) -> Tensor:
        """The weights on a mask with the least d.F d / 2, each row by itself: F_FF d_F = F_FS w_S."""
        out = torch.zeros_like(W)
        eye = torch.eye(W.shape[1], dtype=W.dtype, device=W.device)
        for start in range(0, len(W), rows):
            part = slice(start, start + rows)
            F, w, m = self.matrices(start, start + rows), W[part], keep[part].to(W.dtype)
            A = m[:, :, None] * F * m[:, None, :] + (1 - m)[:, :, None] * eye
            pull = m * (F @ (w * (1 - m))[..., None])[..., 0]
            out[part] = m * (w + torch.linalg.solve(A, pull[..., None])[..., 0])
        return out
