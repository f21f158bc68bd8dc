"""Measuring what softmax, norm, skip and the product W_Q W_K^T each do to curvature.

Before/after pairs on the same data and seed: one part at a time is taken out of a model, the weights stay. What is said
about them is in `answers.why`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ...answers.why import Why, WhyDraft
from ...core.errors import InputError
from ...core.number import joint_kind
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Estimate, Provenance
from ...core.space import LABELS
from ...core.work import Work
from ...corpora.datasets import Dataset
from ...curvature.operators import functional, gauss_newton, hessian
from ...curvature.outline import Outline
from ...curvature.risk import Risk
from ...estimate.blocks import block_norms, frobenius
from ...estimate.lanczos import ROWS, eigenpairs
from ...estimate.quadrature import density
from ...nn.transformer import Transformer
from ...train.config import TrainConfig
from ..machine import guard_kept
from ..outlined import Outlined
from ..room import Room, note_of
from ..short_run import ShortRun
from ..step_size.ceiling import UNSEEN, adamw_ceiling, ceiling_of, seconds_of_product
from ..step_size.chosen import choose
from ..step_size.fresh import held
from ..step_size.question import StepSizeQuestion
from ..step_size.rules import Stepper
from ..subject import Subject
from ..threads import fitting_threads
from .other_models import removable, without
from .question import WhyQuestion

Batches = list[dict[str, Tensor]]

#: Most products for both ends and for P^-1 H; probes and steps of the density; products a block and a norm.
ENDS, PRECONDITIONED, PROBES, DEPTH, BLOCKS, FROBENIUS = 60, 40, 2, 15, 6, 12
#: Products of one variant at one step, as a rule, and the work with vectors that comes with each (measured).
TYPICAL, VECTOR_WORK = 125, 0.4
#: Vectors an estimator keeps on disk, about.
KEPT = 40
GROUPS = {label: f"*.attn.{LABELS[label]}" for label in ("query", "key", "query-key", "value")}


class WhyMeasurement:
    """One model, what can be taken out of it, and its data."""

    def __init__(self, asked: WhyQuestion, subject: Subject) -> None:
        guard_kept(asked.steps[-1], f"the course of {asked.steps[-1]:,} training steps")
        if subject.loss is not None:
            raise InputError(f"{subject.name} returns no loss of its own, which removing a part needs.")
        self.asked, self.subject, self.model = asked, subject, subject.model
        self.data, self.probe = _data(asked, subject)
        self.kept, self.left = removable(self.model, asked.remove, self.probe[0])
        self.variants = ("full", *(f"no {part}" for part in self.kept))
        self._plan: Plan | None = None

    # --- the cost ---------------------------------------------------------------------------------------------------
    def plan(self) -> Plan:
        """Variants, products, steps, time and memory; one product and one training step are timed for it."""
        if self._plan is None:
            risk = self._risk()
            room = Room.of(risk, (ROWS + 8) * risk.space.size * risk.dtype.itemsize).require(risk)
            with fitting_threads(risk):
                self._plan = self._cost(risk, room)
        return self._plan

    def _risk(self) -> Risk:
        outlined = isinstance(self.subject, Outlined)
        return self.subject.risk() if outlined else Risk(self.model, None, self.probe, quiet=True)

    def _cost(self, risk: Risk, room: Room) -> Plan:
        cells, steps = len(self.variants) * len(self.asked.steps), len(self.variants) * self.asked.steps[-1]
        each = seconds_of_product(risk, VECTOR_WORK, self.subject.scale)
        training = steps * self.subject.scale * _seconds_of_gradient(risk)
        total = cells * TYPICAL * each + training
        text = (
            f"{note_of(risk)}"
            f"plan: {cells} variants and steps, about {TYPICAL} products of {each:.2g} s each, {steps:,} training"
            f" steps; {clock(total)} in all, {room}; the model is not touched"
        )
        details = {"cells": cells, "steps": steps, "room": asdict(room)}
        return Plan(text, cells * TYPICAL, total, room.bytes, details)

    # --- the work ---------------------------------------------------------------------------------------------------
    def measure(self, work: Work) -> Why:
        """Every variant at every step, or as many as the time allows, marked partial."""
        asked, model, measured = self.asked, self.model, WhyDraft()
        total = len(self.variants) * (len(asked.steps) * TYPICAL + asked.steps[-1])
        with fitting_threads(self._risk()), work.bar(total, "why: products and steps"), work.in_time():
            for variant in self.variants:
                for step, found in self._moments(variant, work):
                    measured.take(variant, step, found["scalars"], found["note"], found.get("P", ""))
        first, shape = next(model.parameters()), next(iter(self.probe[0].values())).shape
        probe = f"probe {len(self.probe)} x {shape[0]} sequences"
        return measured.answer(
            Provenance.collect(seed=asked.seed, dtype=first.dtype, device=first.device),
            name=self.subject.name,
            variants=list(self.variants),
            steps=list(asked.steps),
            source=dict(self.subject.source),
            lr=asked.lr,
            seed=asked.seed,
            probe="; ".join([probe, *self.subject.notes]),
            weights=self.subject.source["weights"],
            **self.left,
            partial=work.partial,
            parameters=sum(p.numel() for p in model.parameters()),
        )

    def _moments(self, variant: str, work: Work) -> Iterator[tuple[int, dict[str, Any]]]:
        """What is measured of one variant at each step; it is trained from one to the next."""
        asked = self.asked
        part = without(self.model, variant.removeprefix("no ") if variant != "full" else "nothing")
        train = TrainConfig(steps=max(asked.steps[-1], 1), lr=asked.lr, batch_size=asked.batch_size, seed=asked.seed)
        run = ShortRun(part, self.data, train, None if work.folder is None else work.state(variant))
        size = KEPT * sum(p.numel() * p.element_size() for p in part.parameters())
        for before, step in zip((0, *asked.steps), asked.steps, strict=False):
            key = f"{variant}/{step}"
            if key in work:
                work.skip(step - before)
            else:
                work.deadline.check(advanced=False)
                work.skip(max(min(run.step, step) - before, 0))
                with work.counting(f"{variant}, training", step - max(run.step, before)):
                    run.to(step, lambda: work.spend(1))
            own = self._own() if variant == "full" and not step else None
            found = functools.partial(_cell, run, own, self.probe, work, work.state(key, size))
            yield step, work.piece(key, found, TYPICAL)

    def _own(self) -> Stepper:
        """The AdamW of `quadform lr`: with the state of a run or of a trainer's files, where there is one."""
        return choose(
            StepSizeQuestion(optimizer="adamw"), self.subject, self.model, dict(self.model.named_parameters())
        )[0]


