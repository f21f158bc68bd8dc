"""The largest stable learning rate: `quadform lr`, `qf.lr`. A ceiling from curvature, with its evidence.

The rules are in `rules`, the measuring in `measure`, the trial on a copy in
`trial`. The model is left as it was, asserted by a hash.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.errors import InputError, QuadformError
from ...core.progress import Report
from ...core.record import Estimate, Record
from ...curvature.risk import Risk
from ...distributed import current, shard
from ..answers import Answer, Grid
from ..configs.lr import LrConfig
from ..configs.shared import seconds_of
from ..lighter import lighter
from ..subject import Subject, open_subject
from ..threads import fitting_threads
from ..trainer_files import TrainerFiles
from .measure import KIND, measure, plan_of
from .rules import Stepper, read_optimizer, stepper_by_name
from .start import first_model
from .state import rates_of_run, stepper_of_file
from .trial import HOLDS, Trial


class StepSize(Answer):
    """The ceiling of one optimiser at one point of one loss. `ceiling` is a number, `estimate` it with its error."""

    kind = KIND

    @property
    def estimate(self) -> Estimate:
        return self.record.scalars["ceiling/yours"]

    @property
    def ceiling(self) -> float:
        return self.estimate.value

    @property
    def rule(self) -> str:
        """`38 / lambda_max(P^-1 H)`."""
        return str(self.record.inputs["formula"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The smallest and largest ceiling on single probe batches; None for one batch."""
        each = self.record.tensors.get("ceilings")
        return None if each is None or len(each) < 2 else (float(each.min()), float(each.max()))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What the trial on a copy found; empty without one."""
        t = self.record.tensors
        if "verify/fractions" not in t:
            return ()
        allowed = t.get("verify/tolerance", torch.full_like(t["verify/measured"], HOLDS))
        columns = [t[f"verify/{n}"].tolist() for n in ("fractions", "measured", "predicted", "losses")]
        rows = zip(*columns, allowed.tolist(), strict=True)
        return tuple(Trial(f, m, p, tuple(x for x in losses if not math.isnan(x)), a) for f, m, p, losses, a in rows)

    @property
    def ok(self) -> bool:
        """Whether every eigenvalue converged, nothing was cut short, and the trial went as theory says."""
        done = all(e.converged for e in self.record.scalars.values()) and not self.record.inputs["partial"]
        return done and all(t.as_expected for t in self.trials)

    def suggest(self, fraction: float = 0.2) -> float:
        """That fraction of the ceiling. A ceiling is no recommendation; the fraction is your judgement."""
        if not 0 < fraction <= 1:
            raise InputError(f"a suggestion is a fraction of the ceiling between 0 and 1; got {fraction}.")
        return fraction * self.ceiling

    def table(self) -> Grid:
        """One row for each optimiser: ceiling, rule, yours or not."""
        s, rows = self.record.scalars, []
        for key, name, formula in self.record.inputs["rows"]:
            e = s[f"ceiling/{key}"]
            rows.append((name, e.value, formula, e.kind, "<- yours" if key == "yours" else ""))
        return Grid(("optimizer", "ceiling", "rule", "tag", ""), tuple(rows))

    def lines(self) -> Sequence[str]:
        from .words import lines

        return lines(self)


# --- Python ---------------------------------------------------------------------------------------------------------
def lr(
    model: nn.Module | Callable[..., Any],
    batches: Any,
    loss: Any = None,
    optimizer: torch.optim.Optimizer | str = "adamw",
    *,
    verify: int = 0,
    params: Any = "*",
    include_frozen: bool = False,
    products: int = 60,
    tol: float = 1e-3,
    seed: int = 0,
    learning_rate: float | None = None,
    max_time: str | float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = True,
) -> StepSize:
    """The largest stable learning rate of `optimizer` (a torch optimiser, or its name) for `model` on `batches`.

    `verify` steps on a copy try 0.5, 1 and 2 times the ceiling. `include_frozen` takes parameters that are not trained
    as well. `resume` names a folder that keeps unfinished work.
    Inside `with quadform.distributed.group():` the batches are split over the processes.
    """
    risk = Risk(model, loss, batches, params, include_frozen=include_frozen, quiet=not progress)
    stepper = _stepper(optimizer, risk)
    if set(stepper.names) != set(risk.params):
        names = [n for n in stepper.names if n in risk.params]
        if not names:
            raise InputError("the optimizer trains none of the parameters that were chosen; choose others.")
        risk = Risk(model, loss, risk.batches, names, include_frozen=include_frozen, quiet=True)
        stepper = dataclasses.replace(stepper, names=tuple(names))
    seconds = seconds_of(max_time) if isinstance(max_time, str) else max_time
    source = {"model": type(model).__name__}
    record = measure(
        risk,
        stepper,
        source=source,
        verify=verify,
        products=products,
        tol=tol,
        seed=seed,
        learning_rate=learning_rate,
        seconds=seconds,
        folder=resume,
        progress=progress,
    )
    return StepSize(record)


def _stepper(optimizer: Any, risk: Risk) -> Stepper:
    if isinstance(optimizer, str):
        return stepper_by_name(optimizer.lower(), tuple(risk.params))
    if not isinstance(risk.model, nn.Module):
        raise InputError("an optimizer object belongs to a module; for a function model give its name ('adamw').")
    return read_optimizer(optimizer, risk.model)


# --- the verb -------------------------------------------------------------------------------------------------------
def run(config: LrConfig, folder: str | Path | None = None, progress: bool | Report = True) -> Record:
    """Answer `quadform lr`; `folder` keeps unfinished work."""
    subject, risk, stepper = _open(config)
    first, unknown = at_step_0(subject, risk)
    return measure(
        risk,
        stepper,
        source=dict(subject.source),
        verify=config.verify,
        products=config.products,
        seed=config.seed,
        learning_rate=config.lr,
        seconds=config.seconds,
        folder=folder,
        resume=config.resume,
        progress=progress,
        first=first,
        unknown=unknown,
    )


def at_step_0(subject: Subject, risk: Risk) -> tuple[Risk | None, str]:
    """The loss of a training run before its first step; None, and why, where it cannot be known."""
    if subject.run is None or not subject.run.step:
        return None, ""
    fresh, unknown = first_model(subject.run)
    if fresh is None:
        return None, unknown
    return Risk(fresh, risk.loss, risk.batches, list(risk.params), include_frozen=True, quiet=True), ""


def plan(config: LrConfig) -> dict[str, Any]:
    """What `quadform lr --dry-run` tells."""
    light, scale = lighter(config)
    subject, risk, stepper = _open(light)
    with fitting_threads(risk):
        first = at_step_0(subject, risk)[0] is not None
        return plan_of(shard(risk, current()), stepper, config.verify, first, scale)


def _open(config: LrConfig) -> tuple[Subject, Risk, Stepper]:
    subject = open_subject(config)
    risk = subject.risk(config, quiet=True)
    stepper, note = choose_stepper(config, subject, risk)
    names = [n for n in stepper.names if n in risk.params]
    if not names:
        raise InputError(f"`--params {config.params}`: the optimizer trains none of these parameters.")
    if set(names) != set(risk.params):
        risk = subject.risk(config, params=names, quiet=True)
    risk.notes += [note] if note else []
    return subject, risk, dataclasses.replace(stepper, names=tuple(names))


def choose_stepper(config: LrConfig, subject: Subject, risk: Risk) -> tuple[Stepper, str]:
    """The optimiser of a question: of the run, of a state file or one beside the weights, or by its name; a note."""
    own, names = subject.run, tuple(risk.params)
    if config.state is not None:
        return stepper_of_file(config.state, subject.model, names), ""
    if own is not None and config.optimizer in ("auto", own.config.optimiser):
        parts = own.optimiser().parts
        if len(parts) > 1:
            raise InputError("no ceiling is known for Muon. Choose `--optimizer adamw` or `sgd`.")
        stepper = read_optimizer(parts[0], own.model)
        return dataclasses.replace(stepper, **rates_of_run(own)), ""
    if subject.trainer is not None and config.optimizer in ("auto", "adam", "adamw"):
        return beside_weights(config, subject.trainer, subject.model, names)
    return named(config, subject.model, names), ""


def beside_weights(
    config: LrConfig, found: TrainerFiles, model: nn.Module, names: tuple[str, ...]
) -> tuple[Stepper, str]:
    """The optimiser whose state a trainer left beside the weights; else the one by name, and why."""
    rates: dict[str, Any] = {"lr": found.lr, "peak": found.peak} if config.optimizer == "auto" else {}
    plain = dataclasses.replace(named(config, model, names), **rates)
    if found.optimizer is None:
        return plain, ""
    try:
        stepper = stepper_of_file(found.optimizer, model, names)
    except QuadformError as error:
        return plain, f"the state in {found.optimizer.name} beside the weights is not used: {error}"
    if config.optimizer not in ("auto", stepper.rule.name.partition(",")[0].lower()):
        return plain, f"{found.optimizer.name} beside the weights is of {stepper.rule.name} and is not used"
    return dataclasses.replace(stepper, lr=stepper.lr or found.lr, peak=stepper.peak or found.peak), ""


def named(config: LrConfig, model: nn.Module, names: tuple[str, ...]) -> Stepper:
    """The optimiser by its name and the flags."""
    name = "adamw" if config.optimizer == "auto" else config.optimizer
    stepper = stepper_by_name(name, names, momentum=config.momentum, beta1=config.beta1, beta2=config.beta2)
    shapes = {n: p.ndim for n, p in model.named_parameters()}
    decay = {n: config.weight_decay for n in names if config.weight_decay and shapes[n] >= 2}
    if name == "adamw":
        return dataclasses.replace(stepper, decoupled=decay)
    return dataclasses.replace(stepper, coupled=decay)
