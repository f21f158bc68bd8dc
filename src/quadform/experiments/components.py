"""What the parts of a Transformer do to the curvature of attention: each changed alone, on the same data and seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..curvature.operators import functional, hessian
from ..curvature.risk import Risk
from ..report.figure import Figure, Rows
from .charts import bar_panel, figure_of, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .paper_block import batch_of, paper_model

#: Each variant differs from the first in one thing.
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax block": {},
    "no softmax": {"linear": True},
    "one W_QK": {"merged": True},
    "Pre-LN": {"norm": "layer"},
    "Post-LN": {"norm": "layer", "name": "post-ln"},
    "no attention skip": {"skip": 0.0},
    "depth 3, first layer": {"depth": 3},
}
#: value : query, sharpest : flattest block, lambda_max, -lambda_min / lambda_max, negative share of H(Q, Q), size of
#: the functional part of H(Q, Q), -min / max of the query-key part, log-slope of |H| in the input scale.
METRICS = ("value_query", "blocks", "top", "negative", "negative_query", "hollow", "mirror", "slope")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The paper's block at width `dim` on `sequences` additions, `draws` networks."""

    dim: int = 16
    sequences: int = 32
    draws: int = 5
    seed: int = 1234


PRESETS = {"smoke": Config(dim=6, sequences=8, draws=1), "cpu": Config(dim=10, draws=3), "paper": Config()}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    found = torch.zeros(config.draws, len(VARIANTS), len(METRICS), dtype=torch.float64)
    with units.plan(config.draws * len(VARIANTS)):
        for draw in range(config.draws):
            for i, (name, how) in enumerate(VARIANTS.items()):
                part = units(f"{name} {draw}", _measure, config, config.seed + draw, how)
                found[draw, i] = part["m"]
    scalars = {}
    for i, name in enumerate(VARIANTS):
        for j, metric in enumerate(METRICS):
            each = found[:, i, j]
            if metric in ("value_query", "blocks", "top"):  # ratios and sizes: geometric means
                logs = each.log()
                value, spread = math.exp(float(logs.mean())), float(logs.std()) if config.draws > 1 else 0.0
                error = value * spread / config.draws**0.5
            else:
                value, error = float(each.mean()), float(each.std()) / config.draws**0.5 if config.draws > 1 else 0.0
            scalars[f"{metric}/{name}"] = Estimate(value, error, "estimate", note=f"{config.draws} draws")
    pairs = {
        "softmax_ratio": ("value_query", "softmax block", "no softmax"),
        "adam_ratio": ("blocks", "softmax block", "no softmax"),
    }
    for key, (metric, a, b) in pairs.items():
        scalars[key] = Estimate(
            scalars[f"{metric}/{a}"].value / scalars[f"{metric}/{b}"].value, note=f"{metric}, {a} over {b}"
        )
    scalars["ln_slope"] = Estimate(abs(scalars["slope/Pre-LN"].value), note="|log-slope| with Pre-LN")
    return scalars, {"metrics": found}


def _measure(config: Config, seed: int, how: dict[str, Any]) -> dict[str, Tensor]:
    batch = batch_of(config.sequences, seed)
    H, H_f, names, sizes = _dense(config, seed, how, batch, None)
    lam = torch.linalg.eigvalsh(H)
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    blocks = {n: H[a:b, a:b] for n, a, b in zip(names, starts, starts[1:], strict=False)}
    query = "W_Q" if "W_Q" in blocks else "W_QK"
    end = starts[names.index("W_V")]  # query and key weights come first
    tops = [float(torch.linalg.eigvalsh(B).abs().max()) for B in blocks.values()]
    of_query = torch.linalg.eigvalsh(blocks[query])
    of_pair = torch.linalg.eigvalsh(H[:end, :end])
    found = torch.tensor(
        [
            _rms(blocks["W_V"]) / _rms(blocks[query]),
            max(tops) / min(tops),
            float(lam[-1]),
            -float(lam[0] / lam[-1]),
            float((of_query < -1e-10 * of_query.abs().max()).double().mean()),
            float(H_f[: sizes[0], : sizes[0]].norm() / blocks[query].norm()),
            -float(of_pair[0] / of_pair[-1]),
            _slope(config, seed, how, batch),
        ],
        dtype=torch.float64,
    )
    return {"m": found}


def _slope(config: Config, seed: int, how: dict[str, Any], batch: dict[str, Tensor]) -> float:
    """d log |H(Q, Q)| / d log sigma between sigma = 0.2 and 0.4."""
    sizes = [float(_dense(config, seed, how, batch, s, ("W_Q", "W_QK"))[0].norm()) for s in (0.2, 0.4)]
    return math.log2(sizes[1] / sizes[0])


def _rms(B: Tensor) -> float:
    return float(B.square().mean().sqrt())


