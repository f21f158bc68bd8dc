"""From a data set to a trained model in one call: sizes and settings that fit the data, everything else said by you.

`fit("reverse", out="runs/reverse")` trains as `quadform train --data reverse --out runs/reverse` does. A recipe is two
tables, of the model and of its training; what is given replaces what is in them.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from quadform.core import progress as bars
from quadform.core.designs import design as describe
from quadform.core.errors import InputError, UnknownName, did_you_mean
from quadform.core.record import Estimate
from quadform.core.spec import ModelConfig, choose
from quadform.corpora.datasets import Addition, Dataset, Letters, NumberWords, dataset
from quadform.corpora.objectives import Masked, Packages
from quadform.corpora.opened import ParallelText
from quadform.corpora.running import RunningText
from quadform.nn.decode import Search
from quadform.nn.transformer import Transformer

from .config import DECOUPLED, TrainConfig
from .loop import Trained, train
from .runs import BEAM, Run, open_run
from .schedule import Schedule
from .size import check_size, optimizer_copies
from .start import started_from

OBJECTIVES = ("auto", "causal", "masked", "seq2seq", "classify")
_SMALL = {"depth": 2, "d_model": 128, "heads": 4}
_BRISK = {"lr": 2e-3, "betas": (0.9, 0.98), "weight_decay": 0.01, "batch_size": 64}


@dataclass(frozen=True)
class Recipe:
    """What fits a kind of data: settings of the model and of `TrainConfig`, and how translations are searched for."""

    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    search: Search = BEAM


def recipe_for(data: Dataset) -> Recipe:
    """The recipe of a data set; sizes that two CPU minutes are enough for, where the task allows it."""
    if isinstance(data, Addition):
        steps = {1: 400, 2: 800, 3: 1400, 4: 4000}.get(data.digits, 8000)
        return Recipe(_SMALL, _BRISK | {"batch_size": 128, "steps": steps, "questions": 200})
    if isinstance(data, Letters):
        return Recipe(_SMALL, _BRISK | {"steps": 1350, "questions": 200})
    if isinstance(data, NumberWords):
        return Recipe(_SMALL, _BRISK | {"steps": 700 if data.pieces else 850, "questions": 200})
    if isinstance(data, ParallelText):
        small = data.source.manifest.get("counts", {}).get("pairs", 0) < 10_000
        if small:
            model = _SMALL | {"dropout": 0.2, "positions": "sinusoidal"}
            return Recipe(model, _BRISK | {"steps": 850, "lr": 3e-3, "smoothing": 0.1, "batch_size": 32})
        model = {"depth": 6, "d_model": 512, "heads": 8, "d_ff": 1024, "dropout": 0.25, "positions": "sinusoidal"}
        large = {"lr": 1e-3, "batch_size": 640, "steps": 9000, "smoothing": 0.1, "weight_decay": 0.05}
        return Recipe(model, _BRISK | large | {"valid_every": 1000, "log_every": 100})
    if isinstance(data, Packages):
        return Recipe({"depth": 2, "d_model": 64, "heads": 4}, _BRISK | {"steps": 600, "batch_size": 32})
    if isinstance(data, Masked | RunningText):
        return Recipe(_SMALL, _BRISK | {"steps": 2000, "batch_size": 32, "weight_decay": 0.1})
    return Recipe(_SMALL, {"steps": 1000})


def original(d_model: int = 512, warmup: float = 4000, steps: int = 100_000) -> Recipe:
    """The base model of the original Transformer and its training. Source: [VSP17, Sec. 3, 5, 6.1].

    The peak rate is d^-0.5 warmup^-0.5. Snapshots of the paper are ten minutes apart, which was 1,500 steps. It has its
    own batches of 25,000 source and 25,000 target tokens; here `batch_size` counts sentences, and is left to you.
    """
    model = {"design": "post-ln", "depth": 6, "d_model": d_model, "heads": 8, "d_ff": 4 * d_model, "dropout": 0.1}
    model |= {"positions": "sinusoidal", "biases": ("mlp",), "init": "xavier"}
    training = {"optimizer": "adam", "betas": (0.9, 0.98), "eps": 1e-9, "clip": 0.0, "smoothing": 0.1}
    schedule = Schedule(decay="inverse-sqrt", warmup=warmup)
    training |= {"schedule": schedule, "lr": (d_model * max(schedule.warmup_steps(steps), 1)) ** -0.5}
    training |= {"steps": steps, "save_every": 1500, "average": 5, "valid_every": 1500}
    return Recipe(model, training, Search(beam=4, penalty="gnmt", alpha=0.6, beyond=50))


RECIPES = ("auto", "vaswani")
"""What fits the data, or the original Transformer."""


def with_objective(data: Dataset, objective: str = "auto") -> Dataset:
    """The data as an objective sees it: "masked" hides tokens of running text; the others are checked against it."""
    choose("objective", objective, OBJECTIVES)
    if objective == "masked":
        return data if isinstance(data, Masked) else Masked(data=data)
    settings = data.settings
    kinds = {"decoder": "causal", "encoder-decoder": "seq2seq", "encoder": "masked"}
    own = "classify" if settings.get("classes") else kinds[settings["kind"]]
    if objective not in ("auto", own):
        raise InputError(f"the objective of {type(data).__name__} is {own}; {objective} does not fit it.")
    return data


@dataclass(frozen=True, eq=False)
class Plan:
    """A model, its data and its training, ready to go. `fresh` names the parameters that a taken-over model adds."""

    data: Dataset
    model: Transformer
    config: TrainConfig
    fresh: tuple[str, ...] = ()
    search: Search = BEAM

    def __repr__(self) -> str:
        return f"Plan({self.model.summary}; {self.data}; {self.config})"

    @property
    def config_of_model(self) -> ModelConfig:
        """The description of the model."""
        return self.model.config

    def train(self, **how: Any) -> Trained:
        """`quadform.train.train` of it."""
        return train(self.model, self.data, self.config, **how)

    def cost(self, steps: int = 2) -> dict[str, float]:
        """What it takes: parameters, floating point operations of the matrix products and seconds of a step (the mean
        of a few on a copy, the first left out), bytes of weights with optimizer state and of kept activations.
        """
        from torch.utils.flop_counter import FlopCounterMode

        model, c = self._copy(), self.config
        parameters = sum(p.numel() for p in model.parameters())
        batch = next(self.data.batches("train", c.batch_size, c.seed))
        batch = {name: t.to(model.embed.W_E.device) for name, t in batch.items()}
        kept: dict[int, int] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model.loss(batch).backward()
        marks: list[float] = []
        quick = dataclasses.replace(
            c, steps=steps + 1, valid_every=10**9, valid_batches=1, questions=0, goal=0.0, watch_every=0, compile=False
        )
        train(model, self.data, quick, progress=lambda *a: marks.append(time.monotonic()), seconds=30)
        took = (marks[-1] - marks[0]) / max(len(marks) - 1, 1)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        return {
            "parameters": parameters,
            "flops_per_step": float(flops.get_total_flops() * c.accumulate),
            "weight_bytes": float(weights * optimizer_copies(c.optimizer)),
            "activation_bytes": float(sum(n for p, n in kept.items() if p not in own)),
            "seconds_per_step": took,
            "seconds": took * c.steps,
        }

    def _copy(self) -> Transformer:
        W = self.model.embed.W_E
        model = Transformer(self.model.config, dtype=W.dtype, device=W.device)
        model.load_state_dict(self.model.state_dict())
        return model


def prepare(
    data: Dataset | str,
    *,
    design: str | None = None,
    objective: str = "auto",
    recipe: str = "auto",
    start_from: str | Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> Plan:
    """The model and training of `settings` and a recipe: that of the data ("auto"), or "vaswani" (`original`).

    `design` is the recipe's, or pre-ln, unless given.

    `settings` are fields of `TrainConfig` (steps, lr, ...), `warmup` and `decay` of its schedule, or settings of the
    model (depth, d_model, heads, dropout, ...). With `start_from`, a run folder, its model goes on with this data.
    """
    data = with_objective(dataset(data) if isinstance(data, str) else data, objective)
    choose("recipe", recipe, RECIPES)
    names = {f.name for f in dataclasses.fields(TrainConfig)}
    told = {k: v for k, v in settings.items() if v is not None}
    sizes = {k: told[k] for k in ("d_model", "warmup", "steps") if k in told}
    found = original(**sizes) if recipe == "vaswani" else recipe_for(data)
    schedule = {k: told.pop(k) for k in ("warmup", "decay") if k in told}
    said = {k: told.pop(k) for k in list(told) if k in names}
    training = dict(found.train) | said | {"seed": seed}
    if training.get("optimizer", "adamw") not in DECOUPLED and "weight_decay" not in said:
        training.pop("weight_decay", None)  # that of the recipe is AdamW's
    if training.get("optimizer") == "gauss-newton":  # rates and smoothing of the recipe are those of Adam
        training |= {"lr": said.get("lr", 1.0), "smoothing": said.get("smoothing", 0.0)}
    if schedule:
        usual = found.train.get("schedule", Schedule())
        training["schedule"] = dataclasses.replace(usual, **schedule)
    if start_from is not None:
        if told:
            raise InputError(f"the model of {start_from} is taken as it is; {', '.join(told)} cannot be changed.")
        model, fresh = started_from(open_run(start_from, device=device, dtype=dtype).model, data, seed=seed)
        return Plan(data, model, TrainConfig(**training), tuple(fresh), found.search)
    config = TrainConfig(**training)
    try:
        described = describe(**(data.settings | _named(found.model, design) | told))
    except UnknownName as error:
        known = {*names, *inspect.signature(describe).parameters, *(f.name for f in dataclasses.fields(ModelConfig))}
        for key in told:
            near = did_you_mean(key, known)
            if near and f"{key!r}" in str(error):
                raise UnknownName(f"neither a model nor its training has a setting {key!r}.{near}") from error
        raise
    check_size(described, config, dtype, device)
    return Plan(data, Transformer(described, seed=seed, device=device, dtype=dtype), config, search=found.search)


def _named(model: Mapping[str, Any], design: str | None) -> dict[str, Any]:
    """The recipe's settings of a model, with the design as `describe` calls it."""
    rest = {k: v for k, v in model.items() if k != "design"}
    return rest | {"name": design or model.get("design", "pre-ln")}


