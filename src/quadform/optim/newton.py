"""Newton's method and its relatives, one step a batch, with products only.

    d = -(B + delta I)^-1 g,     B = H (Newton), H_o (Gauss-Newton), |H| (saddle-free Newton [Dauphin et al. 2014])

The damping delta follows the ratio of what the loss fell by to what the quadratic model said [Levenberg, Marquardt]:

    rho = (L(theta + d) - L(theta)) / (g.d + d.B d / 2);   rho < 1/4: delta grows;   rho > 3/4: delta shrinks.

A step that raises the loss is taken back and tried again with ten times the damping. With `damping=0, adapt=False` the
step is the plain one, and it is always taken: on attention plain Newton climbs first, because H_f is indefinite.

The system is solved by products alone. Where there are no more parameters than `max_products`, B is written out instead
and all its eigenpairs give the step exactly, also where B is singular but for the damping (gauge directions).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Vector
from ..curvature.operators import gauss_newton, hessian
from ..curvature.risk import Risk
from ..estimate import matrix_function, solve

#: The damping grows by GROW where the model was poor, by TEN where a step is taken back; it shrinks by TEN where the
#: model was good, so that the last steps are those of Newton's method.
GROW, TEN = 3.0, 10.0
#: Steps that are taken back before a batch is given up.
TRIES = 12


@dataclass(frozen=True)
class Step:
    """One step: the loss before and after it, what the quadratic model said it would fall by, the damping it was found
    with, the products it took, whether it was kept, and whether the linear system converged."""

    loss: float
    after: float
    predicted: float
    damping: float
    products: int
    kept: bool
    converged: bool

    @property
    def ratio(self) -> float:
        """What the loss changed by over what was predicted; 1 where the quadratic model is right."""
        return (self.after - self.loss) / self.predicted if self.predicted else math.nan


class Eigen:
    """All eigenpairs of a symmetric operator that is small enough to be written out."""

    def __init__(self, B: Operator) -> None:
        matrix = B.dense()
        self.space, (self.values, self.vectors) = B.domain, torch.linalg.eigh(0.5 * (matrix + matrix.mT))

    def direction(self, g: Vector, damping: float, size: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """-(size(B) + damping I)^-1 g; nothing along eigenvectors where that is 0."""
        divisor = size(self.values) + damping
        along = self.vectors.mT @ self.space.flatten(g)
        return self.space.unflatten(-(self.vectors @ torch.where(divisor == 0, 0, along / divisor)))


class SecondOrder(torch.optim.Optimizer):
    """What the three have in common. `step(batch)` moves the weights; there is no `backward` to call.

    `loss(output, batch)` is that of `qf.Risk`; without it the model's own is used. `params` chooses by glob.
    `last` is the last `Step`. The state dict holds the damping, so that a run goes on as it would have.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor] | None = None,
        *,
        params: str = "*",
        lr: float = 1.0,
        damping: float = 1e-3,
        adapt: bool = True,
        tol: float = 0.05,
        max_products: int = 100,
    ) -> None:
        if not lr > 0 or not damping >= 0 or not 0 < tol < 1 or max_products < 4:
            raise InputError(
                f"lr={lr}, damping={damping}, tol={tol}, max_products={max_products}: give lr above 0, damping of at"
                " least 0, tol between 0 and 1, at least 4 products."
            )
        self.model, self.loss, self.params = model, loss, params
        defaults = {"lr": lr, "damping": damping, "adapt": adapt, "tol": tol, "max_products": max_products}
        super().__init__([p for p in model.parameters() if p.requires_grad], defaults)
        self.last: Step | None = None

    @abstractmethod
    def curvature(self, risk: Risk) -> Operator:
        """The operator whose quadratic model is trusted. Eager: a program would serve one step alone."""

    def size(self, values: Tensor) -> Tensor:
        """What the step divides by along the eigenvectors, beside the damping."""
        return values

    @abstractmethod
    def direction(self, B: Operator, g: Vector, damping: float) -> tuple[dict[str, Tensor], int, bool]:
        """-(B + damping I)^-1 g, the products it took, and whether it converged."""

    def step(self, batch: Any) -> float:  # type: ignore[override]  # the batch in place of a closure
        """One step on a batch, or on several whose mean counts. The loss before the step is returned."""
        group = self.param_groups[0]
        if callable(batch):
            raise InputError("this optimizer takes the batch itself, step(batch), and differentiates the loss twice.")
        risk = Risk(self.model, self.loss, batch, self.params, quiet=True, train_mode=self.model.training)
        B, g = self.curvature(risk), risk.gradient()
        exact = Eigen(B) if B.domain.size <= group["max_products"] else None
        with torch.no_grad():
            before = float(risk.value())
        for _ in range(TRIES):
            self.last = self._try(risk, B, exact, g, before, group)
            if self.last.kept:
                break
        return before

    def _try(
        self, risk: Risk, B: Operator, exact: Eigen | None, g: Vector, before: float, group: dict[str, Any]
    ) -> Step:
        damping = float(group["damping"])
        if exact is None:
            d, products, converged = self.direction(B, g, damping)
        else:
            d, products, converged = exact.direction(g, damping, self.size), B.domain.size, True
        d = {n: group["lr"] * t for n, t in d.items()}
        predicted = float(risk.space.inner(g, d) + risk.space.inner(d, B @ d) / 2)
        with torch.no_grad():
            after = float(risk.value({n: t + d[n] for n, t in risk.params.items()}))
        ratio = (after - before) / predicted if predicted else math.nan
        kept = not group["adapt"] or (math.isfinite(after) and after <= before)
        if group["adapt"]:
            factor = TEN if not kept else GROW if not ratio >= 0.25 else 1 / TEN if ratio > 0.75 else 1.0
            group["damping"] = factor * (max(damping, 1e-12) if factor > 1 else damping)
        if kept:
            with torch.no_grad():
                for n, t in risk.params.items():  # they share their memory with the model's
                    t += d[n]
        return Step(before, after, predicted, damping, products + 1, kept, converged)

    def _solved(self, B: Operator, g: Vector, damping: float) -> tuple[dict[str, Tensor], int, bool]:
        group = self.param_groups[0]
        found = solve(B, g, damping=damping, tol=group["tol"], max_products=group["max_products"])
        assert not isinstance(found.x, Tensor)
        return {n: -t.to(B.dtype) for n, t in found.x.items()}, found.products, found.converged


