"""Curvature along training: sharpness, block heterogeneity, share of H_f and token cosine for three designs.

Signal propagation and Hessian structure on one time axis: what a design does to its tokens, and what the loss looks
like from there, from the first step to the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..corpora.datasets import Addition, Batch
from ..curvature.operators import functional, gauss_newton, hessian
from ..curvature.risk import Risk
from ..estimate.blocks import frobenius
from ..estimate.lanczos import eigenpairs
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from ..train.watch import token_cosines
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import mean
from .protocol import Recipe, train_run

DESIGNS = ("pre-ln", "post-ln", "sas-p")
METRICS = ("sharpness", "heterogeneity", "functional_share", "cosine", "loss")


@dataclass(frozen=True, kw_only=True)
class Config:
    """`digits`-digit addition, AdamW, 10 % warm-up; measured before the steps `at` and after the last.

    `products` Hessian products go into each norm and at most three times as many into the sharpness.
    """

    digits: int = 3
    depth: int = 6
    dim: int = 48
    heads: int = 4
    steps: int = 600
    batch: int = 64
    lr: float = 2e-3
    at: tuple[int, ...] = (0, 20, 60, 150, 300, 600)
    products: int = 20
    probe: int = 32
    seeds: int = 2
    seed: int = 0


PRESETS = {
    "smoke": Config(digits=1, depth=2, dim=8, heads=2, steps=20, batch=8, at=(0, 20), products=4, probe=4, seeds=1),
    "cpu": Config(digits=2, depth=4, dim=32, steps=300, batch=32, at=(0, 30, 100, 300), products=8, probe=16, seeds=1),
    "paper": Config(),
}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    found: dict[str, list[dict[str, Tensor]]] = {name: [] for name in DESIGNS}
    data = Addition(digits=config.digits)

    def one(name: str, seed: int, warmup: float = 0.1) -> dict[str, Tensor]:
        recipe = Recipe(
            design=name,
            depth=config.depth,
            dim=config.dim,
            heads=config.heads,
            d_ff=4 * config.dim,
            steps=config.steps,
            batch=config.batch,
            lr=config.lr,
            warmup=warmup,
            seed=seed,
        )
        look = lambda step, model, batch: measure(config, model, batch)  # noqa: E731
        return train_run(recipe, data, valid_batches=4, at=config.at if warmup else (), look=look)

    cold: dict[str, list[float]] = {name: [] for name in ("pre-ln", "post-ln")}
    with units.plan((len(DESIGNS) + len(cold)) * config.seeds):
        for s in range(config.seeds):
            for name in DESIGNS:
                found[name].append(units(f"{name}, seed {config.seed + s}", one, name, config.seed + s))
            for name in cold:
                part = units(f"{name}, seed {config.seed + s}, no warm-up", one, name, config.seed + s, 0.0)
                cold[name].append(float(part["valid"][0]))
    scalars, tensors = {}, {"at": torch.tensor(config.at)}
    for name, runs in found.items():
        for metric in METRICS:
            values = torch.stack([r[f"look/{metric}"] for r in runs]).double()
            tensors[f"{metric}/{name}"] = values.mean(0)
            for when, i in (("start", 0), ("end", -1)):
                scalars[f"{metric}/{name}/{when}"] = mean(values[:, i], f"{config.seeds} seeds")
        scalars[f"valid/{name}"] = mean([float(r["valid"][0]) for r in runs], f"{config.seeds} seeds")
        share = tensors[f"functional_share/{name}"]
        scalars[f"share_kept/{name}"] = Estimate(float(share[-1] / share[0]), note="share of H_f, end over start")
        sharp = tensors[f"sharpness/{name}"]
        scalars[f"sharpening/{name}"] = Estimate(
            float(sharp[1:].max() / sharp[0]), note="largest lambda_max over the first"
        )
        scalars[f"least_heterogeneity/{name}"] = Estimate(float(tensors[f"heterogeneity/{name}"].min()))
    for name, losses in cold.items():
        gaps = [b - float(r["valid"][0]) for b, r in zip(losses, found[name], strict=True)]
        scalars[f"warmup_gain/{name}"] = mean(gaps, f"nats, without warm-up minus with it, {config.seeds} seeds")
        sharp = tensors[f"sharpness/{name}"]
        after = next(i for i, step in enumerate(config.at) if step >= 0.1 * config.steps)
        scalars[f"calmed/{name}"] = Estimate(
            float(sharp[0] / sharp[after]), note=f"lambda_max at the start over that before step {config.at[after]}"
        )
    scalars["apart_at_start"] = Estimate(
        scalars["cosine/pre-ln/start"].value - scalars["cosine/sas-p/start"].value,
        note="token cosine, pre-ln minus sas-p",
    )
    return scalars, tensors


def measure(config: Config, model: Transformer, batch: Batch) -> dict[str, float]:
    """The five numbers of one moment of a run, on held-out questions; the model is left as it was."""
    probe = {k: t[: config.probe] for k, t in batch.items()}
    risk = Risk(model, None, probe, quiet=True)
    H = hessian(risk)
    top = eigenpairs(H, top=1, tol=1e-2, max_products=3 * config.products).top[0].value
    norms = {
        part: frobenius(op(risk), max(config.products, 6)).value
        for part, op in (("outer", gauss_newton), ("functional", functional))
    }
    sizes = []
    middle = len(model.layers) // 2
    for weight in ("attn.W_Q", "attn.W_K", "attn.W_V", "mlp.W_1", "mlp.W_2"):
        name = f"layers.{middle}.{weight}"
        if name in risk.space:
            block = H.block(name, name)
            size = frobenius(block, max(config.products // 2, 4), method="sampled").value
            sizes.append(size / math.sqrt(risk.space.select(name).size))
    cosines = [c.value for c in token_cosines(model, probe).values()]
    return {
        "sharpness": top,
        "heterogeneity": max(sizes) / max(min(sizes), 1e-300),
        "functional_share": norms["functional"] / (norms["outer"] + norms["functional"]),
        "cosine": cosines[-1],
        "loss": float(risk.value().detach()),
    }


CLAIMS = (
    at_least(
        "one step size never fits: sharpest : flattest weight of a block stays above 3 in Pre-LN",
        "least_heterogeneity/pre-ln",
        3,
        "[Zhang24, abstract]",
        presets=("cpu", "paper"),
        page="0805-red-claims-of-the-records.md",
    ),
    at_most(
        "what Gauss-Newton misses shrinks as the model fits: share of H_f below 0.9 of its start (Pre-LN)",
        "share_kept/pre-ln",
        0.9,
        "[own]",
        presets=("cpu", "paper"),
        why="H_f carries the residual",
    ),
    at_least(
        "the loss sharpens in training: lambda_max at least doubles somewhere (Pre-LN)",
        "sharpening/pre-ln",
        2,
        "[own]",
        presets=("cpu", "paper"),
    ),
    at_least(
        "why warm-up: without it Post-LN ends at least 0.05 nats higher",
        "warmup_gain/post-ln",
        0.05,
        "[own]",
        presets=("cpu", "paper"),
        page="0812-paper-presets.md",
    ),
    at_most(
        "... and Pre-LN needs it less: at most 0.05 nats",
        "warmup_gain/pre-ln",
        0.05,
        "[own]",
        presets=("cpu", "paper"),
        page="0812-paper-presets.md",
    ),
    at_least("SAS-P starts with its tokens further apart than Pre-LN", "apart_at_start", 0.1, "[own]"),
    at_least(
        "Post-LN starts closer to collapse than Pre-LN ends up",
        "cosine/post-ln/start",
        0.5,
        "[own]",
        presets=("paper",),
        why="0.68 predicted for six blocks of pre-ln, 0.95 for post-ln",
    ),
)


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    at = t["at"].tolist()
    titles = {
        "sharpness": ("lambda_max of H", True),
        "heterogeneity": ("sharpest : flattest weight", True),
        "functional_share": ("share of H_f", False),
        "cosine": ("token cosine, last block", False),
        "loss": ("loss (nats)", False),
    }
    panels = []
    for metric, (title, log) in titles.items():
        rows = [
            {"x": x, "y": float(v), "series": name}
            for name in DESIGNS
            for x, v in zip(at, t[f"{metric}/{name}"], strict=True)
        ]
        panels.append(line_panel(over, rows, x="step", y=title, log=(False, log), order=DESIGNS, size=(270, 180)))
    return figure_of(
        "training",
        "Curvature along training",
        side_by_side(over, *panels, colours="shared"),
        headline=f"Pre-LN: lambda_max goes from {s['sharpness/pre-ln/start'].value:.3g} to "
        f"{s['sharpness/pre-ln/end'].value:.3g}, the share of H_f from {s['functional_share/pre-ln/start'].value:.2f} "
        f"to {s['functional_share/pre-ln/end'].value:.2f}; token cosines start at "
        f"{s['cosine/pre-ln/start'].value:.2f} (Pre-LN), {s['cosine/post-ln/start'].value:.2f} (Post-LN), "
        f"{s['cosine/sas-p/start'].value:.2f} (SAS-P). Without warm-up Post-LN ends "
        f"{s['warmup_gain/post-ln'].value:+.3f} nats from where it ends with it, Pre-LN "
        f"{s['warmup_gain/pre-ln'].value:+.3f}.",
        reading="Read the panels down one step: what the tokens do, and what the loss looks like from there.",
        not_meaning="One small task; the numbers depend on the learning rate, which was the same for all three.",
        columns=("design", "step", *METRICS),
        rows=[(name, x, *(float(t[f"{m}/{name}"][i]) for m in METRICS)) for name in DESIGNS for i, x in enumerate(at)],
        tags=("estimate",),
        caption=f"{record.inputs['config']['seeds']} seeds, {record.inputs['config']['digits']}-digit addition; norms "
        "and lambda_max are estimates from Hessian products.",
    )


EXPERIMENT = Experiment(
    id="training",
    title="Curvature along training: three designs",
    source="[own], [Zhang24]",
    asked="How does the curvature of three designs change while they are trained?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
