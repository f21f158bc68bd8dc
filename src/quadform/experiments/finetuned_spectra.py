"""Spectra of real trained encoders: a reaction BERT before and after fine-tuning on the same probe, and MiniLM.

Fine-tuning changes weights and loss. To tell them apart the fine-tuned encoder is measured twice: under the
masked-token head it was pretrained with (same loss, same masked reactions, other weights), and under its own classes.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..answers.numbers import number
from ..core.record import Estimate, Record
from ..curvature.operators import hessian
from ..curvature.risk import Risk
from ..estimate.blocks import block_norms
from ..estimate.lanczos import eigenpairs
from ..estimate.quadrature import density
from ..report.figure import Figure, Rows
from .charts import bar_panel, figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units

#: Each state with the part that is one in all three of the first: the weights of the encoder's layers.
STATES = ("pretrained", "fine-tuned, masked", "fine-tuned, classes", "MiniLM")
KINDS = {
    "W_Q": "attention.self.query",
    "W_K": "attention.self.key",
    "W_V": "attention.self.value",
    "W_O": "attention.output.dense",
    "W_1": "intermediate.dense",
    "W_2": "output.dense",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """`batch` reactions or pairs of sentences; `layers` from the last on (0: all); products for each question."""

    batch: int = 8
    layers: int = 0
    probes: int = 4
    steps: int = 40
    products: int = 12
    tol: float = 1e-2
    seed: int = 0


PRESETS = {
    "smoke": Config(batch=2, layers=1, probes=2, steps=6, products=2, tol=0.1),
    "cpu": Config(batch=4, probes=2, steps=24, products=4),
    "paper": Config(),
}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(len(STATES)):
        found = {state: units(state, _state, config, state) for state in STATES}
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    for state, part in found.items():
        for key in ("top", "bottom", "rms", "negative", "heterogeneity", "value_query", "outliers"):
            value, error = part[key].tolist()
            scalars[f"{key}/{state}"] = Estimate(value, error, "estimate", note=_NOTES[key])
        scalars[f"loss/{state}"] = Estimate(float(part["loss"]))
        scalars[f"parameters/{state}"] = Estimate(float(part["parameters"]))
        for kind, value, error in zip(KINDS, part["norms"].tolist(), part["errors"].tolist(), strict=True):
            scalars[f"norm/{kind}/{state}"] = Estimate(value, error, "estimate", note="|H(a, a)| / sqrt(parameters)")
        tensors |= {f"{k}/{state}": part[k] for k in ("nodes", "weights")}
    before, moved, after = (scalars[f"top/{s}"] for s in STATES[:3])
    for key, other in (("top_moved", moved), ("top_after", after)):
        error = other.value / before.value * math.hypot(*((e.error or 0) / e.value for e in (before, other)))
        scalars[key] = Estimate(other.value / before.value, error, "estimate", note="lambda_max over that before")
    names = [scalars[f"heterogeneity/{s}"] for s in STATES]
    scalars["least_heterogeneity"] = min(names, key=float)
    scalars["least_outliers"] = min((scalars[f"outliers/{s}"] for s in STATES), key=float)
    down = [scalars[f"negative/{s}"] for s in (STATES[0], STATES[2])]
    scalars["straightened"] = Estimate(
        down[1].value - down[0].value,
        math.hypot(*(e.stderr or 0 for e in down)),
        "estimate",
        note="share of downward curvature, after under its classes minus before",
    )
    return scalars, tensors


_NOTES = {
    "top": "largest eigenvalue of H over the encoder's layers",
    "bottom": "smallest eigenvalue",
    "rms": "root mean square eigenvalue",
    "negative": "sum of |lambda| below zero over the sum of all",
    "heterogeneity": "sharpest kind of weight over the flattest, per parameter",
    "value_query": "|H(V, V)| / |H(Q, Q)|, all layers",
    "outliers": "lambda_max over the root mean square eigenvalue",
}


def _risk(config: Config, state: str) -> Risk:
    from ..corpora.zoo import load

    model: Any
    if state == "MiniLM":
        found = load("minilm")
        model, loss, prefix = found.model, found.loss, "encoder.layer"
        batch = found.probe(batch=config.batch, length=32, seed=config.seed)
    else:
        found = load("rxnfp", "finetuned-10k" if state == "fine-tuned, classes" else "pretrained")
        model, loss, prefix = found.model, None, "bert.encoder.layer"
        batch = found.probe(batch=config.batch, seed=config.seed)
        if state == "fine-tuned, masked":
            tuned: Any = load("rxnfp", "finetuned-10k").model
            moved = tuned.bert.state_dict()
            model = copy.deepcopy(model)
            model.bert.load_state_dict({k: t for k, t in moved.items() if not k.startswith("pooler.")})
    first = model.config.num_hidden_layers - (config.layers or model.config.num_hidden_layers)
    params = [f"{prefix}.{i}.*" for i in range(first, model.config.num_hidden_layers)]
    return Risk(model, loss, batch, params=params, quiet=True, count=lambda b: 1.0)


def _state(config: Config, state: str) -> dict[str, Tensor]:
    risk = _risk(config, state)
    H = hessian(risk)
    ends = eigenpairs(H, top=1, bottom=1, tol=config.tol, max_products=100, seed=config.seed)
    d = density(H, config.probes, config.steps, seed=config.seed)
    second = d.moment(2)
    rms = math.sqrt(second.value)
    rms_error = (second.stderr or 0.0) / (2 * rms)
    top, bottom = ends.top[0], ends.bottom[0]
    groups = {kind: [n for n in risk.space.names if _is(n, path)] for kind, path in KINDS.items()}
    found = block_norms(H, groups, config.products, seed=config.seed)
    sizes = [risk.space.select(*names).size for names in groups.values()]
    root = torch.tensor(sizes).double().sqrt()
    norms, errors = found.value.diagonal() / root, found.stderr.diagonal() / root
    spread = found.heterogeneity(sizes)
    ratio = float(norms[2] / norms[0])
    pair = ratio * math.hypot(float(errors[2] / norms[2]), float(errors[0] / norms[0]))
    outliers = top.value / rms
    negative = d.negative_curvature()
    two = {
        "top": (top.value, top.error or 0.0),
        "bottom": (bottom.value, bottom.error or 0.0),
        "rms": (rms, rms_error),
        "negative": (negative.value, negative.stderr or 0.0),
        "heterogeneity": (spread.value, spread.stderr or 0.0),
        "value_query": (ratio, pair),
        "outliers": (outliers, outliers * math.hypot((top.error or 0.0) / top.value, rms_error / rms)),
    }
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in two.items()} | {
        "loss": risk.value().detach().double(),
        "parameters": torch.tensor(risk.space.size),
        "norms": norms,
        "errors": errors,
        "nodes": d.nodes.double(),
        "weights": d.weights.double(),
    }


def _is(name: str, path: str) -> bool:
    """Whether a parameter is the weight of this kind; `output.dense` alone is the MLP's."""
    ends = name.endswith(f".{path}.weight")
    return ends and not (path == "output.dense" and name.endswith(".attention.output.dense.weight"))


