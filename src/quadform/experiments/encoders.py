"""The BERT table in small: simplified blocks as masked-token encoders, and what fine-tuning makes of them.

GLUE is not to be had here. In its place: which package of the standard library, or of a fetched one (sympy), does a
window of code come from? Modules are held out by a hash of their name; the score is that of the split "test", which
chooses nothing. The text of the standard library's modules may have been among what was masked (one file in twenty is
held out there by another hash), their labels never were.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from ..core.parameters import count_parameters
from ..core.record import Estimate, Record
from ..corpora.datasets import Batch
from ..corpora.objectives import Masked, Packages
from ..corpora.running import StandardLibrary
from ..nn.transformer import IGNORE, Transformer
from ..report.figure import Figure, Rows
from ..train.score import accuracy
from ..train.start import started_from
from .blocks import smooth
from .charts import bar_panel, figure_of, line_panel, side_by_side
from .claims import at_least, at_most, near
from .experiment import Experiment, Units
from .measure import mean, over_seeds
from .protocol import Recipe, gpu_or_cpu, train_run

DESIGNS = ("pre-ln", "parallel", "shaped", "sas", "sas-p", "sas-p-no-norm")
#: Those with a score in the table; that without norms has none there.
SCORED = DESIGNS[:-1]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Masked tokens for `steps`, then `tune_steps` of classes; `seeds` of the scored designs, one of the others.

    `tests` batches of 64 windows are scored. `task` is the fetched package whose parts are told apart (`quadform data
    fetch sympy`), empty for the standard library. `rates` are learning rates of designs that are not pretrained at
    `lr`, as pairs.
    """

    depth: int = 12
    dim: int = 256
    heads: int = 4
    seq_len: int = 128
    batch: int = 64
    steps: int = 4000
    lr: float = 1e-3
    rates: tuple[tuple[str, float], ...] = ()
    warmup: float = 0.3
    tune_steps: int = 1000
    tune_lr: float = 3e-4
    classes: int = 6
    task: str = ""
    seeds: int = 2
    tests: int = 32
    valid_batches: int = 32
    limit: int = 0
    seed: int = 0


PRESETS = {
    "smoke": Config(depth=2, dim=16, heads=2, seq_len=16, batch=4, steps=10, tune_steps=5, seeds=1, tests=2,
                    valid_batches=2, limit=60_000),
    "cpu": Config(depth=4, dim=48, seq_len=48, batch=16, steps=900, lr=3e-3, tune_steps=300, tune_lr=1e-3, seeds=2,
                  tests=16, valid_batches=24, limit=3_000_000, task="sympy"),
    "paper": Config(task="sympy", rates=(("shaped", 3e-4),)),
}  # fmt: skip


@functools.cache
def masked(config: Config) -> Masked:
    """The corpus with a quarter of its bytes to be guessed."""
    return Masked(data=StandardLibrary(seq_len=config.seq_len, limit=config.limit))


def packages(config: Config) -> Packages:
    """The task of fine-tuning."""
    return Packages(classes=config.classes, seq_len=config.seq_len, source=config.task)


