"""A study: everything the instrument knows of one model, stage by stage, each stage a Record in the study's folder.

    FOLDER/training  spectrum  lr  signal  why  attention     one record each; `quadform report FOLDER` redraws them
    FOLDER/run                                                the training run, where the study trained the model itself

With no model the embedded default is trained first: two Pre-LN layers on two-digit addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FileError, InputError, did_you_mean
from ..core.progress import say
from ..core.record import JSON_NAME, Record
from ..train.runs import is_run
from .configs.attention import AttentionConfig
from .configs.lr import LrConfig
from .configs.report import ReportConfig
from .configs.signal import SignalConfig
from .configs.spectrum import SpectrumConfig
from .configs.why import WhyConfig
from .subject import TRAINED

#: The embedded default: learns its task in seconds on one core.
DEFAULT_DATA: dict[str, Any] = {"name": "add", "digits": 2}
DEFAULT_MODEL: dict[str, Any] = {"design": "pre-ln", "depth": 2, "dim": 64, "heads": 4}
DEFAULT_STEPS, DEFAULT_BATCH, DEFAULT_LR = 500, 64, 5e-3
#: All stages measure on the same probe.
PROBE: dict[str, Any] = {"batch": 16, "batches": 4}
RUN = "run"
#: The stages of a study of one model, in the order of the report; `attention` is a study of its own beside it.
STAGES = ("lr", "spectrum", "signal", "training", "why")
EXACT = "attention"


@dataclass(frozen=True)
class Stage:
    """One piece of a study: what it says it does, and what it does."""

    name: str
    what: str
    run: Callable[[Path], Record]


def records_in(folder: str | Path) -> list[list[Record]]:
    """The studies saved in `folder`: its own record, or those of its stages; empty where there is none."""
    folder = Path(folder)
    if folder.suffix == ".json" or (folder / JSON_NAME).exists():
        return [[Record.load(folder)]]
    found = [Record.load(folder / name) for name in STAGES if (folder / name / JSON_NAME).exists()]
    exact = [Record.load(folder / EXACT)] if (folder / EXACT / JSON_NAME).exists() else []
    return [study for study in (found, exact) if study]


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a record, the records of a study, or a training run; nothing is read."""
    return is_run(folder) or any((folder / name / JSON_NAME).exists() for name in ("", *STAGES, EXACT))


def open_studies(words: tuple[str, ...], config: ReportConfig, folder: Path | None) -> list[list[Record]]:
    """The studies the words name: saved ones are read, models are measured (into `folder`, or beside a run)."""
    studies = []
    for word in words:
        saved = records_in(word) if Path(word).exists() else []
        if not saved:
            into = folder or (Path(word) if is_run(word) else None)
            if not Path(word).exists() and ":" not in word and word not in TRAINED:
                raise _missing(word)
            if Path(word).exists() and not is_run(word) and not _holds_model(Path(word)):
                raise FileError(
                    f"`{word}` holds neither a record nor a model. `--out DIR` of any verb makes a record there."
                )
            if into is None:
                raise InputError(f"`{word}` is a model to be measured; say where to keep it: `--out runs/NAME`.")
            saved = [measure_model(word, config, into)]
        studies += saved
    return studies


def _holds_model(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in ("model.json", "config.json"))


def _missing(word: str) -> FileError:
    path = Path(word)
    try:
        beside = [str(path.parent / p.name) for p in sorted(path.parent.iterdir()) if holds_run(p)]
    except OSError:
        beside = []
    there = f" Runs here: {', '.join(f'`{p}`' for p in beside[:5])}." if beside else ""
    return FileError(
        f"there is no run at `{word}`.{did_you_mean(word, beside)}{there}"
        " `quadform attention --out DIR` makes one; `quadform report` alone measures a default."
    )


def measure_default(config: ReportConfig, folder: Path) -> list[list[Record]]:
    """Train the embedded default and measure it; the exact Hessian of one attention layer beside it."""
    model = str(folder / RUN)
    trained = Stage("training", "training the built-in default: Pre-LN, 2 layers, two-digit addition", _train(config))
    exact = Stage(EXACT, "the exact Hessian of one attention layer", _attention(config))
    stages = [trained, *(s for s in _stages(model, config, own=True, fresh=_fresh()) if s.name != "training"), exact]
    found = dict(_go(stages, folder, config.resume))
    return [[found[name] for name in STAGES if name in found], [found[EXACT]]]


