"""Does flatness tell which minimum generalises? Small- against large-batch minima of one Transformer, after Keskar.

Every run sees the same examples and has another seed; small and large batches of a seed share their start. A run ends
when its loss on the training examples is at `target`, so that no measure is of another training loss. Adam, one rate.

    gap     loss on held-out examples minus that on the training examples
    here    a measure of flatness at the weights as they are
    even    ... at the balanced weights of the same function
    least   ... at the least that was found among the weights of the same function

The rank correlation of each with the gap is over all runs; its interval comes from draws of seeds. `within` is the mean
of the two correlations among runs of one batch size: it stays where only the batch size tells the runs apart. Task and
rate were chosen on other seeds, from losses alone; intervals were fixed before any measure was seen.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..applications.flat import flat
from ..core.record import Estimate, Record
from ..core.rng import stream
from ..corpora.datasets import Addition, Batch
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from .charts import bar_panel, figure_of, line_panel, point_panel, side_by_side
from .claims import at_least
from .experiment import Experiment, Units
from .measure import bootstrapped, mean, spearman
from .stacked import Stack

SIZES = ("small", "large")
VERSIONS = ("here", "even", "least")
#: Points of the line through the two minima of a seed: 0 is the small-batch one, 1 the large-batch one.
LINE = torch.linspace(-0.5, 1.5, 21, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Pre-LN with ReLU on `examples` sums of `digits` digits; batches of `small` and `large` of them.

    A run has at most `steps` steps and is looked at every `check`. Flatness is measured on the first `probe` training
    examples, by `measures`; those `searched` are also minimised among equal weights.
    """

    digits: int = 2
    examples: int = 512
    held_out: int = 512
    depth: int = 2
    d_model: int = 32
    heads: int = 2
    small: int = 8
    large: int = 256
    lr: float = 2e-3
    target: float = 0.1
    steps: int = 20_000
    check: int = 50
    probe: int = 512
    measures: tuple[str, ...] = ("lambda_max", "trace", "sam", "asam", "keskar", "dimension")
    searched: tuple[str, ...] = ("lambda_max", "trace", "sam", "asam", "keskar", "dimension")
    tol: float = 1e-4
    seeds: int = 24
    seed: int = 0


PRESETS = {
    "smoke": Config(digits=1, examples=32, held_out=16, depth=1, d_model=8, small=8, large=32, lr=1e-2, target=1.9,
                    steps=60, check=5, probe=8, measures=("sam", "keskar"), searched=("sam",), seeds=3),
    "cpu": Config(depth=1, d_model=16, large=128, lr=3e-3, target=0.2, probe=128, tol=3e-3, seeds=12, steps=8000,
                  searched=("lambda_max", "sam", "asam", "keskar")),
    "paper": Config(),
}  # fmt: skip


def net(config: Config, data: Addition, seed: int) -> Transformer:
    """The Transformer of a seed at its start."""
    sizes: dict[str, Any] = {"depth": config.depth, "d_model": config.d_model, "heads": config.heads}
    return Transformer("pre-ln", activation="relu", seed=seed, dtype=torch.float64, **sizes, **data.settings)


