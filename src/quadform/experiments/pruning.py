"""Pruning trained Transformers in one shot, nothing trained again: magnitude, Wanda, SparseGPT, all matrices together.

The same calibration for all of them; SparseGPT also with the damping it was published with, 0.01 of the mean diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..applications.prune import prune
from ..core.record import Estimate, Record
from ..core.work import Work
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import Claim, at_most
from .compressed_models import ANARCII, OWN, Chosen, fetched, panels, ratio, rises
from .experiment import Experiment, Units

METHODS = ("magnitude", "wanda", "sparsegpt", "hessian")
#: The share at which the methods are compared.
AT = 0.5
PUBLISHED = 0.01


@dataclass(frozen=True, kw_only=True)
class Config:
    """`models` at each share of `sparsity`; `products` and `rounds` of the method for all matrices together."""

    models: tuple[Chosen, ...] = (OWN, ANARCII)
    sparsity: tuple[float, ...] = (0.3, 0.5, 0.7)
    products: int = 30
    rounds: int = 2
    seed: int = 0


PRESETS = {
    "smoke": Config(models=(Chosen(name="own", batch_size=2, steps=2),), sparsity=(0.5,), products=8, rounds=1),
    "cpu": Config(models=(OWN,)),
    "paper": Config(),
}


def _pruned(config: Config, model: Chosen, share: float, work: Work) -> dict[str, Tensor]:
    opened, shared = model.opened(work), {"sparsity": share, "seed": config.seed}
    found = prune(**opened, **shared, method=METHODS, products=config.products, rounds=config.rounds)
    if share != AT:
        return rises(found)
    published = prune(**opened, **shared, method=("sparsegpt",), damping=PUBLISHED)
    return rises(found) | {f"published/{n}": t[0] for n, t in rises(published).items() if n in ("measured", "held")}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    with units.plan(len(config.models) * len(config.sparsity)):
        for model in config.models:
            name = model.short
            parts = [units(f"{name}, {s:g}", _pruned, config, model, s, units.work) for s in config.sparsity]
            tensors |= {
                f"measured/{name}": torch.stack([p["measured"] for p in parts], 1),
                f"held/{name}": torch.stack([p["held"] for p in parts], 1),
            }
            half = parts[config.sparsity.index(AT)]
            _, _, sparsegpt, together = half["measured"]
            held = half["held"]
            scalars |= {
                f"loss/{name}": Estimate(float(half["loss"]), note="before"),
                f"seen/{name}": ratio(together, sparsegpt, "rise with all matrices together over SparseGPT's"),
                f"held/{name}": ratio(held[3], held[2], "the same on batches held out"),
                f"published/{name}": ratio(
                    half["published/held"], held[2], "SparseGPT, damping 0.01 over 0.1, held out"
                ),
            }
    return scalars, tensors


def _claims() -> tuple[Claim, ...]:
    found = []
    for model in (OWN, ANARCII):
        presets = ("cpu", "paper") if model.name == "own" else ("paper",)
        text = f"{model.short}: half of the weights gone, all matrices together lose at most 0.8 of what SparseGPT does"
        found += [
            at_most(text, f"seen/{model.short}", 0.8, "[own]", presets=presets),
            at_most(
                f"{model.short}: ... also on batches held out", f"held/{model.short}", 0.8, "[own]", presets=presets
            ),
        ]
    return tuple(found)


def figure(record: Record) -> Figure:
    over, s, shares = Rows(), record.scalars, record.inputs["config"]["sparsity"]
    names = panels(record)
    charts, table = [], []
    for name in names:
        curve = record.tensors[f"held/{name}"]
        rows = [
            {"x": 100 * share, "y": float(y), "series": method}
            for method, line in zip(METHODS, curve, strict=True)
            for share, y in zip(shares, line, strict=True)
        ]
        charts.append(
            line_panel(
                over,
                rows,
                x="weights removed, %",
                y="rise of the loss, held out",
                title=f"{name}, loss {s[f'loss/{name}'].value:.2g}",
                log=(False, True),
                order=METHODS,
                legend="" if name == names[-1] else None,
            )
        )
        table += [(name, m, *(float(v) for v in line)) for m, line in zip(METHODS, curve, strict=True)]
    told = [f"{n} {s[f'held/{n}'].value:.2g} ({s[f'seen/{n}'].value:.2g} on what was seen)" for n in names]
    return figure_of(
        "pruning",
        "What pruning in one shot costs the loss",
        side_by_side(over, *charts, columns=2),
        headline="With half of the weights gone all matrices together lose, of what SparseGPT does: "
        + ", ".join(told)
        + ".",
        reading="Down is better. The rise of the loss on batches that no method has seen; where it falls there is no"
        " point.",
        not_meaning="Few sequences of calibration: two to thirty-two a batch. Nothing was trained again. The"
        " targets of anarcii are its own answers, and its loss is nearly 0.",
        columns=("model", "method", *(f"{100 * x:g} %" for x in shares)),
        rows=table,
    )


EXPERIMENT = Experiment(
    id="pruning",
    title="Pruning trained Transformers in one shot",
    source="[own]",
    asked="How much less does pruning cost when all matrices make up for it together?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=_claims(),
    needs=lambda config: fetched(config.models),
)