def measure_model(model: str, config: ReportConfig, folder: Path) -> list[Record]:
    """Measure a model that is there already."""
    own = is_run(model) or model.startswith("new:") or (Path(model) / "model.json").exists()
    found = dict(_go(list(_stages(model, config, own=own)), folder, config.resume))
    return [found[name] for name in STAGES if name in found]


def _go(stages: list[Stage], folder: Path, resume: bool) -> Iterator[tuple[str, Record]]:
    """Each stage in turn; a stage whose record is there is read when resuming."""
    for i, stage in enumerate(stages):
        into = folder / stage.name
        if resume and (into / JSON_NAME).exists():
            say(f"[{i + 1}/{len(stages)}] {stage.what}: already there")
            yield stage.name, Record.load(into)
            continue
        say(f"[{i + 1}/{len(stages)}] {stage.what}")
        record = stage.run(into)
        record.save(into)
        yield stage.name, record


def _fresh() -> dict[str, str]:
    """The default before training, as a question: parts are taken out there, where every variant starts alike."""
    data, model = dict(DEFAULT_DATA), dict(DEFAULT_MODEL)
    settings = ",".join(f"{k}={v}" for k, v in model.items() if k != "design")
    given = ",".join(f"{k}={v}" for k, v in data.items() if k != "name")
    return {"model": f"new:{model['design']},{settings}", "data": f"{data['name']}:{given}"}


def _stages(model: str, config: ReportConfig, *, own: bool, fresh: dict[str, str] | None = None) -> Iterator[Stage]:
    """The stages of one model; taking parts out (`why`, of the `fresh` model if one is named) is for models of ours."""
    common: dict[str, Any] = {
        "seed": config.seed,
        "device": config.device,
        "data": config.data,
        "resume": config.resume,
    }
    asked = common | {"model": model} | PROBE

    def spectrum(into: Path) -> Record:
        from .spectrum.measure import run

        return run(SpectrumConfig(**asked, top=5, bottom=2, density=True, blocks="parts"), into)

    def lr(into: Path) -> Record:
        from .step_size.answer import run

        return run(LrConfig(**asked), into)

    def signal(into: Path) -> Record:
        from .signal.measure import run

        return run(SignalConfig(subjects=(model,), **common, **PROBE), into).record

    def why(into: Path) -> Record:
        from .why.measure import run

        return run(WhyConfig(**(asked | (fresh or {}))), into)

    def training(into: Path) -> Record:
        from .training import record_of_run

        return record_of_run(model)

    if is_run(model):
        yield Stage("training", "the log of the training run", training)
    yield Stage("signal", "does the signal survive depth?", signal)
    yield Stage("lr", "the largest stable learning rate", lr)
    yield Stage("spectrum", "eigenvalues, density and blocks of the Hessian", spectrum)
    if own:
        yield Stage("why", "the model without softmax, norm, skip, QK product", why)


def _train(config: ReportConfig) -> Callable[[Path], Record]:
    def run(into: Path) -> Record:
        from ..nn.transformer import Transformer
        from ..train import TrainConfig, dataset, train
        from .training import record_of_run

        settings = dict(DEFAULT_DATA)
        data = dataset(str(settings.pop("name")), **settings)
        model = Transformer(**DEFAULT_MODEL, seed=config.seed, **data.settings)
        recipe = TrainConfig(
            steps=DEFAULT_STEPS,
            batch_size=DEFAULT_BATCH,
            lr=DEFAULT_LR,
            seed=config.seed,
            valid_every=DEFAULT_STEPS // 5,
            questions=256,
            watch_every=DEFAULT_STEPS // 10,
        )
        train(model, data, recipe, out=into.parent / RUN, resume=config.resume)
        return record_of_run(into.parent / RUN)

    return run


def _attention(config: ReportConfig) -> Callable[[Path], Record]:
    def run(into: Path) -> Record:
        from .attention import run as measure

        return measure(AttentionConfig(seed=config.seed, device=config.device))

    return run
