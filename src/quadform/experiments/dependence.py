"""How every block depends on the data, on each weight and on the attention moments: the three O-tables, exactly.

With the scores held fixed (the temperature moves along) the softmax is a constant, and every entry of the tables is an
exact power. Each power is measured by tripling one thing and is compared with the tables and with the derived calculus.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..core.space import WORDS
from ..report.figure import Figure, Rows
from ..theory.attention import AttentionLayer
from ..theory.growth import GrowthModel, SoftmaxAttention
from .charts import figure_of, number_panel, side_by_side
from .claims import at_most
from .experiment import Experiment, Units
from .measure import norm_of

BLOCKS = ("W_Q,W_Q", "W_K,W_Q", "W_K,W_K", "W_V,W_Q", "W_V,W_K", "W_V,W_V")
#: What is tripled, and how the temperature follows so that the scores stay.
PATHS: dict[str, dict[str, float]] = {
    "X": {"X": 1, "t": 2},
    "W_Q": {"W_Q": 1, "t": 1},
    "W_K": {"W_K": 1, "t": 1},
    "W_V": {"W_V": 1},
    "moments": {"Z": 1, "t": 1},
}
#: Powers of the published tables with the explicit 1/t taken out; moments: the sum of the orders (M2^2 is 4, M3 is 3).
#: H_f(Q, K) is a sum of two powers, listed without the T-functional term. Source: [ODS25], the slides' tables.
TABLES: dict[str, dict[str, tuple[float, ...]]] = {
    "outer": {
        "X": (6, 6, 6, 4, 4, 2),
        "W_Q": (0, 1, 2, 0, 1, 0),
        "W_K": (2, 1, 0, 1, 0, 0),
        "W_V": (2, 2, 2, 1, 1, 0),
        "moments": (4, 4, 4, 3, 3, 2),
    },
    "functional": {
        "X": (5, 5, 5, 3, 3, math.nan),
        "W_Q": (0, 1, 2, 0, 1, math.nan),
        "W_K": (2, 1, 0, 1, 0, math.nan),
        "W_V": (1, 1, 1, 0, 0, math.nan),
        "moments": (3, 3, 3, 2, 2, math.nan),
    },
}
#: Explicit powers of 1/t in each block (two scores in Q and K blocks, one beside W_V).
IN_T = {"W_Q,W_Q": 2, "W_K,W_Q": 2, "W_K,W_K": 2, "W_V,W_Q": 1, "W_V,W_K": 1, "W_V,W_V": 0}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Random layers of these sizes; the powers are exact, so the sizes do not matter."""

    tokens: int = 12
    dim: int = 8
    draws: int = 20
    seed: int = 0


PRESETS = {"smoke": Config(draws=2), "cpu": Config(draws=5), "paper": Config()}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(config.draws):
        found = [units(f"draw {i}", _powers, config, config.seed + i) for i in range(config.draws)]
    powers = {part: torch.stack([f[part] for f in found]) for part in TABLES}  # (draws, paths, blocks)
    scalars = {}
    for part, table in TABLES.items():
        for i, (path, row) in enumerate(table.items()):
            gap = max(
                float((powers[part][:, i, j] - want).abs().max()) for j, want in enumerate(row) if math.isfinite(want)
            )
            scalars[f"gap/{part}/{path}"] = Estimate(gap, kind="bound", note="largest |measured - table|, every block")
    scalars["calculus_gap"] = Estimate(_calculus_gap(powers), kind="bound", note="largest |measured - derived power|")
    scalars["functional_value_norm"] = Estimate(max(float(f["zero"]) for f in found))
    return scalars, {part: p.mean(0) for part, p in powers.items()}


def _calculus_gap(powers: dict[str, Tensor]) -> float:
    model, gap = GrowthModel(SoftmaxAttention()), 0.0
    for part in TABLES:
        for i, (path, step) in enumerate(PATHS.items()):
            if path == "moments":  # cross-attention: the calculus has one sequence
                continue
            derived = model.exponents(part, step)  # type: ignore[arg-type]  # a key of TABLES
            for j, block in enumerate(BLOCKS):
                a, b = block.split(",")
                want = derived[a, b] + IN_T[block] * step.get("t", 0)
                if math.isfinite(want):
                    gap = max(gap, float((powers[part][:, i, j] - want).abs().max()))
    return gap


