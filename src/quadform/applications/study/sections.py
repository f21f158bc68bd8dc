"""The sections of a study: one question each, all asked of the same opened model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ...answers.answer import Answer, Grid
from ...core.errors import InputError
from ...core.question import Plan, Question, option
from ...core.record import Record
from ...core.work import TimeUp, Work
from ...corpora import dataset
from ...nn.transformer import Transformer
from ...train import TrainConfig, train
from ..attention.question import AttentionQuestion
from ..machine import DTYPES, device_of
from ..point.question import PointQuestion
from ..prune.question import PruneQuestion
from ..short_run import ShortRun
from ..signal.question import SignalQuestion
from ..spectrum.question import SpectrumQuestion
from ..step_size.question import StepSizeQuestion
from ..subject import Subject, ours
from ..threads import threads_for
from ..training import record_of_run
from ..why.question import WhyQuestion
from .question import ReportOpening
from .targets import EXACT, Once, Targets

#: The built-in default: learns its task in seconds on one core.
DEFAULT_DATA: dict[str, Any] = {"name": "add", "digits": 2}
DEFAULT_MODEL: dict[str, Any] = {"design": "pre-ln", "depth": 2, "d_model": 64, "heads": 4}
DEFAULT_STEPS, DEFAULT_BATCH, DEFAULT_LR = 500, 64, 5e-3
#: Most products for both ends of the spectrum, and for the Newton decrement.
POINT = 60
#: Training steps that are timed for the plan.
TIMED = 3


@dataclass(frozen=True)
class Section:
    """One question of a study and the model it is asked of. Plans are made on the `fresh` model until that exists."""

    name: str
    what: str
    question: Question
    model: Once | None = None
    fresh: Once | None = None

    def subject(self) -> Any:
        return None if self.model is None else self.model.open()

    def plan(self, light: bool) -> Plan:
        model = self.fresh or self.model
        subject = None if model is None else self.question.light(model) if light else model.open()
        plan: Plan = self.question.measurement(subject).plan()
        return plan


def sections_of(targets: Targets, folder: Path, seed: int = 0) -> list[Section]:
    """The sections of the one model that is studied, in the order they are measured."""
    (target,), asked = targets.each, targets.opening
    if target.model is not None:
        return list(_of_model(target.model, asked, seed, light=targets.light))
    run = folder / "run"
    trained, fresh = Once(asked.of_model(str(run))), Once(_fresh(asked))
    training = DefaultTraining(run=str(run), seed=seed, dtype=asked.dtype, device=asked.device)
    found = [Section("training", "training the built-in default: Pre-LN, 2 layers, two-digit addition", training)]
    for section in _of_model(fresh, asked, seed):
        measured = section if section.name == "why" else replace(section, model=trained)  # variants start alike
        found.append(measured if run.exists() else replace(measured, fresh=fresh))
    exact = AttentionQuestion(seed=seed, device=asked.device)
    return [*found, Section(EXACT, "the exact Hessian of one attention layer", exact)]


def _of_model(model: Once, asked: ReportOpening, seed: int, light: bool = False) -> Iterator[Section]:
    """Taking parts out (`why`) is for models of ours."""
    opened: Subject = model.outline() or model.light() if light else model.open()
    if opened.run is not None:
        yield Section("training", "the log of the training run", TrainingLog(), model)
    yield Section("signal", "does the signal survive depth?", SignalQuestion(seed=seed), model)
    yield Section("lr", "the largest stable learning rate", StepSizeQuestion(seed=seed), model)
    spectrum = SpectrumQuestion(seed=seed, top=5, bottom=2, density=True, blocks="parts")
    yield Section("spectrum", "eigenvalues, density and blocks of the Hessian", spectrum, model)
    point = PointQuestion(seed=seed, inertia=0, products=POINT)
    yield Section("point", "minimum, saddle, or still descending?", point, model)
    if _has_maps(opened.model):
        prune = PruneQuestion(seed=seed, method=(), each=True, score=0)
        yield Section("prune", "what can be taken away: one matrix, one head at a time", prune, model)
    if isinstance(opened.model, Transformer):
        why = WhyQuestion(seed=seed, batch_size=asked.batch_size)
        yield Section("why", "the model without softmax, norm, skip, QK product", why, model)


def _has_maps(model: Any) -> bool:
    """Whether a module has matrices that are no embeddings, as ours and layers of torch and transformers name them."""
    if isinstance(model, Transformer):
        return True
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    tied = {id(m.weight) for m in modules if isinstance(m, nn.Embedding)}
    linear = (m.weight for m in modules if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D")
    return any(id(weight) not in tied for weight in linear)


# --- what has no question of its own ----------------------------------------------------------------------------------
class Kept(Answer):
    """A record of any kind and its numbers."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def table(self) -> Grid:
        return Grid(("what", "value"), tuple((name, e.value) for name, e in self.record.scalars.items()))

    def lines(self) -> list[str]:
        return str(self.table()).splitlines()


