"""Ceiling and rate along a run: at the checkpoints it kept, or along a short run of a fresh model.

Each ceiling is measured on the batch that the next step of that run takes, of the run's own size: it is the loss that
step goes down on. A smaller probe is sharper, and would tell of an overshoot that the run never saw.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...corpora.datasets import Dataset
from ...curvature.risk import Risk
from ...nn.transformer import Transformer
from ...train.config import TrainConfig
from ...train.recipes import recipe_for
from ...train.runs import Run
from ...train.schedule import Schedule
from ..short_run import ShortRun
from ..subject import Subject
from .question import StepSizeQuestion
from .rules import Stepper, read_optimizer
from .state import rates_of_run


@dataclass(frozen=True)
class Waypoint:
    """One step of a run: its optimizer, its rate, its loss."""

    step: int
    rate: float
    stepper: Stepper
    risk: Risk


@dataclass(frozen=True)
class Path:
    """Where ceilings along a run can be measured. `told` goes into the record."""

    count: int
    told: dict[str, Any]
    points: Iterator[Waypoint]


def path_of(asked: StepSizeQuestion, subject: Subject) -> Path | None:
    """That of a training run with checkpoints, or of a fresh model of ours; None elsewhere."""
    if not asked.checkpoints or asked.state is not None or subject.optimizer is not None:
        return None
    if subject.run is not None:
        return _of_run(asked, subject.run)
    fresh = subject.step == 0 and isinstance(subject.model, Transformer) and asked.short_run
    return _of_fresh(asked, subject) if fresh else None


# --- the checkpoints of a run -----------------------------------------------------------------------------------------
def _of_run(asked: StepSizeQuestion, run: Run) -> Path | None:
    if asked.optimizer not in ("auto", run.config.optimizer) or len(run.optimizer().parts) > 1:
        return None
    kept = [*run.along(), run][-asked.checkpoints :]
    if len(kept) < 2:
        return None
    told = {"peak": rates_of_run(run)["peak"], "warmup": run.config.schedule.warmup_steps(run.config.steps)}
    return Path(len(kept), told, map(_waypoint, kept))


def _waypoint(run: Run) -> Waypoint:
    stepper = read_optimizer(run.optimizer().parts[0], run.model)
    return Waypoint(run.step, rates_of_run(run)["lr"], stepper, _risk(run.model, run.data, run.config, run.step))


def _risk(model: nn.Module, data: Dataset, config: TrainConfig, step: int) -> Risk:
    device = next(model.parameters()).device
    batch = next(iter(data.batches("train", config.batch_size, config.seed, step)))
    return Risk(model, None, {k: t.to(device) for k, t in batch.items()}, quiet=True)


# --- a short run of a fresh model -------------------------------------------------------------------------------------
def _of_fresh(asked: StepSizeQuestion, subject: Subject) -> Path | None:
    described = subject.source.get("data")
    if not isinstance(described, dict) or "split" not in subject.source:
        return None
    data = Dataset.from_dict(described)
    config = _config(asked, data)
    if config is None:
        return None
    warmup, steps = config.schedule.warmup_steps(config.steps), min(asked.short_run, config.steps)
    stops = _stops(warmup, steps, asked.checkpoints)
    told = {"peak": config.lr, "warmup": warmup, "short": steps}
    return Path(len(stops), told, _trained(copy.deepcopy(subject.model), data, config, stops))


def _config(asked: StepSizeQuestion, data: Dataset) -> TrainConfig | None:
    """How the data's recipe trains, with what the question says; None where no rate is known for the optimizer."""
    found = dict(recipe_for(data).train)
    name = {"auto": "adamw", "momentum": "sgd"}.get(asked.optimizer, asked.optimizer)
    if asked.lr is None and name == "sgd":
        return None
    if name != "adamw":
        found.pop("weight_decay", None)
    if asked.lr is not None:
        found["lr"] = asked.lr
    if asked.warmup is not None:
        found["schedule"] = dataclasses.replace(found.get("schedule", Schedule()), warmup=asked.warmup)
    momentum = asked.momentum if asked.optimizer == "momentum" else 0.0
    return TrainConfig(**found | {"optimizer": name, "momentum": momentum, "seed": asked.seed})


def _stops(warmup: int, steps: int, count: int) -> list[int]:
    """Steps that are measured: half the warm-up, its end, then evenly to the end of the short run."""
    early = [warmup // 2, warmup]
    rest = max(count - len(early), 1)
    late = [warmup + round((steps - warmup) * (i + 1) / rest) for i in range(rest)]
    return sorted({min(step, steps) for step in [*early, *late] if step > 0})[:count]


def _trained(model: Any, data: Dataset, config: TrainConfig, stops: list[int]) -> Iterator[Waypoint]:
    run = ShortRun(model, data, config, None)
    for step in stops:
        run.to(step)
        if run.broken:
            return
        rate = config.lr * config.schedule.factor(min(step, config.steps - 1), config.steps)
        yield Waypoint(step, rate, read_optimizer(run.optimizer.parts[0], model), _risk(model, data, config, step))
