"""All matrices together, from products with the curvature alone: one step that sets weights to zero and moves the rest.

Minimise g.d + d.B d / 2 under d_S = -w_S, with B = H_o + damping I and F the weights that stay:

    (B_FF) d_F = -(g_F + B_FS d_S),   by conjugate gradients.

Terms between different matrices are part of it. H_o is positive semi-definite where the loss is convex in the output;
where it is not (a loss of cosines), the damping is raised until conjugate gradients meet no negative curvature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from ..core.operator import Operator
from ..core.space import Vector
from ..core.structured import Diagonal
from ..estimate import solve
from ..estimate.solvers.solution import Solution


@final
class Masked(Operator):
    """M A M with M = diag(keep): the part of a symmetric operator between the coordinates that are kept."""

    def __init__(self, base: Operator, keep: Mapping[str, Tensor]) -> None:
        super().__init__(base.domain, dtype=base.dtype, device=base.device, symmetric=base.symmetric, psd=base.psd)
        self.base, self.keep = base, dict(keep)

    def apply(self, V: Vector) -> dict[str, Tensor]:
        image = self.base.apply({n: t * self.keep[n] for n, t in V.items()})
        return {n: t * self.keep[n] for n, t in image.items()}


#: By how much the damping rises where negative curvature is met, and how often at most.
RAISED, RAISES = 10.0, 3


def damped_step(
    B: Operator, w: Vector, keep: Mapping[str, Tensor], *, damping: float, resume: Any = None, **options: Any
) -> tuple[dict[str, Tensor], Solution, float]:
    """(d, how it was solved, the damping it took) of `step` without a slope, with more damping where it is needed."""
    g = {n: torch.zeros_like(t) for n, t in w.items()}
    d, solved = step(B, g, w, keep, damping=damping, resume=resume, **options)
    for _ in range(RAISES):
        if not solved.note.startswith("negative curvature"):
            break
        damping *= RAISED
        d, solved = step(B, g, w, keep, damping=damping, **options)
    return d, solved, damping


def step(
    B: Operator,
    g: Vector,
    w: Vector,
    keep: Mapping[str, Tensor],
    *,
    damping: float,
    diagonal: Vector | None = None,
    start: Vector | None = None,
    **options: Any,
) -> tuple[dict[str, Tensor], Solution]:
    """(d, how it was solved): the best change of all weights that sets those outside `keep` to zero.

    `diagonal` approximates that of B, positive, and preconditions; d of what is kept begins at `start`, by default at
    0; `options` are those of `estimate.solve`.
    """
    begin: Mapping[str, Any] = dict.fromkeys(w, 0.0) if start is None else start
    d = {n: torch.where(keep[n], begin[n], -t) for n, t in w.items()}
    pull = B @ d
    b = {n: -(g[n] + t + damping * d[n]) * keep[n] for n, t in pull.items()}
    M = None if diagonal is None else Diagonal({n: 1 / (t + damping) for n, t in diagonal.items()}, B.domain)
    found = solve(Masked(B, keep), b, damping=damping, preconditioner=M, **options)
    assert not isinstance(found.x, Tensor)
    return {n: t + torch.where(keep[n], found.x[n].to(t), 0.0) for n, t in d.items()}, found
