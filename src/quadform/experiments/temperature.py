"""Temperature: how it balances H_o against H_f, and the two limits of attention, one-hot and uniform."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..report.figure import Figure, Rows
from ..theory.attention import AttentionLayer
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most, near
from .experiment import Experiment, Units
from .measure import grid, norm_of, slope_of_mean

BLOCKS = ("W_Q,W_Q", "W_K,W_Q", "W_K,W_K", "W_V,W_Q", "W_V,W_K", "W_V,W_V")
#: Powers of t for t >> 1. Source: [own], derived in theory/growth.py.
LARGE = {"outer": (-2, -2, -2, -1, -1, 0), "functional": (-2, -1, -2, -1, -1, None)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """L = 12, d = 8, d_K = 6, d_V = 5, W ~ N(0, 1/d), X and Y ~ N(0, 1); `points` temperatures from 1e-6 to 1e4."""

    points: int = 41
    draws: int = 20
    seed: int = 0


PRESETS = {"smoke": Config(points=21, draws=3), "cpu": Config(draws=8), "paper": Config()}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    temperatures = grid(1e-6, 1e4, config.points)
    with units.plan(config.draws):
        found = [units(f"draw {i}", _sweep, config.seed + i, temperatures) for i in range(config.draws)]
    norms = {part: torch.stack([f[part] for f in found]) for part in ("outer", "functional", "total")}
    share, entropy = (torch.stack([f[k] for f in found]).mean(0) for k in ("share", "entropy"))
    scalars = {}
    for part, powers in LARGE.items():
        gap = 0.0
        for j, power in enumerate(powers):
            if power is not None:
                e = slope_of_mean(temperatures, norms[part][:, j], 100, 1e4)
                scalars[f"slope/{part}/{BLOCKS[j]}"] = e
                gap = max(gap, abs(e.value - power))
        scalars[f"gap/{part}"] = Estimate(gap, kind="bound", note="largest |slope - power| over t in [100, 10000]")
    query, value = norms["total"][:, 0].mean(0), norms["total"][:, 5].mean(0)
    one = int((temperatures.log10()).abs().argmin())
    scalars["query_left"] = Estimate(float(query[0] / query.max()), note="|H(Q, Q)| at t = 1e-6 over its largest")
    scalars["value_left"] = Estimate(float(value[0] / value[one]), note="|H(V, V)| at t = 1e-6 over that at t = 1")
    scalars["functional_share_hot"] = Estimate(float(share[-1]), note="|H_f| / (|H_o| + |H_f|) of the Q, K part")
    scalars["functional_share_1"] = Estimate(float(share[one]), note="the same at t = 1")
    scalars["uniform_gap"] = Estimate(max(float(f["uniform"]) for f in found), note="max |A - 1/L| at t = 1e4")
    tensors = {"temperatures": temperatures, "share": share, "entropy": entropy}
    return scalars, tensors | {part: n.mean(0) for part, n in norms.items()}


def _sweep(seed: int, temperatures: Tensor) -> dict[str, Tensor]:
    generator = stream(seed, "temperature")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X, Y = normal(12, 8), normal(12, 5)
    W_Q, W_K, W_V = normal(8, 6) / 8**0.5, normal(8, 6) / 8**0.5, normal(8, 5) / 8**0.5
    out: dict[str, list] = {k: [] for k in ("outer", "functional", "total", "share", "entropy")}
    for t in temperatures.tolist():
        layer = AttentionLayer(X, W_Q, W_K, W_V, Y, temperature=t)
        for part in ("outer", "functional", "total"):
            out[part].append([norm_of(layer, b, part) for b in BLOCKS])
        size = [torch.tensor(out[p][-1]) for p in ("outer", "functional")]
        h_o, h_f = (float((n[0] ** 2 + 2 * n[1] ** 2 + n[2] ** 2).sqrt()) for n in size)  # the whole Q, K part
        out["share"].append(h_f / (h_o + h_f) if h_o + h_f else 0.0)
        out["entropy"].append(float(torch.special.entr(layer.A).sum(-1).mean()) / torch.tensor(12.0).log().item())
    made = {k: torch.tensor(v, dtype=torch.float64) for k, v in out.items()}
    made = {k: v.T if v.ndim == 2 else v for k, v in made.items()}
    return made | {"uniform": (layer.A - 1 / 12).abs().max()}


CLAIMS = (
    at_most("hot attention: every block of H_o has its power of t (-2, -1, 0)", "gap/outer", 0.05, "[own]"),
    at_most("hot attention: every block of H_f has its power of t (-2, -1)", "gap/functional", 0.05, "[own]"),
    near(
        "hot attention: H_f(Q, K) falls only as 1/t, the T-functional term",
        "slope/functional/W_K,W_Q",
        -1,
        0.05,
        "[own]",
    ),
    at_least("hot attention: the query-key part of H is all functional", "functional_share_hot", 0.99, "[own]"),
    at_most("one-hot limit: the query curvature dies", "query_left", 1e-6, "[ODS25, Sec. 3]"),
    at_least("one-hot limit: the value curvature stays", "value_left", 0.1, "[ODS25, Sec. 3]"),
    at_most("uniform limit: the attention is 1/L", "uniform_gap", 1e-3, "[ODS25, Sec. 3]"),
)


def figure(record: Record) -> Figure:
    t = record.tensors
    temperatures = t["temperatures"].tolist()
    over = Rows()
    lines = (
        ("outer", 0, "H_o query"),
        ("functional", 0, "H_f query"),
        ("functional", 1, "H_f query-key"),
        ("outer", 5, "H_o value"),
    )
    rows = [
        {"x": x, "y": float(t[part][j, i]), "series": name}
        for part, j, name in lines
        for i, x in enumerate(temperatures)
        if float(t[part][j, i]) > 1e-14
    ]
    left = line_panel(over, rows, x="temperature t", y="|H(a, b)|", order=[n for *_, n in lines])
    rows = [
        {"x": x, "y": float(t[k][i]), "series": name}
        for k, name in (("share", "share of H_f in the query-key part"), ("entropy", "entropy of attention"))
        for i, x in enumerate(temperatures)
    ]
    right = line_panel(
        over, rows, x="temperature t", y="share of its maximum", log=(True, False), domain=(None, [0, 1.02])
    )
    s = record.scalars
    return figure_of(
        "temperature",
        "Temperature balances H_o and H_f",
        side_by_side(over, left, right),
        headline=f"Hot attention leaves only the T-functional query-key term (share of H_f "
        f"{s['functional_share_hot'].value:.3f}, {s['functional_share_1'].value:.2f} at t = 1); cold attention is "
        f"one-hot and loses {'all' if s['query_left'].value < 1e-6 else 'part'} of its query, not its value curvature.",
        reading="Left to right is from one-hot to uniform attention. Where the query-key line is far above the others "
        "the Hessian has a symmetric plus-minus spectrum.",
        not_meaning="A temperature at which curvature is small need not be one at which training is fast.",
        columns=("temperature", "H_o(Q,Q)", "H_f(Q,Q)", "H_f(Q,K)", "H(V,V)", "share of H_f", "entropy"),
        rows=[
            (x, *(float(t[p][j, i]) for p, j, _ in lines), float(t["share"][i]), float(t["entropy"][i]))
            for i, x in enumerate(temperatures)
        ],
    )


EXPERIMENT = Experiment(
    id="temperature",
    title="Temperature, one-hot and uniform attention",
    source="[ODS25, Sec. 3]",
    asked="What happens to every block as attention becomes uniform, and as it becomes one-hot?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