def _seconds_of_gradient(risk: Risk) -> float:
    if isinstance(risk, Outline):
        return len(risk.batches) * risk.cost.gradient.seconds(risk.dtype)
    start = time.perf_counter()
    risk.gradient()
    return time.perf_counter() - start


def _data(asked: WhyQuestion, subject: Subject) -> tuple[Dataset | None, Batches]:
    """The data set the model is trained on, where there is one, and the batches it is measured on."""
    given: Any = subject.batches
    described = subject.source.get("data")
    data = Dataset.from_dict(described) if isinstance(described, dict) else None
    if isinstance(given, Dataset):
        if not isinstance(subject.model, Transformer):
            raise InputError(f"{subject.name} is not a quadform model; give batches it takes, not a Dataset.")
        data, given = given, next(given.batches("valid", asked.batch_size, asked.seed))
    if data is None and asked.steps[-1] > 0:
        raise InputError(
            f"steps={list(asked.steps)}: training needs a model of quadform and a data set. Ask for step 0."
        )
    device = next(subject.model.parameters()).device
    batches = [given] if isinstance(given, Mapping) else list(given)
    return data, [{k: v.to(device) for k, v in b.items()} for b in batches]


def _cell(run: ShortRun, own: Stepper | None, probe: Batches, work: Work, state: Path | None) -> dict[str, Any]:
    """All measures of one variant at one step; a broken run has none and a note. `own` is the model's AdamW, if any."""
    if run.broken:
        return {"scalars": {}, "note": run.broken, "P": ""}
    try:
        risk = Risk(run.model, None, probe, quiet=True)
        stepper = own or run.stepper()
        names = tuple(n for n in stepper.names if n in risk.params)
        stepper = held(dataclasses.replace(stepper, names=names), risk)
        scalars = dict(_numbers(risk, run, stepper, work, state))
    except InputError as error:
        return {"scalars": {}, "note": str(error), "P": ""}
    note = "" if "ceiling_adamw" in scalars else UNSEEN
    return {"scalars": scalars, "note": note, "P": stepper.source}


