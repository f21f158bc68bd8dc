"""Why one step of a training run went as it did: its batch, the rate and the ceiling, and what the update did by layer.

The run is opened at its last checkpoint before the step, or at its start, and trained again up to it. Held against the
batches of the steps after it, the batch of the step itself tells whether the data or the ceiling is to blame; along the
update d of the step

    L(theta + d) - L(theta)  ~  <g, d> + <d, H d> / 2

tells slope and curvature apart, and the parts of both sums over a layer tell the layers apart.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from torch import Tensor

from ...answers.why_step import WhyStep, WhyStepDraft
from ...core.errors import InputError
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.space import Vector
from ...core.work import Work
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...train.checkpoint import restore
from ...train.folder import RunFolder
from ...train.runs import Run
from ..short_run import ShortRun
from ..step_size.ceiling import ceiling_of, seconds_of_product
from ..step_size.fresh import one_batch
from ..step_size.start import first_model
from ..subject import Subject
from .parts import PRODUCTS, by_layer, top
from .question import WhyQuestion

#: Batches after that of the step, with which it is compared.
OTHERS = 8


class StepMeasurement:
    """One step of one run."""

    def __init__(self, asked: WhyQuestion, subject: Subject) -> None:
        run, step = subject.run, asked.step
        assert step is not None
        assert run is not None
        if not 1 <= step <= run.config.steps:
            raise InputError(f"step={step}: the run has the steps 1 to {run.config.steps:,}.")
        if run.config.accumulate != 1:
            raise InputError(
                f"step={step}: the run accumulates {run.config.accumulate} batches per step; one can be explained."
            )
        self.step, self.subject, self.run = step, subject, run
        self.begin = _before(run, step)

    def plan(self) -> Plan:
        """Steps that are trained again, and products."""
        risk = Risk(self.begin.model, None, self._batches(0, 1), quiet=True)
        again, each = self.step - self.begin.step, seconds_of_product(risk)
        seconds = again * each + 2 * PRODUCTS * each * (1 + OTHERS)
        text = (
            f"plan: {again} steps trained again on a copy from step {self.begin.step}, about {2 * PRODUCTS} products;"
            f" {clock(seconds)} in all"
        )
        return Plan(text, 2 * PRODUCTS, seconds, details={"steps": again})

    def _batches(self, first: int, count: int) -> list[Any]:
        config = self.run.config
        return list(itertools.islice(self.run.data.batches("train", config.batch_size, config.seed, first), count))

    def measure(self, work: Work) -> WhyStep:
        """The loss before and after, the ceilings, and the update by layer."""
        run, step, found = self.run, self.step, WhyStepDraft()
        short = ShortRun(self.begin.model, run.data, run.config, None)
        if self.begin.step:
            restore(short.model, short.optimizer, self.begin.tensors)
            short.step = self.begin.step
        short.to(step - 1)
        own, *others = self._batches(step - 1, 1 + OTHERS)
        lr = run.config.lr * run.config.schedule.factor(step - 1, run.config.steps)
        stepper = short.stepper()
        ceilings = {}
        for name, batches in (("own", [own]), ("others", others)):
            risk = Risk(short.model, None, batches, quiet=True)
            known = dataclasses.replace(stepper, names=tuple(risk.params))
            if known.rule.adaptive and not known.second:
                known = known.after(_gradients(Risk(short.model, None, others, quiet=True)))
            A = known.operator(hessian(risk), known.preconditioner(risk.gradient(), risk.params))
            ceilings[name] = ceiling_of(known.rule.factor, top(A, work))
        risk = Risk(short.model, None, [own], quiet=True)
        rest = Risk(short.model, None, others, quiet=True)
        g, before = risk.gradient(), {n: p.detach().clone() for n, p in risk.params.items()}
        loss, usual = float(risk.value().detach()), [float(one_batch(rest, i).value().detach()) for i in range(OTHERS)]
        norms = [_norm(v) for v in (g, *_gradients(rest))]
        held = risk.moved(before)
        short.to(step)
        d = {n: risk.params[n].detach() - before[n] for n in before}
        Hd = {n: t[0] for n, t in hessian(held).apply({n: t[None] for n, t in d.items()}).items()}
        found.take_batch(loss, usual, norms[0], norms[1:])
        found.take_rate(lr, ceilings["own"], ceilings["others"])
        found.take_update(by_layer(g, d), by_layer(Hd, d, 0.5), float(risk.value().detach()) - loss)
        return found.answer(
            Provenance.collect(seed=run.config.seed, dtype=risk.dtype, device=risk.device),
            source=dict(self.subject.source),
            step=step,
            begun=self.begin.step,
            rule=stepper.rule.name,
            logged=_logged(run, step),
            coverage=risk.coverage,
            partial=work.partial,
        )


def _before(run: Run, step: int) -> Run:
    """The run at its last checkpoint before a step, or at its start."""
    earlier = [at for at in (*run.along(), run) if at.step < step]
    if earlier:
        return max(earlier, key=lambda at: at.step)
    fresh, why = first_model(run)
    if fresh is None:
        raise InputError(f"step={step}: there is no checkpoint before it, and the initial weights are unknown: {why}.")
    return dataclasses.replace(run, model=fresh, step=0)


def _gradients(risk: Risk) -> list[dict[str, Tensor]]:
    return [one_batch(risk, i).gradient() for i in range(len(risk.batches))]


def _norm(v: Vector) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in v.values()))


def _logged(run: Run, step: int) -> float | None:
    """The loss of the step in the log of the run."""
    lines = RunFolder(run.folder).lines() if run.folder is not None else []
    return next((float(line["loss"]) for line in lines if line.get("step") == step and "loss" in line), None)
