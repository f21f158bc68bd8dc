"""Growth with the input scale behind layer normalisation: Pre-LN block, depth 1, exact norms of H_o, H_f and H."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_most, near
from .experiment import Experiment, Units
from .measure import grid, slope_of_mean, standard_error
from .paper_block import PARTS, batch_of, network_norms, paper_model
from .protocol import gpu_or_cpu

RANGES = {"small": (0.01, 0.1), "middle": (0.1, 1.0), "large": (1.0, 10.0), "all": (0.01, 10.0)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Norms before attention, MLP and output (`layer`) and none, side by side; `points` scales from 0.01 to 10."""

    dim: int = 128
    sequences: int = 64
    points: int = 19
    draws: int = 20
    seed: int = 1234


PRESETS = {
    "smoke": Config(dim=8, sequences=6, points=4, draws=2),
    "cpu": Config(dim=32, sequences=16, points=10, draws=3),
    "paper": Config(),
}


def _net(config: Config, seed: int, norm: Any, scales: Tensor) -> dict[str, Tensor]:
    """Norms (6, points) of one network at every scale."""
    began, device = time.monotonic(), gpu_or_cpu(config.dim > 64, "growth-norm")
    batch = batch_of(config.sequences, seed)
    nets = (paper_model(config.dim, seed=seed, sigma=s, norm=norm, device=device) for s in scales.tolist())
    norms = torch.stack([network_norms(net, batch)[0] for net in nets], -1)
    return {"norms": norms, "seconds": torch.tensor(time.monotonic() - began)}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scales = grid(0.01, 10.0, config.points)
    norms = torch.zeros(2, config.draws, len(PARTS), config.points, dtype=torch.float64)
    with units.plan(2 * config.draws):
        for draw in range(config.draws):
            for k, norm in enumerate(("layer", "none")):
                norms[k, draw] = units(f"draw {draw}, {norm}", _net, config, config.seed + draw, norm, scales)["norms"]
    scalars = {}
    for k, name in enumerate(("pre-ln", "none")):
        for j, (part, w) in enumerate(PARTS):
            for where, (low, high) in RANGES.items():
                if float(norms[k, :, j].max()) > 0:
                    scalars[f"slope/{name}/{part}/{w}/{where}"] = slope_of_mean(scales, norms[k, :, j], low, high)
    flattest = max((scalars[f"slope/pre-ln/{part}/{w}/small"] for part, w in PARTS), key=lambda e: abs(e.value))
    note = "largest |slope| of the Pre-LN block below 0.1"
    scalars["flat_below"] = Estimate(abs(flattest.value), flattest.error, "estimate", note=note)
    apart = {name: _apart(norms[k]) for k, name in enumerate(("pre-ln", "none"))}
    for name, decades in apart.items():
        note = "decades over which |H(V)| / |H(Q)| moves with the input size"
        scalars[f"apart/{name}"] = _mean(decades, note)
    scalars["apart"] = _mean(apart["pre-ln"] / apart["none"], "those of Pre-LN over those without a norm")
    return scalars, {"scales": scales, "norms": norms.mean(1), "spread": standard_error(norms, 1)}


def _apart(norms: Tensor) -> Tensor:
    """For each draw, the decades between the largest and the smallest |H(V)| / |H(Q)| of all scales."""
    ratio = norms[:, PARTS.index(("total", "W_V"))] / norms[:, PARTS.index(("total", "W_Q"))]
    return (ratio.amax(-1) / ratio.amin(-1)).log10()


def _mean(values: Tensor, note: str) -> Estimate:
    return Estimate(float(values.mean()), float(standard_error(values, 0)), "estimate", note=note)


