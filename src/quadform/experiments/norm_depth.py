"""Whether LayerNorm stops the dependence on the input size from growing with depth: none, Pre-LN, Post-LN."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.record import Estimate, Record
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .gram_norms import GramNorms
from .measure import band, grid, mean, slope
from .paper_block import batch_of, paper_model
from .protocol import gpu_or_cpu

#: How a block is normalised: the design, and its norm.
NORMS: dict[str, tuple[str, Literal["layer", "none"]]] = {
    "none": ("pre-ln", "none"),
    "Pre-LN": ("pre-ln", "layer"),
    "Post-LN": ("post-ln", "layer"),
}
KINDS = ("softmax", "linear")
#: Sizes of the embeddings: where a deeper net without norms differs, since its branches outgrow the skip.
LOW, HIGH = 1.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Config:
    """The paper's block, its squared loss, `points` sizes of the embeddings from 1 to 10, exact norms.

    Three blocks at most: without norms linear attention of depth D grows as sigma^(2 3^D), soon beyond float64.
    """

    dim: int = 64
    sequences: int = 32
    deepest: int = 3
    points: int = 4
    draws: int = 20
    seed: int = 1234


PRESETS = {
    "smoke": Config(dim=3, sequences=2, deepest=2, points=2, draws=1),
    "cpu": Config(dim=12, sequences=8, draws=8),
    "paper": Config(),
}


def _net(config: Config, seed: int, norm: str, kind: str, depth: int) -> dict[str, Tensor]:
    """|H_o(Q, Q)| (points, layers) of every attention layer."""
    began, device = time.monotonic(), gpu_or_cpu(config.dim > 32, "norm-depth")
    tokens = batch_of(config.sequences, seed)["tokens"]
    batch = (tokens, one_hot(tokens, 12).double())
    name, how = NORMS[norm]
    found = []
    for s in grid(LOW, HIGH, config.points).tolist():
        model = paper_model(config.dim, depth, seed=seed, sigma=s, norm=how, linear=kind == "linear", name=name,
                            device=device)  # fmt: skip
        net = GramNorms(model, batch, squared=True)
        found.append(torch.stack([net.outer(layer)["W_Q"] for layer in range(depth)]).cpu())
    return {"norms": torch.stack(found), "seconds": torch.tensor(time.monotonic() - began)}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scales, depths = grid(LOW, HIGH, config.points), range(1, config.deepest + 1)
    scalars: dict[str, Estimate] = {}
    tensors = {"scales": scales}
    with units.plan(len(NORMS) * len(KINDS) * len(depths) * config.draws):
        for norm in NORMS:
            for kind in KINDS:
                steepest = torch.zeros(config.draws, len(depths), dtype=torch.float64)
                for d, depth in enumerate(depths):
                    drawn = []
                    for draw in range(config.draws):
                        part = f"{norm}, {kind}, depth {depth}, draw {draw}"
                        norms = units(part, _net, config, config.seed + draw, norm, kind, depth)["norms"]
                        slopes = [slope(scales, norms[:, layer]) for layer in range(depth)]
                        steepest[draw, d] = max(slopes, key=abs)
                        drawn.append(norms[:, 0])
                    tensors[f"first/{norm}/{kind}/{depth}"] = torch.stack(drawn).log().mean(0).exp()
                    scalars[f"steepest/{norm}/{kind}/{depth}"] = mean(
                        steepest[:, d], f"slope of the steepest layer, {config.draws} draws"
                    )
                more = steepest[:, -1].abs() - steepest[:, 0].abs()
                note = f"|slope| of the steepest layer, depth {config.deepest} minus depth 1, {config.draws} draws"
                scalars[f"growth/{norm}/{kind}"] = mean(more, note)
    return scalars, tensors


_BIG, _SEC = ("cpu", "paper"), "[ODS25, Sec. 4]"
CLAIMS = (
    at_least("no norm, linear attention: depth makes H_o(Q) steeper in the input size, by 5 powers",
             "growth/none/linear", 5, _SEC, presets=_BIG),
    at_least("no norm, softmax attention: by half a power", "growth/none/softmax", 0.5, "[own]", presets=_BIG),
    at_most("Pre-LN stops it, linear attention: at most half a power", "growth/Pre-LN/linear", 0.5, _SEC, presets=_BIG),
    at_most("Pre-LN stops it, softmax attention: at most half a power", "growth/Pre-LN/softmax", 0.5, _SEC,
            presets=_BIG),
    at_most("Post-LN stops it, linear attention: at most half a power", "growth/Post-LN/linear", 0.5, "[own]",
            presets=_BIG),
    at_most("Post-LN stops it, softmax attention: at most half a power", "growth/Post-LN/softmax", 0.5, "[own]",
            presets=_BIG),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, s, deepest = Rows(), record.scalars, record.inputs["config"]["deepest"]
    panels = []
    for kind in KINDS:
        rows = []
        for norm in NORMS:
            for depth in range(1, deepest + 1):
                e = s[f"steepest/{norm}/{kind}/{depth}"]
                rows.append({"x": depth, "y": e.value, "series": norm, **band(e)})
        panels.append(
            line_panel(over, rows, x="depth (blocks)", y="slope of |H_o(W_Q, W_Q)| over sigma", log=(False, False),
                       order=list(NORMS), title=f"{kind} attention", size=(240, 200), rules=(0.0,))
        )  # fmt: skip
    told = {norm: s[f"growth/{norm}/linear"].value for norm in NORMS}
    return figure_of(
        "norm-depth",
        "LayerNorm and depth",
        side_by_side(over, *panels, colours="shared"),
        headline=f"From depth 1 to {deepest} the steepest power of the input size in H_o(Q) of linear attention moves "
        f"by {told['none']:+.1f} without norms, {told['Pre-LN']:+.1f} with Pre-LN and {told['Post-LN']:+.1f} with "
        "Post-LN.",
        reading="Flat lines: depth adds nothing to the dependence on the input size. Below 0 larger inputs flatten the "
        "loss. Bands are two standard errors.",
        not_meaning="Slopes are between 1 and 10 times unit embeddings, at initialisation.",
        columns=("norm", "attention", *(f"depth {d}" for d in range(1, deepest + 1))),
        rows=[
            (norm, kind, *(s[f"steepest/{norm}/{kind}/{d}"].value for d in range(1, deepest + 1)))
            for norm in NORMS
            for kind in KINDS
        ],
        tags=("exact", "estimate"),
        caption=f"Width {record.inputs['config']['dim']}, {record.inputs['config']['draws']} draws, squared loss; "
        "exact norms, the steepest layer of each net.",
    )


EXPERIMENT = Experiment(
    id="norm-depth",
    title="LayerNorm and depth: what stops the growth of data dependence",
    source="[ODS25, Sec. 4], [own]",
    asked="Does Pre-LN or Post-LN stop the dependence on the input size from growing with depth?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="float64",
)
