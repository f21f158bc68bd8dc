"""The largest eigenvalue of an operator that changes slowly, followed with one to three products a time.

    theta = <v, A v>,   r = A v - theta v          first product: Rayleigh quotient and residual
    A r, ...                                       further ones: the top Ritz pair of span {v, r, ...}

The next time begins not at the Ritz vector x but at  mu x + r,  mu = (theta + (theta^2 + 4 |r|^2)^1/2) / 2:  the top
vector of span {x, r} if A were 0 along r, about a step of the power method, which needs no product. A x is a sum of
products that are there, so its residual costs nothing. Every value is at most lambda_max: a Ritz value is a lower
bound, and an eigenvalue lies within its residual. The first time begins at the gradient, much of which lies in sharp
directions, with a tenth of chance, and takes two products at most; the next times rise from there. A direction that v
has no part in can stay unseen, so a full search is made now and then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...answers.monitor import NEAR
from ...core.number import Estimate
from ...core.operator import Operator
from ...core.space import Vector
from ...estimate.lanczos import eigenpairs
from ...estimate.vectors import multiply, probes, without, working_dtype

#: Products of a full search at most, and rows of its basis: ten vectors or so, beside which a training run still fits.
SEARCH, ROWS = 12, 10
#: Products at most the first time and where a pair is followed, and the relative residual from which on none is added.
FIRST, MOST, ENOUGH = 2, 3, 0.15


@dataclass(frozen=True)
class Pair:
    """A Ritz value, its residual, the products it took, and the vector (n,) from which it is followed next time."""

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


def beginning(A: Operator, g: Vector) -> Tensor:
    """Where a pair that was not followed yet begins: at the gradient, with a tenth of random signs."""
    noise = probes(A, 0, "monitor/beginning", range(1), "rademacher")[0]
    v = A.domain.flatten(g).to(noise)
    return v / v.norm().clamp(min=torch.finfo(v.dtype).tiny) + 0.1 * noise / noise.norm()


def follow(A: Operator, v: Tensor, most: int = MOST) -> Pair:
    """The top pair near v, and where to begin next time."""
    x, r, theta, products = ritz(A, v, most)
    size = float(r.norm())
    mu = (theta + math.hypot(theta, 2 * size)) / 2
    moved = mu * x + r if mu > 0 else x
    return Pair(moved / moved.norm(), theta, size, products)


def ritz(A: Operator, v: Tensor, most: int = MOST) -> tuple[Tensor, Tensor, float, int]:
    """The top Ritz vector of span {v, r, ...}, its residual, its value and the products."""
    basis = (v / v.norm())[None]
    images = multiply(A, basis)
    while True:
        small = (basis @ images.T).double().cpu()
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        c, theta = vectors[:, -1].to(basis), float(values[-1])
        x = c @ basis
        r = c @ images - theta * x
        u = without(r[None], basis)
        if len(basis) == most or float(r.norm()) <= ENOUGH * abs(theta) or not float(u.norm()):
            return x, r, theta, len(basis)
        u = u / u.norm()
        basis, images = torch.cat([basis, u]), torch.cat([images, multiply(A, u)])
