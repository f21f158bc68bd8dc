"""Linear attention at depth 1 to 3 and linear MLPs at depth 1 to 5: growth with the input scale, exact norms."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..report.figure import Figure, Rows
from ..theory.mlp import LinearMLP
from .charts import figure_of, line_panel, side_by_side
from .claims import at_most, between, near
from .experiment import Experiment, Units
from .measure import grid, slope_of_mean
from .paper_block import MEASURED, batch_of, network_norms, paper_model


@dataclass(frozen=True, kw_only=True)
class Config:
    """Scales from 0.1 to 1; attention of width `dim` at depth 1 to `deepest`, MLPs of width `width` at depth 1 to 5."""

    dim: int = 12
    sequences: int = 8
    deepest: int = 3
    points: int = 9
    draws: int = 3
    width: int = 128
    seed: int = 1234


PRESETS = {
    "smoke": Config(dim=4, sequences=4, points=3, draws=1, deepest=2, width=16),
    "cpu": Config(dim=8, points=7, draws=2, width=64),
    "paper": Config(),
}
MLP_DEPTHS = (1, 2, 3, 4, 5)


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scales = grid(0.1, 1.0, config.points)
    D = config.deepest
    norms = torch.full((config.draws, D, D, len(MEASURED), config.points), torch.nan, dtype=torch.float64)
    mlp = torch.zeros(config.draws, len(MLP_DEPTHS), max(MLP_DEPTHS), config.points, dtype=torch.float64)
    with units.plan(config.draws * (D * config.points + len(MLP_DEPTHS))):
        for draw in range(config.draws):
            seed = config.seed + draw
            tokens = batch_of(config.sequences, seed)["tokens"]
            batch = (tokens, torch.nn.functional.one_hot(tokens, 12).double())
            for depth in range(1, D + 1):
                for i, s in enumerate(scales.tolist()):
                    name = f"draw {draw}, depth {depth}, scale {s:.3g}"
                    found = units(name, _attention, config, seed, batch, depth, s)
                    norms[draw, depth - 1, :depth, :, i] = found["norms"]
            for k, depth in enumerate(MLP_DEPTHS):
                found = units(f"draw {draw}, MLP {depth}", _mlp, config, seed, depth, scales)
                mlp[draw, k, :depth] = found["norms"]
    scalars = {}
    worst = dict.fromkeys(range(1, D + 1), 0.0)
    last = 0.0
    for depth in range(1, D + 1):
        for layer in range(depth):
            for k, (part, w) in enumerate(MEASURED):
                Y = norms[:, depth - 1, layer, k]
                if part == "functional" and layer == depth - 1:
                    last = max(last, float(Y.max()))
                    continue
                key = f"slope/{part}/{w}/depth {depth}/layer {layer + 1}"
                scalars[key] = slope_of_mean(scales, Y, 0.1, 1.0)
                if part == "outer":
                    worst[depth] = max(worst[depth], abs(scalars[key].value - 2 * 3**depth))
    for depth, gap in worst.items():
        scalars[f"worst/depth {depth}"] = Estimate(gap, kind="bound", note=f"largest |slope of H_o - {2 * 3**depth}|")
    scalars["functional_last"] = Estimate(last, note="largest norm of a diagonal block of H_f in a last layer")
    gap = 0.0
    for k, depth in enumerate(MLP_DEPTHS):
        for layer in range(depth):
            slope = slope_of_mean(scales, mlp[:, k, layer], 0.1, 1.0)
            scalars[f"slope/mlp/depth {depth}/layer {layer + 1}"] = slope
            gap = max(gap, abs(slope.value - 2))
    scalars["worst/mlp"] = Estimate(gap, kind="bound", note="largest |slope - 2|, every layer of depth 1 to 5")
    return scalars, {"scales": scales, "norms": norms.mean(0), "mlp": mlp.mean(0)}


def _attention(config: Config, seed: int, batch: tuple[Tensor, Tensor], depth: int, sigma: float) -> dict[str, Tensor]:
    """The published model: no softmax, no attention residual; its ReLU MLP keeps residual and degree 1.

    Its loss is the sum of squares against the one-hot of the current token.
    """
    model = paper_model(config.dim, depth, seed=seed, sigma=sigma, linear=True, skip=0.0)
    return {"norms": network_norms(model, batch, squared=True)[:, : len(MEASURED)]}


def _mlp(config: Config, seed: int, depth: int, scales: Tensor) -> dict[str, Tensor]:
    """Norms (depth, points) of the diagonal blocks of a linear MLP on Gaussian inputs of every scale."""
    generator = stream(seed, f"mlp {depth}")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n = 18 * config.sequences
    X, Y = normal(n, config.width), torch.nn.functional.one_hot(torch.arange(n) % 12, 12).double()
    sizes = [config.width] * depth + [12]
    W = [0.8 * normal(a, b) / a**0.5 for a, b in pairwise(sizes)]
    rows = []
    for s in scales.tolist():
        layer = LinearMLP(s * X, W, Y)
        rows.append([layer.norm(f"W_{i + 1}", f"W_{i + 1}").value for i in range(depth)])
    return {"norms": torch.tensor(rows, dtype=torch.float64).T}


_FIG = "[ODS25, Figs. 7, 8]"
CLAIMS = (
    at_most("linear attention, depth 1: H_o grows as X^6 in every block", "worst/depth 1", 0.01, _FIG),
    at_most("linear attention, depth 2: H_o grows as X^18 in every layer", "worst/depth 2", 0.05, _FIG),
    at_most(
        "linear attention, depth 3: H_o grows as X^54 in every layer",
        "worst/depth 3",
        0.2,
        _FIG,
        presets=("cpu", "paper"),
    ),
    at_most("linear attention, last layer: H_f is block-hollow", "functional_last", 0.0, "[ODS25, Sec. 4]"),
    between(
        "depth 2, layer 1: H_f(Q) grows between X^9 and X^18 (12.1 to 12.2 stored)",
        "slope/functional/W_Q/depth 2/layer 1",
        9.0,
        18.0,
        "[own]",
        why="a mix of 9 (F << Y) and 18 (F >> Y)",
    ),
    near(
        "depth 2, layer 1: H_f(Q) as stored, X^12.2",
        "slope/functional/W_Q/depth 2/layer 1",
        12.2,
        1.0,
        _FIG,
        presets=("paper",),
        why="depends on where F passes Y, hence on the width",
        because="the slope mixes 9 and 18, and where it changes depends on the width: 12 here, 128 in the source",
        page="0805-red-claims-of-the-records.md",
    ),
    at_most("linear MLP: every layer of every depth grows as X^2", "worst/mlp", 0.05, "[ODS25, Sec. 4]"),
)


def figure(record: Record) -> Figure:
    scales, norms, mlp = record.tensors["scales"].tolist(), record.tensors["norms"], record.tensors["mlp"]
    over = Rows()
    rows = [
        {"x": s, "y": float(norms[d, 0, 1, i]), "series": f"depth {d + 1}"}
        for d in range(norms.shape[0])
        for i, s in enumerate(scales)
    ]
    left = line_panel(
        over,
        rows,
        x="size of the embeddings, sigma",
        y="|H_o(W_Q, W_Q)|",
        title="linear attention, layer 1",
        guides={f"depth {d + 1}": 2 * 3 ** (d + 1) for d in range(norms.shape[0])},
    )
    rows = [
        {"x": s, "y": float(mlp[d, 0, i]), "series": f"depth {d + 1}"}
        for d in range(mlp.shape[0])
        for i, s in enumerate(scales)
    ]
    right = line_panel(
        over, rows, x="size of the inputs", y="|H(W_1, W_1)|", title="linear MLP", guides={f"depth {mlp.shape[0]}": 2}
    )
    s = record.scalars
    deepest = norms.shape[0]
    slope = s[f"slope/outer/W_Q/depth {deepest}/layer 1"].value
    return figure_of(
        "growth-linear",
        "Depth multiplies the exponent of linear attention, not of an MLP",
        side_by_side(over, left, right),
        headline=f"At depth {deepest} the query block of linear attention grows as X^{slope:.1f} (2 times 3^depth); "
        f"linear MLPs stay at X^2 at every depth.",
        reading="Each line is a power law; the left ones triple their slope with every layer.",
        not_meaning="Softmax attention does not do this: its growth stays at X^6 (see `growth-depth`).",
        columns=("model", "slope", "s.e."),
        rows=[(k.removeprefix("slope/"), e.value, e.stderr) for k, e in s.items() if k.startswith("slope/")],
        tags=("exact", "estimate"),
        caption="Sum of squares against the current token's one-hot, as published; float64.",
    )


EXPERIMENT = Experiment(
    id="growth-linear",
    title="Linear attention and linear MLPs: growth with the input scale",
    source=_FIG,
    asked="By which powers do linear attention and linear MLPs of several layers grow with the input size?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
