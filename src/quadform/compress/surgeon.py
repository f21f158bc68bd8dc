"""Surgeon: weights taken out with the whole Hessian of a small network, or of one row, known as a matrix.

Minimise g.d + d.H d / 2 under d_S = -w_S, for any set S [Hassibi, Stork 1993, with a gradient]:

    d = -H^-1 g + H^-1 E (E^T H^-1 E)^-1 (E^T H^-1 g - w_S),   E the columns of the identity in S.

One weight q at g = 0: d = -(w_q / [H^-1]_qq) H^-1 e_q, and the loss rises by w_q^2 / (2 [H^-1]_qq). Where H is not
positive definite there is no minimum, and H is refused: add damping, or take |H| or the Gauss-Newton part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from .grid import Grid
from .layerwise import DAMPING, Quantized


@dataclass(frozen=True)
class Surgeon:
    """The quadratic model of a loss at weights w: gradient g (n,), Hessian H (n, n) and its inverse."""

    w: Tensor
    g: Tensor
    H: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, w: Tensor, H: Tensor, g: Tensor | None = None, *, damping: float = 0.0) -> Surgeon:
        n = w.numel()
        if H.shape != (n, n):
            raise InputError(f"{n} weights have a Hessian of shape ({n}, {n}); got {tuple(H.shape)}.")
        H = (H + H.T) / 2 + damping * torch.eye(n, dtype=H.dtype, device=H.device)
        factor, failed = torch.linalg.cholesky_ex(H)
        if int(failed):
            least = float(torch.linalg.eigvalsh(H)[0])
            raise InputError(
                f"the Hessian has the eigenvalue {least:.3g}: without a minimum there is no best step."
                f" Add damping above {-least:.3g}, or use |H| or the Gauss-Newton part."
            )
        return cls(
            w.reshape(-1), torch.zeros_like(w).reshape(-1) if g is None else g, H, torch.cholesky_inverse(factor)
        )

    @classmethod
    def of_absolute(cls, w: Tensor, H: Tensor, g: Tensor | None = None, *, damping: float = 0.0) -> Surgeon:
        """With |H| + damping times the mean of its diagonal in place of H, which may be indefinite."""
        values, vectors = torch.linalg.eigh((H + H.T) / 2)
        absolute = (vectors * values.abs()) @ vectors.T
        return cls.of(w, absolute, g, damping=damping * float(absolute.diagonal().mean()))

    def step(self, removed: Tensor) -> Tensor:
        """The best change d of all weights that sets the weights with the given indices to zero."""
        P = self.inverse
        newton = P @ self.g
        columns = P[:, removed]
        return -newton + columns @ torch.linalg.solve(columns[removed], newton[removed] - self.w[removed])

    def predicted(self, d: Tensor) -> Tensor:
        """g.d + d.H d / 2: what the loss rises by."""
        return self.g @ d + d @ (self.H @ d) / 2

    def order(self, count: int) -> Tensor:
        """Indices of `count` weights, one after the other: each time the one whose removal costs least then.

        After q is gone the inverse of the rest is P - P e_q e_q^T P / P_qq; the weights are those moved so far.
        """
        if not 0 <= count < self.w.numel():
            raise InputError(f"{count} of {self.w.numel()} weights: remove at least 0 and leave one.")
        P = self.inverse.clone()
        w = self.w - P @ self.g
        gone = torch.zeros_like(w, dtype=torch.bool)
        found = []
        for _ in range(count):
            cost = torch.where(gone, torch.inf, w.square() / P.diagonal())
            q = int(cost.argmin())
            column = P[:, q].clone()
            w = w - column * (w[q] / column[q])
            P -= torch.outer(column, column) / column[q]
            gone[q] = True
            w[gone] = 0
            P[gone] = 0
            P[:, gone] = 0
            found.append(q)
        return torch.tensor(found, dtype=torch.long, device=w.device)


def obq(
    W: Tensor, S: Tensor, bits: int, group: int | None = None, *, damping: float = DAMPING, rows: int = 32
) -> Quantized:
    """Optimal brain quantization [Frantar et al. 2022]: in each row the weight that costs least is rounded next, and
    the others make up for it. Slow: n^3 operations a row."""
    grid = Grid.of(W, bits, group)
    scale, zero = grid.columns(0, W.shape[1])
    S = S + torch.diag((S.diagonal() <= 0).to(S.dtype) + damping * S.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(S))
    codes = torch.zeros_like(W, dtype=torch.uint8)
    for start in range(0, len(W), rows):
        part = slice(start, start + rows)
        codes[part] = _rows(W[part], inverse, scale[part], zero[part], bits)
    return Quantized(codes, grid)


def _rows(W: Tensor, inverse: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    W, k, n = W.clone(), len(W), W.shape[1]
    P = inverse.expand(k, n, n).clone()
    each, done = torch.arange(k, device=W.device), torch.zeros_like(W, dtype=torch.bool)
    codes = torch.zeros_like(W)
    top = 2**bits - 1
    for _ in range(n):
        nearest = ((W / scale).round() + zero).clamp(0, top)
        wrong = W - scale * (nearest - zero)
        cost = wrong.square() / P.diagonal(dim1=1, dim2=2)
        q = torch.where(done, torch.inf, cost).argmin(1)
        column = P[each, :, q]
        pivot = column[each, q]
        codes[each, q] = nearest[each, q]
        W -= column * (wrong[each, q] / pivot)[:, None]
        P -= column[:, :, None] * column[:, None, :] / pivot[:, None, None]
        done[each, q] = True
        P[each, q, q] = 1.0  # spent: its row and column are zero from here on
    return codes.to(torch.uint8)
