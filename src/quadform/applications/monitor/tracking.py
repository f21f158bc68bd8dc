"""The largest eigenvalue of an operator that changes slowly, followed with one or two products a time.

    theta = <v, A v>,   r = A v - theta v          first product: Rayleigh quotient and residual
    A r                                            second product: the top Ritz pair of span {v, r}

A v of the new v is a sum of the two products, so its residual costs nothing. Every value is at most lambda_max: a
Ritz value is a lower bound, and an eigenvalue lies within its residual. A direction that v has no part in can stay
unseen, so a full search is made at first and again now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...answers.monitor import NEAR
from ...core.number import Estimate
from ...core.operator import Operator
from ...core.space import Vector
from ...estimate.lanczos import eigenpairs
from ...estimate.vectors import multiply, working_dtype

#: Products of a full search at most, and rows of its basis: ten vectors or so, beside which a training run still fits.
SEARCH, ROWS = 12, 10


@dataclass(frozen=True)
class Pair:
    """A Ritz pair: unit vector (n,), its value, |A v - theta v|, and the products it took."""

    v: Tensor
    theta: float
    residual: float
    products: int

    @property
    def estimate(self) -> Estimate:
        """An estimate with its residual where that is small, else a lower bound of lambda_max."""
        near = self.residual <= NEAR * abs(self.theta)
        return Estimate(self.theta, self.residual, "estimate" if near else "bound", self.products, near, "", "residual")


def search(A: Operator, start: Vector | None = None) -> Pair:
    """The top pair by Lanczos, from nothing or from the vector followed so far."""
    found = eigenpairs(A, top=1, tol=NEAR, max_products=SEARCH, rows=ROWS, start=start)
    v = A.domain.flatten({n: t[0] for n, t in found.vectors.items()}).to(working_dtype(A))
    return Pair(v, found.top[0].value, float(found.residuals[0]), found.products)


def follow(A: Operator, v: Tensor) -> Pair:
    """The top pair near v: one product where v is still nearly an eigenvector, else the Ritz step with two."""
    v = v / v.norm()
    Av = multiply(A, v[None])[0]
    theta = v @ Av
    r = Av - theta * v
    residual = r.norm()
    if residual <= NEAR * theta.abs():
        return Pair(v, float(theta), float(residual), 1)
    u = r - (v @ r) * v
    u = u / u.norm()
    Au = multiply(A, u[None])[0]
    cross = (v @ Au + u @ Av) / 2
    small = torch.stack([torch.stack([theta, cross]), torch.stack([cross, u @ Au])])
    values, vectors = torch.linalg.eigh(small.double().cpu())
    a, b = (float(c) for c in vectors[:, 1])
    new, image, top = a * v + b * u, a * Av + b * Au, float(values[1])
    return Pair(new / new.norm(), top, float((image - top * new).norm()), 2)
