"""Curves: what was measured of each stack of blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...answers.signal import ENDS
from ...answers.signal_draft import SignalDraft
from ...core.record import Estimate
from .jacobian import LEVELS, Isometry
from .observe import Stack

#: A prediction agrees when it is this close to the measured cosine: absolutely, or relative to it.
WITHIN = (0.02, 0.05)
#: Kernels of longer sequences are left out of the record.
KERNELS_UP_TO = 256


@dataclass
class Curve:
    """What is known about one stack: its profile, its prediction, its Jacobians."""

    label: str
    stack: Stack
    unit: str  # what the error bars are over: sequences, networks
    measured: dict[str, list[Estimate]]
    heads: dict[str, list[list[Estimate]]]
    d_model: int
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


def write(curve: Curve, draft: SignalDraft) -> None:
    """The curve as the next one of an answer."""
    heads = max((len(row) for row in curve.heads["sink"]), default=0)
    found = draft.curve(
        curve.label,
        stack=curve.stack.name,
        blocks=list(curve.stack.calls),
        depth=curve.stack.depth,
        d_model=curve.d_model,
        heads=heads,
        tokens=curve.tokens,
        unit=curve.unit,
        over=curve.measured["cosine"][-1].note,
        fresh=curve.fresh,
        judged=curve.judged,
        notes=curve.notes,
        jacobians=list(curve.isometry),
    )
    for measure, layers in curve.measured.items():
        found.measured(measure, layers)
    for measure, rows in curve.heads.items():
        found.heads(measure, rows, heads)
    for measure, profile in curve.predicted.items():
        found.predicted(measure, profile)
    for layer, Sigma in curve.Sigma.items():
        if len(Sigma) <= KERNELS_UP_TO:
            found.kernel(layer, Sigma)
    for name, seen in curve.isometry.items():
        found.jacobian(name, seen.quantiles, LEVELS, [getattr(seen, end) for end in ENDS])
    if curve.predicted:
        found.difference(difference(curve))


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
