"""Trying a ceiling out: paired runs on a copy of the model, from theta and from a point beside it on the top direction.

Theory speaks about a quadratic around a stationary point. So that it speaks at any theta, the constant slope is taken
out: both runs descend l(x) - <grad l(theta), x>, which has the Hessian of l everywhere and is stationary at theta. The
first run then stays at theta, and what is measured is how the second one moves away from it or back: for gradient
descent by |1 - eta lambda| a step, for the other rules by the spectral radius of their recurrence. What the loss itself
does under the plain gradient is run beside it and reported, not predicted: networks often escape to flatter ground.
[own; the plain pair agrees only as long as the slope has moved nothing, docs/decisions/0900]
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...answers.trial import HOLDS, Trial
from ...core.errors import QuadformError
from ...core.space import Vector
from ...curvature.risk import Risk
from ...distributed.processes import group_of, holders
from .rules import Rule, Stepper

#: Fractions of the ceiling that are tried.
FRACTIONS = (0.5, 1.0, 2.0)
#: Lengths of the first displacement that are tried, and how well the curvature seen at two neighbours must agree. The
#: longest that does is taken: shorter ones may lie below the resolution of a model that computes its loss in float32
#: whatever it is given, longer ones leave the neighbourhood of theta, or meet the kinks of a ReLU.
DISPLACEMENTS, AGREE = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2), 2e-4
#: A pair further apart than this many displacements is brought back together (its growth is remembered).
_APART = 2.0
#: A pair closer than this share of a displacement has met.
_MET = 1e-6
#: A loss this many times above where it began is given up.
_DIVERGED = 1e3


def double_copy(risk: Risk) -> Risk:
    """The risk of a copy of the model in double precision; the risk itself where that cannot be made."""
    if risk.whole is not risk:  # a process's share
        twin = double_copy(risk.whole)
        if twin is risk.whole:
            return risk
        own = [_double(b) for b in risk.batches]
        return twin.share(own, risk.weights, group_of(risk.space), risk.notes[-1], twin)
    if risk.dtype == torch.float64 or risk.shards is not None or not isinstance(risk.model, nn.Module):
        return risk
    try:
        return Risk(
            copy.deepcopy(risk.model).double(),
            risk.loss,
            [_double(b) for b in risk.batches],
            params=list(risk.params),
            count=_known(risk),
            include_frozen=True,
            train_mode=risk.train_mode,
            quiet=True,
        )
    except (QuadformError, RuntimeError, TypeError, MemoryError):  # whatever a model has against it
        return risk


def _known(risk: Risk) -> Callable[[Any], float]:
    weights = iter(list(risk.weights))
    return lambda batch: next(weights)


def _double(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {k: _double(v) for k, v in batch.items()}
    return type(batch)(_double(v) for v in batch) if isinstance(batch, tuple | list) else batch


class Pair:
    """Two runs on the tilted loss: one stands still at theta, the other is `delta` away from it, with buffer `m`.

    Vectors are flat. `S` is (rate / P)^1/2, `direction` the unit vector u of S H S; S u is that of the weights.
    """

    def __init__(self, risk: Risk, stepper: Stepper, S: Vector, direction: Vector, size: float | None = None) -> None:
        space = risk.space
        self.risk, self.rule = risk, stepper.rule

        def flat(v: Vector) -> Tensor:
            return space.flatten({n: v[n].detach().to(risk.device, risk.dtype) for n in space.names})

        self.space, self.theta, self.S, self.u = space, flat(risk.params), flat(S), flat(direction)
        self.u = self.u / self.length(self.u)
        ones = {n: torch.ones_like(t) for n, t in risk.params.items()}
        self.w = flat({n: t * stepper.rates.get(n, 1.0) * stepper.decoupled.get(n, 0.0) for n, t in ones.items()})
        self.coupled = flat({n: t * stepper.coupled.get(n, 0.0) for n, t in ones.items()})
        self.slope = self.gradient(self.theta)
        self.size, self.resolution = self._clear_of_noise() if size is None else (size, 0.0)
        self.decay = self.dot(self.w, self.u.square())

    def dot(self, a: Tensor, b: Tensor) -> float:
        """Their inner product, over all processes that hold shards of them."""
        return float(holders(self.space).sum(a @ b))

    def length(self, a: Tensor) -> float:
        return holders(self.space).norm(a)

    def _clear_of_noise(self) -> tuple[float, float]:
        """The longest displacement at which ten times its length sees the same curvature, else the steadiest; and by
        how much, of itself, the curvature differs between the two: the resolution of the trial."""
        v = self.S * self.u
        v = v / self.length(v)
        seen = [self.dot(v, self.gradient(self.theta + d * v) - self.slope) / d for d in DISPLACEMENTS]
        gaps = [abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in itertools.pairwise(seen)]
        steady = [i for i, gap in enumerate(gaps) if gap <= AGREE]
        chosen = steady[-1] if steady else gaps.index(min(gaps))
        return DISPLACEMENTS[chosen], gaps[chosen]

    def gradient(self, x: Tensor) -> Tensor:
        return self.space.flatten(self.risk.gradient(self.space.unflatten(x))) + self.coupled * x

    def loss(self, x: Tensor) -> float:
        with torch.no_grad():
            return float(self.risk.value(self.space.unflatten(x)))

    def update(self, x: Tensor, m: Tensor, g: Tensor, eta: float, still: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step of the rule; weight decay pulls towards `still` (theta on the tilted loss, 0 on the plain one)."""
        r = self.rule
        m = r.b * m + r.a * g
        pull = x if still is None else x - still
        return x - eta * self.w * pull - eta * self.S.square() * (r.c * g + r.e * m), m

    def along(self, x: Tensor, m: Tensor) -> tuple[float, float]:
        """Coordinates of (x - theta, m) on the direction: u . S^-1 (x - theta) and u . S m."""
        delta = torch.where(self.S > 0, (x - self.theta) / self.S, 0.0)
        return self.dot(self.u, delta), self.dot(self.u, self.S * m)

    def beside(self, factor: float = 1.0) -> Tensor:
        """theta + size v, v the unit vector along S u."""
        v = self.S * self.u
        return self.theta + factor * self.size * v / self.length(v)

    def separation(self, eta: float, steps: int) -> list[float]:
        """Distance along the direction after 1, ..., `steps` steps over the first, plainly followed."""
        x, m = self.beside(), torch.zeros_like(self.theta)
        start, out = self.along(x, m)[0], []
        for _ in range(steps):
            x, m = self.update(x, m, self.gradient(x) - self.slope, eta, self.theta)
            out.append(self.along(x, m)[0] / start)
        return out

    def curvature(self, lam: float) -> float:
        """The part of lambda_max(S (H + D) S + W / kappa) that is not decoupled decay."""
        return lam - self.decay / self.rule.kappa

    def factor(self, eta: float, lam: float, steps: int) -> float:
        """By how much a step multiplies the slowest mode of the recurrence, over `steps` steps from gradients alone.

        What leaves the direction is dropped after every step, because negative curvature elsewhere grows at any rate.
        The state (x, m) is read in the left eigenvector of the mode, so that momentum's transients do not count.
        """
        r, v = self.rule, self.S * self.u
        values, left = torch.linalg.eig(r.step(eta, self.curvature(lam), self.decay).T)
        mode = left[:, int(values.abs().argmax())]
        first = self.size / self.length(v)  # x v has the length of the displacement
        x, m, grown = first, 0.0, 0.0

        def amplitude() -> float:
            return abs(complex((mode @ torch.tensor([x, m], dtype=mode.dtype)).item()))

        start = amplitude()
        for step in range(1, steps + 1):
            g = self.dot(v, self.gradient(self.theta + x * v) - self.slope)
            m = r.b * m + r.a * g
            x = (1 - eta * self.decay) * x - eta * (r.c * g + r.e * m)
            if not (math.isfinite(x) and math.isfinite(m)):
                return math.inf
            if amplitude() < _MET * start or step == steps:
                break
            apart = abs(x) / first
            if apart > _APART:
                x, m, grown = x / apart, m / apart, grown + math.log(apart)
        return math.exp((grown + math.log(max(amplitude(), 1e-300) / start)) / step)

    def plain(self, eta: float, steps: int) -> tuple[float, ...]:
        """The loss at the start and after each step of the plain run from theta, P frozen, buffer zero."""
        x, m = self.theta, torch.zeros_like(self.theta)
        losses = [self.loss(x)]
        for _ in range(steps):
            x, m = self.update(x, m, self.gradient(x), eta)
            losses.append(self.loss(x))
            if not losses[-1] < _DIVERGED * max(losses[0], 1.0):
                break
        return tuple(losses)