def _powers(config: Config, seed: int) -> dict[str, Tensor]:
    generator = stream(seed, "dependence")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    L, d, d_K, d_V = config.tokens, config.dim, max(config.dim - 2, 1), max(config.dim - 3, 1)
    base = {
        "X": normal(L, d),
        "W_Q": normal(d, d_K) / d**0.5,
        "W_K": normal(d, d_K) / d**0.5,
        "W_V": normal(d, d_V) / d**0.5,
        "Z": normal(L, d),
    }
    root = normal(L, d_V, d_V)
    loss = (normal(L, d_V), root @ root.mT)  # dl/dF and d2l/dF2 held fixed

    def norms(path: str, s: float) -> dict[tuple[str, str], float]:
        step = PATHS[path]
        t = {name: s ** step.get(name, 0) * value for name, value in base.items()}
        context = t["Z"] if path == "moments" else None
        layer = AttentionLayer(
            t["X"], t["W_Q"], t["W_K"], t["W_V"], temperature=s ** step.get("t", 0), context=context, loss=loss
        )
        return {(part, b): norm_of(layer, b, part) for part in TABLES for b in BLOCKS}

    out = {part: torch.full((len(PATHS), len(BLOCKS)), torch.nan, dtype=torch.float64) for part in TABLES}
    zero = 0.0
    for i, (path, step) in enumerate(PATHS.items()):
        one, three = norms(path, 1.0), norms(path, 3.0)
        for part in TABLES:
            for j, block in enumerate(BLOCKS):
                if one[part, block] > 0:
                    out[part][i, j] = _power(one[part, block], three[part, block]) + IN_T[block] * step.get("t", 0)
                else:
                    zero = max(zero, one[part, block], three[part, block])
    return {**out, "zero": torch.tensor(zero, dtype=torch.float64)}


def _power(at_1: float, at_3: float) -> float:
    return math.log(at_3 / at_1) / math.log(3)


_TABLES = "[ODS25, O-tables]"
_HOW = {"X": "the data", "W_Q": "W_Q", "W_K": "W_K", "W_V": "W_V", "moments": "the attention moments"}
CLAIMS = (
    *(
        at_most(
            f"{'H_o' if part == 'outer' else 'H_f'}: every block has the published powers of {how}",
            f"gap/{part}/{path}",
            1e-9,
            _TABLES,
        )
        for part in TABLES
        for path, how in _HOW.items()
    ),
    at_most("the derived growth calculus gives every measured power", "calculus_gap", 1e-9, "[own]"),
    at_most("H_f(V, V) is exactly 0", "functional_value_norm", 0.0, _TABLES),
)


def figure(record: Record) -> Figure:
    over, panels = Rows(), []
    names = ["·".join(WORDS[w] for w in b.split(",")) for b in BLOCKS]
    for part, title in (("outer", "powers in H_o"), ("functional", "powers in H_f")):
        cells = {
            (names[j], path): float(record.tensors[part][i, j])
            for i, path in enumerate(PATHS)
            for j in range(len(BLOCKS))
        }
        panels.append(number_panel(over, names, list(PATHS), cells, title=title))
    worst = max(e.value for k, e in record.scalars.items() if "gap" in k)
    return figure_of(
        "dependence",
        "What every block depends on",
        side_by_side(over, *panels),
        headline=f"With the scores held fixed all published powers of data, weights and moments hold to {worst:.0e}.",
        reading="A cell says by which power of its column a block grows. Moments count their orders: M2 twice is 4, "
        "M3 once is 3. A dot is a block that is exactly zero.",
        not_meaning="Scaling a weight alone also changes the scores, and with them the attention: left out here.",
        columns=("part", "block", *PATHS),
        rows=[(p, b, *record.tensors[p][:, j].tolist()) for p in TABLES for j, b in enumerate(BLOCKS)],
        caption="H_f(query·key) holds two terms; along each path both have the same power.",
    )


EXPERIMENT = Experiment(
    id="dependence",
    title="What every block depends on: data, weights, moments",
    source=_TABLES,
    asked="By which power does every block depend on the data, on each weight matrix and on the attention moments?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
