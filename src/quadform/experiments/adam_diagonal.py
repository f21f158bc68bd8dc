"""Adam as a diagonal: sqrt(v) of its state against |diag H| and diag H_o, by kind of weight, along a training run.

    sqrt(v_i) ~ |H_ii|^p           Adam is the diagonal of H for p = 1
    v ~ E g^2 = diag H_o / batch   at labels drawn from the model and small mean gradients: p = 1/2 for H_o

Diagonals are exact, on entries that are drawn from every kind of weight; v is corrected for its start, without epsilon.
The rank correlation says whether Adam orders the weights as the diagonal does, the power p (least squares in logs) by
how much it differs. Intervals and seeds were fixed before any run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.operator import Operator
from ..core.record import Estimate, Record
from ..core.rng import stream
from ..corpora.datasets import Addition
from ..curvature.operators import gauss_newton, hessian
from ..curvature.risk import Risk
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, near
from .experiment import Experiment, Units
from .measure import mean, slope, spearman

#: Kinds of weights by the ends of their names, in the order of the figure.
KINDS = {
    "embeddings": ("W_E", "W_pos"),
    "W_Q": ("W_Q",),
    "W_K": ("W_K",),
    "W_V": ("W_V",),
    "W_O": ("W_O",),
    "MLP": ("W_1", "W_2"),
    "norms": ("weight", "bias"),
}
PARTS = ("H", "H_o")
#: Unit vectors that share one pass.
CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class Config:
    """Pre-LN on `digits`-digit addition, float64, Adam; measured after the steps `at`, on `entries` of every kind of
    weight and `probe` held-out sequences."""

    digits: int = 2
    depth: int = 2
    d_model: int = 16
    heads: int = 2
    batch: int = 32
    lr: float = 3e-3
    beta2: float = 0.99
    at: tuple[int, ...] = (10, 100, 300, 1000)
    entries: int = 160
    probe: int = 32
    seeds: int = 3
    seed: int = 0


PRESETS = {
    "smoke": Config(digits=1, depth=1, d_model=8, batch=16, at=(5, 30), entries=24, probe=8, seeds=1),
    "cpu": Config(at=(10, 100, 300), entries=64, seeds=2),
    "paper": Config(),
}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(config.seeds):
        found = [units(f"seed {config.seed + s}", _one_seed, config, config.seed + s) for s in range(config.seeds)]
    tensors = {key: torch.stack([f[key] for f in found]).mean(0) for key in found[0]} | {"at": torch.tensor(config.at)}
    scalars = {}
    names = ("all", *KINDS)
    for p, part in enumerate(PARTS):
        rank, best = (torch.stack([f[key][p] for f in found]) for key in ("rank", "power"))  # (seed, kind, time)
        for when, t in (("start", 0), ("end", -1)):
            for k, name in enumerate(names):
                scalars[f"rank/{part}/{name}/{when}"] = mean(rank[:, k, t], f"{config.seeds} seeds")
                scalars[f"power/{part}/{name}/{when}"] = mean(best[:, k, t], f"{config.seeds} seeds")
        least = rank[:, 1:, -1].mean(0)
        k = int(least.argmin())
        scalars[f"least/{part}"] = mean(rank[:, 1 + k, -1], f"lowest of all kinds at the end: {names[1 + k]}")
    both = torch.stack([f["rank"][1, 0, -1] - f["rank"][0, 0, -1] for f in found])
    scalars["better"] = mean(both, "rank correlation at the end, diag H_o minus |diag H|")
    scalars["negative"] = mean(
        [float(f["negative"][-1]) for f in found], "share of entries of diag H below 0, at the end"
    )
    scalars["loss"] = mean([float(f["loss"][-1]) for f in found], "loss at the end")
    return scalars, tensors


def _one_seed(config: Config, seed: int) -> dict[str, Tensor]:
    """`rank` and `power` (part, all and each kind, time), `negative` and `loss` (time,) of one run."""
    data = Addition(digits=config.digits)
    model = Transformer(
        "pre-ln", depth=config.depth, d_model=config.d_model, heads=config.heads, seed=seed, dtype=torch.float64,
        **data.settings,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, betas=(0.9, config.beta2))
    probe = next(data.batches("valid", config.probe, seed))
    seen = []
    for step, batch in zip(range(1, config.at[-1] + 1), data.batches("train", config.batch, seed), strict=False):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
        if step in config.at:
            root = {
                n: (optimizer.state[p]["exp_avg_sq"] / (1 - config.beta2**step)).sqrt()
                for n, p in model.named_parameters()
            }
            seen.append(_compared(Risk(model, None, probe, quiet=True), root, config.entries, seed))
    return {key: torch.stack([s[key] for s in seen], -1) for key in seen[0]}


def _compared(risk: Risk, root: dict[str, Tensor], entries: int, seed: int) -> dict[str, Tensor]:
    which, kinds = _drawn(risk, entries, seed)
    v = risk.space.flatten(root)[which]
    diagonals = [entries_of(A, which) for A in (hessian(risk, chunk=CHUNK), gauss_newton(risk, chunk=CHUNK))]
    sets = [torch.ones_like(kinds, dtype=torch.bool), *(kinds == k for k in range(len(KINDS)))]
    rank, best = (
        torch.tensor([[f(d[own].abs(), v[own]) for own in sets] for d in diagonals], dtype=torch.float64)
        for f in (rank_correlation, power)
    )
    negative = (diagonals[0] < 0).double().mean()
    return {"rank": rank, "power": best, "negative": negative, "loss": risk.value().detach()}


def _drawn(risk: Risk, entries: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of weights, as many of every kind where it has them, and the kind of each."""
    named = torch.cat([torch.full((torch.Size(shape).numel(),), _kind(name)) for name, shape in risk.space])
    chosen = []
    for k in range(len(KINDS)):
        own = (named == k).nonzero().flatten()
        chosen.append(own[torch.randperm(len(own), generator=stream(seed, f"adam-diagonal/{k}"))[:entries]])
    which = torch.cat(chosen)
    return which, named[which]


