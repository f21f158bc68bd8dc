"""Sizes of an operator, square or rectangular: singular values, spectral and nuclear norm, condition, stable rank.

Each is exact, from the dense matrix, where the smaller side needs no more products than were allowed; the note says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from ..core.number import Estimate, Side, joint_kind
from ..core.operator import Operator
from ..core.precision import own_precision
from ..core.progress import Progress, Report
from ..core.space import Vector
from .blocks import frobenius, smaller_side
from .lanczos import eigenpairs
from .quadrature import density
from .resume import Checkpoint, State
from .vectors import at_least, multiply, orthogonalise, probes, rows_that_fit


@dataclass(frozen=True)
class SingularEnds:
    """The largest and the smallest singular value of an operator, among the min(m, n) of its matrix."""

    largest: Estimate
    smallest: Estimate


@own_precision()
def singular_ends(
    A: Operator,
    *,
    tol: float = 1e-3,
    max_products: int = 120,
    smallest: bool = False,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> SingularEnds:
    """Extreme singular values of any operator that has an adjoint, by Golub-Kahan bidiagonalisation.

    A v_j = beta_{j-1} u_{j-1} + alpha_j u_j ,  A^T u_j = alpha_j v_j + beta_j v_{j+1} , both bases kept orthogonal. For
    a singular triplet of the bidiagonal matrix |A^T u - sigma v| is a bound of the distance to a singular value. Stops
    when the largest (with `smallest=True` also the smallest) has |A^T u - sigma v| <= tol sigma. Each step costs a
    product with A and one with A^T.
    """
    side = A if A.shape[1] <= A.shape[0] else A.T
    n = side.domain.size
    steps = min(n, at_least("max_products", max_products, 2) // 2)
    steps = min(steps, rows_that_fit(A, memory, least=8, purpose="Golub-Kahan") // 2 - 2)
    with (
        Checkpoint(resume, "golub-kahan", A, {"seed": seed}) as checkpoint,
        Progress(2 * steps, "products", show=progress) as shown,
    ):
        run = _Bidiagonal(side, steps, seed)
        if checkpoint.found is not None:
            run.load(*checkpoint.found)
            shown.step(2 * run.done)
        while run.done < steps and not run.reached(tol, smallest):
            run.step()
            checkpoint.reached(run.state)
            shown.step(2, "sigma_max {:.4g} (+-{:.1g})".format(*run.ends()[0]))
    high, low = run.ends()
    used, noise = 2 * run.done, 100 * run.eps * run.norm

    def value(s: float, r: float, side: Side) -> Estimate:
        if run.done == n:
            return Estimate(s, matvecs=used, note=f"all {n} dimensions were multiplied")
        r += (4 + math.sqrt(run.done)) * run.eps * run.norm  # round-off, as in `Krylov`
        if r <= max(tol * s, noise):
            return Estimate(s, r, "estimate", used, True, "a singular value lies within +- the residual", "residual")
        note = f"residual {r / s if s else r:.0e} > {tol:.0e}: {'a lower' if side == 'lower' else 'an upper'} bound"
        return Estimate(s, r, "bound", used, False, note, "residual", side)

    return SingularEnds(value(*high, "lower"), value(*low, "upper"))


class _Bidiagonal:
    """Golub-Kahan bases U (done, m), V (done, n) and the bidiagonal B; `v` is the next right vector."""

    def __init__(self, A: Operator, steps: int, seed: int) -> None:
        self.A, self.back, self.seed = A, A.T, seed
        v = probes(A, seed, "golub-kahan", [0], "gaussian")[0]
        self.v = v / v.norm()
        self.U, self.V = v.new_empty((steps, A.codomain.size)), v.new_empty((steps, A.domain.size))
        self.B = torch.zeros((steps, steps), dtype=torch.float64)
        self.eps = torch.finfo(v.dtype).eps
        self.done, self.norm, self.beta = 0, 0.0, 0.0

    @property
    def ended(self) -> bool:
        """Whether the bases span invariant spaces: nothing is left to follow."""
        return self.done > 0 and (self.beta <= 100 * self.eps * self.norm or self.done == self.A.domain.size)

    def step(self) -> None:
        """One product with A and one with A^T; nothing changes before both have come back."""
        j = self.done
        w = multiply(self.A, self.v[None])[0]
        norm = max(self.norm, float(w.norm()))
        h, w = orthogonalise(w, self.U[:j])
        alpha = float(w.norm())
        if alpha <= 100 * self.eps * norm:
            alpha, u = 0.0, orthogonal_unit(self.A, self.U[:j], self.seed, j)
        else:
            u = w / alpha
        image = multiply(self.back, u[None])[0]
        self.U[j], self.V[j] = u, self.v
        self.B[:j, j], self.B[j, j] = h, alpha  # beta_{j-1} above the diagonal, round-off elsewhere
        _, w = orthogonalise(image, self.V[: j + 1])
        self.beta, self.norm, self.done = float(w.norm()), norm, j + 1
        if not self.ended:
            self.v = w / self.beta

    def ends(self) -> list[tuple[float, float]]:
        """Largest and smallest singular value of B, each with |A^T u - sigma v|."""
        left, sigma, _ = torch.linalg.svd(self.B[: self.done, : self.done])
        residual = (0.0 if self.ended else self.beta) * left[-1].abs()
        return [(float(sigma[i]), float(residual[i])) for i in (0, -1)]

    def reached(self, tol: float, smallest: bool) -> bool:
        if not self.done:
            return False
        return self.ended or all(r <= tol * s for s, r in (self.ends() if smallest else self.ends()[:1]))

    def state(self) -> State:
        tensors = {"U": self.U[: self.done], "V": self.V[: self.done], "v": self.v}
        tensors["B"] = self.B[: self.done, : self.done]
        return tensors, {"done": self.done, "norm": self.norm, "beta": self.beta}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.done, self.norm, self.beta = int(numbers["done"]), float(numbers["norm"]), float(numbers["beta"])
        if self.done > len(self.B):  # fewer steps asked for than were made
            self.U, self.V = self.U.new_empty((self.done, self.U.shape[1])), self.V.new_empty((self.done, len(self.v)))
            self.B = torch.zeros((self.done, self.done), dtype=torch.float64)
        self.v = tensors["v"].to(self.v)
        self.U[: self.done], self.V[: self.done] = tensors["U"].to(self.U), tensors["V"].to(self.V)
        self.B[: self.done, : self.done] = tensors["B"]


def orthogonal_unit(side: Operator, U: Tensor, seed: int, number: int) -> Tensor:
    """A random unit vector of the codomain orthogonal to the rows U."""
    other = probes(side.T, seed, "golub-kahan/left", [number], "gaussian")[0]
    _, w = orthogonalise(other, U, passes=3)
    return w / w.norm()


@own_precision()
def spectral_norm(
    A: Operator,
    *,
    tol: float = 1e-3,
    max_products: int = 120,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Estimate:
    """|A|_2, the largest singular value: Lanczos at both ends for a symmetric operator, else Golub-Kahan."""
    if not A.symmetric:
        return singular_ends(
            A, tol=tol, max_products=max_products, seed=seed, memory=memory, resume=resume, progress=progress
        ).largest
    pairs = eigenpairs(
        A,
        1,
        0 if A.psd else 1,
        tol=tol,
        max_products=max_products,
        seed=seed,
        memory=memory,
        resume=resume,
        progress=progress,
    )
    e = max(pairs.values, key=lambda e: abs(e.value))
    if e.converged and not pairs.converged:
        note = "the other end has not converged and may reach farther: a lower bound"
        return Estimate(abs(e.value), e.error, "bound", e.matvecs, False, note, e.error_kind)
    return replace(e, value=abs(e.value), side="lower" if e.side else None)


@own_precision()
def condition_number(
    A: Operator,
    *,
    tol: float = 1e-3,
    max_products: int = 240,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Estimate:
    """sigma_max / sigma_min over the min(m, n) singular values; infinite for a singular operator.

    The smallest singular value comes out too large until it has converged, so an unconverged condition number is a
    lower bound. The error is the first-order effect of both residuals.
    """
    side = smaller_side(A, max_products)
    if side is not None:
        s = torch.linalg.svdvals(side.dense().double())
        floor = torch.finfo(A.dtype).eps * max(A.shape) * float(s[0])
        value = float(s[0] / s[-1]) if float(s[-1]) > floor else math.inf
        return Estimate(value, matvecs=side.domain.size, note=f"exact by {side.domain.size} unit vectors")
    if A.psd:
        pairs = eigenpairs(
            A, 1, 1, tol=tol, max_products=max_products, seed=seed, memory=memory, resume=resume, progress=progress
        )
        high, low = pairs.top[0], pairs.bottom[0]
    else:
        found = singular_ends(
            A,
            tol=tol,
            max_products=max_products,
            smallest=True,
            seed=seed,
            memory=memory,
            resume=resume,
            progress=progress,
        )
        high, low = found.largest, found.smallest
    floor = 100 * torch.finfo(A.dtype).eps * high.value
    if low.value <= floor:
        note = "the smallest singular value cannot be told from zero"
        return Estimate(math.inf, None, "bound", high.matvecs, low.converged, note, side="upper")
    value = high.value / low.value
    spread = value * ((high.error or 0.0) / high.value + (low.error or 0.0) / low.value)
    if low.converged and high.converged:
        if high.kind == low.kind == "exact":
            return Estimate(value, matvecs=high.matvecs)
        return Estimate(value, spread, "estimate", high.matvecs, error_kind="residual")
    end = "largest" if low.converged else "smallest"
    note = f"the {end} singular value has not converged: a lower bound"
    return Estimate(value, spread, "bound", high.matvecs, False, note, "residual", "lower")


@final
class Gram(Operator):
    """A^T A, symmetric and positive semi-definite: two products with A's matrix for each of its own."""

    def __init__(self, A: Operator) -> None:
        super().__init__(A.domain, dtype=A.dtype, device=A.device, symmetric=True, psd=True)
        self.A, self.back = A, A.T

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return self.back.apply(self.A.apply(dict(V)))


