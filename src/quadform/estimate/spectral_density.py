"""A spectral density by nodes and weights: means, sums and shares of eigenvalues, and the curve to draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.number import Estimate
from ..core.showing import fields_in_brief
from .sampling import jackknife, mean_and_error
from .vectors import at_least, chunks

#: Weights below this are rounding: those of the zeros that pad a rule whose Lanczos process ended early.
_NO_WEIGHT = 1e-24


@dataclass(frozen=True)
class Curve:
    """A density to draw. `u = asinh(x / linear)` is linear near 0 and logarithmic far out (a symlog axis).

    `density` and `stderr` are per unit of u: the area under `density` over `u` is 1.
    """

    x: Tensor
    u: Tensor
    density: Tensor
    stderr: Tensor
    linear: float
    width: float

    __repr__ = fields_in_brief


@dataclass(frozen=True)
class Density:
    """Averaged Gauss rules of the spectral measure, one row per probe: nodes ascending, weights of a row sum to 1.

    `rules` are the two (nodes, weights) whose mean it is, from which the error of the rule itself is judged. For an
    exact density (all eigenvalues known) there is one row, and `exact` is true.
    """

    nodes: Tensor
    weights: Tensor
    rules: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    n: int
    products: int
    exact: bool
    eps: float
    note: str = ""

    __repr__ = fields_in_brief

    # --- means over the spectrum ------------------------------------------------------------------------------------
    def mean(self, f: Callable[[Tensor], Tensor]) -> Estimate:
        """tr f(A) / n. The standard error joins the spread over probes and half the difference of the two rules.

        Outer nodes of the anti-Gauss rule may lie beyond the spectrum: f must have a value there too.
        """
        values = _each(f, self.nodes, self.weights)
        if self.exact:
            return Estimate(float(values.mean()), matvecs=self.products, note=self.note)
        if not bool(values.isfinite().all()):
            raise InputError(
                f"the function is not finite at a node of this rule (they reach from {float(self.nodes.min()):.3g} to"
                f" {float(self.nodes.max()):.3g}, beyond the spectrum where its end is not resolved). Take more"
                " steps, or clamp the argument."
            )
        mean, spread = mean_and_error(values)
        gauss, anti = (float(_each(f, x, w).mean()) for x, w in self.rules)
        rule = abs(anti - gauss) / 2
        note = f"{self.note}; s.e. {float(spread):.2g} over probes, {rule:.2g} of the rule"
        return Estimate(float(mean), math.hypot(float(spread), rule), "estimate", self.products, True, note)

    def sum(self, f: Callable[[Tensor], Tensor]) -> Estimate:
        """tr f(A), the sum over all n eigenvalues."""
        e = self.mean(f)
        return replace(e, value=self.n * e.value, error=None if e.error is None else self.n * e.error)

    def moment(self, power: int) -> Estimate:
        """tr A^power / n; without error of the rule up to power 2m - 1."""
        return self.mean(lambda x: x ** at_least("power", power, 0))

    def effective_dimension(self, ridge: float) -> Estimate:
        """sum_i lambda_i / (lambda_i + ridge) over the positive eigenvalues: directions that stand above `ridge`."""
        if not ridge > 0:
            raise InputError(f"the ridge of an effective dimension is positive; got {ridge}.")
        return self.sum(lambda x: x.clamp(min=0) / (x.clamp(min=0) + ridge))

    @property
    def zero(self) -> float:
        """Below this size an eigenvalue cannot be told from zero in the precision of the products."""
        return 100 * self.eps * float(self.nodes.abs().max())

    def below(self, x: float) -> Estimate:
        """The share of eigenvalues smaller than x.

        A Gauss rule brackets the distribution function between two nodes by the weights of both (Chebyshev, Markov,
        Stieltjes). The standard error joins the spread over probes and that bracket, here of the averaged rule and
        taken as uniform (its width / sqrt 12).
        """
        under = self.nodes < x
        values = (self.weights * under).sum(1)
        if self.exact:
            return Estimate(float(values.mean()), matvecs=self.products, note=self.note)
        mean, spread = mean_and_error(values)
        place = under.sum(1, keepdim=True)
        m = self.nodes.shape[1]
        left = self.weights.gather(1, (place - 1).clamp(min=0)) * (place > 0)
        right = self.weights.gather(1, place.clamp(max=m - 1)) * (place < m)
        inside = (place > 0) & (place < m)  # outside the nodes there is next to nothing
        bracket = float(((left + right) * inside).mean()) / math.sqrt(12)
        note = f"{self.note}; s.e. {float(spread):.2g} over probes, {bracket:.2g} of the rule"
        return Estimate(float(mean), math.hypot(float(spread), bracket), "estimate", self.products, True, note)

    def negative_mass(self) -> Estimate:
        """The share of eigenvalues that are negative (smaller than -`zero`)."""
        return self.below(-self.zero)

    def negative_curvature(self) -> Estimate:
        """sum of |lambda| over negative eigenvalues / sum over all eigenvalues: how much of the bending is downwards.

        Unlike the share of eigenvalues it does not depend on which side of 0 the many tiny ones fall, so few products
        give it well. The standard error joins the jackknife over probes and half the difference of the two rules.
        """

        def share(nodes: Tensor, weights: Tensor) -> Tensor:
            down, all_ = ((weights * x).sum(1) for x in (nodes.clamp(max=0).abs(), nodes.abs()))
            return torch.stack([down, all_])

        def ratio(parts: Tensor) -> float:
            down, all_ = parts.mean(1).tolist()
            return down / all_ if all_ else 0.0

        parts = share(self.nodes, self.weights)
        if self.exact:
            return Estimate(ratio(parts), matvecs=self.products, note=self.note)
        n = parts.shape[1]
        left = [ratio(torch.cat([parts[:, :i], parts[:, i + 1 :]], 1)) for i in range(n)]
        spread = jackknife(ratio(parts), torch.tensor(left, dtype=torch.float64))
        gauss, anti = (ratio(share(x, w)) for x, w in self.rules)
        rule = abs(anti - gauss) / 2
        note = f"{self.note}; s.e. {spread:.2g} over probes, {rule:.2g} of the rule"
        return Estimate(ratio(parts), math.hypot(spread, rule), "estimate", self.products, True, note)

    # --- drawing ----------------------------------------------------------------------------------------------------
    def curve(self, points: int = 400, *, linear: float | None = None, width: float | None = None) -> Curve:
        """The density smoothed by a normal kernel of `width` on the axis u = asinh(x / linear), with its error band.

        Default `linear`: the median size of an eigenvalue; default width: the mean distance of the nodes of one rule
        on that axis, its resolution (a fortieth of the axis where all eigenvalues are known).
        """
        for name, value in (("linear", linear), ("width", width)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} of a curve is a positive number; got {value}.")
        nodes, weights = self.nodes.double(), self.weights.double()
        largest = float(nodes.abs().max()) or 1.0
        if linear is None:
            sizes, order = nodes.abs().reshape(-1).sort()
            share = weights.reshape(-1)[order].cumsum(0) / weights.sum()
            linear = max(float(sizes[int((share < 0.5).sum())]), 1e-6 * largest)
        u = (nodes / linear).asinh()
        low, high = float(u[weights > 0].min()), float(u[weights > 0].max())
        if width is None:
            width = max(high - low, 0.5) / (40 if self.exact else self.rules[1][0].shape[1])
        grid = torch.linspace(low - 4 * width, high + 4 * width, at_least("points", points, 2), dtype=torch.float64)
        each = torch.zeros((len(u), len(grid)), dtype=torch.float64)
        for p in range(len(u)):
            for part in chunks(0, u.shape[1], 1024):
                some = slice(part.start, part.stop)
                kernel = torch.exp(-0.5 * ((grid - u[p, some, None]) / width) ** 2)
                each[p] += (weights[p, some, None] * kernel).sum(0) / (width * math.sqrt(2 * math.pi))
        mean, error = each[0], torch.zeros_like(each[0])
        if not self.exact:
            mean, error = mean_and_error(each)
        return Curve(linear * grid.sinh(), grid, mean, error, linear, width)


def _each(f: Callable[[Tensor], Tensor], nodes: Tensor, weights: Tensor) -> Tensor:
    """The mean of f by the rule of each probe; nodes without weight (padding) are not asked."""
    return torch.where(weights > _NO_WEIGHT, weights * f(nodes), 0).sum(1)
