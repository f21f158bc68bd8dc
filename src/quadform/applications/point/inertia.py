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
    """Eigenvalues, the size below which one counts as zero, the dimensions of symmetries, the lowest eigenvector,
    g^T (|H| + damping)^-1 g (`square`), the damping as a share of the largest |eigenvalue|, and the step -|H|^-1 g
    outside the directions of symmetries (`newton`).

    Along a symmetry the slope is 0 at every point: candidates along which it is not are dropped. Those that H does not
    annihilate wait for the gradient to vanish (`waiting`): H w = -(dw)^T g on the orbit.

    Of r orthonormal directions W with |H W| = e, r eigenvalues lie within e of 0 [Kahan]: zero is what is below 2 e, or
    below the rounding of H. Symmetries that the eps of norms breaks have W^T H W in place of H W: at a minimum as many
    eigenvalues lie below it [Courant-Fischer].
    """
    H = A.dense().double()
    H = (H + H.T) / 2
    eigenvalues, V = torch.linalg.eigh(H)
    top, n = float(eigenvalues.abs().max()), len(H)
    g = risk.space.flatten(risk.gradient()).double()
    slope = float(g.norm())
    known = list(families(risk))
    candidates = {family.name: span(family.flat(risk)) for family in known}
    near = {family.name for family in known if family.near}
    found = {
        name: Q
        for name, Q in candidates.items()
        if slope <= POLISHED or name in near or float((Q @ g).norm()) <= LEVEL * slope
    }
    (at,) = torch.where(H.abs().amax(1) == 0)
    found["weights without effect"] = H.new_zeros(len(at), n).scatter_(1, at[:, None], 1.0)
    size_of = {name: (ritz if name in near else image)(H, Q) for name, Q in found.items()}
    held = {name: Q for name, Q in found.items() if len(Q) and size_of[name] <= HOLDS * top}
    waiting = [name for name, Q in found.items() if len(Q) and name not in held]
    W = span(torch.cat([H.new_zeros(0, n), *held.values()]))
    exact = span(torch.cat([H.new_zeros(0, n), *(Q for name, Q in held.items() if name not in near)]))
    rounding = 10 * n**0.5 * torch.finfo(risk.dtype).eps * top
    size = eigenvalues.abs()
    steep = (size > rounding) & (size >= size.sort().values[min(len(W), n - 1)])
    return {
        "eigenvalues": eigenvalues.cpu(),
        "zero": max(rounding, 2 * image(H, exact), 2 * ritz(H, W)),
        "explained": len(W),
        "symmetries": {name: len(Q) for name, Q in held.items()},
        "waiting": waiting,
        "square": float(((V.T @ g) ** 2 / (eigenvalues.abs() + damping * (top or 1.0))).sum()),
        "lowest": V[:, 0].cpu(),
        "newton": -(V[:, steep] @ ((V[:, steep].T @ g) / size[steep])).cpu(),
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


def ritz(H: Tensor, Q: Tensor) -> float:
    """|Q H Q^T|, the largest singular value."""
    return float(torch.linalg.matrix_norm(Q @ H @ Q.T, 2)) if len(Q) else 0.0
