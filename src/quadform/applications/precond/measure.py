"""Measuring the Hessian as preconditioners see it: a piece for each of them."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import preconditioners as pre
from ...answers.precond import Precond, PrecondDraft, holds
from ...core.errors import QuadformError
from ...core.operator import Operator
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Estimate, Provenance
from ...core.space import Vector
from ...core.work import Work
from ...curvature.operators import hessian
from ...curvature.outline import Outline
from ...estimate.lanczos import ROWS, eigenpairs
from ...estimate.quadrature import density
from ...estimate.spectral_density import Density
from ...preconditioners import Seen
from ..probes import probe_of
from ..room import Room, note_of
from ..step_size.ceiling import seconds_of_product
from ..step_size.fresh import one_batch
from ..subject import Subject
from ..threads import fitting_threads
from .methods import Methods
from .question import PrecondQuestion
from .saved import stepper_of

#: Products that both ends take, as a rule.
ENDS = 50


class PrecondMeasurement:
    """The preconditioners of one question at one point, ready to be measured."""

    def __init__(self, asked: PrecondQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        self.risk = subject.risk(asked)
        self.methods = Methods(asked, subject, self.risk)
        if asked.optimizer_state is not None and not isinstance(self.risk, Outline):
            stepper_of(asked, subject)  # a state that cannot be read is refused before the work

    def cost(self, name: str) -> int:
        """Products of one preconditioner: to make it, a step for each damping, the error of the best, its ends, its
        density; none where it is refused."""
        try:
            self.methods.require(name)
        except QuadformError:
            return 0
        seen = min(ENDS, self.asked.products) + self.asked.probes * self.asked.steps
        return self.methods.products(name) + len(self.methods.grid(name)) + 1 + seen

    def plan(self) -> Plan:
        """Time and memory; one product is timed for it."""
        risk, n, names = self.risk, self.risk.space.size, self.asked.methods
        costs = {name: self.cost(name) for name in names}
        largest = max([self.methods.bytes(name) for name, cost in costs.items() if cost], default=0.0)
        room = Room.of(risk, (self.rows + 10) * n * risk.dtype.itemsize + largest).require(risk)
        count, each = sum(costs.values()), seconds_of_product(risk, scale=self.subject.scale)
        text = (
            f"{note_of(risk)}plan: {len(names)} preconditioners, about {count:,} products of {each:.2g} s,"
            f" {clock(count * each)} in all; {room}; {n:,} parameters; the model is not touched"
        )
        return Plan(text, count, count * each, room.bytes, {"products": costs, "room": dataclasses.asdict(room)})

    def measure(self, work: Work) -> Precond:
        """All preconditioners, or as many as the time allows, marked partial."""
        asked, risk, draft = self.asked, self.risk, PrecondDraft()
        total = sum(self.cost(name) for name in asked.methods)
        with fitting_threads(risk), work.bar(total, "precond: products"), work.in_time():
            self.gradient, self.loss = risk.gradient(), float(risk.value().detach())
            draft.take_loss(self.loss)
            for name in asked.methods:
                piece = f"{name}, {asked.products} products"
                draft.take(name, work.piece(piece, partial(self._seen, name, work), self.cost(name)))
        inputs = {
            "source": dict(self.subject.source),
            "coverage": risk.coverage,
            "notes": list(risk.notes),
            **probe_of(risk.batches),
            "parameters": risk.space.size,
            "made_of": draft.made_of,
            "refused": draft.refused,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device)
        return Precond(draft.record(Precond.kind, inputs, made))

    @property
    def rows(self) -> int:
        """Vectors that the ends or the density hold."""
        return max(ROWS, self.asked.probes * (self.asked.steps + 4))

    def _seen(self, name: str, work: Work) -> dict[str, Any]:
        """One preconditioner: the step at each damping and, at the best, the ends and the density; or why it cannot be
        made."""
        asked, risk = self.asked, self.risk
        try:
            P, notes = self.methods.make(name, self.gradient)
            tried = self._scan(P, self.methods.grid(name))
        except (QuadformError, torch.linalg.LinAlgError) as error:
            return {"refused": " ".join(str(error).split())}
        work.spend(self.methods.products(name) + len(tried), "made", advanced=False)  # P itself is not kept
        best = max(tried, key=Trial.order)
        A = Seen(P.sqrt_inverse(damping=best.damping), hessian(risk))

        def kept(part: str, rows: int) -> dict[str, Any]:
            state = work.state(f"{part}-{name}", rows * risk.space.size * risk.dtype.itemsize)
            return {"seed": asked.seed, "resume": state, "progress": work.report()}

        ends = eigenpairs(A, top=1, bottom=1, tol=asked.tol, max_products=asked.products, **kept("ends", ROWS))
        seen = density(A, asked.probes, asked.steps, **kept("density", self.rows))
        found: dict[str, Any] = {"lambda_max": ends.top[0], "lambda_min": ends.bottom[0]}
        found |= {"participation": participation(seen), "downwards": seen.negative_curvature()}
        found |= {"slope": best.slope, "curvature": best.curvature, "damping": best.share}
        if best.fall is not None:
            found["decrease"] = self._fall(P.inverse(damping=best.damping) @ self.gradient, best)
            found |= {"measured": best.measured} if best.measured is not None else {}
        grid = [(t.share, *(-math.inf if x is None else x for x in (t.fall, t.measured))) for t in tried]
        tensors = {"grid": torch.tensor(grid, dtype=torch.float64), "shares": shares(seen, ends.top[0].value)}
        return found | {"notes": list(notes), "tensors": tensors}

    def _scan(self, P: Operator, grid: tuple[float, ...]) -> list[Trial]:
        """The best step with each damping; dampings at which P has no inverse are left out, unless all are."""
        scale, found, refused = pre.mean_eigenvalue(P), [], None
        for share in grid:
            try:
                found.append(self._tried(share, share * scale, P.inverse(damping=share * scale) @ self.gradient))
            except QuadformError as error:
                refused = error
        if refused is not None and not found:
            raise refused
        return found

    def _tried(self, share: float, damping: float, d: Vector) -> Trial:
        """Slope and curvature along -d = -P^-1 g, and what the best step of the quadratic model does to the loss.

        With t = slope / curvature the model falls by slope^2 / (2 curvature).
        """
        risk, inner = self.risk, self.risk.space.inner
        slope, curve = float(inner(self.gradient, d)), float(inner(d, hessian(risk) @ d))
        if not curve > 0:
            return Trial(share, damping, slope, curve)
        with torch.no_grad():
            after = float(risk.value({n: t - slope / curve * d[n] for n, t in risk.params.items()}))
        return Trial(share, damping, slope, curve, self.loss - after if math.isfinite(after) else None)

    def _fall(self, d: Vector, best: Trial) -> Estimate:
        """The fall of the quadratic model; its standard error is that of the mean over batches, d held."""
        batches, slope, curve = len(self.risk.batches), best.slope, best.curvature
        fall = slope**2 / (2 * curve)
        if batches < 2:
            return Estimate(fall)
        inner, off = self.risk.space.inner, []
        for i in range(batches):
            own = one_batch(self.risk, i)
            s, c = float(inner(own.gradient(), d)), float(inner(d, hessian(own) @ d))
            off.append(slope / curve * (s - slope) - fall / curve * (c - curve))
        error = math.sqrt(sum(x * x for x in off) / (batches - 1) / batches)
        return Estimate(fall, error, "estimate", note=f"standard error over {batches} batches, P held")


@dataclasses.dataclass(frozen=True)
class Trial:
    """The step along P^-1 g at one damping, `share` of the mean eigenvalue of P; `measured`: the fall of the loss."""

    share: float
    damping: float
    slope: float
    curvature: float
    measured: float | None = None

    @property
    def fall(self) -> float | None:
        """Of the quadratic model by its best step; None where it curves downwards and has none."""
        return self.slope**2 / (2 * self.curvature) if self.curvature > 0 else None

    def order(self) -> tuple[bool, float]:
        """What makes a damping the best: the model holds for its step, and then the largest predicted fall."""
        return holds(self.fall, self.measured), -math.inf if self.fall is None else self.fall


def shares(seen: Density, top: float) -> Tensor:
    """Rows (x, share of the eigenvalues that are at least x |lambda_max| by size, its standard error)."""

    def counted(x: float) -> Estimate:
        return seen.mean(lambda nodes: (nodes.abs() >= x * abs(top)).to(nodes))

    found = [(x, counted(x)) for x in torch.logspace(0, -6, 25, dtype=torch.float64).tolist()]
    return torch.tensor([(x, e.value, e.error or 0.0) for x, e in found], dtype=torch.float64)


def participation(seen: Density) -> Estimate:
    """(tr A^2)^2 / tr A^4: in how many directions the curvature lies; 1 for one, n where all are as strong.

    From the density, exactly for each probe; the error is that of a jackknife over the probes. Never below 1, as of
    every matrix, though probes that miss a sharp direction say so.
    """
    second, fourth = (seen.n * (seen.weights * seen.nodes**p).sum(1) for p in (2, 4))
    count = len(second)
    value = max(1.0, float(second.sum() ** 2 / fourth.sum()) / count)
    if seen.exact:
        return Estimate(value, matvecs=seen.products)
    without = (second.sum() - second) ** 2 / (fourth.sum() - fourth) / (count - 1)
    error = float(((without - without.mean()).square().sum() * (count - 1) / count).sqrt())
    return Estimate(value, error, "estimate", matvecs=seen.products)
