"""Whose ceiling: the optimizer a question means, and where the state comes from that P is made of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError, QuadformError
from ...curvature.risk import Risk
from ...integrations.trainer_files import TrainerFiles
from ..subject import Subject, tensors_hash
from .question import StepSizeQuestion
from .rules import Stepper, read_optimizer, stepper_by_name
from .start import first_model
from .state import rates_of_run, stepper_of_file


def opened(asked: StepSizeQuestion, subject: Subject) -> tuple[Risk, Stepper]:
    """The loss over the parameters that were asked for and are trained, and the optimizer that trains them."""
    risk = subject.risk(asked)
    stepper, note = choose(asked, subject, risk.model, risk.params)
    names = [n for n in stepper.names if n in risk.params]
    if not names:
        raise InputError(f"params={asked.params!r}: the optimizer trains none of these parameters; choose others.")
    if set(names) != set(risk.params):
        risk = subject.risk(asked, params=names)
    risk = risk.noted(note) if note else risk
    second = stepper.second if risk.shards is None else risk.shards.held(stepper.second)
    return risk, dataclasses.replace(stepper, names=tuple(names), second=second)


def at_step_0(subject: Subject, risk: Risk) -> tuple[Risk | None, str]:
    """The loss of a training run before its first step; None, and why, where it cannot be known."""
    if subject.run is None or not subject.run.step or risk.shards is not None:
        return None, ""
    fresh, unknown = first_model(subject.run)
    if fresh is None:
        return None, unknown
    return Risk(fresh, risk.loss, risk.batches, list(risk.params), include_frozen=True, quiet=True), ""


def identity_of(asked: StepSizeQuestion, subject: Subject) -> dict[str, Any]:
    """The optimizer in plain values: its rule, where P comes from, of which step, and a hash of all it holds."""
    model = subject.model
    params = dict(model.named_parameters()) if isinstance(model, nn.Module) else subject.params or {}
    stepper, _ = choose(asked, subject, model, params)
    plain = {f.name: getattr(stepper, f.name) for f in dataclasses.fields(stepper) if f.name not in ("rule", "second")}
    return {
        "rule": stepper.rule.name,
        "P": stepper.source,
        "P_step": max(stepper.steps.values(), default=0),
        "optimizer_hash": tensors_hash(stepper.second, json.dumps([dataclasses.asdict(stepper.rule), plain])),
    }


def choose(asked: StepSizeQuestion, subject: Subject, model: Any, params: Mapping[str, Tensor]) -> tuple[Stepper, str]:
    """The optimizer of a question: an object, of the run, of a state file or one beside the weights, or by its name;
    and a note."""
    own, names = subject.run, tuple(params)
    if subject.optimizer is not None and asked.state is not None:
        raise InputError("an optimizer object has its own state; give the object or state=, not both.")
    if not isinstance(model, nn.Module):
        if subject.optimizer is not None or asked.state is not None:
            raise InputError("an optimizer state belongs to a module; for a function model name the optimizer instead.")
        return named(asked, params), ""
    if subject.optimizer is not None:
        return read_optimizer(subject.optimizer, model), ""
    if asked.state is not None:
        return stepper_of_file(asked.state, model, names), ""
    if own is not None and asked.optimizer in ("auto", own.config.optimizer):
        parts = own.optimizer().parts
        stepper = read_optimizer(parts[0], own.model)
        return dataclasses.replace(stepper, **rates_of_run(own)), ""
    if subject.trainer is not None and asked.optimizer in ("auto", "adam", "adamw"):
        return beside_weights(asked, subject.trainer, model, params)
    return named(asked, params), ""


def beside_weights(
    asked: StepSizeQuestion, found: TrainerFiles, model: nn.Module, params: Mapping[str, Tensor]
) -> tuple[Stepper, str]:
    """The optimizer whose state a trainer left beside the weights; else the one by name, and why."""
    rates: dict[str, Any] = {"lr": found.lr, "peak": found.peak} if asked.optimizer == "auto" else {}
    plain = dataclasses.replace(named(asked, params), **rates)
    if found.optimizer is None:
        return plain, ""
    try:
        stepper = stepper_of_file(found.optimizer, model, tuple(params))
    except QuadformError as error:
        return plain, f"the state in {found.optimizer.name} beside the weights is not used: {error}"
    if asked.optimizer not in ("auto", stepper.rule.name.partition(",")[0].lower()):
        return plain, f"{found.optimizer.name} beside the weights is of {stepper.rule.name} and is not used"
    return dataclasses.replace(stepper, lr=stepper.lr or found.lr, peak=stepper.peak or found.peak), ""


def named(asked: StepSizeQuestion, params: Mapping[str, Tensor]) -> Stepper:
    """The optimizer by its name and the constants of the question."""
    name = "adamw" if asked.optimizer == "auto" else asked.optimizer
    stepper = stepper_by_name(name, tuple(params), momentum=asked.momentum, beta1=asked.beta1, beta2=asked.beta2)
    decay = {n: asked.weight_decay for n, p in params.items() if asked.weight_decay and p.ndim >= 2}
    if name == "adamw":
        return dataclasses.replace(stepper, decoupled=decay)
    return dataclasses.replace(stepper, coupled=decay)