def examples(config: Config, data: Addition, device: str) -> tuple[Batch, Batch]:
    """Training and held-out examples, the same for all runs."""
    train, rest = (next(data.batches(s, n, 0)) for s, n in (("train", config.examples), ("valid", config.held_out)))
    return tuple({k: t.to(device) for k, t in part.items()} for part in (train, rest))  # type: ignore[return-value]  # two of them


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _trained(size: str, config: Config) -> dict[str, Tensor]:
    """All seeds side by side: `weights/NAME` (seeds, ...) where the target was reached, and both losses there.

    `reached` is the step (-1: never; such weights are the last ones).
    """
    data, device, seeds = Addition(digits=config.digits), _device(), range(config.seed, config.seed + config.seeds)
    train, rest = examples(config, data, device)
    stack = Stack([net(config, data, seed).to(device) for seed in seeds])
    optimizer = torch.optim.Adam(stack.params.values(), lr=config.lr)
    batch: int = getattr(config, size)
    each = config.examples // batch
    reached = torch.full((len(seeds),), -1)
    kept = {n: p.clone() for n, p in stack.params.items()}
    for step in range(config.steps):
        epoch, part = divmod(step, each)
        if part == 0:
            orders = [stream(seed, f"flatness/{size}/{epoch}") for seed in seeds]
            order = torch.stack([torch.randperm(config.examples, generator=g) for g in orders]).to(device)
        own = order[:, part * batch : (part + 1) * batch]
        gradients, _ = stack.gradients({k: t[own] for k, t in train.items()})
        for n, p in stack.params.items():
            p.grad = gradients[n]
        optimizer.step()
        if (step + 1) % config.check == 0:
            there = (stack.losses(train).cpu() <= config.target) & (reached < 0)
            reached[there] = step + 1
            for n, p in stack.params.items():
                kept[n][(reached < 0) | there] = p[(reached < 0) | there]
            if bool((reached >= 0).all()):
                break
    losses = {"train": stack.losses(train, kept), "held_out": stack.losses(rest, kept)}
    return {"reached": reached, **losses, **{f"weights/{n}": p for n, p in kept.items()}}