def _kind(name: str) -> int:
    return next(k for k, ends in enumerate(KINDS.values()) if name.endswith(ends))


def entries_of(A: Operator, which: Tensor) -> Tensor:
    """The diagonal entries with these numbers, exact, by unit vectors."""
    found = []
    for some in which.split(CHUNK):
        units = torch.zeros((len(some), A.domain.size), dtype=A.dtype, device=A.device)
        units[torch.arange(len(some)), some] = 1
        images = A.domain.flatten(A.apply(A.domain.unflatten(units.T)))
        found.append(images[some, torch.arange(len(some))])
    return torch.cat(found)


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's, of what both see."""
    return float(spearman(*_seen(x, y)))


def power(x: Tensor, y: Tensor) -> float:
    """p of y ~ x^p: the slope of log y over log x, of what both see."""
    return slope(*_seen(x, y))


def _seen(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The entries above 0; a weight that the loss does not see has neither (a dead unit, the last position)."""
    keep = (x > 0) & (y > 0)
    return x[keep], y[keep]


_BIG = ("cpu", "paper")
_SLIDE = "[SOH25, Optimisation]"
CLAIMS = (
    at_least("Adam orders the weights as |diag H| does: rank correlation at least 0.7 at the end", "rank/H/all/end",
             0.7, _SLIDE, presets=_BIG),
    at_least("... in every kind of weight at least 0.5", "least/H", 0.5, "[own]", presets=_BIG),
    near("... and is that diagonal: the best power of |diag H| is 1", "power/H/all/end", 1.0, 0.2, _SLIDE,
         presets=_BIG, why="P^-1 of Adam is the inverse diagonal for p = 1 only",
         because="v averages squared gradients, so that sqrt(v) is the square root of the diagonal",
         page="0431-adam-is-a-root.md"),
    at_least("it orders them as diag H_o does: at least 0.7", "rank/H_o/all/end", 0.7, "[own]", presets=_BIG),
    near("... of which it is the square root: the best power of diag H_o is 0.5", "power/H_o/all/end", 0.5, 0.1,
         "[own]", presets=_BIG, why="v averages g^2, whose mean is diag H_o / batch at the model's labels"),
    at_least("diag H_o fits at least as well as |diag H|", "better", 0.0, "[own]", presets=_BIG),
    at_least("ten steps are enough: rank correlation with diag H_o at least 0.5", "rank/H_o/all/start", 0.5, "[own]",
             presets=_BIG),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    at, names = t["at"].tolist(), ("all", *KINDS)
    panels = [
        line_panel(
            over, _rows(at, t[key][p], names), x="step", y=f"{words} {shown}", log=(True, False), order=names,
            rules=rules, domain=(None, [0.15, 1.05] if rules else None), size=(280, 210),
        )
        for key, words, rules in (("rank", "rank correlation with", ()), ("power", "best power of", (0.5, 1.0)))
        for p, shown in enumerate(("|diag H|", "diag H_o"))
    ]  # fmt: skip
    return figure_of(
        "adam-diagonal",
        "Adam as a diagonal",
        side_by_side(over, *panels, colours="shared"),
        headline=f"At the end sqrt(v) has rank correlation {s['rank/H/all/end'].value:.2f} with |diag H| and"
        f" {s['rank/H_o/all/end'].value:.2f} with diag H_o; the best powers are {s['power/H/all/end'].value:.2f} and"
        f" {s['power/H_o/all/end'].value:.2f}. {100 * s['negative'].value:.1f} % of diag H are below 0.",
        reading="Above: 1 says that sqrt(v) orders the weights of a kind as the diagonal does. Below: at 1 it is the"
        " diagonal up to a factor, at 0.5 its square root (dotted lines).",
        not_meaning="A small model on one task. That two diagonals are alike does not say that either is a good"
        " preconditioner; noise in v lowers both numbers.",
        columns=("kind", "step", "rank, H", "rank, H_o", "power, H", "power, H_o"),
        rows=[
            (name, x, *(float(t[key][p, k, i]) for key in ("rank", "power") for p in range(2)))
            for k, name in enumerate(names)
            for i, x in enumerate(at)
        ],
        tags=("estimate",),
        caption=f"Pre-LN, {record.inputs['config']['depth']} blocks of width {record.inputs['config']['d_model']},"
        f" {record.inputs['config']['seeds']} seeds, {record.inputs['config']['entries']} weights of each kind;"
        " diagonals are exact.",
    )


def _rows(at: Sequence[int], values: Tensor, names: Sequence[str]) -> list[dict[str, object]]:
    return [
        {"x": x, "y": float(v), "series": name}
        for name, row in zip(names, values, strict=True)
        for x, v in zip(at, row, strict=True)
    ]


EXPERIMENT = Experiment(
    id="adam-diagonal",
    title="Adam as a diagonal of the Hessian",
    source="[own]",
    asked="Is the second moment of Adam the diagonal of the Hessian?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