def fit(
    data: Dataset | str,
    *,
    out: str | Path | None = None,
    resume: bool = True,
    seconds: float | None = None,
    progress: bool | bars.Report = True,
    **settings: Any,
) -> Run:
    """Train a model on a data set by its recipe, and give the run: `fit("reverse", steps=500).decode(["abc"])`.

    `settings` are those of `prepare`. With `out` the run is kept there, and goes on there when it was stopped.
    """
    plan = prepare(data, **settings)
    done = plan.train(out=out, resume=resume, seconds=seconds, progress=progress)
    folder = Path(out) if out is not None else None
    return Run(folder, done.model.eval(), plan.data, plan.config, done.step, {}, done, plan.search)


def score_test(run: Run, count: int = 1000) -> dict[str, Estimate]:
    """How good the run is on its "test" split: exact answers, labels, or BLEU, greedy and by its recipe's search.

    That is a beam of 5, or the original search of "vaswani"; a run opened from its folder has a beam of 5.
    A split that is too small to be scored is said to be so, and gives nothing.
    """
    try:
        return _test_scores(run, count)
    except InputError as error:
        bars.say(f"the test split is not scored: {error}")
        return {}


def _test_scores(run: Run, count: int) -> dict[str, Estimate]:
    from .score import accuracy, evaluate, exact_match

    model, data = run.model, run.data
    if isinstance(data, ParallelText):
        from .bleu import score_model

        data.tokens("test")  # is there any?
        found: dict[str, Any] = {}
        for name, how in (("greedy", Search()), (f"beam {run.search.beam}", run.search)):
            more = how.beyond if how.beyond is not None and model.config.positions != "learned" else 0
            how = dataclasses.replace(how, max_length=data.longest + 1 + more)
            score = score_model(model, data, split="test", count=count, how=how)
            found |= {f"BLEU, {name}": score.bleu, f"chrF, {name}": score.chrf}
        return found
    sizes: dict[str, Any] = {"split": "test", "seed": run.config.seed}
    if data.settings["kind"] == "encoder":
        rows = run.config.batch_size
        return {"accuracy": accuracy(model, data, batches=max(count // rows, 1), batch_size=rows, **sizes)}
    if type(data).questions is not Dataset.questions:
        return {"exact": exact_match(model, data, count=count, **sizes)}
    return {"loss": evaluate(model, data, batches=16, batch_size=run.config.batch_size, **sizes)}
