"""Growth with the input scale at depth 1 to 5, without normalisation: every layer, H_o and H_f of W_Q and W_V."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import grid, slope_of_mean
from .paper_block import MEASURED, batch_of, network_norms, paper_model

#: Power of X for small inputs; H_f(V) is exactly 0 in the last layer.
POWERS = {("outer", "W_V"): 2, ("outer", "W_Q"): 6, ("functional", "W_V"): 3, ("functional", "W_Q"): 5}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Depths 1 to `deepest`, `points` scales from 0.01 to 10, exact norms by unit vectors at width `dim`."""

    dim: int = 16
    sequences: int = 16
    deepest: int = 5
    points: int = 10
    draws: int = 2
    seed: int = 1234


PRESETS = {
    "smoke": Config(dim=4, sequences=6, deepest=2, points=4, draws=1),
    "cpu": Config(dim=8, deepest=3, points=7, draws=2),
    "paper": Config(),
}


def _point(config: Config, seed: int, batch: dict[str, Tensor], depth: int, sigma: float) -> dict[str, Tensor]:
    return {"norms": network_norms(paper_model(config.dim, depth, seed=seed, sigma=sigma), batch)}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scales = grid(0.01, 10.0, config.points)
    norms = torch.full((config.draws, config.deepest, config.deepest, len(MEASURED), config.points), torch.nan).double()
    with units.plan(config.draws * config.deepest * config.points):
        for draw in range(config.draws):
            seed = config.seed + draw
            batch = batch_of(config.sequences, seed)
            for depth in range(1, config.deepest + 1):
                for i, s in enumerate(scales.tolist()):
                    name = f"draw {draw}, depth {depth}, scale {s:.3g}"
                    found = units(name, _point, config, seed, batch, depth, s)
                    norms[draw, depth - 1, :depth, :, i] = found["norms"]
    scalars, worst = {}, dict.fromkeys(POWERS, 0.0)
    last = 0.0
    for depth in range(1, config.deepest + 1):
        for layer in range(depth):
            for k, which in enumerate(MEASURED):
                Y = norms[:, depth - 1, layer, k]
                if which == ("functional", "W_V") and layer == depth - 1:
                    last = max(last, float(Y.max()))
                    continue
                key = f"slope/{which[0]}/{which[1]}/depth {depth}/layer {layer + 1}"
                scalars[f"{key}/small"] = slope = slope_of_mean(scales, Y, 0.01, 0.1)
                scalars[f"{key}/large"] = slope_of_mean(scales, Y, 1.0, 10.0)
                worst[which] = max(worst[which], abs(slope.value - POWERS[which]))
    for (part, w), gap in worst.items():
        scalars[f"worst/{part}/{w}"] = Estimate(
            gap, kind="bound", note="largest |slope - power|, all layers and depths"
        )
    scalars["functional_value_last"] = Estimate(last, note="largest norm of H_f(V, V) in a last layer")
    deep = f"slope/outer/W_V/depth {config.deepest}/layer"
    first, final = scalars[f"{deep} 1/large"].value, scalars[f"{deep} {config.deepest}/large"].value
    scalars["steeper_first"] = Estimate(first - final, note="slope of H_o(V) above scale 1: first minus last layer")
    return scalars, {"scales": scales, "norms": norms.mean(0)}


_ODS = "[ODS25, Fig. 5, stored results]"
_WINDOW = (
    "five blocks without norms enlarge the stream: at width 16 the power holds between 1e-4 and 1e-3, not up to 0.1"
)
CLAIMS = (
    at_most("every layer of every depth: H_o(V) grows as X^2", "worst/outer/W_V", 0.15, _ODS),
    at_most("every layer of every depth: H_o(Q) grows as X^6", "worst/outer/W_Q", 0.3, _ODS),
    at_most(
        "every layer of every depth: H_f(Q) grows as X^5",
        "worst/functional/W_Q",
        0.3,
        _ODS,
        because=_WINDOW,
        page="0812-paper-presets.md",
    ),
    at_most(
        "all but the last layer: H_f(V) grows as X^3",
        "worst/functional/W_V",
        0.3,
        _ODS,
        because=_WINDOW,
        page="0812-paper-presets.md",
    ),
    at_most("the last layer: H_f(V) is exactly 0", "functional_value_last", 0.0, _ODS),
    at_least(
        "above scale 1 the first layers steepen, the last one flattens",
        "steeper_first",
        0.5,
        _ODS,
        presets=("cpu", "paper"),
        why="stored results: H(V) up to 6 in first layers, 1.75 in the last",
        because="encoded from stored slopes of H, not of H_o; H_o of the first layers falls again beyond scale 2",
        page="0812-paper-presets.md",
    ),
)


def figure(record: Record) -> Figure:
    scales, norms = record.tensors["scales"].tolist(), record.tensors["norms"]
    deepest = norms.shape[0]
    over, panels = Rows(), []
    for part, w in (("outer", "W_Q"), ("outer", "W_V"), ("functional", "W_Q"), ("functional", "W_V")):
        k = MEASURED.index((part, w))
        rows = [
            {"x": s, "y": float(norms[deepest - 1, layer, k, i]), "series": f"layer {layer + 1}"}
            for layer in range(deepest)
            for i, s in enumerate(scales)
        ]
        name = f"{'H_o' if part == 'outer' else 'H_f'} of {'query' if w == 'W_Q' else 'value'}"
        panels.append(
            line_panel(
                over,
                rows,
                x="size of the embeddings, sigma",
                y=f"|{'H_o' if part == 'outer' else 'H_f'}({w}, {w})|",
                guides={"layer 1": POWERS[part, w]},
                size=(280, 190),
                title=f"{name}, depth {deepest}",
            )
        )
    s = record.scalars
    off = [max(_off(record, depth)) for depth in range(1, deepest + 1)]
    good = next((i for i, gap in enumerate(off) if gap > 0.3), deepest)  # the widest of the claims' tolerances
    beyond = "" if good == deepest else f" At depth {deepest} the same inputs are off by up to {off[-1]:.2f}."
    return figure_of(
        "growth-depth",
        "Growth with the input scale at any depth",
        side_by_side(over, *panels, colours="shared"),
        headline=f"Without normalisation depth changes no exponent for small inputs: every layer of every depth up to "
        f"{good} is within {max(off[:good], default=0.0):.2f} of the powers 2, 6, 3, 5.{beyond}",
        reading="Parallel lines on the left: the same power in every layer. On the right, beyond scale 1, lines part.",
        not_meaning="Nothing is said about trained networks or about networks with normalisation.",
        columns=("depth", "layer", "part", "weight", "slope below 0.1", "slope above 1"),
        rows=[
            (*key.split("/")[3:5], key.split("/")[1], key.split("/")[2], e.value, s[key[:-5] + "large"].value)
            for key, e in s.items()
            if key.startswith("slope/") and key.endswith("/small")
        ],
        tags=("exact", "estimate"),
        caption=f"Width {record.inputs['config']['dim']}, split at the logits, exact by unit vectors.",
    )


def _off(record: Record, depth: int) -> list[float]:
    """|slope - power| below 0.1 of every block of every layer of the networks of this depth."""
    found = []
    for (part, w), power in POWERS.items():
        for layer in range(1, depth + 1):
            slope = record.scalars.get(f"slope/{part}/{w}/depth {depth}/layer {layer}/small")
            found += [] if slope is None else [abs(slope.value - power)]
    return found


EXPERIMENT = Experiment(
    id="growth-depth",
    title="Growth with the input scale at any depth",
    source=_ODS,
    asked="Do these powers hold in every layer of a deeper network without normalisation?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
