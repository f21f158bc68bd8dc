"""The stages of a study: what each says it does, what it will cost, and what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.record import Record
from ...core.work import Work
from ...train.folder import is_run
from ..attention.question import AttentionQuestion
from ..configs.report import ReportConfig
from ..opening import Opening
from ..signal.question import SignalOpening, SignalQuestion
from ..spectrum.question import SpectrumQuestion
from ..step_size.question import StepSizeOpening, StepSizeQuestion
from ..why.question import WhyQuestion
from .folder import EXACT, RUN

#: The embedded default: learns its task in seconds on one core.
DEFAULT_DATA: dict[str, Any] = {"name": "add", "digits": 2}
DEFAULT_MODEL: dict[str, Any] = {"design": "pre-ln", "depth": 2, "dim": 64, "heads": 4}
DEFAULT_STEPS, DEFAULT_BATCH, DEFAULT_LR = 500, 64, 5e-3
#: All stages measure on the same probe.
PROBE: dict[str, Any] = {"batch": 16, "batches": 4}
#: Training steps that are timed for the plan.
TIMED = 3


@dataclass(frozen=True)
class Cost:
    """What a stage takes: Hessian-vector products, seconds here, bytes beside the model."""

    products: int = 0
    seconds: float = 0.0
    bytes: float = 0.0

    @classmethod
    def of(cls, plan: dict[str, Any]) -> Cost:
        """Out of the plan of a verb."""
        return cls(*(plan.get(f.name, 0) for f in dataclasses.fields(cls)))


@dataclass(frozen=True)
class Stage:
    """One piece of a study. `run(folder, seconds, resume)`: no longer than `seconds`, going on with what is there."""

    name: str
    what: str
    run: Callable[[Path, float | None, bool], Record]
    plan: Callable[[], Cost] = Cost


def default_stages(config: ReportConfig, folder: Path) -> list[Stage]:
    """The embedded default trained and measured, and the exact Hessian of one attention layer beside it."""
    trained = Stage(
        "training",
        "training the built-in default: Pre-LN, 2 layers, two-digit addition",
        lambda into, seconds, resume: _train(config, into.parent / RUN, seconds, resume),
        lambda: _train_cost(config),
    )
    rest = model_stages(str(folder / RUN), config, own=True, fresh=_fresh())
    return [trained, *(s for s in rest if s.name != "training"), _exact(config)]


def model_stages(
    model: str, config: ReportConfig, *, own: bool, fresh: dict[str, str] | None = None
) -> Iterator[Stage]:
    """The stages of one model; taking parts out (`why`, of the `fresh` model if one is named) is for models of ours.

    Where the model does not exist yet the `fresh` one, of the same size, is what plans are made on.
    """
    common: dict[str, Any] = {"seed": config.seed, "device": config.device, "data": config.data}
    asked = common | {"model": model} | PROBE
    wish: dict[str, Any] = {"top": 5, "bottom": 2, "density": True, "blocks": "parts"}

    def planned() -> dict[str, Any]:
        return asked | (fresh or {}) if not Path(model).exists() else asked

    def spectrum(into: Path, seconds: float | None, resume: bool) -> Record:
        from ..asking import ask

        question, opening = _spectrum(asked, wish)
        with Work(into, seconds=seconds, resume=resume) as work:
            return ask(question, work, opening.open()).record

    def spectrum_cost() -> Cost:
        question, opening = _spectrum(planned(), wish)
        return Cost.of(question.measurement(opening.open()).plan().to_json())

    def lr(into: Path, seconds: float | None, resume: bool) -> Record:
        from ..asking import ask

        with Work(into, seconds=seconds, resume=resume) as work:
            return ask(StepSizeQuestion(seed=config.seed), work, StepSizeOpening(**asked).open()).record

    def lr_cost() -> Cost:
        question, opening = StepSizeQuestion(seed=config.seed), StepSizeOpening(**planned())
        return Cost.of(question.measurement(opening.open()).plan().to_json())

    def signal(into: Path, seconds: float | None, resume: bool) -> Record:
        from ..asking import ask

        question, opening = _signal(asked)
        with Work(into, seconds=seconds, resume=resume) as work:
            return ask(question, work, opening.open()).record

    def signal_cost() -> Cost:
        question, opening = _signal(planned())
        return Cost.of(question.measurement(opening.open()).plan().to_json())

    def why(into: Path, seconds: float | None, resume: bool) -> Record:
        from ..asking import ask

        question, opening = _why(asked | (fresh or {}))
        with Work(into, seconds=seconds, resume=resume) as work:
            return ask(question, work, opening.open()).record

    def why_cost() -> Cost:
        question, opening = _why(asked | (fresh or {}))
        return Cost.of(question.measurement(opening.open()).plan().to_json())

    def training(into: Path, seconds: float | None, resume: bool) -> Record:
        from ..training import record_of_run

        return record_of_run(model)

    if is_run(model):
        yield Stage("training", "the log of the training run", training)
    yield Stage("signal", "does the signal survive depth?", signal, signal_cost)
    yield Stage("lr", "the largest stable learning rate", lr, lr_cost)
    yield Stage("spectrum", "eigenvalues, density and blocks of the Hessian", spectrum, spectrum_cost)
    if own:
        yield Stage("why", "the model without softmax, norm, skip, QK product", why, why_cost)


def _spectrum(asked: dict[str, Any], wish: dict[str, Any]) -> tuple[SpectrumQuestion, Opening]:
    return SpectrumQuestion(seed=asked["seed"], **wish), Opening(**asked)


def _why(asked: dict[str, Any]) -> tuple[WhyQuestion, Opening]:
    return WhyQuestion(seed=asked["seed"], batch=asked["batch"]), Opening(**asked)


def _signal(asked: dict[str, Any]) -> tuple[SignalQuestion, SignalOpening]:
    opened = {name: value for name, value in asked.items() if name != "model"}
    return SignalQuestion(seed=asked["seed"]), SignalOpening(subjects=(asked["model"],), **opened)


def _fresh() -> dict[str, str]:
    """The default before training, as a question: parts are taken out there, where every variant starts alike."""
    data, model = dict(DEFAULT_DATA), dict(DEFAULT_MODEL)
    settings = ",".join(f"{k}={v}" for k, v in model.items() if k != "design")
    given = ",".join(f"{k}={v}" for k, v in data.items() if k != "name")
    return {"model": f"new:{model['design']},{settings}", "data": f"{data['name']}:{given}"}


def _default(config: ReportConfig) -> tuple[Any, Any, Any]:
    """Model, data and recipe of the default."""
    from ...corpora import dataset
    from ...nn.transformer import Transformer
    from ...train import TrainConfig

    settings = dict(DEFAULT_DATA)
    data = dataset(str(settings.pop("name")), **settings)
    recipe = TrainConfig(
        steps=DEFAULT_STEPS,
        batch_size=DEFAULT_BATCH,
        lr=DEFAULT_LR,
        seed=config.seed,
        valid_every=DEFAULT_STEPS // 5,
        questions=256,
        watch_every=DEFAULT_STEPS // 10,
    )
    return Transformer(**DEFAULT_MODEL, seed=config.seed, **data.settings), data, recipe


def _train(config: ReportConfig, run: Path, seconds: float | None, resume: bool) -> Record:
    from ...train import train
    from ..training import record_of_run

    model, data, recipe = _default(config)
    train(model, data, recipe, out=run, resume=resume, seconds=seconds)
    return record_of_run(run)


def _train_cost(config: ReportConfig) -> Cost:
    from ..short_run import ShortRun

    model, data, recipe = _default(config)
    run = ShortRun(model, data, recipe, None)
    run.to(TIMED)
    step = DEFAULT_BATCH * next(iter(next(data.batches("train", 1, 0)).values())).shape[-1] / max(run.speeds)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return Cost(seconds=DEFAULT_STEPS * step, bytes=4 * size)


def _exact(config: ReportConfig) -> Stage:
    asked = AttentionQuestion(seed=config.seed, device=config.device)

    def run(into: Path, seconds: float | None, resume: bool) -> Record:
        from ..asking import ask

        with Work(into, seconds=seconds, resume=resume) as work:
            return ask(asked, work).record

    def plan() -> Cost:
        return Cost.of(asked.measurement().plan().to_json())

    return Stage(EXACT, "the exact Hessian of one attention layer", run, plan)