@dataclass(frozen=True)
class Made:
    """A measurement of two functions."""

    plan: Callable[[], Plan]
    record: Callable[[Work], Record]

    def measure(self, work: Work) -> Kept:
        found = Kept(self.record(work))
        work.partial, work.deadline.advanced = not found.complete, True
        return found


@dataclass(frozen=True, kw_only=True)
class _Kept(Question):
    @classmethod
    def answer(cls, record: Record) -> Kept:
        return Kept(record)


@dataclass(frozen=True, kw_only=True)
class TrainingLog(_Kept):
    """What the log of a training run says."""

    verb = "training"

    def measurement(self, subject: Any = None) -> Made:
        return Made(lambda: Plan(""), lambda work: record_of_run(subject.run))


@dataclass(frozen=True, kw_only=True)
class DefaultTraining(_Kept):
    """The built-in default trained into a run folder."""

    verb = "training"

    run: str = option("", "The folder of the run.")
    seed: int = option(0, "Seed of all random numbers.")
    dtype: str = option("float32", "Number format.")
    device: str = option("cpu", "Where to compute.")

    def measurement(self, subject: Any = None) -> Made:
        return Made(self._plan, self._train)

    def _train(self, work: Work) -> Record:
        if work.folder is None:
            raise InputError("the built-in default is trained in a folder; name one with out=.")
        seconds = None if work.deadline.until is None else work.deadline.left
        recipe = _recipe(self.seed)
        made = _default(self.seed, self.dtype, self.device), _data(), recipe
        with threads_for(0):  # one: the same weights on every machine
            done = train(*made, out=self.run, resume=work.resume, seconds=seconds, progress=work.progress)
        work.deadline.advanced = True
        if done.step < recipe.log_every:
            raise TimeUp("the time was up before the first line of the training log.")
        return record_of_run(self.run)

    def _plan(self) -> Plan:
        model, data = _default(self.seed, self.dtype, self.device), _data()
        timed = ShortRun(model, data, _recipe(self.seed), None)
        timed.to(TIMED)
        step = DEFAULT_BATCH * next(iter(next(data.batches("train", 1, 0)).values())).shape[-1] / max(timed.speeds)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        return Plan(f"plan: {DEFAULT_STEPS} training steps", seconds=DEFAULT_STEPS * step, bytes=4 * size)


def _data() -> Any:
    settings = dict(DEFAULT_DATA)
    return dataset(settings.pop("name"), **settings)


def _default(seed: int, dtype: str, device: str) -> Transformer:
    return Transformer(**DEFAULT_MODEL, seed=seed, dtype=DTYPES[dtype], device=device_of(device), **_data().settings)


def _recipe(seed: int) -> TrainConfig:
    return TrainConfig(
        steps=DEFAULT_STEPS,
        batch_size=DEFAULT_BATCH,
        lr=DEFAULT_LR,
        seed=seed,
        valid_every=DEFAULT_STEPS // 5,
        questions=256,
        watch_every=DEFAULT_STEPS // 10,
    )


def _fresh(asked: ReportOpening) -> Subject:
    """The default before training: parts are taken out there, where every variant starts alike."""
    settings = ",".join(f"{k}={v}" for k, v in DEFAULT_MODEL.items() if k != "design")
    name = f"new:{DEFAULT_MODEL['design']},{settings}"
    return ours(asked.of_model(name, data="auto"), _default(asked.seed, asked.dtype, asked.device), _data())