def recipe(config: Config, design: str, seed: int) -> Recipe:
    """A design, LayerNorm as in BERT, and how it is pretrained."""
    return Recipe(design=design, depth=config.depth, dim=config.dim, heads=config.heads, d_ff=4 * config.dim,
                  steps=config.steps, batch=config.batch, lr=dict(config.rates).get(design, config.lr),
                  warmup=config.warmup, seed=seed, norm="layer")  # fmt: skip


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    runs = [(name, config.seed + s) for s in range(config.seeds) for name in DESIGNS if s == 0 or name in SCORED]
    found: dict[str, list[dict[str, Tensor]]] = {}
    _ = packages(config).names  # a task that is not fetched says so now, not after the pretraining
    with units.plan(len(runs) + 1):
        text = units("text", frequencies, config)
        for name, seed in runs:
            found.setdefault(name, []).append(units(f"{name}, seed {seed}", one, config, name, seed))
    scalars: dict[str, Estimate] = {}
    for name, parts in found.items():
        scalars[f"loss/{name}"] = over_seeds([p["valid"] for p in parts])
        scalars[f"cosine/{name}"] = mean([float(p["cosine"][-1]) for p in parts], "token cosine after the last block")
        scalars[f"parameters/{name}"] = Estimate(float(parts[0]["parameters"]))
        seconds = [float(p["seconds"]) / config.steps for p in parts]
        scalars[f"step_seconds/{name}"] = mean(seconds, "processor time a step on a CPU, wall-clock on a GPU")
        for kind in ("score", "scratch"):
            if f"{kind}/right" in parts[0]:
                scalars[f"{kind}/{name}"] = _pooled(parts, kind)
    base = scalars["loss/pre-ln"]
    for name in DESIGNS[1:]:
        other = scalars[f"loss/{name}"]
        scalars[f"gap/{name}"] = _minus(other, base, "nats above pre-ln, equal steps")
    guess = mean(text["unigram"], f"nats, mean of {len(text['unigram'])} batches")
    scalars["unigram"] = guess
    scalars["corpus/train"] = Estimate(float(text["bytes"]), note="bytes of the standard library")
    scalars["learned"] = _minus(guess, base, "nats of pre-ln below guessing from frequencies of bytes")
    blocks = {n: _block_parameters(config, n) for n in ("pre-ln", "sas-p")}
    scalars["saving"] = Estimate(1 - blocks["sas-p"] / blocks["pre-ln"], note="of one further block")
    for name in SCORED:
        behind = _minus(scalars[f"score/{name}"], scalars["score/pre-ln"], f"accuracy, {name} minus pre-ln")
        scalars[f"score_gap/{name}"] = behind
        gain = _minus(scalars[f"score/{name}"], scalars[f"scratch/{name}"], "accuracy, fine-tuned minus from scratch")
        scalars[f"gain/{name}"] = gain
        score, chance = scalars[f"score/{name}"], 1 / config.classes
        scalars[f"over_chance/{name}"] = Estimate(score.value / chance, (score.stderr or 0.0) / chance, "estimate")
    curves = {f"loss/{n}": torch.stack([smooth(p["loss"]) for p in parts]).mean(0) for n, parts in found.items()}
    return scalars, curves


def _minus(a: Estimate, b: Estimate, note: str) -> Estimate:
    return Estimate(a.value - b.value, math.hypot(a.stderr or 0.0, b.stderr or 0.0), "estimate", note=note)


def _pooled(parts: list[dict[str, Tensor]], kind: str) -> Estimate:
    """Mean accuracy over seeds; its error is the larger of the spread over seeds and that of the test windows."""
    values = torch.stack([p[f"{kind}/right"][0] for p in parts]).double()
    errors = torch.stack([p[f"{kind}/right"][1] for p in parts]).double()
    several = mean(values, f"accuracy on the test split, {len(parts)} seeds")
    within = float(errors.square().mean().sqrt()) / math.sqrt(len(parts))
    return Estimate(several.value, max(several.stderr or 0.0, within), "estimate", note=several.note)


def _block_parameters(config: Config, name: str) -> int:
    """Parameters of one block more."""
    a, b = (count_parameters(recipe(replace(config, depth=d), name, 0).model_config(masked(config))) for d in (3, 4))
    return b - a


def one(config: Config, name: str, seed: int) -> dict[str, Tensor]:
    """Pretrain a design; of the scored ones, fine-tune it, and train the same from scratch, on the classes."""
    data, task = masked(config), packages(config)
    device = gpu_or_cpu(False, "encoders")
    kept: list[Transformer] = []

    def keep(step: int, model: Transformer, batch: Batch) -> dict[str, float]:
        kept.append(model)
        return {}

    out = train_run(recipe(config, name, seed), data, valid_batches=config.valid_batches, device=device,
                    at=(config.steps,), look=keep)  # fmt: skip
    if name in SCORED:
        tune = Recipe(design=name, depth=config.depth, dim=config.dim, heads=config.heads, d_ff=4 * config.dim,
                      steps=config.tune_steps, batch=config.batch, lr=config.tune_lr, warmup=0.1, seed=seed,
                      norm="layer")  # fmt: skip
        fresh = Transformer(recipe(config, name, seed).model_config(task), seed=seed, device=device)
        for kind, model in (("score", started_from(kept[0], task, seed=seed)[0]), ("scratch", fresh)):
            tuned = train_run(tune, task, valid_batches=1, model=model, device=device)
            out[f"{kind}/seconds"] = tuned["seconds"]
            right = accuracy(model, task, split="test", batches=config.tests, seed=config.seed)
            out[f"{kind}/right"] = torch.tensor([right.value, right.stderr])
    return out


