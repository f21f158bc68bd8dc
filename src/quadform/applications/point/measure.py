"""Measuring what kind of point a model stands at: polish, slope, decrement, ends of the spectrum, inertia."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...answers.kind import PointDraft, PointKind
from ...answers.point import POLISHED
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.space import Vector
from ...core.work import Work
from ...curvature.operators import hessian
from ...curvature.outline import Outline
from ...distributed import current, shard
from ...estimate import eigenpairs, matrix_function
from ...estimate.lanczos import ROWS
from ..probes import probe_of
from ..room import Room, note_of
from ..step_size.ceiling import seconds_of_product
from ..subject import Subject
from ..threads import fitting_threads
from .inertia import inertia
from .polish import STEPS, Polish
from .question import PointQuestion

#: Products of a polishing step, as a rule.
PER_STEP = 60
#: |g| to which a model is polished whose eigenvalues are all counted: what is left of it blurs the zeros.
COUNTED = 1e-3 * POLISHED
#: Most exact Newton steps after a polish, each with all eigenvalues; taken while some zeros are not explained.
EXACT = 3


class PointMeasurement:
    """One point, ready to be judged."""

    def __init__(self, asked: PointQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        self.risk = shard(subject.risk(asked), current())
        self.polish: Polish | None = None
        if asked.polish and not isinstance(self.risk, Outline):
            goal = COUNTED if self.counted else POLISHED
            modes = {"include_frozen": asked.include_frozen, "train_mode": asked.train_mode}
            self.polish = Polish(subject, asked.globs, goal=goal, **modes)

    @property
    def counted(self) -> bool:
        """Whether all eigenvalues are looked at."""
        return self.risk.space.size <= self.asked.inertia and current().world == 1

    @property
    def expected(self) -> dict[str, int]:
        """Products of each piece of work."""
        asked, n = self.asked, self.risk.space.size
        found = {"polish": PER_STEP * asked.steps} if asked.polish else {}
        most = min(asked.products, n)
        inertia = n * (1 + EXACT) if asked.polish else n
        return found | ({"inertia": inertia} if self.counted else {"eigenvalues": most, "decrement": most})

    def plan(self) -> Plan:
        """Time and memory; one product is timed for it."""
        risk, n, products = self.risk, self.risk.space.size, sum(self.expected.values())
        rows = max(3 * n if self.counted else ROWS, min(self.asked.products, n)) + 8
        room = Room.of(risk, rows * n * risk.dtype.itemsize).require(risk)
        seconds = seconds_of_product(risk, scale=self.subject.scale) * products
        split = " + ".join(f"{count} {name}" for name, count in self.expected.items())
        text = (
            f"{note_of(risk)}plan: at most {products} products ({split}), {clock(seconds)} in all; {room};"
            f" {n:,} parameters; the model is not touched"
        )
        return Plan(text, products, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    def measure(self, work: Work) -> PointKind:
        """Everything, or as much of it as the time allows, marked partial."""
        asked, draft = self.asked, PointDraft()
        with fitting_threads(self.risk), work.bar(sum(self.expected.values()), "point"), work.in_time():
            if self.polish is not None:
                self._polish(work, self.polish, draft)
            self._slope(draft)
            self._ends(work, draft)
            if self.polish is not None:
                self._slope(draft)
            if not self.counted:
                measured = partial(self._decrement, work, draft.size)
                draft.take_decrement(*work.piece("decrement", measured, self.expected["decrement"]))
        risk = self.risk
        inputs = {
            "source": dict(self.subject.source),
            "coverage": risk.coverage,
            "notes": list(risk.notes),
            **probe_of(risk.whole.batches),
            "parameters": risk.space.size,
            "polished": asked.polish,
            "symmetries": draft.symmetries,
            "waiting": draft.waiting,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device)
        return PointKind(draft.record(PointKind.kind, inputs, made), draft.direction)

    def _polish(self, work: Work, polish: Polish, draft: PointDraft) -> None:
        began = polish.slope()
        for i, first in enumerate(range(0, self.asked.steps, STEPS)):
            steps = min(STEPS, self.asked.steps - first)
            polish.load(work.piece(f"polish {i}", partial(polish.advance, steps), PER_STEP * steps))
            if polish.done:
                break
        draft.take_polish(began, polish.taken)
        self._moved(polish)

    def _moved(self, polish: Polish) -> None:
        moved = dataclasses.replace(self.subject, model=polish.model)
        self.risk = shard(moved.risk(self.asked), current())

    def _inertia(self, work: Work, draft: PointDraft) -> dict[str, Any]:
        """All eigenvalues; of a polished model after exact Newton steps, until all zeros are explained."""
        n, polish = self.risk.space.size, self.polish
        found: dict[str, Any] = work.piece(
            "inertia", lambda: inertia(self.risk, hessian(self.risk), self.asked.damping), n
        )
        for i in range(EXACT if polish is not None else 0):
            assert polish is not None
            if _settled(found) and polish.slope() <= POLISHED:
                break
            again = work.piece(f"inertia {i + 1}", partial(self._exact, polish, found["newton"]), n)
            if "eigenvalues" not in again:
                break
            polish.load(again["polish"])
            self._moved(polish)
            draft.take_steps(polish.taken)
            found = again
        return found

    def _exact(self, polish: Polish, step: Tensor) -> dict[str, Any]:
        space = self.risk.space
        if not polish.move(space.unflatten(step.to(self.risk.device, self.risk.dtype))):
            return {"polish": polish.state}
        self._moved(polish)
        return {"polish": polish.state, **inertia(self.risk, hessian(self.risk), self.asked.damping)}

    def _slope(self, draft: PointDraft) -> None:
        """|g|, and its standard error: sum w_i^2 |g_i - g|^2 B / (B - 1) for B batches of weights w_i."""
        risk = self.risk.whole
        g, count = risk.gradient(), len(risk.batches)
        spread = 0.0
        with risk.context():
            for weight, batch in zip(risk.weights, risk.batches, strict=True):
                one = risk.batch_gradient(risk.params, batch)
                spread += weight**2 * sum(float((one[n] - g[n]).double().square().sum()) for n in g)
        noise = math.sqrt(spread * count / (count - 1)) if count > 1 else None
        slope = math.sqrt(sum(float(t.double().square().sum()) for t in g.values()))
        with torch.no_grad():
            draft.take_slope(float(risk.value()), slope, noise, count)

    def _ends(self, work: Work, draft: PointDraft) -> None:
        risk, asked = self.risk, self.asked
        A = hessian(risk)
        if self.counted:
            found = self._inertia(work, draft)
            risk = self.risk
            A = hessian(risk)
            draft.take_inertia(found)
            draft.take_decrement(found["square"])
            v: Vector = risk.space.unflatten(found["lowest"].to(risk.device, risk.dtype))
        else:
            options: dict[str, Any] = {"tol": asked.tol, "seed": asked.seed, "resume": work.state("eigenvalues")}
            most = min(asked.products, risk.space.size)
            with work.counting("eigenvalues", self.expected["eigenvalues"]):
                pairs = eigenpairs(A, top=1, bottom=1, max_products=most, progress=work.report(), **options)
            draft.take_ends(pairs.top[0], pairs.bottom[0])
            v = {n: t[-1] for n, t in pairs.vectors.items()}
        length = float(risk.space.inner(v, v).sqrt())
        unit: dict[str, Tensor] = {n: t / length for n, t in v.items()}
        draft.take_direction(unit, float(risk.space.inner(unit, A @ unit)))

    def _decrement(self, work: Work, size: float) -> list[Any]:
        """g^T (|H| + damping)^-1 g, its error, whether it converged, products."""
        risk, asked = self.risk, self.asked
        g = risk.gradient()
        square = float(risk.space.inner(g, g))
        if square == 0:
            return [0.0, 0.0, True, 0]
        options: dict[str, Any] = {"tol": asked.tol, "max_products": self.expected["decrement"]}
        damping = asked.damping * (size or 1.0)
        found = matrix_function(hessian(risk), g, "abs-inverse", damping=damping, progress=work.report(), **options)
        assert not isinstance(found.value, Tensor)
        error = square * float(found.error.max())
        return [float(risk.space.inner(g, found.value)), error, found.converged, found.products]


def _settled(found: dict[str, Any]) -> bool:
    """Whether there are as many zeros as symmetries."""
    return int((found["eigenvalues"].abs() <= found["zero"]).sum()) == found["explained"]
