"""Curves: what was measured of each stack of blocks, and the record of them that `answers.signal` reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...answers.signal import ENDS, Signal
from ...core.record import Estimate, Provenance, Record
from .jacobian import LEVELS, Isometry
from .observe import Stack

#: A prediction agrees when it is this close to the measured cosine: absolutely, or relative to it.
WITHIN = (0.02, 0.05)
#: Kernels of longer sequences are left out of the record.
KERNELS_UP_TO = 256
_NAN = math.nan


@dataclass
class Curve:
    """What is known about one stack: its profile, its prediction, its Jacobians."""

    label: str
    stack: Stack
    unit: str  # what the error bars are over: sequences, networks
    measured: dict[str, list[Estimate]]
    heads: dict[str, list[list[Estimate]]]
    dim: int
    tokens: int | None
    fresh: bool  # whether the weights are as drawn, so that the prediction is meant for them
    sequences: int = 0  # how many the kernels are means of
    Sigma: dict[int, Tensor] = field(default_factory=dict)
    predicted: dict[str, Tensor] = field(default_factory=dict)
    isometry: dict[str, Isometry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """Whether the prediction is held against the measurement: fresh weights, a known spread of networks."""
        return self.fresh and self.unit == "networks" and bool(self.predicted)


def record_of(curves: Sequence[Curve], inputs: dict[str, Any], made: Provenance) -> Record:
    """The record of measured curves."""
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    for i, curve in enumerate(curves):
        _put(curve, f"{i}/", scalars, tensors)
    return Record(Signal.kind, inputs | {"curves": [_describe(c) for c in curves]}, scalars, tensors, made)


def _describe(curve: Curve) -> dict[str, Any]:
    heads = max((len(row) for row in curve.heads["sink"]), default=0)
    note = curve.measured["cosine"][-1].note
    return {
        "label": curve.label,
        "stack": curve.stack.name,
        "blocks": list(curve.stack.calls),
        "depth": curve.stack.depth,
        "dim": curve.dim,
        "heads": heads,
        "tokens": curve.tokens,
        "unit": curve.unit,
        "over": note,
        "fresh": curve.fresh,
        "judged": curve.judged,
        "notes": curve.notes,
        "jacobians": list(curve.isometry),
    }


def _put(curve: Curve, at: str, scalars: dict[str, Estimate], tensors: dict[str, Tensor]) -> None:
    f64 = torch.float64
    for measure, layers in curve.measured.items():
        tensors[f"{at}{measure}"] = torch.tensor([e.value for e in layers], dtype=f64)
        tensors[f"{at}{measure}/stderr"] = torch.tensor([e.stderr for e in layers], dtype=f64)
        scalars[f"{curve.label}/{measure}"] = layers[0] if measure == "gradient" else layers[-1]
    heads = max((len(row) for row in curve.heads["sink"]), default=0)
    for measure, rows in curve.heads.items():
        filled = [[e.value for e in row] + [_NAN] * (heads - len(row)) for row in rows]
        tensors[f"{at}heads/{measure}"] = torch.tensor(filled, dtype=f64).reshape(len(rows), heads)
    for measure, profile in curve.predicted.items():
        tensors[f"{at}predicted/{measure}"] = profile.to(f64)
    for layer, Sigma in curve.Sigma.items():
        if len(Sigma) <= KERNELS_UP_TO:
            tensors[f"{at}kernel/{layer}"] = Sigma
    for name, found in curve.isometry.items():
        tensors[f"{at}jacobian/{name}"] = torch.tensor(found.quantiles, dtype=f64)
        scalars |= {f"{curve.label}/jacobian/{name}/{end}": getattr(found, end) for end in ENDS}
    if curve.isometry:
        tensors["levels"] = torch.tensor(LEVELS, dtype=f64)
    if curve.predicted:
        scalars[f"{curve.label}/difference"] = difference(curve)


def difference(curve: Curve) -> Estimate:
    """The largest |predicted - measured| cosine over the layers, with the measurement's error there.

    A layer agrees within 0.02 or 5 % of the measured value (`WITHIN`). `converged` is false where one is beyond that by
    more than two standard errors; nothing is judged for trained weights or for one network, whose spread is unknown.
    """
    measured = torch.tensor([e.value for e in curve.measured["cosine"]], dtype=torch.float64)
    error = torch.tensor([e.stderr or 0.0 for e in curve.measured["cosine"]], dtype=torch.float64)
    gap = (curve.predicted["cosine"] - measured).abs()
    beyond = gap - torch.maximum(torch.tensor(WITHIN[0], dtype=torch.float64), WITHIN[1] * measured.abs())
    worst = int(gap.argmax())
    surely = bool((beyond > 2 * error).any())
    said = (
        "beyond"
        if surely
        else "beyond, but by less than two standard errors,"
        if bool((beyond > 0).any())
        else "within"
    )
    note = f"at layer {worst}: {said} 0.02 or 5 %"
    return Estimate(
        float(gap[worst]), float(error[worst]), "estimate", converged=not (surely and curve.judged), note=note
    )
