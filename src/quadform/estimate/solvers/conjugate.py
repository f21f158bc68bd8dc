"""Conjugate gradients of a positive definite system, with a preconditioner: one by one, or in a block.

One by one (Hestenes and Stiefel 1952): k recurrences side by side, multiplied together. In a block (O'Leary 1980):
every solution is sought in the Krylov space of all right-hand sides, so that fewer products are needed where a few
eigenvalues decide; directions that depend on each other are dropped (breakdown-free, Ji and Li 2017).
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from ..vectors import orthogonalise
from .recurrence import NEGATIVE, SINGULAR, Recurrence, numbers
from .system import Rows, Symmetric, column


@final
class ConjugateGradients(Recurrence):
    """alpha = r.Mr / p.Ap ,  x += alpha p ,  r -= alpha A p ,  p = M r + (r.Mr / last r.Mr) p ."""

    error_falls = True
    system: Symmetric

    @classmethod
    def start(cls, system: Symmetric, R: Tensor, target: Tensor) -> ConjugateGradients:
        Z, rho = system.precondition(R)
        vectors = {"X": torch.zeros_like(R), "R": R.clone(), "P": Z.clone()}
        return cls(system, vectors, numbers(system.rows.norm(R), target, rho=rho.clone()))

    def step(self) -> None:
        system, rows, on = self.system, self.system.rows, self.open.nonzero()[:, 0]
        v, n = self._taken(on)
        X, R, P, rho = v["X"], v["R"], v["P"], n["rho"]
        V = system.times(P)
        curvature = rows.dot(P, V)
        flat = system.eps * system.norm_seen * rows.dot(P, P)
        why = torch.where(curvature < -flat, NEGATIVE, torch.where(curvature <= flat, SINGULAR, 0))
        alpha = torch.where(why == 0, rho / curvature, torch.zeros_like(rho))
        X = torch.addcmul(X, column(alpha, P), P)
        R = torch.addcmul(R, column(-alpha, V), V)
        Z, new = system.precondition(R)
        P = torch.addcmul(Z, column(new / rho, P), P)
        self._put(on, {"X": X, "R": R, "P": P}, {"rho": new, "why": why, "size": rows.norm(R)})


@final
class BlockConjugateGradients(Recurrence):
    """G = P A P^T ,  X += R P^T G^-1 P ,  R -= R P^T G^-1 P A ,  P = orth(M R - M R A P^T G^-1 P) , rows as vectors."""

    error_falls = True
    system: Symmetric

    @classmethod
    def start(cls, system: Symmetric, R: Tensor, target: Tensor) -> BlockConjugateGradients:
        Z, _ = system.precondition(R)
        vectors = {"X": torch.zeros_like(R), "R": R.clone(), "P": orthonormal(Z, system.rows)}
        return cls(system, vectors, numbers(system.rows.norm(R), target))

    @property
    def cost(self) -> int:
        return len(self.vectors["P"])

    def step(self) -> None:
        system, rows = self.system, self.system.rows
        X, R, P = (self.vectors[name] for name in ("X", "R", "P"))
        V = system.times(P)
        G = rows.gram(P, V)
        values, U = torch.linalg.eigh((G + G.T) / 2)
        flat = system.eps * system.norm_seen
        steep = values > flat
        # G^-1 on the directions that have curvature
        inverse = (U[:, steep] / values[steep]) @ U[:, steep].T
        A = rows.gram(R, P) @ inverse
        X, R = X + A.to(P) @ P, R - A.to(V) @ V
        why = self.scalars["why"]
        if bool((values < -flat).any()) or not bool(steep.any()):
            why = torch.where(self.open, NEGATIVE if bool((values < -flat).any()) else SINGULAR, why)
        size = rows.norm(R)
        left = ((size > self.scalars["target"]) & (why == 0)).nonzero()[:, 0].to(R.device)
        if len(left):
            Z, _ = system.precondition(R[left])
            Z = Z - (rows.gram(Z, V) @ inverse).to(P) @ P
            P = orthonormal(Z, rows)
        self.vectors = {"X": X, "R": R, "P": P}
        self.scalars |= {"size": size, "why": why}


def orthonormal(Z: Tensor, rows: Rows) -> Tensor:
    """Orthonormal rows that span those of Z, by Gram-Schmidt; a row that nearly depends on earlier ones gives none."""
    noise = math.sqrt(torch.finfo(Z.dtype).eps)
    Q, r = torch.empty_like(Z), 0
    for z, size in zip(Z, rows.norm(Z).tolist(), strict=True):
        if size == 0 or r == rows.n:
            continue
        _, w = orthogonalise(z / size, Q[:r], group=rows.group)
        rest = rows.group.norm(w)
        if rest > noise:
            Q[r], r = w / rest, r + 1
    return Q[:r]
