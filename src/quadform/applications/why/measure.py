"""What softmax, norm, skip and the product W_Q W_K^T each do to curvature: `quadform why`, `qf.why`.

Before/after pairs on the same data and seed: one part at a time is taken out of a model, the weights stay. What is said
about them is in `words`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.number import joint_kind
from ...core.progress import Progress, Report, clock, say
from ...core.record import Estimate, Provenance, Record
from ...core.spec import ModelConfig
from ...curvature.operators import functional, gauss_newton, hessian
from ...curvature.risk import Risk
from ...estimate.blocks import block_norms, frobenius
from ...estimate.lanczos import ROWS, eigenpairs
from ...estimate.quadrature import density
from ...nn.transformer import Transformer
from ...report.rows import data_words
from ...train.config import TrainConfig
from ...train.datasets import Dataset
from ..answers import Answer, Grid
from ..configs.shared import seconds_of
from ..configs.why import REMOVABLE, WhyConfig
from ..journal import Deadline, Journal, TimeUp, kept_state
from ..machine import guard_kept, vectors_in_words
from ..meter import Meter
from ..short_run import ShortRun
from ..step_size.ceiling import SEEN, UNSEEN, adamw_ceiling, ceiling_of, seconds_of_product, seen_first
from ..subject import Subject, open_subject, weights_hash
from ..threads import fitting_threads
from . import words
from .other_models import removable, without

#: Most products for both ends and for P^-1 H; probes and steps of the density; products a block and a norm.
ENDS, PRECONDITIONED, PROBES, DEPTH, BLOCKS, FROBENIUS = 60, 40, 2, 15, 6, 12
#: Products of one variant at one step, as a rule, and the work with vectors that comes with each (measured).
TYPICAL, VECTOR_WORK = 125, 0.4
GROUPS = {"query": "*.attn.W_Q", "key": "*.attn.W_K", "query-key": "*.attn.W_QK", "value": "*.attn.W_V"}
MEASURES = (
    "loss",
    "lambda_max",
    "lambda_min",
    "negative_curvature",
    "ratio",
    "ceiling_sgd",
    "ceiling_adamw",
    "H_f_share",
)
HEADS = ("loss", "lambda_max", "lambda_min", "negative", "value:query", "SGD ceiling", "AdamW ceiling", "H_f share")


class Why(Answer):
    """The model as it is and without each part, at each step. `sentence(topic)` says one thing in words."""

    kind = "why"

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.record.inputs["variants"])

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.record.inputs["steps"])

    @property
    def ok(self) -> bool:
        return not self.record.inputs["partial"] and all(e.converged for e in self.record.scalars.values())

    def get(self, variant: str, measure: str, step: int | None = None) -> Estimate | None:
        """A measure of a variant (`full`, `no softmax`, ...) at a step (default: the first); None where it broke."""
        return self.record.scalars.get(f"{variant}/{self.steps[0] if step is None else step}/{measure}")

    def table(self) -> Grid:
        """One row for each variant and step; a dash where it diverged or the block is not there."""
        rows = []
        for step, variant in itertools.product(self.steps, self.variants):
            found = [self.get(variant, m, step) for m in MEASURES]
            rows.append((variant, step, *(None if e is None else e.value for e in found)))
        return Grid(("variant", "step", *HEADS), tuple(rows))

    def sentence(self, topic: str) -> str:
        """One thing in words: `adam`, `warmup`, or a part that was taken out."""
        topics = ("adam", "warmup", *(v.removeprefix("no ") for v in self.variants if v != "full"))
        if topic not in topics:
            raise UnknownName(
                f"no sentence about {topic!r}; there are {', '.join(topics)}.{did_you_mean(topic, topics)}"
            )
        if topic == "adam":
            return words.adam(self)
        return words.warmup(self) if topic == "warmup" else words.part(self, topic)

    def sentences(self) -> list[str]:
        """Every sentence there is."""
        parts = [v.removeprefix("no ") for v in self.variants if v != "full"]
        return [self.sentence(t) for t in ("adam", *(("warmup",) if len(self.steps) > 1 else ()), *parts)]

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        where = f"{given['probe']}, {self.record.made.dtype}"
        covered = f"; whole models, {given['parameters']:,} parameters" if "parameters" in given else ""
        head = f"{given['name']}: one part at a time taken out, same weights, data and seed; {where}{covered}"
        notes = [f"{part} is left out: {reason}" for part, reason in given.get("left_out", {}).items()]
        notes += [f"{variant}, step {step}: {note}" for variant, step, note in given["notes"]]
        cut = ["PARTIAL: the time given was over before everything was measured."] if given["partial"] else []
        tags = "losses exact; all other numbers are estimates (s.e. in --json)"
        data = f"data: {data_words(given.get('source', given))}"
        return [head, data, *str(self.table()).splitlines(), f"[{tags}]", *notes, *self.sentences(), *cut]


# --- Python ---------------------------------------------------------------------------------------------------------
def why(
    model: nn.Module,
    data: Any,
    remove: Sequence[str] = REMOVABLE,
    steps: Sequence[int] = (0,),
    *,
    batch: int = 32,
    batches: int = 1,
    lr: float = 1e-3,
    seed: int = 0,
    max_time: str | float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = True,
    name: str = "",
) -> Why:
    """Take each of `remove` out of `model`, one at a time, and measure the loss on `data` at each of `steps`.

    `data` is a Dataset (probe: its validation split; training between the steps: its train split), or batches when only
    step 0 is asked. Models of others (Hugging Face) take batches, and lose their norms and their softmax. The model
    itself is left as it is. `resume` names a folder that keeps unfinished work.
    """
    moments = tuple(sorted({int(s) for s in steps}))
    if not moments or moments[0] < 0:
        raise InputError(f"steps are whole numbers from 0 on; got {list(steps)}.")
    if isinstance(data, Dataset) and isinstance(model, Transformer):
        probe = list(itertools.islice(data.batches("valid", batch, seed), batches))
    else:
        if moments[-1] > 0:
            raise InputError("training to later steps needs a model of quadform and a Dataset; or give steps=[0].")
        if isinstance(data, Dataset):
            raise InputError(f"{type(model).__name__} is no model of quadform; give batches it takes, not a Dataset.")
        probe, data = list(data) if not isinstance(data, dict) else [data], None
    device = next(model.parameters()).device
    probe = [{k: v.to(device) for k, v in b.items()} for b in probe]
    kept, left = removable(model, remove, probe[0])
    described = _config(model).to_dict() if isinstance(model, Transformer) else {"class": type(model).__name__}
    question = {
        "kind": Why.kind,
        "name": name or described.get("design") or type(model).__name__,
        "variants": ["full", *(f"no {r}" for r in kept)],
        "steps": list(moments),
        "config": described,
        "data": data.to_dict() if data is not None else "batches",
        "lr": lr,
        "seed": seed,
        "probe": f"probe {len(probe)} x {' x '.join(str(n) for n in next(iter(probe[0].values())).shape)} tokens",
        "weights": weights_hash(model),
        **left,
    }
    seconds = seconds_of(max_time) if isinstance(max_time, str) else max_time
    train = TrainConfig(steps=max(moments[-1], 1), lr=lr, batch_size=batch, seed=seed)
    with fitting_threads(Risk(model, None, probe, quiet=True)):
        record = _measure(model, data, probe, question, train, Deadline(seconds), resume, True, progress)
    return Why(record)


def _config(model: Transformer) -> ModelConfig:
    config: Any = model.config
    return config


def _measure(
    model: nn.Module,
    data: Dataset | None,
    probe: list[dict[str, Tensor]],
    question: dict[str, Any],
    train: TrainConfig,
    deadline: Deadline,
    folder: str | Path | None,
    resume: bool,
    progress: bool | Report,
) -> Record:
    journal = Journal(folder, question, resume=resume)
    variants, steps = question["variants"], question["steps"]
    cells = len(variants) * len(steps)
    if progress is True:
        say(plan_of(model, probe, cells, len(variants) * steps[-1])["text"])
    notes: list[list[Any]] = []
    scalars: dict[str, Estimate] = {}
    partial = False
    with Progress(cells * TYPICAL + len(variants) * steps[-1], "why: products and steps", show=progress) as bar:
        meter = Meter(bar, deadline)
        try:
            for variant in variants:
                part = without(model, variant.removeprefix("no ") if variant != "full" else "nothing")
                run = ShortRun(part, data, train, journal.state(variant.replace(" ", "-")))
                for before, step in zip((0, *steps), steps, strict=False):
                    key = f"{variant}/{step}"
                    if key in journal:
                        meter.skip(step - before + TYPICAL)
                    else:
                        deadline.check(advanced=False)
                        meter.skip(max(min(run.step, step) - before, 0))
                        with meter.piece(f"{variant}, training", step - max(run.step, before)):
                            run.to(step, lambda: meter.spend(1))
                        with meter.piece(key, TYPICAL):
                            state = kept_state(journal, key.replace(" ", "-"), run.model, deadline)
                            journal.write(key, _cell(run, probe, meter, state))
                    found = journal.done[key]
                    if found["note"]:
                        notes.append([variant, step, found["note"]])
                    scalars |= {f"{key}/{m}": Estimate.read(e) for m, e in found["scalars"].items()}
        except TimeUp:
            partial = True
    if not partial:
        journal.forget_state()
    first, count = next(model.parameters()), sum(p.numel() for p in model.parameters())
    return Record(
        kind=Why.kind,
        inputs={**question, "notes": notes, "partial": partial, "parameters": count},
        scalars=scalars,
        tensors={},
        made=Provenance.collect(seed=question["seed"], dtype=first.dtype, device=first.device),
    )


def plan_of(model: nn.Module, probe: list[dict[str, Tensor]], cells: int, steps: int) -> dict[str, Any]:
    """The plan and its cost: one product and one training step are timed."""
    risk = Risk(model, None, probe, quiet=True)
    each = seconds_of_product(risk, VECTOR_WORK)
    start = time.perf_counter()
    risk.gradient()
    training = steps * (time.perf_counter() - start)
    total = cells * TYPICAL * each + training
    memory = float((ROWS + 8) * risk.space.size * risk.dtype.itemsize)
    text = (
        f"plan: {cells} variants and steps, about {TYPICAL} products of {each:.2g} s each, {steps:,} training steps;"
        f" {clock(total)} in all, {vectors_in_words(memory, risk.device)}; the model is not touched"
    )
    cost = {"products": cells * TYPICAL, "steps": steps, "seconds": total, "bytes": memory}
    return {"text": text, "cells": cells, **cost}


def _cell(run: ShortRun, probe: list[dict[str, Tensor]], meter: Meter, state: Path | None) -> dict[str, Any]:
    """All measures of one variant at one step, as plain JSON; a broken run has none and a note."""
    if run.broken:
        return {"scalars": {}, "note": run.broken}
    try:
        risk = Risk(run.model, None, probe, quiet=True)
        scalars = dict(_numbers(risk, run, meter, state))
    except InputError as error:
        return {"scalars": {}, "note": str(error)}
    note = "" if "ceiling_adamw" in scalars else UNSEEN
    return {"scalars": {m: dataclasses.asdict(e) for m, e in scalars.items()}, "note": note}


def _numbers(risk: Risk, run: ShortRun, meter: Meter, state: Path | None) -> Iterator[tuple[str, Estimate]]:
    """The measures one by one; `state` keeps what their estimators have not finished."""

    def kept(name: str) -> dict[str, Any]:
        return {"progress": meter.of_estimator(), "resume": None if state is None else state / name}

    yield "loss", Estimate(float(risk.value().detach()))
    H = hessian(risk)
    ends = eigenpairs(H, top=1, bottom=1, max_products=ENDS, **kept("ends"))
    top, low = ends.top[0], ends.bottom[0]
    yield "lambda_max", top
    yield "lambda_min", low
    yield "ceiling_sgd", ceiling_of(2.0, top)
    stepper = run.stepper()
    if not stepper.second and run.data is not None:
        stepper = seen_first(stepper, run.model, run.data.batches("train", run.config.batch_size, run.config.seed))
    elif not stepper.second and len(rows := _single_rows(risk.batches)) > 1:
        stepper = stepper.after(Risk(run.model, None, row, list(risk.params), quiet=True).gradient() for row in rows)
    found = adamw_ceiling(H, risk, stepper, PRECONDITIONED, **kept("P"))
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


def _single_rows(batches: Sequence[Any]) -> list[dict[str, Tensor]]:
    """The sequences of a probe one by one, as many as Adam is taken to have seen."""
    rows = ({k: v[i : i + 1] for k, v in b.items()} for b in batches for i in range(len(next(iter(b.values())))))
    return list(itertools.islice(rows, SEEN))


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


# --- the verb -------------------------------------------------------------------------------------------------------
def run(config: WhyConfig, folder: str | Path | None = None, progress: bool | Report = True) -> Record:
    """Answer `quadform why`."""
    guard_kept(config.moments[-1], f"the course of {config.moments[-1]:,} training steps")
    subject, model, data = _open(config)
    kept, left = removable(model, config.parts, subject.batches[0])
    question = {
        "kind": Why.kind,
        "name": subject.name,
        "variants": ["full", *(f"no {r}" for r in kept)],
        "steps": list(config.moments),
        "source": subject.source,
        "lr": config.lr,
        "seed": config.seed,
        "probe": "; ".join([f"probe {config.batches} x {config.batch} sequences", *subject.notes]),
        "weights": subject.source["weights"],
        **left,
    }
    train = TrainConfig(steps=max(config.moments[-1], 1), lr=config.lr, batch_size=config.batch, seed=config.seed)
    deadline = Deadline(config.seconds)
    with fitting_threads(Risk(model, None, subject.batches, quiet=True)):
        return _measure(model, data, subject.batches, question, train, deadline, folder, config.resume, progress)


def plan(config: WhyConfig) -> dict[str, Any]:
    """What `quadform why --dry-run` tells."""
    subject, model, _ = _open(config)
    variants = 1 + len(removable(model, config.parts, subject.batches[0])[0])
    with fitting_threads(Risk(model, None, subject.batches, quiet=True)):
        return plan_of(model, subject.batches, variants * len(config.moments), variants * config.moments[-1])


def _open(config: WhyConfig) -> tuple[Subject, nn.Module, Dataset | None]:
    subject = open_subject(config)
    if subject.loss is not None:
        raise InputError(f"`{config.model}` has no loss of its own, and `why` takes parts out of models that have one.")
    if config.params != "*":
        raise InputError("`--params`: `quadform why` measures whole models, because parts come and go. Leave it out.")
    described = subject.source["data"]
    data = Dataset.from_dict(described) if isinstance(described, dict) else None
    if data is None and config.moments[-1] > 0:
        raise InputError(
            f"`--steps {config.steps}`: training needs a model of quadform and a data set. Ask for step 0."
        )
    return subject, subject.model, data
