"""Whether warm-up matters for Post-LN and not for Pre-LN, with AdamW's ceiling on the learning rate along each run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..applications.monitor.watch import Monitor
from ..core.record import Estimate, Record
from ..corpora.datasets import Addition
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import band, mean

NAMES = {"pre-ln": "Pre-LN", "post-ln": "Post-LN"}
STARTS = ("warm", "cold")


@dataclass(frozen=True, kw_only=True)
class Config:
    """`depth` blocks on addition, AdamW, constant rate after `warmup` steps or from the first.

    Curvature is read at each of the first `early` steps, then every `every`. The gradient is not clipped.
    """

    digits: int = 2
    depth: int = 12
    dim: int = 32
    heads: int = 2
    batch: int = 32
    steps: int = 150
    warmup: int = 50
    early: int = 15
    every: int = 15
    lr: float = 2e-3
    probe: int = 8
    seeds: int = 2
    seed: int = 0


PRESETS = {
    "smoke": Config(digits=1, depth=1, dim=8, batch=4, steps=6, warmup=3, early=2, every=3, probe=2, seeds=1),
    "cpu": Config(),
    "paper": Config(dim=64, heads=4, batch=64, steps=600, warmup=200, every=30, lr=1e-3, probe=16, seeds=4),
}


def _run(config: Config, name: str, start: str, seed: int) -> dict[str, Tensor]:
    """Losses of all steps, the loss on held-out questions at the end, and the rate over the ceiling along the run."""
    data = Addition(digits=config.digits)
    model = Transformer(name, seed=seed, depth=config.depth, d_model=config.dim, heads=config.heads, **data.settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.01)
    probe = next(data.batches("valid", config.probe, seed))
    first, later = (Monitor(model, optimizer, probe, every=every) for every in (1, config.every))
    losses, readings = [], []
    for step, batch in zip(range(config.steps), data.batches("train", config.batch, seed), strict=False):
        share = min(1.0, (step + 1) / config.warmup) if start == "warm" else 1.0
        for group in optimizer.param_groups:
            group["lr"] = config.lr * share
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        seen = (first if step < config.early else later).step()
        if seen is not None and seen.ratio is not None:
            readings.append((step + 1, seen.ratio))
    with torch.no_grad():
        held = [float(model.loss(b)) for b, _ in zip(data.batches("valid", 64, 0), range(4), strict=False)]
    return {
        "loss": torch.tensor(losses),
        "valid": torch.tensor(sum(held) / len(held)),
        "ratios": torch.tensor(readings, dtype=torch.float64).reshape(-1, 2),
    }


def _first(config: Config, found: dict[str, Tensor]) -> float:
    """The rate over its ceiling, geometric mean over the first `early` steps."""
    steps, ratios = found["ratios"].T
    return float(ratios[steps <= config.early].log().mean().exp())


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    seeds = range(config.seed, config.seed + config.seeds)
    cases = [(name, start) for name in NAMES for start in STARTS]
    with units.plan(len(cases) * config.seeds):
        found = {c: [units(f"{c[0]}, {c[1]}, seed {s}", _run, config, *c, s) for s in seeds] for c in cases}
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    many = f"{config.seeds} seeds"
    for (name, start), runs in found.items():
        window = max(1, config.steps // 30)
        curves = torch.stack([r["loss"][: config.steps // window * window].reshape(-1, window).mean(1) for r in runs])
        tensors[f"loss/{name}/{start}"], tensors[f"ratio/{name}/{start}"] = (
            curves.double(),
            torch.stack([r["ratios"] for r in runs]),
        )
        scalars[f"valid/{name}/{start}"] = mean([float(r["valid"]) for r in runs], many)
        scalars[f"first/{name}/{start}"] = mean([_first(config, r) for r in runs], f"rate over ceiling, {many}")
    for name in NAMES:
        gains = [float(b["valid"] - a["valid"]) for a, b in zip(*(found[name, s] for s in STARTS), strict=True)]
        scalars[f"cost/{name}"] = mean(gains, f"nats, without warm-up minus with it, {many}")
    firsts = [[_first(config, r) for r in found[name, "cold"]] for name in ("post-ln", "pre-ln")]
    note = f"rate over ceiling in the first {config.early} steps without warm-up, Post-LN over Pre-LN, {many}"
    scalars["harder"] = mean([a / b for a, b in zip(*firsts, strict=True)], note)
    return scalars, tensors


_BIG, _OWN, _PAGE = ("cpu", "paper"), "[own]", "0817-warm-up-and-ceilings.md"
CLAIMS = (
    at_most("with warm-up Post-LN leaves the plateau of 2.1 nats: it ends below 1.9", "valid/post-ln/warm", 1.9, _OWN,
            presets=_BIG, page=_PAGE),
    at_least("Post-LN needs warm-up: without it the loss ends 0.1 nats higher", "cost/post-ln", 0.1, _OWN, presets=_BIG,
             page=_PAGE),
    at_most("Pre-LN does not: at most 0.1 nats", "cost/pre-ln", 0.1, _OWN, presets=_BIG, page=_PAGE),
    at_least("without warm-up the rate of Post-LN is above its ceiling in the first 15 steps", "first/post-ln/cold",
             1.0, _OWN, presets=_BIG, because="the harm is not done along the sharpest direction", page=_PAGE),
    at_least("... and twice as large a part of it as that of Pre-LN", "harder", 2.0, _OWN, presets=_BIG,
             because="both are far below their ceilings", page=_PAGE),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, s, t, c = Rows(), record.scalars, record.tensors, record.inputs["config"]
    words = {"warm": f"warm-up {c['warmup']}", "cold": "no warm-up"}
    order = [f"{NAMES[n]}, {words[start]}" for n in NAMES for start in STARTS]
    losses: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for name in NAMES:
        for start in STARTS:
            series, curves = f"{NAMES[name]}, {words[start]}", t[f"loss/{name}/{start}"]
            for i, each in enumerate(curves.T):
                x = c["steps"] * (i + 1) / curves.shape[1]
                losses.append({"x": x, "y": float(each.mean()), "series": series, **band(mean(each), 1.0)})
            for point in t[f"ratio/{name}/{start}"].movedim(1, 0):
                ratios.append({"x": float(point[0, 0]), "y": float(point[:, 1].log().mean().exp()), "series": series})
    panels = [
        line_panel(over, losses, x="step", y="training loss (nats)", log=(False, False), points=False, order=order,
                   title="loss"),
        line_panel(over, ratios, x="step", y="learning rate over its ceiling", log=(False, True), order=order,
                   title="rate against ceiling", rules=(1.0,),
                   domain=(None, [0.7 * min(r["y"] for r in ratios), 1.4 * max(1.0, *(r["y"] for r in ratios))])),
    ]  # fmt: skip
    return figure_of(
        "warm-up",
        "Warm-up, Pre-LN and Post-LN",
        side_by_side(over, *panels, colours="shared"),
        headline=f"Without warm-up the loss ends {s['cost/post-ln'].value:+.2f} nats away for Post-LN and "
        f"{s['cost/pre-ln'].value:+.2f} for Pre-LN; in the first {c['early']} steps the rate is "
        f"{s['first/post-ln/cold'].value:.2g} and {s['first/pre-ln/cold'].value:.2g} times AdamW's ceiling.",
        reading="Right: above the dotted line a step along the sharpest direction overshoots so far that it grows. "
        "Bands are one standard error.",
        not_meaning="One learning rate and one depth; a smaller rate needs no warm-up anywhere.",
        columns=("design", "start", "validation loss", "s.e.", "first rate over ceiling"),
        rows=[
            (NAMES[n], words[st], (e := s[f"valid/{n}/{st}"]).value, e.error, s[f"first/{n}/{st}"].value)
            for n in NAMES
            for st in STARTS
        ],
        tags=("estimate",),
        caption=f"Addition, {c['depth']} blocks, width {c['dim']}, rate {c['lr']:g}, {c['seeds']} seeds; ceilings of "
        f"AdamW on {c['probe']} held-out questions.",
    )


EXPERIMENT = Experiment(
    id="warm-up",
    title="Warm-up: Post-LN against Pre-LN, with ceilings along the run",
    source="[own]",
    asked="Does warm-up matter for Post-LN and not for Pre-LN, and does the learning-rate ceiling show why?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