def _numbers(
    risk: Risk, run: ShortRun, stepper: Stepper, work: Work, state: Path | None
) -> Iterator[tuple[str, Estimate]]:
    """The measures one by one; `state` keeps what their estimators have not finished."""

    def kept(name: str) -> dict[str, Any]:
        return {"progress": work.report(), "resume": None if state is None else state / name}

    yield "loss", Estimate(float(risk.value().detach()))
    H = hessian(risk)
    ends = eigenpairs(H, top=1, bottom=1, max_products=ENDS, **kept("ends"))
    top, low = ends.top[0], ends.bottom[0]
    yield "lambda_max", top
    yield "lambda_min", low
    yield "ceiling_sgd", ceiling_of(2.0, top)
    trained = risk if set(stepper.names) == set(risk.params) else _over(risk, stepper.names)
    found = adamw_ceiling(H if trained is risk else hessian(trained), trained, stepper, PRECONDITIONED, **kept("P"))
    if found is not None:
        yield "ceiling_adamw", found
    spread = density(H, probes=PROBES, steps=DEPTH, known=ends, **kept("density"))
    yield "negative_curvature", spread.negative_curvature()
    own = isinstance(run.model, Transformer)
    groups = {n: (glob if own else glob.replace(".attn", ""),) for n, glob in GROUPS.items()}
    groups = {n: globs for n, globs in groups.items() if _has(risk, *globs)}
    if groups:
        norms = block_norms(H, groups, products=BLOCKS, **kept("blocks"))
        for n in groups:
            yield f"norm/{n}", norms[n, n]
        query = next((n for n in ("query", "query-key") if n in groups), None)
        if query is not None and "value" in groups:
            yield "ratio", _ratio(norms["value", "value"], norms[query, query])
    H_o = frobenius(gauss_newton(risk), FROBENIUS, **kept("H_o"))
    H_f = frobenius(functional(risk), FROBENIUS, **kept("H_f"))
    yield "H_f_share", _share(H_f, H_o)


def _over(risk: Risk, names: tuple[str, ...]) -> Risk:
    """The same loss over the parameters that an optimizer trains."""
    return Risk(risk.model, None, risk.batches, list(names), quiet=True)


def _has(risk: Risk, glob: str) -> bool:
    try:
        return risk.space.select(glob).size > 0
    except KeyError:
        return False


def _ratio(a: Estimate, b: Estimate) -> Estimate:
    """a / b with the relative errors added in squares."""
    if b.value <= 0:
        return Estimate(math.inf if a.value > 0 else math.nan, note="the denominator is 0")
    value = a.value / b.value
    if a.value <= 0:
        return Estimate(0.0, note="the numerator is 0")
    spread = value * math.hypot((a.error or 0.0) / a.value, (b.error or 0.0) / b.value)
    return Estimate(value, spread, "estimate", a.matvecs + b.matvecs, error_kind=joint_kind((a, b)))


def _share(a: Estimate, b: Estimate) -> Estimate:
    """a / (a + b) with its error."""
    whole = a.value + b.value
    if whole <= 0:
        return Estimate(0.0, note="both parts are 0")
    spread = math.hypot(b.value * (a.error or 0.0), a.value * (b.error or 0.0)) / whole**2
    return Estimate(a.value / whole, spread, "estimate", a.matvecs + b.matvecs, error_kind=joint_kind((a, b)))
