"""The ceiling of an optimizer that has no known rule: measured on copies of model and optimizer.

Muon, Lion, Adafactor, Sophia and 8-bit Adam are not linear in the gradient, so no eigenvalue gives a ceiling. A copy
of the model takes steps with a copy of the optimizer, its state included, on the batches of the question. A rate is
stable if the loss does not rise by more than `RISE` in that many steps; the largest such rate is bracketed, then halved
in on. For SGD on a quadratic that is 2 / lambda_max; momentum may raise the loss for a few steps below its ceiling.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...answers.step_size import StepSize, StepSizeDraft
from ...core.errors import CheckFailed, InputError
from ...core.number import Estimate
from ...core.precision import NoHalvesOnCPU
from ...core.question import Plan
from ...core.record import Provenance
from ...core.work import Work
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...distributed.shards import is_sharded
from ...estimate.lanczos import ROWS, eigenpairs
from ..probes import probe_of
from ..room import Room, note_of
from ..subject import Subject, tensors_hash
from ..threads import fitting_threads
from .ceiling import ceiling_of
from .question import StepSizeQuestion
from .rules import sgd, unwrapped
from .state import rates_of_run

#: A stable rate does not raise the loss by more than this share of it.
RISE = 0.01
#: The bracket grows by this factor until it holds the ceiling, and is halved until it is this narrow.
GROW, NARROW = 4.0, 1.1
#: Rates that are tried, and where none is known the first of them.
LEAST, MOST, FIRST = 1e-10, 1e6, 1e-3
#: Rates that are tried, as a rule; products of the eigenvalue of H.
TRIES, TYPICAL = 10, 25
#: Steps of a trial where the question names none.
STEPS = 20

Parts = Sequence[torch.optim.Optimizer]


def parts_of(asked: StepSizeQuestion, subject: Subject) -> Parts:
    """The optimizers that train the subject, where no rule is known for one of them; else nothing."""
    ruled = torch.optim.SGD | torch.optim.Adam | torch.optim.AdamW
    found: Parts = ()
    if subject.optimizer is not None:
        found = (unwrapped(subject.optimizer),)
    elif subject.run is not None and asked.state is None and asked.optimizer in ("auto", subject.run.config.optimizer):
        found = tuple(subject.run.optimizer().parts)
        for group in (group for part in found for group in part.param_groups):
            group["lr"] = rates_of_run(subject.run)["lr"]
    return () if all(isinstance(part, ruled) for part in found) else found


def name_of(parts: Parts) -> str:
    """`Adafactor`, `AdamW and Muon`."""
    return " and ".join(dict.fromkeys(type(part).__name__ for part in parts))


def identity_of_parts(parts: Parts) -> dict[str, Any]:
    """The optimizers in plain values, with a hash of their states."""
    tensors = {
        f"{i}/{j}/{key}": value.dequantize() if hasattr(value, "codes") else value
        for i, part in enumerate(parts)
        for j, state in enumerate(part.state.values())
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    return {"rule": name_of(parts), "optimizer_hash": tensors_hash(tensors)}


def copies(model: nn.Module, parts: Parts) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """Copies of a model and of the optimizers that train it, with all that these hold.

    `copy.deepcopy` of a torch optimizer keeps groups and state alone; many have attributes of their own. Hooks stay
    behind, and so does the `step` that a scheduler puts on an optimizer, which would move the original.
    """
    few = (v for part in parts for state in part.state.values() for v in state.values() if hasattr(v, "codes"))
    memo: dict[int, Any] = {id(v): _copy_of_few_bits(v) for v in few}
    own, made = copy.deepcopy(model, memo), []
    for part in parts:
        kept = {key: value for key, value in vars(part).items() if not callable(value) and "hooks" not in key}
        new = object.__new__(type(part))
        new.__setstate__(copy.deepcopy(kept, memo))
        made.append(new)
    return own, made


def _copy_of_few_bits(value: Any) -> torch.Tensor:
    """A tensor of torchao's 8-bit optimizers, which has no `clone`: its parts are copied."""
    names, context = value.__tensor_flatten__()
    parts = {name: getattr(value, name).clone() for name in names}
    return type(value).__tensor_unflatten__(parts, context, value.shape, value.stride())


def stable(model: nn.Module, parts: Parts, risk: Risk, rate: float, steps: int) -> bool:
    """Whether the loss stays where it was, or falls, for that many steps of copies at this rate."""
    own, optimizers = copies(model, parts)
    copied = Risk(own, risk.loss, risk.batches, list(risk.params), include_frozen=True, quiet=True)
    groups = [group for part in optimizers for group in part.param_groups]
    most = max(float(group["lr"]) for group in groups) or 1.0
    for group in groups:
        own_rate = rate * (float(group["lr"]) / most or 1.0)
        group["lr"] = group["lr"].fill_(own_rate) if isinstance(group["lr"], torch.Tensor) else own_rate
    named, start = dict(own.named_parameters()), float(copied.value().detach())
    bends = any("hessian" in inspect.signature(part.step).parameters for part in optimizers)
    for _ in range(steps):
        for n, g in (gradient_with_graph(copied, named) if bends else copied.gradient()).items():
            named[n].grad = g if bends else g.detach()
        with NoHalvesOnCPU():
            for part in optimizers:
                part.step()
        with torch.no_grad():
            loss = float(copied.value())
        if not loss <= start + RISE * abs(start):
            return False
    return True


