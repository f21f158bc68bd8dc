"""Measuring designs and depths side by side under a budget.

Health at initialization (signal, curvature, ceiling), size (parameters, FLOPs, memory), and a short training of equal
time each. The number of training steps follows from one timed step and is written down with the first piece, so that a
resumed run trains as long as an undisturbed one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...answers.compare import Compare, CompareDraft
from ...answers.measured import data_words
from ...core.errors import InputError
from ...core.progress import Progress, Report, clock, say
from ...core.question import Plan
from ...core.record import Estimate, Provenance
from ...core.work import Deadline, Work
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...estimate.lanczos import ROWS, eigenpairs
from ...nn.transformer import Transformer
from ...train.config import TrainConfig
from ...train.score import evaluate
from ..machine import DTYPES, busy_seconds, busy_since, device_of, guard_design, guard_probe, vectors_in_words
from ..short_run import ShortRun
from ..signal.observe import find_stacks
from ..signal.profiler import Profiler
from ..step_size.ceiling import SEEN, UNSEEN, adamw_ceiling, seen_first
from ..threads import fitting_threads
from . import sizes
from .question import CompareQuestion

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
#: Vectors an estimator keeps on disk, about.
KEPT = 40
#: Held-out batches of the loss after training.
VALID_BATCHES = 4


class _Enough(Exception):
    """A training has had its share of the budget."""


class CompareMeasurement:
    """The models of a comparison and their data."""

    def __init__(self, asked: CompareQuestion) -> None:
        self.asked, self.data, self.cells = asked, asked.dataset, asked.cells
        self.device, self.dtype = device_of(asked.device), DTYPES[asked.dtype]
        for name, depth in self.cells:
            guard_design(
                name, depth, self.device, self.dtype, d_model=asked.d_model, heads=asked.heads, **self.data.settings
            )
        guard_probe(1, asked.batch_size, next(self.data.batches("valid", 1, asked.seed)))
        self.probe = self._on(next(self.data.batches("valid", asked.batch_size, asked.seed)))
        self.end = Deadline(None)  # of the budget, once it is planned
        self._timed: dict[str, Any] | None = None

    def _on(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: v.to(self.device) for k, v in batch.items()}

    def model(self, design: str, depth: int) -> Transformer:
        asked = self.asked
        sizes = {"depth": depth, "d_model": asked.d_model, "heads": asked.heads, "seed": asked.seed}
        return Transformer(design, dtype=self.dtype, device=self.device, **sizes, **self.data.settings)

    # --- the cost ---------------------------------------------------------------------------------------------------
    def plan(self) -> Plan:
        """How the budget is spent; models are timed for it."""
        with self.threads():
            found = self.timed()
        total = found["timing"] + found["measuring"] + found["training"]
        details = {k: v for k, v in found.items() if k not in ("products", "bytes")}
        return Plan(self.plan_text(found), found["products"], total, found["bytes"], details)

    def timed(self, progress: bool | Report = True) -> dict[str, Any]:
        """Work of a product and of a training step of every cell, and the steps the budget then allows.

        Steps follow from work, so that models timed in a busy moment are not trained less; how many seconds of the
        clock a second of work takes here is one number for all. They are timed once.
        """
        if self._timed is None:
            self._timed = self._time(progress)
        return self._timed

    def _time(self, progress: bool | Report) -> dict[str, Any]:
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
        load = timing / busy_since(worked, self.device)
        measuring = load * (TYPICAL * sum(products.values()) + BESIDE * sum(steps.values()))
        training = max(self.asked.budget - timing - measuring, LEAST_TRAINING * self.asked.budget)
        each = training / load / max(len(steps), 1)
        counts = {key: max(1, int(each / seconds) - AFTER) for key, seconds in steps.items()}
        return {
            "timing": timing,
            "measuring": measuring,
            "training": training,
            "steps": counts,
            "broken": broken,
            "products": TYPICAL * len(products),
            "bytes": float((ROWS + 6) * largest * self.dtype.itemsize),
        }

    def product(self, risk: Risk) -> float:
        """Work of one Hessian-vector product inside a search, its vectors made orthogonal, without the first."""
        times: list[float] = []
        eigenpairs(hessian(risk), top=1, max_products=3, progress=lambda *_: times.append(busy_seconds(self.device)))
        return (times[-1] - times[0]) / max(len(times) - 1, 1)

    def config(self, steps: int) -> TrainConfig:
        asked = self.asked
        return TrainConfig(steps=max(steps, 1), lr=asked.lr, batch_size=asked.batch_size, seed=asked.seed)

    def plan_text(self, plan: dict[str, Any]) -> str:
        counts = plan["steps"].values() or [0]
        timing = plan["timing"]
        total = timing + plan["measuring"] + plan["training"]
        text = (
            f"plan: {len(self.cells)} models, {clock(total)} in all: timing {clock(timing)}, measuring about"
            f" {clock(plan['measuring'])} ({plan['products']} products), training {clock(plan['training'])}"
            f" ({min(counts):,} to {max(counts):,}"
            f" steps each, equal time); {vectors_in_words(plan['bytes'], self.device)}"
        )
        if total <= 1.01 * self.asked.budget:
            return text
        budget = clock(self.asked.budget)
        return f"{text}; more than the budget of {budget}: fewer or shallower models, or a smaller width, fit"

    def threads(self) -> contextlib.AbstractContextManager[None]:
        """As many threads as suit the first model that can be measured; any number where none can."""
        for cell in self.cells:
            with contextlib.suppress(InputError):
                return fitting_threads(Risk(self.model(*cell), None, self.probe, quiet=True))
        return contextlib.nullcontext()

    # --- the work ---------------------------------------------------------------------------------------------------
    def measure(self, work: Work) -> Compare:
        """Every model measured and trained, or as many as budget and time allow, marked partial."""
        asked, found = self.asked, CompareDraft()
        with self.threads(), work.in_time():
            kept = "plan" in work
            plan = work.piece("plan", lambda: self.timed(work.progress))
            if kept and work.progress:
                say(self.plan_text(plan))
            planned = plan["timing"] + plan["measuring"] + plan["training"]
            self.end = Deadline(max(asked.budget, planned) + GRACE - (0.0 if kept else plan["timing"]))
            self._measure(work, plan, found)
        shape = " x ".join(map(str, next(iter(self.probe.values())).shape))
        data = self.data.to_dict()
        return found.answer(
            Provenance.collect(seed=asked.seed, dtype=self.dtype, device=self.device),
            cells=[list(cell) for cell in self.cells],
            d_model=asked.d_model,
            heads=asked.heads,
            batch=asked.batch_size,
            lr=asked.lr,
            tol=TOL,
            seed=asked.seed,
            data=data,
            dtype=asked.dtype,
            partial=work.partial,
            sort=asked.sort,
            about=f"{data_words({'data': data})}, batches of {shape} tokens, AdamW at {asked.lr:g}",
            budget=asked.budget,
        )

    def _measure(self, work: Work, plan: dict[str, Any], found: CompareDraft) -> None:
        total = sum(TYPICAL + count for count in plan["steps"].values())
        with work.bar(total, "compare: products and steps"):
            for cell in self.cells:
                key = f"{cell[0]}/{cell[1]}"
                if key in plan["broken"]:
                    found.note(cell, plan["broken"][key])
                    continue
                for part, units in ((self.health, TYPICAL), (self.training, plan["steps"][key])):
                    name = f"{part.__name__}/{key}"
                    if name not in work:
                        self.in_budget(work)
                    found.take(cell, work.piece(name, functools.partial(part, *cell, plan, work), units))

    def in_budget(self, work: Work) -> None:
        """TimeUp after the budget, once something is done that was not done before."""
        self.end.check(advanced=work.deadline.advanced)

    def report(self, work: Work) -> Report:
        """The `progress=` of an estimator, which ends with the budget too."""
        told = work.report()

        def both(done: int, total: int, left: float, text: str) -> None:
            told(done, total, left, text)
            self.in_budget(work)

        return both

    def health(self, design: str, depth: int, plan: dict[str, Any], work: Work) -> dict[str, Any]:
        """Size, signal and curvature at initialization."""
        model = self.model(design, depth)
        size = KEPT * sum(p.numel() * p.element_size() for p in model.parameters())
        state = work.state(f"{design}-{depth}-health", size)
        risk = Risk(model, None, self.probe, quiet=True)
        scalars = sizes.size(model, self.probe)
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
            return {"progress": self.report(work), "resume": None if state is None else state / name}

        H = hessian(risk)
        top = eigenpairs(H, top=1, max_products=PRODUCTS, tol=TOL, **kept("H")).top[0]
        scalars["lambda_max"] = top
        train = self.config(plan["steps"][f"{design}/{depth}"])
        scalars["first_lr"] = Estimate(train.lr * train.schedule.factor(0, train.steps), note="of the first step")
        stepper = ShortRun(model, None, train, None).stepper()
        stepper = seen_first(stepper, model, self.data.batches("train", train.batch_size, train.seed))
        found, note = adamw_ceiling(H, risk, stepper, PRODUCTS, tol=TOL, **kept("P")), ""
        if found is None:
            note = UNSEEN
        else:
            scalars["lr_ceiling"] = found
        return {"scalars": scalars, "curves": curves, "note": note}

    def training(self, design: str, depth: int, plan: dict[str, Any], work: Work) -> dict[str, Any]:
        """Equal time of training; the loss on held-out data, and the speed seen."""
        steps = plan["steps"][f"{design}/{depth}"]
        long = plan["training"] / len(plan["steps"]) >= KEPT_FROM or work.deadline.until is not None
        folder = work.state(f"{design}-{depth}") if long and work.folder is not None else None
        run = ShortRun(self.model(design, depth), self.data, self.config(steps), folder)
        work.spend(run.step, advanced=False)
        until = time.monotonic() + self.share(plan, work, self.end.left)

        def stepped() -> None:
            work.spend(1, f"loss {run.losses[-1]:.3g}" if run.losses else "")
            self.in_budget(work)
            if time.monotonic() > until:
                raise _Enough

        with contextlib.suppress(_Enough):
            for stop in sorted({*range(run.step, steps, max(1, steps // 10)), steps}):
                run.to(stop, stepped)
        if run.broken:
            return {"scalars": {}, "curves": {"losses": run.losses}, "note": run.broken}
        cut = f"trained {run.step:,} of {steps:,} steps: its share of the budget was over" if run.step < steps else ""
        asked = self.asked
        loss = evaluate(run.model, self.data, batches=VALID_BATCHES, batch_size=asked.batch_size, seed=asked.seed)
        scalars = {"loss": loss, "steps": Estimate(run.step)}
        if run.speeds:
            speeds = torch.tensor(run.speeds, dtype=torch.float64)
            spread = float(speeds.std() / len(speeds) ** 0.5) if len(speeds) > 1 else math.inf
            note = "processor time of this machine"
            scalars["speed"] = Estimate(float(speeds.mean()), spread, "estimate", note=note)
        return {"scalars": scalars, "curves": {"losses": run.losses}, "note": cut}

    def share(self, plan: dict[str, Any], work: Work | Mapping[str, Any], left: float) -> float:
        """Seconds the next training may take: what is left after all measuring, in equal parts."""
        trainings, measured = (sum(f"{part}/{key}" in work for key in plan["steps"]) for part in ("training", "health"))
        count = len(plan["steps"])
        return (left - plan["measuring"] * (count - measured) / count) / (count - trainings)