def _dense(
    config: Config,
    seed: int,
    how: dict[str, Any],
    batch: dict[str, Tensor],
    sigma: float | None,
    only: tuple[str, ...] = ("W_Q", "W_K", "W_QK", "W_V", "W_O"),
) -> tuple[Tensor, Tensor, list[str], list[int]]:
    """H and H_f over the attention weights of the first layer, dense; their names and sizes."""
    model = paper_model(
        config.dim, how.get("depth", 1), seed=seed, sigma=sigma, **{k: v for k, v in how.items() if k != "depth"}
    )
    names = [n for n in only if hasattr(model.layers[0].attn, n)]
    full = [f"layers.0.attn.{n}" for n in names]
    risk = Risk(model, None, batch, params=full, quiet=True)
    H, H_f = (op(risk, chunk=64).block(tuple(full), tuple(full)).dense() for op in (hessian, functional))
    return H, H_f, names, [risk.space.select(n).size for n in full]


_ODS = "[ODS25, Sec. 4]"
CLAIMS = (
    at_least("softmax makes value entries larger than query entries", "value_query/softmax block", 5, _ODS),
    at_least("without softmax that ratio is at least five times smaller", "softmax_ratio", 5, _ODS),
    at_most("without softmax H_f(Q, Q) is exactly zero (block-hollow)", "hollow/no softmax", 1e-12, _ODS),
    at_most("without softmax the query block has no negative eigenvalue", "negative_query/no softmax", 0.0, _ODS),
    at_least(
        "with softmax a quarter or more of the query block's eigenvalues are negative",
        "negative_query/softmax block",
        0.25,
        "[own]",
    ),
    at_least(
        "W_Q W_K^T: the query-key part has a plus-minus spectrum, the T-functional term",
        "mirror/softmax block",
        0.9,
        "[own]",
    ),
    at_most("one matrix W_QK: the mirror is gone", "mirror/one W_QK", 0.9, "[own]"),
    at_least(
        "why Adam: one step size does not fit all attention blocks (sharpest : flattest)",
        "blocks/softmax block",
        10,
        "[Zhang24, abstract]",
    ),
    at_least("... and softmax is a reason: without it the blocks are closer", "adam_ratio", 2, _ODS),
    at_least(
        "why normalise: without LN the query block grows steeply with the input scale", "slope/softmax block", 3, _ODS
    ),
    at_most(
        "... with Pre-LN it hardly depends on it",
        "ln_slope",
        1.5,
        _ODS,
        why="-1.5 to -0.9 between 0.1 and 1 stored",
        page="0803-pre-ln-slope.md",
    ),
)


def figure(record: Record) -> Figure:
    s, over = record.scalars, Rows()
    titles = {
        "value_query": ("value : query, entry size", True),
        "blocks": ("sharpest : flattest of the blocks", True),
        "negative_query": ("share of negative eigenvalues of H(Q, Q)", False),
        "mirror": ("-lambda_min / lambda_max of the query-key part", False),
        "top": ("lambda_max over the attention weights", True),
        "slope": ("power of the input scale in H(Q, Q)", False),
    }
    panels = [
        bar_panel(
            over,
            [{"name": n, "value": s[f"{m}/{n}"].value} for n in VARIANTS],
            x="",
            title=title,
            log=log,
            order=list(VARIANTS),
            width=230,
        )
        for m, (title, log) in titles.items()
    ]
    return figure_of(
        "components",
        "What each part does to the curvature",
        side_by_side(over, *panels),
        headline=f"Taking the softmax away brings value : query from {s['value_query/softmax block'].value:.0f} to "
        f"{s['value_query/no softmax'].value:.1f}; Pre-LN brings the power of the input scale from "
        f"{s['slope/softmax block'].value:.1f} to {s['slope/Pre-LN'].value:.1f}; merging W_Q W_K^T takes the mirror of "
        f"the query-key spectrum from {s['mirror/softmax block'].value:.2f} to {s['mirror/one W_QK'].value:.2f}.",
        reading="Compare each bar with the first one of its panel: same data, same seed, one change.",
        not_meaning="All at initialisation. Smaller curvature is not better by itself.",
        columns=("variant", *METRICS),
        rows=[(n, *(s[f"{m}/{n}"].value for m in METRICS)) for n in VARIANTS],
        tags=("exact", "estimate"),
        caption=f"Width {record.inputs['config']['dim']}, attention weights of the first layer, "
        f"{record.inputs['config']['draws']} draws; a missing bar is zero or negative.",
    )


EXPERIMENT = Experiment(
    id="components",
    title="What softmax, the query-key product, norms, skip and depth do",
    source=_ODS,
    asked="What do softmax, the product W_Q W_K^T and normalisation each do to the Hessian of one block?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