def gradient_with_graph(risk: Risk, named: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    """The gradient at these parameters, to be differentiated again: Sophia takes its own Hessian of it."""
    at = {n: named[n] for n in risk.params}
    with torch.enable_grad():
        return dict(zip(at, torch.autograd.grad(risk.value(at), list(at.values()), create_graph=True), strict=True))


def largest_stable(model: nn.Module, parts: Parts, risk: Risk, steps: int) -> Estimate:
    """The largest stable rate, to 5 %; a bound where no rate that was tried is stable, or all are."""
    known = max(float(group["lr"]) for part in parts for group in part.param_groups)
    low = high = known or FIRST
    note = f"largest rate at which the loss does not rise by {100 * RISE:g} % in {steps} steps of copies"
    holds = functools.partial(stable, model, parts, risk, steps=steps)
    if holds(rate=low):
        while holds(rate=(high := high * GROW)):
            low = high
            if high > MOST:
                return Estimate(high, kind="bound", side="lower", note=note)
    else:
        while not holds(rate=(low := low / GROW)):
            high = low
            if low < LEAST:
                return Estimate(low, kind="bound", side="upper", note=note)
    while high > NARROW * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(rate=middle) else (low, middle)
    return Estimate(math.sqrt(low * high), (high - low) / 2, "estimate", error_kind="residual", note=note)


class UnruledMeasurement:
    """One optimizer without a rule at one point of one loss."""

    def __init__(self, asked: StepSizeQuestion, subject: Subject, parts: Parts) -> None:
        model = subject.model
        if not isinstance(model, nn.Module):
            raise InputError(
                "an optimizer object belongs to a module; for a function model name the optimizer instead."
            )
        if is_sharded(model):
            raise InputError(
                f"no ceiling is known for {name_of(parts)}, and sharded weights have no copies to try it"
                " on. Give torch's Adam, AdamW or SGD, or the name of one."
            )
        for part in parts:
            _, *given = inspect.signature(type(part).step).parameters.values()  # a scheduler replaces the object's own
            asks = [p.name for p in given if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            if asks:
                raise InputError(
                    f"{type(part).__name__} chooses the length of a step itself (it asks for a {asks[0]}), so no"
                    " ceiling is measured. Give the name of another, adamw or sgd, for its ceiling at this point."
                )
        owned = {id(p) for part in parts for group in part.param_groups for p in group["params"]}
        names = [n for n, p in model.named_parameters() if id(p) in owned]
        if not names:
            raise InputError("this optimizer trains no parameter of this model; give the one that trains it.")
        self.asked, self.subject, self.parts, self.model = asked, subject, parts, model
        self.risk = subject.risk(asked, params=names)

    @property
    def steps(self) -> int:
        return self.asked.verify or STEPS

    def plan(self) -> Plan:
        """Products and gradients; both are counted as a rule."""
        room = Room.of(self.risk, (ROWS + 16) * self.risk.space.size * self.risk.dtype.itemsize).require(self.risk)
        text = (
            f"{note_of(self.risk)}plan: about {TYPICAL} products and {TRIES * self.steps} steps on copies of model and"
            f" optimizer; {room}; {self.risk.space.size:,} parameters; the model is not touched"
        )
        return Plan(text, TYPICAL, bytes=room.bytes)

    def measure(self, work: Work) -> StepSize:
        asked, risk, found = self.asked, self.risk, StepSizeDraft()
        name = name_of(self.parts)
        with fitting_threads(risk), work.bar(TYPICAL + TRIES * self.steps, "lr: products"):
            options: dict[str, Any] = {"tol": asked.tol, "seed": asked.seed, "max_products": asked.products}
            with work.counting("H", TYPICAL):
                pairs = eigenpairs(hessian(risk), top=1, progress=work.report(), resume=work.state("H"), **options)
            found.take_point(float(risk.value().detach()), risk.space.norm(risk.gradient()))
            found.take_curvature(pairs.top[0], pairs.top[0])
            for key, rule in (("sgd", sgd()), ("momentum", sgd(0.9))):
                found.take_ceiling(key, ceiling_of(rule.factor, pairs.top[0]))
            found.take_shares(0.0, None)
            tried = functools.partial(largest_stable, self.model, self.parts, risk, self.steps)
            found.take_ceiling("yours", work.piece("copies", tried, TRIES * self.steps))
        if self.subject.changed:
            raise CheckFailed("the model was changed while it was measured; please report this. Nothing was kept.")
        formula = f"no rule: measured on a copy, {self.steps} steps"
        rows = [[key, rule.name, rule.formula] for key, rule in (("sgd", sgd()), ("momentum", sgd(0.9)))]
        rate = asked.lr or max(float(group["lr"]) for part in self.parts for group in part.param_groups)
        return found.answer(
            Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device),
            source=dict(self.subject.source),
            rule=name,
            formula=formula,
            rows=[*rows, ["yours", name, formula]],
            P="",
            decay=0.0,
            coverage=risk.coverage,
            notes=list(risk.notes),
            **probe_of(risk.whole.batches, risk.batch_count),
            lr=rate,
            lr_is="yours" if asked.lr is not None else "in force",
            copies=self.steps,
        )