def weights_of(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The stacked weights of a trained part."""
    return {key.removeprefix("weights/"): t for key, t in found.items() if key.startswith("weights/")}


def _measured(config: Config, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """(versions, measures) of one run; NaN where a measure was not searched."""
    data, device = Addition(digits=config.digits), _device()
    model = net(config, data, 0).to(device)
    model.load_state_dict(weights)
    probe = {k: t[: config.probe] for k, t in examples(config, data, device)[0].items()}
    asked: dict[str, Any] = {"tol": config.tol, "progress": False}
    even = flat(model, probe, measures=config.measures, rounds=0, **asked)
    least = flat(model, probe, measures=config.searched, rounds=1, **asked)
    table = torch.full((len(VERSIONS), len(config.measures)), math.nan, dtype=torch.float64)
    for m, name in enumerate(config.measures):
        one = even.measure(name)
        assert one is not None
        assert one.least is not None  # attention always has equal weights
        table[0, m], table[1, m] = one.here.value, one.least.value
        if (found := least.measure(name)) is not None and found.least is not None:
            table[2, m] = found.least.value
    return {"measures": table}


def _line(config: Config, ends: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Losses of all seeds along the line from the small- to the large-batch minimum, (seeds, points)."""
    data, device = Addition(digits=config.digits), _device()
    stack = Stack([copy.deepcopy(net(config, data, 0)).to(device)])
    a, b = (weights_of(ends[size]) for size in SIZES)
    along = [{n: ((1 - x) * a[n] + x * b[n]).to(device) for n in a} for x in LINE.tolist()]
    sets = zip(("train", "held_out"), examples(config, data, device), strict=True)
    return {key: torch.stack([stack.losses(batch, params) for params in along], -1) for key, batch in sets}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    seeds = range(config.seeds)
    with units.plan(len(SIZES) * (1 + config.seeds) + 1):
        ends = {size: units(f"{size} batches", _trained, size, config) for size in SIZES}
        line = units("line", _line, config, ends)
        tables = [
            [
                units(f"{size}, seed {s}", _measured, config, {n: t[s] for n, t in weights_of(ends[size]).items()})
                for s in seeds
            ]
            for size in SIZES
        ]
    table = torch.stack([torch.stack([t["measures"] for t in row]) for row in tables]).cpu()  # size, seed, version, m
    loss = {key: torch.stack([ends[size][key] for size in SIZES]).cpu() for key in ("train", "held_out", "reached")}
    gap = loss["held_out"] - loss["train"]  # (size, seed)
    both = (loss["reached"] >= 0).all(0)
    scalars = judged(config, table[:, both], gap[:, both])
    scalars["reached"] = Estimate(float(both.sum()), note=f"seeds of {config.seeds} both runs of which got to the end")
    for i, size in enumerate(SIZES):
        scalars[f"gap/{size}"] = mean(gap[i, both], f"nats, {int(both.sum())} seeds")
        scalars[f"steps/{size}"] = mean(loss["reached"][i, both].double(), "steps to the training loss")
    tensors = {"measures": table, "gap": gap, "reached": loss["reached"]}
    tensors |= {f"line/{key}": t[both].cpu().median(0).values for key, t in line.items() if bool(both.any())}
    return scalars, tensors


def judged(config: Config, table: Tensor, gap: Tensor) -> dict[str, Estimate]:
    """Rank correlations with the gap, and large over small, of measures (size, seed, version, measure)."""
    count = gap.shape[1]
    more = mean(gap[1] - gap[0], "gap of the large-batch minimum minus that of the small-batch one, nats")
    found = {"more": more}
    for v, version in enumerate(VERSIONS):
        for m, name in enumerate(config.measures):
            x, here = table[..., v, m], table[..., 0, m]
            if bool(x.isnan().any()) or count < 3:
                continue
            of, gain = partial(_over_all, gap, x), partial(_gained, gap, x, here)
            found[f"rank/{name}/{version}"] = bootstrapped(of, count, f"Spearman, {x.numel()} runs")
            one = partial(_within, gap, x)
            found[f"within/{name}/{version}"] = bootstrapped(one, count, "Spearman, mean of the two batch sizes")
            if version != "here":
                found[f"gain/{name}/{version}"] = bootstrapped(gain, count, f"Spearman, {version} minus here")
            ratio = (x[1].clamp(min=1e-300) / x[0].clamp(min=1e-300)).log10()
            found[f"sharper/{name}/{version}"] = mean(ratio, "log10 of large- over small-batch minimum, by seed")
    return found


def _over_all(gap: Tensor, x: Tensor, which: Tensor) -> Tensor:
    """Rank correlation of x and gap (sizes, seeds) over both sizes, for each row of seeds."""
    return spearman(*(t[:, which].transpose(0, 1).flatten(1) for t in (x, gap)))


def _within(gap: Tensor, x: Tensor, which: Tensor) -> Tensor:
    return spearman(x[:, which], gap[:, which]).mean(0)


def _gained(gap: Tensor, x: Tensor, here: Tensor, which: Tensor) -> Tensor:
    return _over_all(gap, x, which) - _over_all(gap, here, which)


_BIG, _KESKAR = ("cpu", "paper"), "[KMN17, Sec. 2]"
CLAIMS = (
    at_least("all runs reach the training loss", "reached", 12, "[own]", presets=_BIG),
    at_least("large-batch minima generalise worse at the same training loss", "more", 0.0, _KESKAR, presets=_BIG),
    at_least("... and are sharper: Keskar's measure is at least twice that of small-batch minima",
             "sharper/keskar/here", math.log10(2), "[KMN17, Table 3]", presets=_BIG),
    at_least("Keskar's measure orders the runs by their gap: rank correlation at least 0.5", "rank/keskar/here", 0.5,
             "[own]", presets=_BIG),
    at_least("so does lambda_max of H", "rank/lambda_max/here", 0.5, "[own]", presets=_BIG),
    at_least("... at its least among equal weights", "rank/lambda_max/least", 0.5, "[own]", presets=_BIG),
    at_least("... which orders them better than at the weights as they are", "gain/lambda_max/least", 0.0, "[own]",
             presets=_BIG),
    at_least("among runs of one batch size: at least 0.3", "within/lambda_max/least", 0.3, "[own]", presets=_BIG,
             because="lambda_max tells the two batch sizes apart, and little about runs of the same one",
             page="0818-flatness-within-a-batch-size.md"),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, t, s, config = Rows(), record.tensors, record.scalars, record.inputs["config"]
    names = [n for n in config["measures"] if f"rank/{n}/here" in s]
    lines = [
        {"x": x, "y": float(y), "series": words}
        for key, words in (("train", "training"), ("held_out", "held out"))
        for x, y in zip(LINE.tolist(), t.get(f"line/{key}", []), strict=False)
    ]
    bars = {
        key: [
            {
                "name": n,
                "value": e.value,
                "group": v,
                "low": max(-1.0, e.value - wide),
                "high": min(1.0, e.value + wide),
            }
            for n in names
            for v in VERSIONS
            if (e := s.get(f"{key}/{n}/{v}")) is not None and (wide := 2 * (e.error or 0.0)) >= 0
        ]
        for key in ("rank", "within")
    }
    shown = "lambda_max" if "lambda_max" in config["measures"] else config["measures"][0]
    m, v = config["measures"].index(shown), VERSIONS.index("least")
    points = [
        {"x": float(t["measures"][i, k, v, m]), "y": float(t["gap"][i, k]), "series": f"{size} batch"}
        for i, size in enumerate(SIZES)
        for k in range(config["seeds"])
        if int(t["reached"][:, k].min()) >= 0
    ]
    panels = [
        line_panel(over, lines, x="0: small-batch minimum, 1: large-batch minimum", y="loss (nats)",
                   log=(False, False), size=(290, 220), title="The line through both, median of the seeds"),
        point_panel(over, points, x=f"{shown}, least among equal weights", y="generalisation gap (nats)",
                    order=[f"{size} batch" for size in SIZES], size=(290, 220), title="Every run"),
        *(
            bar_panel(over, bars[key], x="rank correlation with the gap", groups=VERSIONS, order=names, label=".2f",
                      domain=[-1.0, 1.3], width=290, title=title)
            for key, title in (("rank", "Over all runs, with two standard errors"),
                               ("within", "Among runs of one batch size"))
        ),
    ]  # fmt: skip
    kept = [(n, w) for n in names for w in VERSIONS if f"rank/{n}/{w}" in s]
    over_all = [s[f"rank/{n}/{w}"].value for n, w in kept]
    inside, best, where = max(((s[f"within/{n}/{w}"].value, n, w) for n, w in kept), default=(0.0, "", ""))
    told = (
        f" Over all runs the rank correlations with the gap are {min(over_all):.2f} to {max(over_all):.2f};"
        f" among runs of one batch size the best is {best} ({where}), {inside:.2f}."
        if kept
        else ""
    )
    return figure_of(
        "flatness",
        "Flatness and generalisation: small- and large-batch minima",
        side_by_side(over, *panels),
        headline=f"Gap of large-batch minima minus that of small-batch ones: {s['more'].value:+.2f} +- "
        f"{s['more'].error or 0.0:.2f} nats.{told}",
        reading="Left: Keskar's line; a narrower valley is a sharper minimum. Bars: 1 says that sharper runs have the"
        " larger gap, 0 that the measure says nothing, below 0 the contrary.",
        not_meaning="One small task and one architecture. A correlation over two batch sizes can be that of the batch"
        " size alone: the last panel takes it out.",
        columns=("measure", "weights", "rank correlation", "error", "within one size", "its error", "log10 ratio"),
        rows=[
            (n, w, (e := s[f"rank/{n}/{w}"]).value, e.error or 0.0, (i := s[f"within/{n}/{w}"]).value, i.error or 0.0,
             s[f"sharper/{n}/{w}"].value)
            for n in names
            for w in VERSIONS
            if f"rank/{n}/{w}" in s
        ],
        tags=("estimate",),
        caption=f"{config['digits']}-digit addition, {config['examples']} examples, batches of {config['small']} and"
        f" {config['large']}, training loss {config['target']:g}, {s['reached'].value:.0f} seeds; errors by bootstrap"
        " over seeds.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    id="flatness",
    title="Flatness against generalisation: small- and large-batch minima",
    source="[KMN17], [own]",
    asked="Which measure of flatness tells how well a minimum generalises?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="float64",
)