_FIG = "[ODS25, Fig. 6]"
_OWN = "[own]"
_WIDE = ("cpu", "paper")  # figure labels at width 128; a smoke run of width 4 missed two of them by 0.3 to 0.4
CLAIMS = (
    near("Pre-LN, whole range: H_o(V) falls as X^-1.2", "slope/pre-ln/outer/W_V/all", -1.2, 0.3, _FIG, presets=_WIDE),
    near(
        "Pre-LN, whole range: H_f(V) falls as X^-1.3", "slope/pre-ln/functional/W_V/all", -1.3, 0.3, _FIG, presets=_WIDE
    ),
    near("Pre-LN, whole range: H_o(Q) falls as X^-1.2", "slope/pre-ln/outer/W_Q/all", -1.2, 0.3, _FIG, presets=_WIDE),
    near(
        "Pre-LN, whole range: H_f(Q) falls as X^-0.7", "slope/pre-ln/functional/W_Q/all", -0.7, 0.3, _FIG, presets=_WIDE
    ),
    near(
        "large inputs: H_o(V) falls as X^-2, the later norms divide by the residual",
        "slope/pre-ln/outer/W_V/large",
        -2,
        0.3,
        _OWN,
    ),
    near("large inputs: H_o(Q) falls as X^-2", "slope/pre-ln/outer/W_Q/large", -2, 0.3, _OWN),
    near(
        "large inputs: H_f(Q) falls as X^-1, gradient times attention curvature",
        "slope/pre-ln/functional/W_Q/large",
        -1,
        0.3,
        _OWN,
    ),
    near("large inputs: H(V) as a whole falls as X^-2", "slope/pre-ln/total/W_V/large", -2, 0.3, _OWN),
    near("large inputs: H(Q) as a whole follows H_f, X^-1", "slope/pre-ln/total/W_Q/large", -1, 0.3, _OWN),
    at_most(
        "small inputs: with Pre-LN nothing depends on the input scale",
        "flat_below",
        0.3,
        _FIG,
        page="0805-red-claims-of-the-records.md",
    ),
    at_most(
        "with the input size |H(V)| / |H(Q)| moves over at most half as many decades with Pre-LN as without a norm",
        "apart",
        0.5,
        "[ODS25, Sec. 4]",
    ),
)


def figure(record: Record) -> Figure:
    t, c = record.tensors, record.inputs["config"]
    scales, norms = t["scales"].tolist(), t["norms"].tolist()
    spread = t.get("spread", torch.zeros_like(t["norms"])).tolist()
    symbols = {"outer": "H_o", "functional": "H_f", "total": "H"}
    names = {(part, w): f"{symbols[part]} {'value' if w == 'W_V' else 'query'}" for part, w in PARTS}
    over, panels = Rows(), []
    for k, title in ((1, "no normalisation"), (0, "Pre-LN")):
        rows = [
            {"x": s, "y": y, "series": names[which], **({"low": y - e, "high": y + e} if 0 < e < y else {})}
            for which, of, errors in zip(PARTS, norms[k], spread[k], strict=False)
            for s, y, e in zip(scales, of, errors, strict=True)
        ]
        panels.append(
            line_panel(
                over,
                rows,
                x="size of the embeddings, sigma",
                y="|H(a, a)|",
                title=title,
                order=list(names.values())[: len(norms[k])],
                guides={"H_o value": 2, "H_o query": 6} if k else {},
                size=(300, 260),
            )
        )
    s = record.scalars
    return figure_of(
        "growth-norm",
        "Pre-LN takes the input scale away",
        side_by_side(over, *panels, colours="shared"),
        headline=f"Over three decades of input scale the query block of H_o changes as "
        f"X^{s['slope/none/outer/W_Q/all'].value:.1f} without normalisation and as "
        f"X^{s['slope/pre-ln/outer/W_Q/all'].value:.1f} with Pre-LN.",
        reading="Flat or falling lines on the right: normalised inputs. They fall above scale 1 because the later "
        "norms divide by the residual stream.",
        not_meaning="The fall is not an improvement by itself: gradients fall with it.",
        columns=("norm", "part", "weight", *RANGES),
        rows=[
            (n, p, w, *(s[key].value if (key := f"slope/{n}/{p}/{w}/{r}") in s else None for r in RANGES))
            for n in ("pre-ln", "none")
            for p, w in PARTS
        ],
        tags=("exact", "estimate"),
        caption=f"Width {c['dim']}, one block, {c['sequences']} sequences, {c['draws']} draws (bands: one standard "
        "error), split at the logits, exact norms.",
    )


EXPERIMENT = Experiment(
    id="growth-norm",
    title="Pre-LN takes the input scale away",
    source=_FIG,
    asked="Does Pre-LN take the dependence on the input size away?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="float64",
)
