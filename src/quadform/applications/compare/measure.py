"""Designs and depths side by side under a budget: `quadform compare`, `qf.compare`.

Health at initialisation (signal, curvature, ceiling), size (parameters, FLOPs, memory), and a short training of equal
time each. The number of training steps follows from one timed step and is written down with the first piece, so that a
resumed run trains as long as an undisturbed one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.designs import DESIGNS
from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.progress import Progress, Report, clock, say
from ...core.record import Estimate, Provenance, Record
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...estimate.lanczos import ROWS, eigenpairs
from ...nn.transformer import Transformer
from ...propagation.observe import find_stacks
from ...propagation.profiler import Profiler
from ...report.rows import data_words
from ...train.config import TrainConfig
from ...train.datasets import Dataset
from ...train.score import evaluate
from ..configs.compare import CompareConfig
from ..configs.shared import seconds_of
from ..journal import Deadline, Journal, TimeUp, kept_state
from ..machine import DTYPES, busy_seconds, device_of, guard_design, guard_probe, vectors_in_words
from ..meter import Meter
from ..short_run import ShortRun
from ..step_size.ceiling import SEEN, UNSEEN, adamw_ceiling, seen_first
from ..subject import parse_data
from ..threads import fitting_threads
from . import words
from .answer import Compare

#: Most products for lambda_max of H and of P^-1 H; what both take as a rule at this residual.
PRODUCTS, TYPICAL, TOL = 60, 36, 1e-2
#: The rest of measuring a model in training steps (gradients Adam has seen, sizes, signal), and what comes with its
#: training (the model made, the held-out loss).
BESIDE, AFTER = SEEN + 7, 2
#: Seconds of training from which it is kept for the case of a kill; shorter ones are trained again.
KEPT_FROM = 30.0
#: Training gets at least this share of the budget, whatever measuring takes.
LEAST_TRAINING = 0.25
#: Training steps that are timed for the plan.
TIMED = 4
#: Seconds above the budget (or above the plan, where that said more) after which everything ends.
GRACE = 20.0
#: Held-out batches of the loss after training.
VALID_BATCHES = 4


# --- Python ---------------------------------------------------------------------------------------------------------
def compare(
    designs: Sequence[str],
    depth: Sequence[int] | int = (2, 6),
    *,
    data: Dataset,
    dim: int = 64,
    heads: int = 4,
    batch: int = 32,
    lr: float = 1e-3,
    budget: str | float = "5m",
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    sort: str = "loss",
    max_time: str | float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = True,
) -> Compare:
    """Compare block designs at each depth on `data`, all of one width, within `budget` (`"5m"`, or seconds)."""
    for name in designs:
        if name.replace("_", "-") not in DESIGNS:
            raise UnknownName(f"{name!r} is not a block design.{did_you_mean(name, DESIGNS)}")
    depths = [depth] if isinstance(depth, int) else list(depth)
    if not designs or not depths or min(depths) < 1:
        raise InputError("a comparison needs at least one design and one depth of at least 1.")
    question = {
        "kind": Compare.kind,
        "cells": [[name.replace("_", "-"), int(n)] for n in depths for name in designs],
        "dim": dim,
        "heads": heads,
        "batch": batch,
        "lr": lr,
        "tol": TOL,
        "seed": seed,
        "data": data.to_dict(),
        "dtype": str(dtype or torch.get_default_dtype()).removeprefix("torch."),
    }
    total = seconds_of(budget) if isinstance(budget, str) else float(budget)
    limit = seconds_of(max_time) if isinstance(max_time, str) else max_time
    work = _Work(question, data, total, torch.device(device), Deadline(limit))
    return Compare(work.measure(resume, True, sort, progress))


class _Enough(Exception):
    """A training has had its share of the budget."""


class _Budget(Deadline):
    """The end of the budget, told in the plan; a limit of the time that ends sooner goes first."""

    def __init__(self, seconds: float, limit: Deadline) -> None:
        super().__init__(seconds)
        self.limit = limit

    def check(self, *, advanced: bool = True) -> None:
        self.limit.check(advanced=advanced)
        super().check(advanced=advanced)


class _Work:
    """A comparison under way."""

    def __init__(
        self, question: dict[str, Any], data: Dataset, budget: float, device: torch.device, deadline: Deadline
    ) -> None:
        self.question, self.data, self.budget, self.device, self.deadline = question, data, budget, device, deadline
        self.cells: list[tuple[str, int]] = [(str(d), int(n)) for d, n in question["cells"]]
        sizes = {name: question[name] for name in ("dim", "heads")} | data.settings
        for name, depth in self.cells:
            guard_design(name, depth, device, getattr(torch, question["dtype"]), **sizes)
        guard_probe(1, question["batch"], next(data.batches("valid", 1, question["seed"])))
        self.probe = self._on(next(data.batches("valid", question["batch"], question["seed"])))

    def _on(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: v.to(self.device) for k, v in batch.items()}

    def model(self, design: str, depth: int) -> Transformer:
        q = self.question
        options = {"depth": depth, "dim": q["dim"], "heads": q["heads"], "seed": q["seed"]}
        kind = getattr(torch, q["dtype"])
        return Transformer(design, dtype=kind, device=self.device, **options, **self.data.settings)

    def timed(self, progress: bool | Report = True) -> dict[str, Any]:
        """Work of a product and of a training step of every cell, and the steps the budget then allows.

        Steps follow from work, so that models timed in a busy moment are not trained less; how many seconds of the
        clock a second of work takes here is one number for all.
        """
        products, steps, broken, largest = {}, {}, {}, 0
        began, worked = time.perf_counter(), busy_seconds(self.device)
        with Progress(len(self.cells), "compare: timing models", show=progress) as bar:
            for cell in self.cells:
                key = f"{cell[0]}/{cell[1]}"
                try:
                    model = self.model(*cell)
                    largest = max(largest, sum(p.numel() for p in model.parameters()))
                    products[key] = self.product(Risk(model, None, self.probe, quiet=True))
                    run = ShortRun(model, self.data, self.config(TIMED), None)
                    run.to(TIMED)
                    steps[key] = next(iter(self.probe.values())).numel() / statistics.median(run.speeds[1:])
                except InputError as error:
                    broken[key] = str(error)
                bar.step(text=key)
        timing = time.perf_counter() - began
        load = timing / max(busy_seconds(self.device) - worked, 1e-9)
        measuring = load * (TYPICAL * sum(products.values()) + BESIDE * sum(steps.values()))
        training = max(self.budget - timing - measuring, LEAST_TRAINING * self.budget)
        each = training / load / max(len(steps), 1)
        counts = {key: max(1, int(each / seconds) - AFTER) for key, seconds in steps.items()}
        return {
            "timing": timing,
            "measuring": measuring,
            "training": training,
            "steps": counts,
            "broken": broken,
            "products": TYPICAL * len(products),
            "bytes": float((ROWS + 6) * largest * getattr(torch, self.question["dtype"]).itemsize),
        }

    def product(self, risk: Risk) -> float:
        """Work of one Hessian-vector product inside a search, its vectors made orthogonal, without the first."""
        times: list[float] = []
        eigenpairs(hessian(risk), top=1, max_products=3, progress=lambda *_: times.append(busy_seconds(self.device)))
        return (times[-1] - times[0]) / max(len(times) - 1, 1)

    def config(self, steps: int) -> TrainConfig:
        q = self.question
        return TrainConfig(steps=max(steps, 1), lr=q["lr"], batch_size=q["batch"], seed=q["seed"])

    def plan_text(self, plan: dict[str, Any]) -> str:
        counts = plan["steps"].values() or [0]
        timing = plan.get("timing", 0.0)  # older runs did not tell it
        total = timing + plan["measuring"] + plan["training"]
        text = (
            f"plan: {len(self.cells)} models, {clock(total)} in all: timing {clock(timing)}, measuring about"
            f" {clock(plan['measuring'])} ({plan['products']} products), training {clock(plan['training'])}"
            f" ({min(counts):,} to {max(counts):,}"
            f" steps each, equal time); {vectors_in_words(plan['bytes'], self.device)}"
        )
        if total <= 1.01 * self.budget:
            return text
        return (
            f"{text}; more than the budget of {clock(self.budget)}: fewer or shallower models, or a smaller width, fit"
        )

    def measure(self, folder: str | Path | None, resume: bool, sort: str, progress: bool | Report) -> Record:
        with self.threads():
            return self._measure(folder, resume, sort, progress)

    def threads(self) -> contextlib.AbstractContextManager[None]:
        """As many threads as suit the first model that can be measured; any number where none can."""
        for cell in self.cells:
            with contextlib.suppress(InputError):
                return fitting_threads(Risk(self.model(*cell), None, self.probe, quiet=True))
        return contextlib.nullcontext()

    def _measure(self, folder: str | Path | None, resume: bool, sort: str, progress: bool | Report) -> Record:
        began = time.monotonic()
        journal = Journal(folder, self.question, resume=resume)
        plan = journal.piece("plan", functools.partial(self.timed, progress))
        planned = plan.get("timing", 0.0) + plan["measuring"] + plan["training"]
        end = _Budget(max(self.budget, planned) + GRACE - (time.monotonic() - began), self.deadline)
        if progress is True:
            say(self.plan_text(plan))
        scalars: dict[str, Estimate] = {}
        tensors: dict[str, Tensor] = {}
        notes: list[list[Any]] = []
        partial = False
        expected = {key: {"health": TYPICAL, "training": count} for key, count in plan["steps"].items()}
        total = sum(sum(of.values()) for of in expected.values())
        with Progress(total, "compare: products and steps", show=progress) as bar:
            meter = Meter(bar, end)
            try:
                for design, depth in self.cells:
                    key = f"{design}/{depth}"
                    if key in plan["broken"]:
                        notes.append([design, depth, plan["broken"][key]])
                        continue
                    for part in (self.health, self.training):
                        name = f"{part.__name__}/{key}"
                        units = expected[key][part.__name__]
                        if name in journal:
                            meter.skip(units)
                        else:
                            end.check(advanced=False)
                            with meter.piece(name, units):
                                journal.write(name, part(design, depth, plan["steps"][key], journal, meter))
                        found = journal.done[name]
                        scalars |= {f"{key}/{m}": Estimate.read(e) for m, e in found["scalars"].items()}
                        for label, values in found["curves"].items():
                            tensors[f"{key}/{label}"] = torch.tensor(values, dtype=torch.float64)
                        if found["note"]:
                            notes.append([design, depth, found["note"]])
            except TimeUp:
                partial = True
        if not partial:
            journal.forget_state()
        shape = " x ".join(map(str, next(iter(self.probe.values())).shape))
        about = f"{data_words(self.question)}, batches of {shape} tokens, AdamW at {self.question['lr']:g}"
        told = {"notes": notes, "partial": partial, "sort": sort, "about": about, "budget": self.budget}
        kind = getattr(torch, self.question["dtype"])
        return Record(
            kind=Compare.kind,
            inputs={**self.question, **told},
            scalars=scalars,
            tensors=tensors,
            made=Provenance.collect(seed=self.question["seed"], dtype=kind, device=self.device),
        )

    def health(self, design: str, depth: int, steps: int, journal: Journal, meter: Meter) -> dict[str, Any]:
        """Size, signal and curvature at initialisation."""
        model = self.model(design, depth)
        state = kept_state(journal, f"{design}-{depth}-health", model, self.deadline)
        risk = Risk(model, None, self.probe, quiet=True)
        scalars = words.size(model, self.probe)
        profiler = Profiler(find_stacks(model, lambda: model.loss(self.probe)))
        profiler.forward(model, lambda: model.loss(self.probe))
        profiler.backward(model, lambda: model.loss(self.probe))
        profile = profiler.profiles[-1]
        curves = {}
        for measure, label in (("cosine", "cosine"), ("participation", "rank"), ("gradient", "gradient")):
            layers = profile.layers(measure)
            if layers:
                scalars[label] = layers[0] if measure == "gradient" else layers[-1]
                curves[label] = [e.value for e in layers]

        def kept(name: str) -> dict[str, Any]:
            return {"progress": meter.of_estimator(), "resume": None if state is None else state / name}

        H = hessian(risk)
        top = eigenpairs(H, top=1, max_products=PRODUCTS, tol=TOL, **kept("H")).top[0]
        scalars["lambda_max"] = top
        train = self.config(steps)
        stepper = ShortRun(model, None, train, None).stepper()
        stepper = seen_first(stepper, model, self.data.batches("train", train.batch_size, train.seed))
        found, note = adamw_ceiling(H, risk, stepper, PRODUCTS, tol=TOL, **kept("P")), ""
        if found is None:
            note = UNSEEN
        else:
            scalars["lr_ceiling"] = found
        return {"scalars": _plain(scalars), "curves": curves, "note": note}

    def training(self, design: str, depth: int, steps: int, journal: Journal, meter: Meter) -> dict[str, Any]:
        """Equal time of training; the loss on held-out data, and the speed seen."""
        plan = journal.done["plan"]
        long = plan["training"] / len(plan["steps"]) >= KEPT_FROM or self.deadline.until is not None
        folder = journal.state(f"{design}-{depth}") if long else None
        run = ShortRun(self.model(design, depth), self.data, self.config(steps), folder)
        meter.spend(run.step, advanced=False)
        until = time.monotonic() + self.share(plan, journal, meter.deadline.left)

        def stepped() -> None:
            meter.spend(1, f"loss {run.losses[-1]:.3g}" if run.losses else "")
            if time.monotonic() > until:
                raise _Enough

        with contextlib.suppress(_Enough):
            for stop in sorted({*range(run.step, steps, max(1, steps // 10)), steps}):
                run.to(stop, stepped)
        if run.broken:
            return {"scalars": {}, "curves": {"losses": run.losses}, "note": run.broken}
        cut = f"trained {run.step:,} of {steps:,} steps: its share of the budget was over" if run.step < steps else ""
        q = self.question
        loss = evaluate(run.model, self.data, batches=VALID_BATCHES, batch_size=q["batch"], seed=q["seed"])
        scalars = {"loss": loss, "steps": Estimate(run.step)}
        if run.speeds:
            speeds = torch.tensor(run.speeds, dtype=torch.float64)
            spread = float(speeds.std() / len(speeds) ** 0.5) if len(speeds) > 1 else math.inf
            note = "processor time of this machine"
            scalars["speed"] = Estimate(float(speeds.mean()), spread, "estimate", note=note)
        return {"scalars": _plain(scalars), "curves": {"losses": run.losses}, "note": cut}

    def share(self, plan: dict[str, Any], journal: Journal, left: float) -> float:
        """Seconds the next training may take: what is left after all measuring, in equal parts."""
        trainings, measured = (
            sum(f"{part}/{key}" in journal for key in plan["steps"]) for part in ("training", "health")
        )
        count = len(plan["steps"])
        return (left - plan["measuring"] * (count - measured) / count) / (count - trainings)


def _plain(scalars: dict[str, Estimate]) -> dict[str, Any]:
    return {m: dataclasses.asdict(e) for m, e in scalars.items()}


# --- the verb -------------------------------------------------------------------------------------------------------
def _of(config: CompareConfig) -> _Work:
    from ...train.datasets import dataset

    name, settings = parse_data(config.data)
    data = dataset(name, **settings)
    question = {
        "kind": Compare.kind,
        "cells": [list(c) for c in ((n, d) for d, n in itertools.product(config.each_depth, config.names))],
        "dim": config.dim,
        "heads": config.heads,
        "batch": config.batch,
        "lr": config.lr,
        "tol": TOL,
        "seed": config.seed,
        "data": data.to_dict(),
        "dtype": str(DTYPES[config.dtype]).removeprefix("torch."),
    }
    return _Work(question, data, config.budget_seconds, device_of(config.device), Deadline(config.seconds))


def run(config: CompareConfig, folder: str | Path | None = None, progress: bool | Report = True) -> Record:
    """Answer `quadform compare`."""
    return _of(config).measure(folder, config.resume, config.sort, progress)


def plan(config: CompareConfig) -> dict[str, Any]:
    """What `quadform compare --dry-run` tells."""
    work = _of(config)
    began = time.perf_counter()
    with work.threads():
        found = work.timed()
    seconds = found["timing"] + found["measuring"] + found["training"]
    return {"text": work.plan_text(found), **found, "seconds": seconds, "timed_in": time.perf_counter() - began}
