"""Measuring a landscape: the plane, then its rows one by one, then the quadratic model on it."""

from __future__ import annotations

import dataclasses
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ...answers.landscape import Landscape, LandscapeDraft
from ...core.errors import InputError
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.space import Vector
from ...core.work import Work
from ...curvature.landscape import Bend, Plane, at_once, bezier, evaluate, line, principal, quadratic, random_axis
from ...curvature.operators import hessian
from ...curvature.outline import Outline
from ...curvature.taylor import along, measured_radius, unit
from ...distributed import current, shard
from ...estimate.lanczos import ROWS, eigenpairs
from ..machine import least_seconds
from ..others import called, others_of, weights_at
from ..probes import probe_of
from ..room import Room, note_of, seconds_of_value
from ..subject import Subject
from ..taylor.measure import EIGEN
from ..threads import fitting_threads
from .question import LandscapeQuestion

#: Steps of a bend in one piece of work; a step costs as much as so many losses.
STEPS, PER_STEP = 50, 3
#: The model itself and the bend of a curve, as marks call them.
HERE, BEND = "this model", "bend"


class LandscapeMeasurement:
    """One plane through one model, ready to be measured."""

    def __init__(self, asked: LandscapeQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        self.risk = shard(subject.risk(asked), current())
        self.through = list(asked.through) if subject.through is None else others_of(subject.through)
        if asked.curve and len(self.through) != 1:
            raise InputError(f"curve={asked.curve}: a curve leads to one other checkpoint; got {len(self.through)}.")

    @property
    def axes(self) -> int:
        """One for the line to one other checkpoint, two where a curve leads there, else as asked."""
        return 2 if self.asked.curve else 1 if len(self.through) == 1 else self.asked.axes

    @property
    def spent(self) -> int:
        """Losses in all: on the plane, on the way to one other, for the bend of a curve."""
        asked, ways = self.asked, (len(self.through) == 1) + bool(self.asked.curve)
        return asked.points**self.axes + ways * asked.points + PER_STEP * asked.curve

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it, and one of several points at once."""
        risk, n, count = self.risk, self.risk.space.size, self.spent
        room = Room.of(risk, (ROWS + 6) * n * risk.dtype.itemsize).require(risk)
        products = (EIGEN if self.asked.plane != "random" and not self.through else 0) + self.axes + 1
        value = seconds_of_value(risk)
        seconds = self.subject.scale * (count * self._seconds_of_point(value) + 9 * products * value)
        text = (
            f"{note_of(risk)}plan: {count:,} points, {products} products, {clock(seconds)} in all; {room};"
            f" {n:,} parameters; the model is not touched"
        )
        return Plan(text, products, seconds, room.bytes, {"points": count, "room": dataclasses.asdict(room)})

    def _seconds_of_point(self, value: float) -> float:
        """Time of one point of a row, where one evaluation of the loss by itself takes `value`."""
        risk, together = self.risk, at_once(self.risk, self.asked.points)
        if isinstance(risk, Outline) or together == 1:
            return value
        nowhere = {n: t.new_zeros(()).expand_as(t) for n, t in risk.params.items()}
        points = torch.zeros(together, self.axes, dtype=torch.float64)
        row = partial(evaluate, risk, Plane(risk.params, (nowhere,) * self.axes), points)
        row()
        return least_seconds(row, risk.device) / together

    def measure(self, work: Work) -> Landscape:
        """The loss at every point, or at as many rows as the time allows, marked partial."""
        asked, risk, draft = self.asked, self.risk, LandscapeDraft()
        with fitting_threads(risk), work.bar(self.spent, "landscape"), work.in_time():
            self.work = work
            with torch.no_grad():
                draft.take_loss(float(risk.value()))
            plane, reach = self.plane, self.reach
            steps = torch.linspace(-1, 1, asked.points, dtype=torch.float64)
            xs = reach[0][0] + (steps + 1) / 2 * (reach[0][1] - reach[0][0])
            ys = reach[1][0] + (steps + 1) / 2 * (reach[1][1] - reach[1][0]) if self.axes == 2 else torch.zeros(1)
            draft.take_plane(plane.labels, plane.marks, xs, ys.double())
            model = quadratic(risk, hessian(risk), plane, self._points(xs, ys))
            draft.take_model(model.reshape(len(ys), len(xs)))
            for j, y in enumerate(ys.tolist()):
                points = self._points(xs, torch.tensor([y], dtype=torch.float64))
                draft.take_row(j, work.piece(f"row {j + 1}", partial(evaluate, risk, plane, points), len(xs)))
            if len(self.through) == 1:
                self._ways(draft)
        inputs = {
            "source": dict(self.subject.source),
            "coverage": risk.coverage,
            "notes": list(risk.notes),
            **probe_of(risk.whole.batches),
            "share": asked.share,
            "other": self.names[0] if len(self.through) == 1 else None,
            "curve": asked.curve,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device)
        return draft.answer(inputs, made)

    def _points(self, xs: Tensor, ys: Tensor) -> Tensor:
        """One row (x) or (x, y) a point, x running fastest."""
        if self.axes == 1:
            return xs[:, None]
        return torch.stack([xs.repeat(len(ys)), ys.double().repeat_interleave(len(xs))], 1)

    @cached_property
    def plane(self) -> Plane:
        asked, here = self.asked, self.risk.params
        if self.through:
            others, names = [weights_at(other, here) for other in self.through], self.names
            if asked.curve:
                return principal([others[0], self._bend(others[0]), dict(here)], [names[0], BEND, HERE])
            if len(others) == 1:
                return line(here, others[0], (HERE, names[0]))
            return principal([*others, dict(here)], [*names, HERE])
        if asked.plane == "random":
            drawn = [torch.Generator(self.risk.device).manual_seed(1000 * asked.seed + i) for i in range(self.axes)]
            axes: list[Vector] = [random_axis(here, g) for g in drawn]
            labels = [f"random direction {i + 1}" for i in range(self.axes)]
        else:
            axes, labels = self._sharp()
        return Plane(here, tuple(axes[: self.axes]), tuple(labels[: self.axes]), {HERE: (0.0,) * self.axes})

    @property
    def names(self) -> list[str]:
        """Names of the others; those of one name are told apart by a number."""
        names = [called(other) for other in self.through]
        return [f"{name} {i + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]

    def _bend(self, other: Vector) -> Vector:
        """The bend of the curve to another checkpoint, trained piece by piece."""
        work, total = self.work, self.asked.curve
        bend = Bend(self.risk, other, total, self.asked.seed)
        for i, first in enumerate(range(0, total, STEPS)):
            steps = min(STEPS, total - first)
            advance = partial(bend.advance, steps, partial(work.spend, PER_STEP))
            bend.load(work.piece(f"curve {i + 1}", advance, PER_STEP * steps))
        return bend.at

    def _ways(self, draft: LandscapeDraft) -> None:
        """The loss along the straight line to the other checkpoint, and along the curve."""
        marks = {name: torch.tensor(place, dtype=torch.float64) for name, place in self.plane.marks.items()}
        first, last = marks[HERE], marks[self.names[0]]
        t = torch.linspace(0, 1, self.asked.points | 1, dtype=torch.float64)[:, None]  # odd: with the middle
        ways = {"line": first + t * (last - first)}
        if self.asked.curve:
            ways["curve"] = bezier(first, marks[BEND], last, t)
        for name, points in ways.items():
            losses = self.work.piece(f"along {name}", partial(evaluate, self.risk, self.plane, points), len(points))
            draft.take_way(name, points, losses)

    def _sharp(self) -> tuple[list[Vector], list[str]]:
        asked, risk = self.asked, self.risk
        wanted = self.axes if asked.plane == "top" else self.axes - 1
        axes: list[Vector] = []
        labels = []
        if asked.plane == "grad":
            axes, labels = [unit({n: -g for n, g in risk.gradient().items()})], ["down the gradient"]
        if wanted:
            options: dict[str, Any] = {"tol": asked.tol, "seed": asked.seed, "resume": self.work.state("eigenvectors")}
            most = min(asked.products, risk.space.size)
            pairs = eigenpairs(hessian(risk), top=wanted, max_products=most, **options)
            axes += [{n: t[i] for n, t in pairs.vectors.items()} for i in range(wanted)]
            labels += [f"eigenvector {i + 1}, lambda {e.value:.3g}" for i, e in enumerate(pairs.top[:wanted])]
        return axes, labels

    @property
    def reach(self) -> list[tuple[float, float]]:
        """From where to where each axis goes."""
        asked, plane = self.asked, self.plane
        if asked.span is not None:
            return [(-asked.span, asked.span)] * self.axes
        if self.through:
            ends = list(plane.marks.values())
            spans = [(min(e[i] for e in ends), max(e[i] for e in ends)) for i in range(self.axes)]
            return [(a - 0.25 * (b - a), b + 0.25 * (b - a)) for a, b in spans]
        if asked.plane == "random":
            return [(-1.0, 1.0)] * self.axes
        radii = [self.work.piece(f"radius {i + 1}", partial(self._radius, axis)) for i, axis in enumerate(plane.axes)]
        return [(-2 * r, 2 * r) for r in radii]

    def _radius(self, axis: Vector) -> float:
        found = along(self.risk, axis)
        return (
            1.0 if found.slope == found.curve == 0 else measured_radius(self.risk, axis, found, self.asked.share).value
        )