@own_precision()
def nuclear_norm(A: Operator, probes: int = 8, steps: int = 30, **options: Any) -> Estimate:
    """The sum of the singular values, by Lanczos quadrature (of |x|, or of sqrt(x) on the Gram operator)."""
    side = smaller_side(A, probes * steps)
    if side is not None:
        value = float(torch.linalg.svdvals(side.dense().double()).sum())
        return Estimate(value, matvecs=side.domain.size, note=f"exact by {side.domain.size} unit vectors")
    if A.symmetric:
        return density(A, probes, steps, **options).sum(torch.abs)
    small = A if A.shape[1] <= A.shape[0] else A.T
    e = density(Gram(small), probes, steps, **options).sum(lambda x: x.clamp(min=0).sqrt())
    return replace(e, matvecs=2 * e.matvecs)


@own_precision()
def stable_rank(A: Operator, products: int = 60, *, seed: int = 0, memory: float | None = None) -> Estimate:
    """|A|_F^2 / |A|_2^2, between 1 and the rank; the errors of both norms are joined."""
    F = frobenius(A, products, seed=seed, memory=memory)
    top = spectral_norm(A, max_products=max(products, 60), seed=seed, memory=memory)
    used = F.matvecs + top.matvecs
    if top.value == 0:
        return Estimate(0.0, matvecs=used, note="the operator is zero")
    value = (F.value / top.value) ** 2
    spread = 2 * value * math.hypot((F.error or 0.0) / F.value, (top.error or 0.0) / top.value)
    if F.kind == top.kind == "exact":
        return Estimate(value, matvecs=used)
    if not top.converged:
        note = "the spectral norm has not converged: an upper bound"
        return Estimate(value, spread, "bound", used, False, note, joint_kind((F, top)), "upper")
    return Estimate(value, spread, "estimate", used, error_kind=joint_kind((F, top)))
