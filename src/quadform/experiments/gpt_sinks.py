"""A trained GPT-shaped model under attention sinks of growing size: capture, bulk and outliers of its Hessian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.spec import design
from ..corpora.datasets import Addition
from ..curvature.operators import hessian
from ..curvature.risk import Risk
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from ..train.config import TrainConfig
from ..train.loop import train
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units

HEIGHTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
NORMS = ("layer", "none")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Two-block decoders with and without norms, trained on addition; then the first position is lifted."""

    digits: int = 2
    dim: int = 16
    steps: int = 400
    probe: int = 16
    seed: int = 0


PRESETS = {
    "smoke": Config(digits=1, dim=4, steps=30, probe=4),
    "cpu": Config(),
    "paper": Config(digits=3, dim=24, steps=1500, probe=32),
}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(len(NORMS)):
        found = {norm: units(norm, _sweep, config, norm) for norm in NORMS}
    scalars, tensors = {}, {}
    for norm, part in found.items():
        name = "Pre-LN" if norm == "layer" else "no norm"
        for key, t in part.items():
            tensors[f"{key}/{name}"] = t
        bulk, top, capture = part["bulk"], part["top"], part["capture"]
        scalars[f"capture/{name}"] = Estimate(
            float(capture[-1]), note=f"attention on token 0 at height {HEIGHTS[-1]:g}"
        )
        scalars[f"bulk/{name}"] = Estimate(float(bulk[-1] / bulk[0]), note="median |lambda| over that without a sink")
        scalars[f"top/{name}"] = Estimate(float(top[-1] / top[0]), note="lambda_max over that without a sink")
        peak = float(bulk.max() / bulk[0])
        scalars[f"bulk_peak/{name}"] = Estimate(peak, note="largest median |lambda| of the sweep over the first")
    return scalars, tensors


def _sweep(config: Config, norm: str) -> dict[str, Tensor]:
    data = Addition(digits=config.digits)
    spec = design("pre-ln", depth=2, d_model=config.dim, heads=2, norm=norm, **data.settings)
    model = Transformer(spec, seed=config.seed)
    train(
        model,
        data,
        TrainConfig(
            steps=config.steps,
            lr=3e-3,
            batch_size=64,
            watch_every=0,
            valid_every=10_000,
            save_every=10_000,
            weight_decay=0.01,
            seed=config.seed,
        ),
        progress=False,
    )
    model = model.double().eval()
    batch = next(data.batches("valid", config.probe, config.seed))
    start = model.embed.W_pos.detach().clone()
    u = attracting(model, batch["tokens"])
    bulk, top, bottom, capture = [], [], [], []
    for height in HEIGHTS:
        with torch.no_grad():
            model.embed.W_pos.copy_(start)
            model.embed.W_pos[0] += height * u
        risk = Risk(model, None, batch, params="layers.*.attn.W_*", quiet=True)
        lam = torch.linalg.eigvalsh(hessian(risk, chunk=64).dense())
        bulk.append(lam.abs().median())
        top.append(lam[-1])
        bottom.append(lam[0])
        capture.append(captured(model, batch["tokens"]))
    return {
        k: torch.stack(v).detach() for k, v in (("bulk", bulk), ("top", top), ("bottom", bottom), ("capture", capture))
    }


def captured(model: Transformer, tokens: Tensor) -> Tensor:
    """Mean attention of the later half of the queries on token 0, over heads and layers; differentiable."""
    frame = model._frame(tokens, None, causal=True)
    X = model.embed(tokens, frame)
    shares = []
    hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).triu(1)
    for block in model.layers:
        N = getattr(block, "norm_attn", None)
        N = X if N is None else N(X)
        Q, K = (_heads(N @ getattr(block.attn, w), model.config.heads) for w in ("W_Q", "W_K"))
        A = (Q @ K.mT / Q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        shares.append(A[..., tokens.shape[1] // 2 :, 0].mean())
        X = block(X, frame)
    return torch.stack(shares).mean()


def _heads(X: Tensor, heads: int) -> Tensor:
    return X.unflatten(-1, (heads, -1)).transpose(-3, -2)


def attracting(model: Transformer, tokens: Tensor) -> Tensor:
    """The direction of the first position along which the attention on it rises fastest, of the size of a token."""
    (g,) = torch.autograd.grad(captured(model, tokens), model.embed.W_pos)
    return g[0] / g[0].norm() * model.embed.W_E.detach().norm(dim=-1).mean()


CLAIMS = (
    at_least(
        "without norms a growing first token becomes a sink",
        "capture/no norm",
        0.5,
        "[own]",
        presets=("cpu", "paper"),
        because="heads whose queries point away from the lifted token flee it; sinks of real models were trained for",
        page="0802-sinks-and-undecided-queries.md",
    ),
    at_least(
        "without norms the outliers grow with the sink", "top/no norm", 2.0, "[SOH25, Fig. 6]", presets=("cpu", "paper")
    ),
    at_most(
        "without norms the bulk shrinks once the sink has captured",
        "bulk/no norm",
        0.5,
        "[SOH25, slides]",
        presets=("cpu", "paper"),
        because="the sink holds 36 % of the attention, so it has not captured it; open for a model trained to "
        "have sinks",
        page="0802-sinks-and-undecided-queries.md",
    ),
    at_most(
        "Pre-LN bounds what a sink can do to lambda_max",
        "top/Pre-LN",
        10.0,
        "[own]",
        presets=("cpu", "paper"),
        why="the normalised token has a fixed size",
    ),
)


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    panels = []
    for key, title, log in (
        ("capture", "attention on the first token", False),
        ("bulk", "bulk: median |lambda|", True),
        ("top", "lambda_max", True),
    ):
        rows = [
            {"x": h, "y": float(t[f"{key}/{name}"][i]), "series": name}
            for name in ("Pre-LN", "no norm")
            for i, h in enumerate(HEIGHTS)
        ]
        panels.append(
            line_panel(over, rows, x="height of the sink (token sizes)", y=title, log=(False, log), size=(230, 200))
        )
    return figure_of(
        "gpt-sinks",
        "A trained GPT-shaped model under growing sinks",
        side_by_side(over, *panels, columns=3, colours="shared"),
        headline=f"At height {HEIGHTS[-1]:g} the first token holds {s['capture/no norm'].value:.0%} of the attention "
        f"without norms ({s['capture/Pre-LN'].value:.0%} with Pre-LN); the bulk is {s['bulk/no norm'].value:.2g} "
        f"({s['bulk/Pre-LN'].value:.2g}) times and lambda_max {s['top/no norm'].value:.2g} "
        f"({s['top/Pre-LN'].value:.2g}) times what it was.",
        reading="Follow one colour: attention captured, bulk, outliers.",
        not_meaning="The sink is planted after training; sinks that grow in training come with weights that fit them.",
        columns=("norm", "height", "attention on token 0", "bulk", "lambda_max", "lambda_min"),
        rows=[
            (name, h, *(float(t[f"{k}/{name}"][i]) for k in ("capture", "bulk", "top", "bottom")))
            for name in ("Pre-LN", "no norm")
            for i, h in enumerate(HEIGHTS)
        ],
        caption="Dense Hessian of the attention weights, float64, held-out questions.",
    )


EXPERIMENT = Experiment(
    id="gpt-sinks",
    title="A trained GPT-shaped model under growing sinks",
    source="[SOH25, Fig. 6], [own]",
    asked="What does a growing first token do to the spectrum of a trained decoder, with and without norms?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
