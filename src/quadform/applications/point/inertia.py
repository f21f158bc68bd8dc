"""Inertia: how many eigenvalues of a dense Hessian are positive, zero and negative, and what the zeros are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...answers.point import POLISHED
from ...core.operator import Operator
from ...curvature.risk import Risk
from .symmetries import families

#: H annihilates a symmetry where |H w| is below this, of the largest |eigenvalue|.
HOLDS = 1e-6
#: The slope along a symmetry is below this, of |g|.
LEVEL = 1e-6


def inertia(risk: Risk, A: Operator, damping: float) -> dict[str, Any]:
    """Eigenvalues, the size below which one counts as zero, the dimensions of symmetries, the lowest eigenvector, and
    g^T (|H| + damping)^-1 g (`square`), the damping as a share of the largest |eigenvalue|.

    Along a symmetry the slope is 0 at every point: candidates along which it is not are dropped. Those that H does not
    annihilate wait for the gradient to vanish (`waiting`): H w = -(dw)^T g on the orbit.

    Of r orthonormal directions W with |H W| = e, r eigenvalues lie within e of 0 [Kahan]: zero is what is below 2 e, or
    below the rounding of H.
    """
    H = A.dense().double()
    H = (H + H.T) / 2
    eigenvalues, V = torch.linalg.eigh(H)
    top, n = float(eigenvalues.abs().max()), len(H)
    g = risk.space.flatten(risk.gradient()).double()
    slope = float(g.norm())
    candidates = {family.name: span(family.flat(risk)) for family in families(risk)}
    found = {name: Q for name, Q in candidates.items() if slope <= POLISHED or float((Q @ g).norm()) <= LEVEL * slope}
    dead = torch.eye(n, dtype=H.dtype, device=H.device)[H.abs().amax(1) == 0]
    found["weights without effect"] = dead
    held = {name: Q for name, Q in found.items() if len(Q) and image(H, Q) <= HOLDS * top}
    waiting = [name for name, Q in found.items() if len(Q) and name not in held]
    W = span(torch.cat([H.new_zeros(0, n), *held.values()]))
    rounding = 10 * n**0.5 * torch.finfo(risk.dtype).eps * top
    return {
        "eigenvalues": eigenvalues.cpu(),
        "zero": max(rounding, 2 * image(H, W)),
        "explained": len(W),
        "symmetries": {name: len(Q) for name, Q in held.items()},
        "waiting": waiting,
        "square": float(((V.T @ g) ** 2 / (eigenvalues.abs() + damping * (top or 1.0))).sum()),
        "lowest": V[:, 0].cpu(),
    }


def span(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of the rows (k, n)."""
    if not len(rows):
        return rows
    _, s, Vh = torch.linalg.svd(rows, full_matrices=False)
    return Vh[s > 1e-10 * s[0]]


def image(H: Tensor, Q: Tensor) -> float:
    """|H Q^T|, the largest singular value."""
    return float(torch.linalg.matrix_norm(H @ Q.T, 2)) if len(Q) else 0.0
