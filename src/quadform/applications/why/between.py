"""Why one step of another trainer's run went as it did, from the checkpoints before and after it.

The batch of the step is not known, so the trainer's log speaks for it: loss and gradient norm beside those of the lines
around. The ceiling is measured at the checkpoint before, with the optimizer's state there, on the probe; along the
update d from one checkpoint to the other

    L(theta + d) - L(theta)  ~  <g, d> + <d, H d> / 2

tells slope and curvature apart on the probe, and layers by the parts of both sums.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from ...answers.why_step import WhyStep, WhyStepDraft
from ...core.errors import InputError
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.work import Work
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...integrations.checkpoints import Checkpoint, checkpoints_along, logged
from ..step_size.ceiling import ceiling_of, seconds_of_product
from ..step_size.state import stepper_of_file
from ..subject import Subject
from .parts import PRODUCTS, by_layer, top
from .question import WhyQuestion

#: Lines of the log on either side that are compared with.
AROUND = 10


class BetweenMeasurement:
    """One step of a run that another trainer left."""

    def __init__(self, asked: WhyQuestion, subject: Subject) -> None:
        step, model = asked.step, subject.model
        assert step is not None
        if not isinstance(model, nn.Module):
            raise InputError(f"step={step}: checkpoints hold the weights of a module; this model is a function.")
        self.step, self.subject = step, subject
        self.before, self.after = _around(_found(asked, subject, step), step)
        if self.before.optimizer is None:
            raise InputError(f"step={step}: `{self.before.path}` has no optimizer state, which the ceiling needs.")

    def _risk(self, at: Checkpoint) -> Risk:
        assert isinstance(self.subject.model, nn.Module)
        return Risk(at.model(self.subject.model), self.subject.loss, self.subject.batches, quiet=True)

    def plan(self) -> Plan:
        """Products of one eigenvalue and of the update."""
        seconds = (PRODUCTS + 2) * seconds_of_product(self._risk(self.before))
        steps = f"{self.before.step:,} and {self.after.step:,}"
        text = f"plan: the checkpoints at steps {steps}, up to {PRODUCTS} products; {clock(seconds)} in all"
        return Plan(text, PRODUCTS, seconds)

    def measure(self, work: Work) -> WhyStep:
        """The log around the step, the ceiling before it, and the update by layer."""
        found = WhyStepDraft()
        start, end = self._risk(self.before), self._risk(self.after)
        assert self.before.optimizer is not None
        assert isinstance(start.model, nn.Module)
        stepper = stepper_of_file(self.before.optimizer, start.model, tuple(start.params))
        stepper = dataclasses.replace(stepper, names=tuple(n for n in stepper.names if n in start.params))
        trained = Risk(start.model, start.loss, start.batches, list(stepper.names), quiet=True)
        g = start.gradient()
        A = stepper.operator(hessian(trained), stepper.preconditioner(g, start.params))
        lines = logged(self.after)
        line = next((row for row in lines if row["step"] >= self.step), None)
        lr = stepper.lr if line is None else float(line.get("learning_rate", stepper.lr or 0.0))
        if not lr:
            raise InputError(f"step={self.step}: the learning rate is neither in the log nor in the optimizer's state.")
        found.take_rate(lr, None, ceiling_of(stepper.rule.factor, top(A, work)))
        if line is not None:
            found.take_log(*(_beside(lines, line, name) for name in ("loss", "grad_norm")))
        d = {n: end.params[n].detach() - p.detach() for n, p in start.params.items()}
        Hd = {n: t[0] for n, t in hessian(start).apply({n: t[None] for n, t in d.items()}).items()}
        change = float(end.value().detach()) - float(start.value().detach())
        found.take_update(by_layer(g, d), by_layer(Hd, d, 0.5), change)
        return found.answer(
            Provenance.collect(dtype=start.dtype, device=start.device),
            source=dict(self.subject.source),
            step=self.step,
            begun=self.before.step,
            until=self.after.step,
            rule=stepper.rule.name,
            logged=None,
            coverage=start.coverage,
            partial=work.partial,
        )


def _found(asked: WhyQuestion, subject: Subject, step: int) -> list[Checkpoint]:
    """The checkpoints of the run: in the folder that was given, or around the one that was opened."""
    if asked.checkpoints is not None:
        folders = [Path(asked.checkpoints)]
    else:
        path = Path(str(subject.source.get("model", "")))
        folders = [path, path.parent] if path.name.startswith("checkpoint-") else [path]
    found = next((c for f in folders if (c := checkpoints_along(f))), [])
    if not found:
        raise InputError(
            f"step={step}: one step can be explained for a training run of quadform, whose batches follow from its"
            " seed, and for a folder of another trainer with a checkpoint before and after the step. This is neither."
        )
    return found


def _around(found: list[Checkpoint], step: int) -> tuple[Checkpoint, Checkpoint]:
    before, after = [c for c in found if c.step < step], [c for c in found if c.step >= step]
    if not before or not after:
        steps = ", ".join(f"{c.step:,}" for c in found)
        raise InputError(f"step={step}: it needs a checkpoint before and after it; there are {steps}.")
    return before[-1], after[0]


def _beside(lines: list[dict[str, Any]], line: dict[str, Any], name: str) -> tuple[float, list[float]] | None:
    """A number of a line of the log, and those of the lines around it; None where they are not logged."""
    i = lines.index(line)
    others = [row[name] for row in lines[max(i - AROUND, 0) : i + AROUND + 1] if row is not line and name in row]
    return (float(line[name]), [float(v) for v in others]) if name in line and others else None
