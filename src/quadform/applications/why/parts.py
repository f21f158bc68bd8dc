"""What both explanations of one step share: the top eigenvalue, and inner products by layer."""

from __future__ import annotations

from ...core.operator import Operator
from ...core.record import Estimate
from ...core.space import Vector, layer_of
from ...core.work import Work
from ...estimate.lanczos import eigenpairs

#: Products of an eigenvalue at most.
PRODUCTS = 40


def top(A: Operator, work: Work) -> Estimate:
    """lambda_max to 1 %."""
    return eigenpairs(A, top=1, tol=1e-2, max_products=PRODUCTS, progress=work.report()).top[0]


def by_layer(u: Vector, d: Vector, factor: float = 1.0) -> dict[str, float]:
    """factor <u, d> over the parameters of each layer."""
    sums: dict[str, float] = {}
    for n, t in d.items():
        layer = layer_of(n) or n.partition(".")[0]
        sums[layer] = sums.get(layer, 0.0) + factor * float((u[n].double() * t.double()).sum())
    return sums