def predicted(rule: Rule, eta: float, lam: float, steps: int, w: float = 0.0) -> list[float]:
    """`Pair.separation` by the recurrence alone: x_k / x_0 from (x, m) = (1, 0); w is the decoupled decay."""
    state, M, out = torch.tensor([1.0, 0.0], dtype=torch.float64), rule.step(eta, lam, w), []
    for _ in range(steps):
        state = M @ state
        out.append(float(state[0]))
    return out


def trial_gradients(steps: int) -> int:
    """Gradients that `Pair` and `try_out` take at most; a loss counts as a third of one."""
    return len(DISPLACEMENTS) + 1 + math.ceil(len(FRACTIONS) * steps * 7 / 3) if steps else 0


def tolerance(rule: Rule, eta: float, lam: float, decay: float, error: float) -> float:
    """How far the multiplier may lie from theory where lambda is known to the relative error `error`.

    At its ceiling momentum b multiplies an error of lambda by (2 + 2b) / (1 - b), 38 for Adam; just below it the
    slowest mode falls as a square root. So a lambda known to 1e-3 says 1 +- 0.05 there.
    """
    here = rule.multiplier(eta, lam, decay)
    return HOLDS + max(abs(rule.multiplier(eta, lam * (1 + s * error), decay) - here) for s in (-1, 1))


def try_out(
    pair: Pair, ceiling: float, lam: float, steps: int, told: Callable[[int, str], None] = lambda n, text: None
) -> tuple[Trial, ...]:
    """All fractions of the ceiling, `steps` steps each; `told(gradients, text)` after each.

    The residual of lambda does not count: along the direction it was found with, the curvature is lambda itself.
    """
    trials = []
    for fraction in FRACTIONS:
        eta = fraction * ceiling
        measured = pair.factor(eta, lam, steps)
        told(steps, f"{fraction:g}x: {measured:.3g} a step")
        losses = pair.plain(eta, steps)
        told(steps, f"{fraction:g}x: loss {losses[-1]:.4g}")
        expected = pair.rule.multiplier(eta, pair.curvature(lam), pair.decay)
        allowed = tolerance(pair.rule, eta, pair.curvature(lam), pair.decay, pair.resolution)
        trials.append(Trial(fraction, measured, expected, losses, allowed))
    return tuple(trials)
