"""The answer of `quadform landscape`: the loss on a line or a plane, its quadratic model, and where that holds.

Record "landscape": tensors `x` (columns), `y` (rows; one 0 for a line), `loss` and `model` (rows, columns), NaN where
the time was up; inputs `labels` of the axes and `marks` {name: coordinates}. With one other checkpoint `line` is the
loss on the straight way there, at even steps from 0 to 1, and `curve` that on a Bezier curve whose bend was trained
for `curve` steps; `line/at` and `curve/at` are their coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UnknownName
from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .numbers import number, percent
from .texts import line
from .verdict import NOTHING, Said, say

#: A rise below this share, of the higher end or of the rise of the straight line, is no barrier.
FREE = 0.01
#: A curve whose lowest loss is this share below both ends may have learned the batches by heart.
BELOW = 0.1


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

    # --- the way to another checkpoint ------------------------------------------------------------------------------
    @property
    def ways(self) -> dict[str, Tensor]:
        """The loss along the straight `line` to one other checkpoint and along the trained `curve`, from end to end."""
        return {name: self.record.tensors[name] for name in ("line", "curve") if name in self.record.tensors}

    @property
    def paths(self) -> dict[str, Tensor]:
        """The coordinates of the points of each way."""
        return {name: self.record.tensors[f"{name}/at"] for name in self.ways}

    @property
    def other(self) -> str:
        """The one other checkpoint, as it was named; empty where there is none or there are several."""
        return str(self.record.inputs.get("other") or "")

    def barrier(self, way: str = "line") -> float:
        """How far the loss rises above the higher end on that way, at the points where it was evaluated."""
        if way not in self.ways:
            raise UnknownName(f"no way {way!r} was measured; there are: {', '.join(self.ways) or 'none'}.")
        loss = self.ways[way]
        return float(loss.max()) - max(float(loss[0]), float(loss[-1]))

    @property
    def said_of_ways(self) -> Said:
        """Whether a barrier lies on the way, and what that means for averaging the two."""
        line = self.ways["line"]
        told: dict[str, Any] = {"other": self.other, "count": len(line)}
        told |= {"here": number(float(line[0])), "there": number(float(line[-1])), "line": number(float(line.max()))}
        middle, better = float(line[len(line) // 2]), min(float(line[0]), float(line[-1]))
        told |= {"middle": number(middle), "better": number(better)}
        limit = FREE * max(abs(float(line[0])), abs(float(line[-1])), self.barrier())
        free = "way_line_free" if middle <= better + FREE * abs(better) else "way_line_worse"
        said = say(free if self.barrier() <= limit else "way_line_barrier", **told)
        if "curve" not in self.ways:
            return said
        told |= {"curve": number(float(self.ways["curve"].max())), "steps": f"{self.record.inputs['curve']:,}"}
        rise = self.barrier("curve")
        key = (
            "way_curve_free" if rise <= limit else "way_curve_lower" if rise < self.barrier() else "way_curve_no_lower"
        )
        said += say(key, **told)
        low = float(self.ways["curve"].min())
        return said + say("way_curve_below", low=number(low)) if low < (1 - BELOW) * better else said

    @property
    def said(self) -> Said:
        return (self.said_of_ways if self.ways else NOTHING) + self.said_of_plane + self.cut_short

    @property
    def said_of_plane(self) -> Said:
        """The lowest point, unless the ways tell more; and where the quadratic model holds."""
        known = self.loss.isfinite()
        if not known.any():
            return NOTHING
        share = float((self.holds & known).sum()) / int(known.sum())
        low = self.lowest[2]
        told = {"here": number(self.here.value), "low": number(low), "share": percent(share)}
        key = "landscape_lower" if low < self.here.value - 1e-3 * abs(self.here.value) else "landscape_lowest"
        said = NOTHING if self.ways else say(key, **told)
        return said + say("landscape_model", **told, within=percent(self.share))

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

    def __init__(self) -> None:
        super().__init__()
        self.take_plane((), {}, torch.zeros(0), torch.zeros(0))  # where the time is up before there is a plane

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

    def take_way(self, name: str, points: Tensor, losses: Tensor) -> None:
        """The losses at the points of a way, from this model to the other."""
        self.tensors |= {name: losses, f"{name}/at": points}

    def take_loss(self, value: float) -> None:
        self.scalars["loss"] = Estimate(value)

    def answer(self, inputs: Mapping[str, Any], made: Provenance) -> Landscape:
        return Landscape(self.record(Landscape.kind, {**inputs, **self.plane}, made))
