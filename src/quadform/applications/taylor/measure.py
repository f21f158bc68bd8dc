"""Measuring how far the quadratic model holds: a piece for each direction."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...answers.taylor import Taylor, TaylorDraft
from ...core.errors import InputError
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.space import Vector
from ...core.work import Work
from ...curvature.operators import hessian
from ...curvature.taylor import along, measured_radius, unit
from ...distributed import current, shard
from ...estimate.lanczos import ROWS, eigenpairs
from ..others import weights_at
from ..probes import probe_of
from ..room import Room, note_of, seconds_of_value
from ..step_size.chosen import opened
from ..step_size.question import StepSizeQuestion
from ..subject import Subject
from ..threads import fitting_threads
from .question import DIRECTIONS, TaylorQuestion

#: Products of an eigenvector, forward passes of four derivatives and of the search for a radius; as a rule.
EIGEN, DERIVATIVES, SEARCH = 25, 30, 40


class TaylorMeasurement:
    """The directions of one question at one point, ready to be measured."""

    def __init__(self, asked: TaylorQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        self.risk = shard(subject.risk(asked), current())
        self.names = [
            name if name != "random" else f"random {i + 1}"
            for name in asked.along
            for i in range(asked.random if name == "random" else 1)
        ]
        for name in asked.along:
            if name not in DIRECTIONS and not Path(name).exists():
                raise InputError(f"unknown direction {name!r}; choose from {', '.join(DIRECTIONS)}, or name a folder.")

    @property
    def searched(self) -> int:
        """Eigenvectors that are looked for; the largest is held against the gradient's radius."""
        return 1 + ("bottom" in self.asked.along)

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it."""
        risk, n = self.risk, self.risk.space.size
        room = Room.of(risk, (ROWS + 6) * n * risk.dtype.itemsize).require(risk)
        forward = seconds_of_value(risk) * self.subject.scale
        each = DERIVATIVES + SEARCH + self.asked.points
        seconds = forward * (len(self.names) * each + self.searched * EIGEN * 9)
        text = (
            f"{note_of(risk)}plan: {len(self.names)} directions, {self.searched * EIGEN} products for eigenvectors,"
            f" {clock(seconds)} in all; {room}; {n:,} parameters; the model is not touched"
        )
        return Plan(text, self.searched * EIGEN, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    def measure(self, work: Work) -> Taylor:
        """All directions, or as many as the time allows, marked partial."""
        asked, risk = self.asked, self.risk
        draft = TaylorDraft()
        total = (DERIVATIVES + SEARCH) * len(self.names) + EIGEN * self.searched
        with fitting_threads(risk), work.bar(total, "taylor"), work.in_time():
            self.gradient = risk.gradient()
            draft.take_gradient(risk.space.inner(self.gradient, self.gradient).sqrt().item())
            pairs = self._pairs(work)
            draft.take_top(pairs.top[0])
            for name in self.names:
                v = self._direction(name, pairs)
                draft.take(name, work.piece(name, partial(self._along, v), DERIVATIVES + SEARCH))
        inputs = {
            "source": dict(self.subject.source),
            "coverage": risk.coverage,
            "notes": list(risk.notes),
            **probe_of(risk.whole.batches),
            "share": asked.share,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device)
        return Taylor(draft.record(Taylor.kind, inputs, made))

    def _pairs(self, work: Work) -> Any:
        asked, bottom = self.asked, int("bottom" in self.asked.along)
        options: dict[str, Any] = {"top": 1, "bottom": bottom, "tol": asked.tol, "seed": asked.seed}
        options |= {"max_products": min(asked.products, self.risk.space.size), "resume": work.state("eigenvectors")}
        with work.counting("eigenvectors", EIGEN * self.searched):
            return eigenpairs(hessian(self.risk), progress=work.report(), **options)

    def _direction(self, name: str, pairs: Any) -> dict[str, Tensor]:
        """A unit vector; of the two signs the one along which the loss falls."""
        if name == "grad":
            v: Vector = self.gradient
        elif name in ("top", "bottom"):
            v = {n: t[0 if name == "top" else -1] for n, t in pairs.vectors.items()}
        elif name == "update":
            v = self._update()
        elif name.startswith("random "):
            drawn = torch.Generator(self.risk.device).manual_seed(1000 * self.asked.seed + int(name.split()[1]))
            v = self.risk.space.random(dtype=self.risk.dtype, device=self.risk.device, generator=drawn)
        else:
            here = self.risk.params
            return unit({n: t - here[n] for n, t in weights_at(name, here).items()})
        falls = self.risk.space.inner(self.gradient, v) > 0
        return unit({n: -t if falls else t for n, t in v.items()})

    def _update(self) -> dict[str, Tensor]:
        """The next step of the optimizer without its momentum."""
        risk, stepper = opened(StepSizeQuestion(**self._shared()), self.subject)
        if set(stepper.names) != set(self.risk.params):
            raise InputError("the optimizer trains other parameters than those that were asked for; choose `params`.")
        return stepper.update(self.gradient, risk.params)

    def _shared(self) -> dict[str, Any]:
        a = self.asked
        return {"params": a.params, "include_frozen": a.include_frozen, "train_mode": a.train_mode, "seed": a.seed}

    def _along(self, v: Vector) -> dict[str, Any]:
        """The derivatives, both radii, and the loss beside its model out to twice the measured radius."""
        risk, asked = self.risk, self.asked
        line = along(risk, v)
        if line.slope == 0 and line.curve == 0:
            return {"line": line.derivatives()}
        found, predicted = measured_radius(risk, v, line, asked.share), line.radius(asked.share)
        r = torch.linspace(-2 * found.value, 2 * found.value, asked.points, dtype=torch.float64)
        with torch.no_grad():
            losses = [float(risk.value({n: t + float(x) * v[n] for n, t in risk.params.items()})) for x in r]
        return {
            "line": line.derivatives(),
            "predicted": predicted if math.isfinite(predicted) else None,
            "measured": found,
            "r": r,
            "loss": torch.tensor(losses, dtype=torch.float64),
            "model": torch.tensor([line.value + line.quadratic(float(x)) for x in r], dtype=torch.float64),
        }
