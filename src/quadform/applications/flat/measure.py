"""Measuring flatness: each measure of the model as it stands, then its least among equal models."""

from __future__ import annotations

import copy
import dataclasses
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from ...answers.flat import Flat, FlatDraft
from ...core.errors import InputError
from ...core.number import Estimate
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.work import Work
from ...curvature.risk import Risk
from ...distributed import current
from ...estimate.lanczos import ROWS
from ..probes import probe_of
from ..room import Room, note_of, seconds_of_value
from ..subject import Subject
from ..threads import fitting_threads
from .measures import measured
from .orbit import Pair, Weights, pairs
from .question import FlatQuestion

#: Forward passes of one measure, as a rule.
PASSES = 150
#: A pair belongs to the orbit where the loss moves by less than this share.
SAME = 1e-6
#: Half width of a line search among equal models, and the longest step, in log scale.
WIDTH, LONGEST = 0.2, 1.0


class FlatMeasurement:
    """One model and its equals, ready to be measured."""

    def __init__(self, asked: FlatQuestion, subject: Subject) -> None:
        if current().world > 1:
            raise InputError("flatness is measured by one process; start it without torchrun.")
        self.asked, self.subject, self.risk = asked, subject, subject.risk(asked)
        self.notes: list[str] = []

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it."""
        risk, asked, n = self.risk, self.asked, self.risk.space.size
        room = Room.of(risk, (ROWS + 8) * n * risk.dtype.itemsize).require(risk)
        model = risk.model if isinstance(risk.model, nn.Module) and asked.rounds >= 0 else None
        groups = 0 if model is None else len(list(pairs(model, set(risk.params))))
        count = len(asked.measures) * (1 + (groups > 0) * (1 + 3 * groups * max(asked.rounds, 0)))
        seconds = seconds_of_value(risk) * self.subject.scale * PASSES * count
        text = (
            f"{note_of(risk)}plan: {len(asked.measures)} measures, {count} evaluations of them, {clock(seconds)} in"
            f" all; {room}; {n:,} parameters; the model is not touched"
        )
        return Plan(text, count, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    def measure(self, work: Work) -> Flat:
        """All measures, or as many as the time allows, marked partial."""
        asked, risk, draft = self.asked, self.risk, FlatDraft()
        with fitting_threads(risk), work.bar(2 * len(asked.measures), "flat"), work.in_time():
            with torch.no_grad():
                draft.take_loss(float(risk.value()))
            for name in asked.measures:
                draft.take_here(name, work.piece(name, partial(measured, name, risk, asked), 1))
            if asked.rounds >= 0 and self.groups:
                for name in asked.measures:
                    draft.take_orbit(name, work.piece(f"{name}, least", partial(self.least, name), 1))
        inputs = {
            "source": dict(self.subject.source),
            "coverage": risk.coverage,
            "notes": [*risk.notes, *self.notes],
            **probe_of(risk.whole.batches),
            "parameters": risk.space.size,
            "orbit": sum(len(group) for group in self.groups) if asked.rounds >= 0 else 0,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device)
        return Flat(draft.record(Flat.kind, inputs, made))

    # --- equal models -----------------------------------------------------------------------------------------------
    @cached_property
    def groups(self) -> list[list[Pair]]:
        """Pairs along which the loss stays the same; the balanced weights are `self.balanced`."""
        risk = self.risk
        weights: Weights = {n: t.detach().clone() for n, t in risk.params.items()}
        found, left = [], 0
        with torch.no_grad():
            here = float(risk.value())
            for group in pairs(risk.model, set(weights)) if isinstance(risk.model, nn.Module) else ():
                kept = []
                for pair in group:
                    there = pair.balanced(weights)
                    if there is None or abs(float(risk.value(there)) - here) > SAME * max(abs(here), 1e-30):
                        left += 1
                        continue
                    weights = there
                    kept.append(pair)
                found += [kept] if kept else []
        if left:
            self.notes.append(f"{left} pairs of weights have no such symmetry or no full rank, and stay as they are")
        self.balanced = weights
        return found

    def at(self, weights: Weights) -> Risk:
        """The risk of a copy of the model with other weights."""
        model = copy.deepcopy(self.risk.model)
        assert isinstance(model, nn.Module)  # functions have no equals to look for
        with torch.no_grad():
            for n, p in model.named_parameters():
                if n in weights:
                    p.copy_(weights[n])
        options: dict[str, Any] = {"include_frozen": True, "train_mode": self.risk.train_mode, "quiet": True}
        return Risk(model, self.risk.loss, self.risk.batches, list(self.risk.params), **options)

    def least(self, name: str) -> Estimate:
        """The least of a measure from the balanced model on: a parabola along the scale of each group of pairs.

        A bound from above of the least among all equal models, and the same whichever of them one begins with.
        """
        groups, weights = self.groups, self.balanced
        best = measured(name, self.at(weights), self.asked)
        for _ in range(self.asked.rounds):
            for group in groups:
                weights, best = self._along(name, group, weights, best)
        return dataclasses.replace(best, note="least that was found among equal models")

    def _along(self, name: str, group: list[Pair], weights: Weights, best: Estimate) -> tuple[Weights, Estimate]:
        def moved(t: float) -> tuple[Weights, Estimate]:
            there = weights
            for pair in group:
                there = pair.scaled(there, t)
            return there, measured(name, self.at(there), self.asked)

        tried = [(weights, best), *(moved(t) for t in (-WIDTH, WIDTH))]
        t = vertex(best.value, tried[1][1].value, tried[2][1].value)
        return min([*tried, moved(t)], key=lambda one: one[1].value)


def vertex(middle: float, left: float, right: float) -> float:
    """Where the parabola through (-WIDTH, left), (0, middle), (WIDTH, right) is least, at most LONGEST away."""
    curve = left + right - 2 * middle
    t = WIDTH * (left - right) / (2 * curve) if curve > 0 else LONGEST * (-1.0 if left < right else 1.0)
    return max(-LONGEST, min(LONGEST, t))
