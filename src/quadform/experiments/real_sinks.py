"""Attention sinks and massive activations of a real model: SmolLM2-135M on its probe of Python source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..report.figure import Figure, Rows
from .charts import cell_panel, figure_of, line_panel, side_by_side
from .claims import at_least, between
from .experiment import Experiment, Units

#: Queries from here on count: earlier ones see few tokens, the first among them.
FROM = 64


@dataclass(frozen=True, kw_only=True)
class Config:
    """`texts` windows of `tokens` tokens."""

    tokens: int = 512
    texts: int = 4
    seed: int = 0


PRESETS = {"smoke": Config(tokens=128, texts=1), "cpu": Config(texts=2), "paper": Config()}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(1):
        found = units("forward", _forward, config)
    sink, norms, cosine = found["sink"], found["norms"], found["cosine"]
    layers, heads = sink.shape
    ratio = norms[:, 0] / norms[:, 1:].median(1).values
    late = sink[12:].mean(1)
    scalars = {
        "sink_heads": Estimate(float((sink > 0.5).sum()), note=f"heads of {layers * heads} with over half on token 0"),
        "late_low": Estimate(float(late.min()), note="smallest layer mean of the attention on token 0, layers 12 on"),
        "late_high": Estimate(float(late.max()), note="largest layer mean, layers 12 on"),
        "massive": Estimate(float(ratio.max()), note="residual norm of token 0 over the median, largest layer"),
        "massive_20": Estimate(float(ratio[20]), note="the same at layer 20"),
        "cosine_last": Estimate(
            float(cosine[-1]), note="mean cosine between tokens after the last block, token 0 left out"
        ),
        "loss": Estimate(float(found["loss"])),
    }
    return scalars, {"sink": sink, "norm_ratio": ratio, "cosine": cosine}


@torch.no_grad()
def _forward(config: Config) -> dict[str, Tensor]:
    from ..corpora.zoo import load
    from ..propagation.collapse import token_cosine

    found = load("smollm2")
    model: Any = found.model
    model.set_attn_implementation("eager")  # the fused one gives no attention matrices
    sink, norms, cosine, loss = [], [], [], []
    batch = found.probe(batch=config.texts, length=config.tokens, seed=config.seed)
    for i in range(config.texts):
        one = {k: t[i : i + 1] for k, t in batch.items()}
        out = found.model(**one, output_attentions=True, output_hidden_states=True)
        sink.append(torch.stack([A[0, :, FROM:, 0].mean(-1) for A in out.attentions]))
        norms.append(torch.stack([X[0].norm(dim=-1) for X in out.hidden_states[:-1]]))
        cosine.append(torch.stack([token_cosine(X[0, 1:]) for X in out.hidden_states[:-1]]))
        loss.append(out.loss)
    means = {"sink": sink, "norms": norms, "cosine": cosine, "loss": loss}
    return {k: torch.stack(v).mean(0).double() for k, v in means.items()}


_SEEN = "an earlier drawing on prose gave 68 of 270 heads, 0.28 to 0.62, and 23,545 against 222"
CLAIMS = (
    between(
        "a quarter of the heads put more than half of their attention on the first token",
        "sink_heads",
        35,
        110,
        "[own]",
        presets=("cpu", "paper"),
        why=_SEEN,
    ),
    at_least(
        "every layer from 12 on puts at least 0.2 of its attention there",
        "late_low",
        0.2,
        "[own]",
        presets=("cpu", "paper"),
        why=_SEEN,
    ),
    between("... and the most of them about 0.6", "late_high", 0.45, 0.8, "[own]", presets=("cpu", "paper"), why=_SEEN),
    at_least(
        "massive activations: at layer 20 the first token's residual is over 50 times the median",
        "massive_20",
        50,
        "[own]",
        why=_SEEN,
    ),
)


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    heat = cell_panel(
        over,
        t["sink"].tolist(),
        title="attention on the first token",
        counted=("head", "layer"),
        legend="share",
        size=240,
        domain=[0, 1],
    )
    rows = [{"x": i, "y": float(v), "series": "norm"} for i, v in enumerate(t["norm_ratio"])]
    norms = line_panel(
        over,
        rows,
        x="layer",
        y="residual of token 0 : median",
        log=(False, True),
        legend=None,
        title="massive activation",
    )
    rows = [{"x": i, "y": float(v), "series": "cosine"} for i, v in enumerate(t["cosine"])]
    cosine = line_panel(
        over,
        rows,
        x="layer",
        y="mean cosine, token 0 left out",
        log=(False, False),
        legend=None,
        title="cosine of the other tokens",
        domain=(None, [0, 1]),
        size=(740, 160),
    )
    return figure_of(
        "real-sinks",
        "Sinks and massive activations of a real model",
        side_by_side(over, heat, norms, below=cosine),
        headline=f"{s['sink_heads'].value:.0f} of {t['sink'].numel()} heads put over half of their attention on the "
        f"first token, whose residual is up to {s['massive'].value:.0f} times the median.",
        reading="Bright cells are heads that look at the first token whatever it is.",
        not_meaning="Weights were 4-bit and are dequantised: fit for signal facts, not for fine curvature.",
        columns=("layer", "mean attention on token 0", "residual of token 0 : median", "cosine of the others"),
        rows=[
            (i, float(t["sink"][i].mean()), float(t["norm_ratio"][i]), float(t["cosine"][i]))
            for i in range(t["sink"].shape[0])
        ],
        tags=("exact",),
        caption=f"{record.inputs['config']['texts']} windows of {record.inputs['config']['tokens']} tokens "
        f"of the standard library; queries from {FROM} on.",
    )


EXPERIMENT = Experiment(
    id="real-sinks",
    title="Sinks and massive activations of a real model (SmolLM2)",
    source="[own]",
    asked="Has a real language model attention sinks and massive activations?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    needs=lambda config: ("smollm2",),
)