_OWN, _BIG = "[own]", ("cpu", "paper")
CLAIMS = (
    at_least("real encoders have outliers: lambda_max is over 100 times the root mean square eigenvalue",
             "least_outliers", 100, _OWN, presets=_BIG),
    at_least("one step size fits none: the sharpest kind of weight is over 3 times the flattest, in all of them",
             "least_heterogeneity", 3, "[Zhang24, abstract]", presets=_BIG),
    at_least("|H(V, V)| at least twice |H(Q, Q)| in the pretrained BERT", "value_query/pretrained", 2, _OWN,
             presets=_BIG),
    at_least("... and after fine-tuning, under its classes", "value_query/fine-tuned, classes", 2, _OWN,
             presets=_BIG),
    at_least("the loss of the pretrained encoder curves down: a twentieth of the curvature is downwards",
             "negative/pretrained", 0.05, _OWN, presets=_BIG),
    at_most("where the loss is fitted less of the curvature is downwards: fine-tuned below pretrained", "straightened",
            0, _OWN, presets=_BIG, why="H_f carries the residual; the losses, 0.17 and 0.56, were known then"),
    at_least("fine-tuning leaves the valley of the masked tokens: lambda_max of that loss has grown", "top_moved", 1,
             _OWN, presets=_BIG),
    at_most("H of the pretrained encoder is indefinite: its smallest eigenvalue is below 0",
            "bottom/pretrained", -1e-9, _OWN),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    panels = []
    for sign, title in ((1, "upwards"), (-1, "downwards")):
        rows = []
        for state in STATES:
            x, w = sign * t[f"nodes/{state}"].flatten(), t[f"weights/{state}"].flatten()
            order = x.argsort(descending=True)
            many = w[order].cumsum(0) * s[f"parameters/{state}"].value / len(t[f"nodes/{state}"])
            rows += [
                {"x": float(a), "y": float(b), "series": state}
                for a, b in zip(x[order], many, strict=True)
                if a > 1e-7 * s[f"top/{state}"].value and b > 1e-2
            ]
        panels.append(
            line_panel(over, rows, x="curvature", y="directions that curve more", title=title, points=False,
                       order=STATES, size=(290, 210))
        )  # fmt: skip
    rows = [{"name": k, "value": s[f"norm/{k}/{x}"].value, "group": x} for k in KINDS for x in STATES]
    panels.append(bar_panel(over, rows, x="|H(a, a)| / sqrt(parameters)", log=True, groups=STATES, width=280))
    rows = [{"name": x, "value": s[f"negative/{x}"].value} for x in STATES]
    panels.append(bar_panel(over, rows, x="share of the curvature that is downwards", width=280, domain=[0, 0.6]))
    keys = ("loss", "top", "bottom", "rms", "outliers", "negative", "heterogeneity", "value_query")
    return figure_of(
        "finetuned-spectra",
        "Spectra of real encoders, before and after fine-tuning",
        side_by_side(over, *panels),
        headline=f"lambda_max of the reaction BERT is {number(s['top/pretrained'].value)} before, "
        f"{number(s['top/fine-tuned, masked'].value)} after fine-tuning under the same masked-token loss, "
        f"{number(s['top/fine-tuned, classes'].value)} under its classes; "
        f"{s['negative/pretrained'].value:.0%}, {s['negative/fine-tuned, masked'].value:.0%} and "
        f"{s['negative/fine-tuned, classes'].value:.0%} of the curvature is downwards.",
        reading="Count, at a curvature, how many directions of millions are sharper: few far out, most near zero.",
        not_meaning="Ten textbook reactions and docstrings are no training set; the classes are the net's own answers.",
        columns=("quantity", *STATES),
        rows=[(k, *(s[f"{k}/{state}"].value for state in STATES)) for k in keys],
        tags=("estimate",),
        caption="rxnfp (12 layers, d 256) and MiniLM (6 layers, d 384), weights of the encoder's layers, float32; "
        f"density from {record.inputs['config']['probes']} probes of {record.inputs['config']['steps']} products.",
    )


EXPERIMENT = Experiment(
    id="finetuned-spectra",
    title="Spectra before and after fine-tuning (rxnfp), and of MiniLM",
    source="[own], [Zhang24]",
    asked="How do the spectra of real encoders look, and what does fine-tuning change?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    needs=lambda config: ("rxnfp", "minilm"),
)
