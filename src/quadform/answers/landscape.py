"""The answer of `quadform landscape`: the loss on a line or a plane, its quadratic model, and where that holds.

Record "landscape": tensors `x` (columns), `y` (rows; one 0 for a line), `loss` and `model` (rows, columns), NaN where
the time was up; inputs `labels` of the axes and `marks` {name: coordinates}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .numbers import number, percent
from .texts import line
from .verdict import Said, say


class Landscape(Answer):
    """The loss on a line or a plane through a model."""

    kind = "landscape"

    @property
    def x(self) -> Tensor:
        return self.record.tensors["x"]

    @property
    def y(self) -> Tensor:
        """One 0 for a line."""
        return self.record.tensors["y"]

    @property
    def loss(self) -> Tensor:
        """(rows, columns)."""
        return self.record.tensors["loss"]

    @property
    def quadratic(self) -> Tensor:
        """The quadratic model at the same points."""
        return self.record.tensors["model"]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.record.inputs["labels"])

    @property
    def marks(self) -> dict[str, tuple[float, ...]]:
        """Named points on the plane."""
        return {str(k): tuple(v) for k, v in self.record.inputs["marks"].items()}

    @property
    def share(self) -> float:
        return float(self.record.inputs["share"])

    @property
    def here(self) -> Estimate:
        """The loss of the model itself."""
        return self.record.scalars["loss"]

    @property
    def holds(self) -> Tensor:
        """(rows, columns) whether the quadratic model is wrong by at most the share of its own change; points where it
        hardly moves are judged by a hundredth of the largest change on the plane."""
        change = (self.quadratic - self.here.value).abs()
        floor = 0.01 * float(change.max())
        return (self.loss - self.quadratic).abs() <= self.share * change.clamp_min(floor)

    @property
    def lowest(self) -> tuple[float, float, float]:
        """(x, y, loss) of the lowest point that was evaluated."""
        known = torch.where(self.loss.isfinite(), self.loss, torch.inf)
        j, i = divmod(int(known.argmin()), len(self.x))
        return float(self.x[i]), float(self.y[j]), float(self.loss[j, i])

    @property
    def said(self) -> Said:
        known = self.loss.isfinite()
        share = float((self.holds & known).sum()) / max(1, int(known.sum()))
        low = self.lowest[2]
        told = {"here": number(self.here.value), "low": number(low), "share": percent(share)}
        key = "landscape_lower" if low < self.here.value - 1e-3 * abs(self.here.value) else "landscape_lowest"
        return say(key, **told) + say("landscape_model", **told, within=percent(self.share)) + self.cut_short

    def table(self) -> Grid:
        rows = [
            (float(x), float(y), float(self.loss[j, i]), float(self.quadratic[j, i]))
            for j, y in enumerate(self.y)
            for i, x in enumerate(self.x)
            if math.isfinite(float(self.loss[j, i]))
        ]
        return Grid(("x", "y", "loss", "model"), tuple(rows))

    def lines(self) -> Sequence[str]:
        out = self.measured_lines()
        for axis, label in zip((self.x, self.y), self.labels, strict=False):
            out.append(
                line(
                    "line_axis", label=label, low=number(float(axis[0])), high=number(float(axis[-1])), count=len(axis)
                )
            )
        return [*out, self.said()]


class LandscapeDraft(Draft):
    """The answer while it is measured."""

    def take_plane(self, labels: Sequence[str], marks: Mapping[str, Sequence[float]], x: Tensor, y: Tensor) -> None:
        self.plane = {"labels": list(labels), "marks": {k: list(v) for k, v in marks.items()}}
        nothing = torch.full((len(y), len(x)), math.nan, dtype=torch.float64)
        self.tensors |= {"x": x, "y": y, "loss": nothing, "model": nothing.clone()}

    def take_model(self, model: Tensor) -> None:
        """The quadratic model, (rows, columns)."""
        self.tensors["model"] = model

    def take_row(self, j: int, loss: Tensor) -> None:
        """The losses of one row."""
        self.tensors["loss"][j] = loss

    def take_loss(self, value: float) -> None:
        self.scalars["loss"] = Estimate(value)

    def answer(self, inputs: Mapping[str, Any], made: Provenance) -> Landscape:
        return Landscape(self.record(Landscape.kind, {**inputs, **self.plane}, made))
