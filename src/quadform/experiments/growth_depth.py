"""Growth with the input scale at depth 1 to 5, without normalisation: every layer, H_o, H_f and H of W_Q and W_V."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import grid, mean, slope, slope_of_mean, standard_error
from .paper_block import PARTS, batch_of, network_norms, paper_model
from .protocol import gpu_or_cpu

#: Power of X for small inputs; H_f(V) is exactly 0 in the last layer.
POWERS = {("outer", "W_V"): 2, ("outer", "W_Q"): 6, ("functional", "W_V"): 3, ("functional", "W_Q"): 5}


SYMBOLS = {"outer": "H_o", "functional": "H_f", "total": "H"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Depths 1 to `deepest`, `points` scales from 0.01 to 10, exact norms at width `dim`. Published: 20 scales."""

    dim: int = 128
    sequences: int = 64
    deepest: int = 5
    points: int = 7
    draws: int = 20
    seed: int = 1234


PRESETS = {
    "smoke": Config(dim=4, sequences=6, deepest=2, points=4, draws=1),
    "cpu": Config(dim=16, sequences=16, points=10, draws=2),
    "paper": Config(),
}


def _net(config: Config, seed: int, depth: int, scales: Tensor) -> dict[str, Tensor]:
    """Norms (layers, 6, points) of one network at every scale."""
    began, device = time.monotonic(), gpu_or_cpu(config.dim > 64, "growth-depth")
    batch = batch_of(config.sequences, seed)
    nets = (paper_model(config.dim, depth, seed=seed, sigma=s, device=device) for s in scales.tolist())
    norms = torch.stack([network_norms(net, batch) for net in nets], -1)
    return {"norms": norms, "seconds": torch.tensor(time.monotonic() - began)}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scales = grid(0.01, 10.0, config.points)
    norms = torch.full((config.draws, config.deepest, config.deepest, len(PARTS), config.points), torch.nan).double()
    with units.plan(config.draws * config.deepest):
        for draw in range(config.draws):
            for depth in range(1, config.deepest + 1):
                found = units(f"draw {draw}, depth {depth}", _net, config, config.seed + draw, depth, scales)
                norms[draw, depth - 1, :depth] = found["norms"]
    scalars: dict[str, Estimate] = {}
    last = 0.0
    for depth in range(1, config.deepest + 1):
        for layer in range(depth):
            for k, which in enumerate(PARTS):
                Y = norms[:, depth - 1, layer, k]
                if which == ("functional", "W_V") and layer == depth - 1:
                    last = max(last, float(Y.max()))
                    continue
                key = f"slope/{which[0]}/{which[1]}/depth {depth}/layer {layer + 1}"
                scalars[f"{key}/small"] = slope_of_mean(scales, Y, 0.01, 0.1)
                scalars[f"{key}/large"] = slope_of_mean(scales, Y, 1.0, 10.0)
    for (part, w), power in POWERS.items():
        scalars[f"worst/{part}/{w}"] = worst(scalars, part, w, power)
    scalars["functional_value_last"] = Estimate(last, note="largest norm of H_f(V, V) in a last layer")
    above = scales >= 1 - 1e-9
    for k, (part, w) in enumerate(PARTS):
        if part == "total":
            ends = [[slope(scales[above], net[layer, k, above]) for net in norms[:, -1]] for layer in (0, -1)]
            scalars[f"steeper_first/{w}"] = mean(
                [a - b for a, b in zip(*ends, strict=True)],
                f"slope of |H({w}, {w})| above scale 1 at depth {config.deepest}: first minus last layer, "
                f"{config.draws} draws",
            )
    return scalars, {"scales": scales, "norms": norms.mean(0), "spread": standard_error(norms, 0)}


def worst(scalars: dict[str, Estimate], part: str, w: str, power: int) -> Estimate:
    """|slope - power| below 0.1 where it is largest of all layers and depths, with the error of that slope."""
    start = f"slope/{part}/{w}/"
    of = {k: e for k, e in scalars.items() if k.startswith(start) and k.endswith("/small")}
    where = max(of, key=lambda k: abs(of[k].value - power))
    note = f"|slope - {power}| where it is largest: {', '.join(where.split('/')[3:5])}"
    return Estimate(abs(of[where].value - power), of[where].error, "estimate", note=note)


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
    *(
        at_least(
            f"above scale 1 H({w}) of the first layer is steeper than that of the last, by half a power",
            f"steeper_first/W_{w}",
            0.5,
            _ODS,
            presets=("cpu", "paper"),
            why=f"stored results at depth 5: H({w}) up to {power} in first layers, flatter in the last",
            page="0812-paper-presets.md",
        )
        for w, power in (("V", 6), ("Q", 6.7))
    ),
)


def figure(record: Record) -> Figure:
    scales, norms = record.tensors["scales"].tolist(), record.tensors["norms"]
    spread = record.tensors.get("spread", torch.full_like(norms, torch.nan))
    deepest, c = norms.shape[0], record.inputs["config"]
    over, panels = Rows(), []
    for k, (part, w) in sorted(enumerate(PARTS[: norms.shape[2]]), key=lambda item: (item[0] // 2, item[1][1])):
        rows = [
            {"x": s, "y": value, "series": f"layer {layer + 1}", **(_band(value, error) if c["draws"] > 1 else {})}
            for layer in range(deepest)
            for s, value, error in zip(scales, norms[-1, layer, k].tolist(), spread[-1, layer, k].tolist(), strict=True)
        ]
        panels.append(
            line_panel(
                over,
                rows,
                x="size of the embeddings, sigma",
                y=f"|{SYMBOLS[part]}({w}, {w})|",
                guides={"layer 1": POWERS[part, w]} if (part, w) in POWERS else {},
                size=(280, 190),
                title=f"{SYMBOLS[part]} of {'query' if w == 'W_Q' else 'value'}, depth {deepest}",
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
        caption=f"Width {c['dim']}, {c['sequences']} sequences, {c['draws']} draws (bands: one standard error), "
        f"{c['points']} scales where the paper has 20; split at the logits, exact norms.",
    )


def _band(value: float, error: float) -> dict[str, float]:
    return {"low": value - error, "high": value + error} if 0 < error < value else {}


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
    gpu="float64",
)
