"""Measuring the Hessian as preconditioners see it: a piece for each of them."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import torch

from ...answers.precond import Precond, PrecondDraft
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
from ...estimate.vectors import multiply, probes
from ...preconditioners import Seen
from ..probes import probe_of
from ..room import Room, note_of
from ..step_size.ceiling import seconds_of_product
from ..step_size.measure import one_batch
from ..subject import Subject
from ..threads import fitting_threads
from .methods import Methods, adam_of
from .question import PrecondQuestion

#: Products that both ends take, as a rule.
ENDS = 50


class PrecondMeasurement:
    """The preconditioners of one question at one point, ready to be measured."""

    def __init__(self, asked: PrecondQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        self.risk = subject.risk(asked)
        self.methods = Methods(asked, subject, self.risk)
        if asked.optimizer_state is not None and not isinstance(self.risk, Outline):
            adam_of(asked, subject)  # a state that cannot be read is refused before the work

    def cost(self, name: str) -> int:
        """Products of one preconditioner: to make it, its ends, its directions, its step; none where it is refused."""
        try:
            self.methods.require(name)
        except QuadformError:
            return 0
        return self.methods.products(name) + min(ENDS, self.asked.products) + 2 * self.asked.probes + 2

    def plan(self) -> Plan:
        """Time and memory; one product is timed for it."""
        risk, n, names = self.risk, self.risk.space.size, self.asked.methods
        costs = {name: self.cost(name) for name in names}
        largest = max([self.methods.bytes(name) for name, cost in costs.items() if cost], default=0.0)
        room = Room.of(risk, (ROWS + 10) * n * risk.dtype.itemsize + largest).require(risk)
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

    def _seen(self, name: str, work: Work) -> dict[str, Any]:
        """One preconditioner: what it is made of, the ends, the directions, the best step; or why it cannot be made."""
        asked, risk = self.asked, self.risk
        try:
            metric = self.methods.make(name, self.gradient)
        except (QuadformError, torch.linalg.LinAlgError) as error:
            return {"refused": " ".join(str(error).split())}
        work.spend(self.methods.products(name), "made", advanced=False)  # P itself is not kept
        A = Seen(metric.S, hessian(risk))
        pairs = eigenpairs(
            A,
            top=1,
            bottom=1,
            tol=asked.tol,
            max_products=asked.products,
            seed=asked.seed,
            resume=work.state(f"ends-{name}", ROWS * risk.space.size * risk.dtype.itemsize),
            progress=work.report(),
        )
        found: dict[str, Any] = {"lambda_max": pairs.top[0], "lambda_min": pairs.bottom[0]}
        found["participation"] = participation(A, asked.probes, asked.seed)
        work.spend(2 * asked.probes, advanced=False)
        direction = metric.S @ (metric.S @ self.gradient)
        return found | self._step(direction) | {"notes": list(metric.notes), "damping": metric.damping}

    def _step(self, d: Vector) -> dict[str, Any]:
        """Slope and curvature along -d = -P^-1 g, the best step of the quadratic model, and what it does to the loss.

        With t = slope / curvature the model falls by slope^2 / (2 curvature). Its standard error is that of the mean
        over batches, d held.
        """
        risk, inner = self.risk, self.risk.space.inner
        slope, curve = float(inner(self.gradient, d)), float(inner(d, hessian(risk) @ d))
        if not curve > 0:
            return {"slope": slope, "curvature": curve}
        step, fall = slope / curve, slope**2 / (2 * curve)
        with torch.no_grad():
            after = float(risk.value({n: t - step * d[n] for n, t in risk.params.items()}))
        return {"slope": slope, "curvature": curve, "decrease": self._fall(d, slope, curve, fall)} | (
            {"measured": self.loss - after} if math.isfinite(after) else {}
        )

    def _fall(self, d: Vector, slope: float, curve: float, fall: float) -> Estimate:
        batches = len(self.risk.batches)
        if batches < 2:
            return Estimate(fall)
        inner, off = self.risk.space.inner, []
        for i in range(batches):
            own = one_batch(self.risk, i)
            s, c = float(inner(own.gradient(), d)), float(inner(d, hessian(own) @ d))
            off.append(slope / curve * (s - slope) - fall / curve * (c - curve))
        error = math.sqrt(sum(x * x for x in off) / (batches - 1) / batches)
        return Estimate(fall, error, "estimate", note=f"standard error over {batches} batches, P held")


def participation(A: Operator, count: int, seed: int = 0) -> Estimate:
    """(tr A^2)^2 / tr A^4: in how many directions the curvature lies; 1 for one, n where all are as strong.

    From 2 `count` products: exact by unit vectors where there are at most `count`; else by signs, with the error of a
    jackknife.
    """
    n = A.domain.size
    exact = n <= count
    rows = (
        torch.eye(n, dtype=A.dtype, device=A.device)
        if exact
        else probes(A, seed, "directions", range(count), "rademacher")
    )
    once = multiply(A, rows)
    second, fourth = (t.double().square().sum(1) for t in (once, multiply(A, once)))
    value = float(second.sum() ** 2 / fourth.sum())
    if exact:
        return Estimate(value, matvecs=2 * n)
    without = (second.sum() - second) ** 2 / (fourth.sum() - fourth) / (count - 1)
    error = float(((without - without.mean()).square().sum() * (count - 1) / count).sqrt())
    return Estimate(value / count, error, "estimate", matvecs=2 * count)