def frequencies(config: Config) -> dict[str, Tensor]:
    """`bytes` to train on, and `unigram`: the loss of guessing from their frequencies (add-one) on each of the batches
    that validate the nets."""
    data = masked(config)
    tokens = data.data.stream_of("train").long()  # type: ignore[attr-defined]  # data of texts
    count = torch.bincount(tokens, minlength=data.settings["vocab"]).double() + 1
    cost = -(count / count.sum()).log()
    held = islice(data.batches("valid", config.batch, 0), config.valid_batches)
    each = torch.stack([cost[b["labels"][b["labels"] != IGNORE]].mean() for b in held])
    return {"unigram": each, "bytes": torch.tensor(len(tokens))}


_HH, _BIG = "[HH24, Tab. 1]", ("cpu", "paper")
CLAIMS = (
    at_least("the encoder has left the plateau: 0.2 nats below guessing from frequencies of bytes", "learned", 0.2,
             "[own]", presets=_BIG, why="on the plateau all designs are alike and nothing is compared"),
    at_most("SAS within 0.15 nats of Pre-LN at equal steps", "gap/sas", 0.15, _HH, presets=_BIG,
            why="as declared for small decoders", page="0810-encoders-on-a-cpu.md"),
    at_most("SAS-P within 0.15 nats of Pre-LN at equal steps", "gap/sas-p", 0.15, _HH, presets=_BIG,
            page="0810-encoders-on-a-cpu.md"),
    at_most("Parallel within 0.15 nats of Pre-LN", "gap/parallel", 0.15, _HH, presets=_BIG),
    at_most("SAS-P without norms can be pretrained: within 0.3 nats", "gap/sas-p-no-norm", 0.3, _HH, presets=_BIG,
            page="0810-encoders-on-a-cpu.md"),
    at_least("V-SkipInit (shaped) is not ahead of Pre-LN (78.0 against 78.9 of GLUE)", "gap/shaped", 0.0, _HH,
             presets=_BIG),
    near("a block of SAS-P has a sixth fewer parameters than one of Pre-LN", "saving", 1 / 6, 0.01, "[own]"),
    at_least("fine-tuned SAS-P within 5 points of fine-tuned Pre-LN (78.3 against 78.9)", "score_gap/sas-p", -0.05, _HH,
             presets=_BIG, why="two seeds of 1,024 windows: about 2 points of error each"),
    at_least("... Parallel (78.5 against 78.9)", "score_gap/parallel", -0.05, _HH, presets=_BIG),
    at_least("... SAS (78.4 against 78.9)", "score_gap/sas", -0.05, _HH, presets=_BIG),
    at_least("... V-SkipInit (78.0 against 78.9)", "score_gap/shaped", -0.05, _HH, presets=_BIG,
             because="V-SkipInit has hardly left the plateau, at the learning rate of the others and at 3e-4 alike: "
             "with W_V, W_O that move freely it trains slowly, as in `beta`", page="0810-encoders-on-a-cpu.md"),
    at_least("fine-tuned Pre-LN is at twice chance", "over_chance/pre-ln", 2, "[own]", presets=_BIG),
    at_least("masked pretraining helps: Pre-LN from scratch is at least 2 points lower", "gain/pre-ln", 0.02,
             "[DCLT19, abstract]", presets=_BIG, page="0810-encoders-on-a-cpu.md"),
    at_least("... and SAS-P", "gain/sas-p", 0.02, "[DCLT19, abstract]", presets=_BIG,
             page="0810-encoders-on-a-cpu.md"),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, s, c = Rows(), record.scalars, record.inputs["config"]
    what = f"parts of {c['task']}" if c["task"] else "packages"
    rows = []
    for n in DESIGNS:
        curve = record.tensors[f"loss/{n}"].tolist()
        rows += [{"x": c["steps"] * (i + 1) / len(curve), "y": v, "series": n} for i, v in enumerate(curve)]
    high = sorted(r["y"] for r in rows if math.isfinite(r["y"]))[int(0.97 * len(rows)) - 1]
    low = min(r["y"] for r in rows if math.isfinite(r["y"]))
    domain = (None, [low - 0.05 * (high - low), high])
    curves = line_panel(over, rows, x="step", y="loss on hidden bytes (nats)", log=(False, False), points=False,
                        domain=domain, order=DESIGNS, title="masked tokens")  # fmt: skip
    finals = bar_panel(over, [{"name": n, "value": s[f"loss/{n}"].value} for n in DESIGNS], width=260, label=".3f",
                       x="validation loss (nats)", order=DESIGNS)  # fmt: skip
    words = {"score": "fine-tuned", "scratch": "from scratch"}
    scored = [n for n in SCORED if f"score/{n}" in s]
    bars = [{"name": n, "value": s[f"{k}/{n}"].value, "group": w} for n in scored for k, w in words.items()]
    scores = bar_panel(over, bars, x=f"accuracy, {c['classes']} {what}, test split", width=260, label=".3f",
                       groups=tuple(words.values()), domain=[0, 1.0])  # fmt: skip
    sizes = bar_panel(over, [{"name": n, "value": s[f"parameters/{n}"].value} for n in DESIGNS], x="parameters",
                      width=260, label=",", order=DESIGNS)  # fmt: skip
    return figure_of(
        "encoders",
        "Simplified blocks as masked-token encoders",
        side_by_side(over, curves, finals, scores, sizes),
        headline=f"After {c['steps']} steps SAS-P is {s['gap/sas-p'].value:+.3f} nats from Pre-LN; fine-tuned it names "
        f"{s['score/sas-p'].value:.1%} of the {what}, Pre-LN {s['score/pre-ln'].value:.1%} "
        f"(from scratch {s['scratch/sas-p'].value:.1%} and {s['scratch/pre-ln'].value:.1%}).",
        reading=f"Lower loss, higher accuracy is better; chance is one in {c['classes']}.",
        not_meaning="Small models, few steps, one task made of source code in place of GLUE: orderings, not quality.",
        columns=("design", "loss", "s.e.", "seeds", "accuracy", "s.e.", "from scratch", "token cosine", "parameters",
                 "seconds a step"),
        rows=[
            (n, s[f"loss/{n}"].value, s[f"loss/{n}"].stderr, s[f"loss/{n}"].note,
             *_scores(s, n),
             s[f"cosine/{n}"].value, s[f"parameters/{n}"].value, s[f"step_seconds/{n}"].value)
            for n in DESIGNS
        ],
        tags=("estimate",),
        caption=f"Bytes of the standard library of Python {record.made.versions['python']} "
        f"({s['corpus/train'].value / 1e6:.1f} M to train on), a quarter hidden.",
    )  # fmt: skip


def _scores(s: Mapping[str, Estimate], name: str) -> tuple[float | str | None, ...]:
    if f"score/{name}" not in s:
        return "", "", ""
    return s[f"score/{name}"].value, s[f"score/{name}"].stderr, s[f"scratch/{name}"].value


EXPERIMENT = Experiment(
    id="encoders",
    title="Simplified blocks as masked-token encoders, fine-tuned",
    source="[HH24, Tab. 1], [DCLT19]",
    asked="Do the simplified blocks also serve as masked-token encoders that are fine-tuned?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    needs=lambda config: (config.task,) if config.task else (),
    gpu="bfloat16",
)