class NewtonCG(SecondOrder):
    """Newton's method: (H + damping I) d = -g by MINRES, which H may be indefinite for.

    The step goes to where the quadratic model stands still, which is a saddle or a maximum where H has negative
    eigenvalues; damping beyond -lambda_min turns it downhill.
    """

    def curvature(self, risk: Risk) -> Operator:
        return hessian(risk, route="eager")

    def direction(self, B: Operator, g: Vector, damping: float) -> tuple[dict[str, Tensor], int, bool]:
        return self._solved(B, g, damping)


class GaussNewtonCG(SecondOrder):
    """Levenberg-Marquardt: (H_o + damping I) d = -g by conjugate gradients; downhill for every convex loss."""

    def curvature(self, risk: Risk) -> Operator:
        return gauss_newton(risk, route="eager")

    def direction(self, B: Operator, g: Vector, damping: float) -> tuple[dict[str, Tensor], int, bool]:
        return self._solved(B, g, damping)


class SaddleFreeNewton(SecondOrder):
    """d = -(|H| + damping I)^-1 g by Lanczos: along negative curvature it goes down, as far as along positive."""

    def size(self, values: Tensor) -> Tensor:
        return values.abs()

    def curvature(self, risk: Risk) -> Operator:
        return hessian(risk, route="eager")

    def direction(self, B: Operator, g: Vector, damping: float) -> tuple[dict[str, Tensor], int, bool]:
        group = self.param_groups[0]
        most = min(group["max_products"], B.domain.size)
        found = matrix_function(B, g, "abs-inverse", damping=damping, tol=group["tol"], max_products=most)
        assert not isinstance(found.value, Tensor)
        return {n: -t.to(B.dtype) for n, t in found.value.items()}, found.products, found.converged
