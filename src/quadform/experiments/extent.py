"""Where things of a panel stand: the ends of its axes, the names at the ends of its lines, guides of a given slope."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report.figure import decades

#: Pixels between two names beside a panel, and between a line's last point and its name.
APART, GAP = 14.0, 14.0
#: Pixels between a series and its guide.
BELOW = 10.0


@dataclass(frozen=True)
class Extent:
    """One axis of a panel: from `low` to `high` over so many pixels."""

    low: float
    high: float
    log: bool
    pixels: float
    whole: bool = False  # counts: no marks between them

    @classmethod
    def of(
        cls, values: Sequence[float], log: bool, domain: Sequence[float] | None, pixels: float, room: float = 0.03
    ) -> Extent:
        """An axis that holds these values, with some room at its ends, or the one that is wanted."""
        whole = not log and bool(values) and all(float(v).is_integer() for v in values)
        if domain is not None:
            return cls(domain[0], domain[1], log, pixels, whole)
        low, high = min(values, default=0.1 if log else 0.0), max(values, default=1.0)
        if not log:
            stretch = (high - low) or abs(high) or 1.0
            return cls(low - 0.03 * stretch if low else 0.0, high + max(room, 0.03) * stretch, log, pixels, whole)
        stretch = math.log10(high / low) if high > low else 1.0
        return cls(low / 10 ** (0.03 * stretch + 0.05), high * 10 ** (room * stretch + 0.05), log, pixels)

    def at(self, value: float) -> float:
        """Pixels from the low end."""
        if self.log:
            return self.pixels * math.log(value / self.low) / math.log(self.high / self.low)
        return self.pixels * (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        """Whether a value lies between the ends."""
        return self.low <= value <= self.high

    def value(self, pixels: float) -> float:
        """What stands so many pixels from the low end, also beyond the high one."""
        share = pixels / self.pixels
        if self.log:
            return self.low * (self.high / self.low) ** share
        return self.low + share * (self.high - self.low)

    def lowered(self, pixels: float) -> Extent:
        """The same pixels with room for so many of them at the low end."""
        return dataclasses.replace(self, low=self.value(-pixels))

    def settings(self, title: str) -> dict[str, Any]:
        """Scale and axis of a Vega-Lite channel."""
        from ..report.packages import alt

        if not self.log:
            counts: dict[str, Any] = {"tickMinStep": 1} if self.whole else {}
            axis = alt.Axis(title=title, labelOverlap="parity", labelSeparation=6, **counts)
            return {"scale": alt.Scale(domain=[self.low, self.high], nice=False), "axis": axis}
        marks = decades(self.low, self.high)
        if len(marks["values"]) < 2:  # less than a decade: plain numbers
            marks = {"tickCount": 4, "format": ".3~r"}
        axis = alt.Axis(title=title, labelOverlap="greedy", labelSeparation=6, **marks)
        return {"scale": alt.Scale(type="log", domain=[self.low, self.high], nice=False), "axis": axis}


def end_labels(rows: Sequence[Mapping[str, Any]], X: Extent, Y: Extent) -> list[dict[str, Any]]:
    """The name of each series right of the panel, near its last point, none on another; [] where there is no room.

    Each has entries series, x, y, align and `leader`: the line that leads from the last point to the name.
    """
    last: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if X.holds(row["x"]) and (row["series"] not in last or row["x"] >= last[row["series"]]["x"]):
            last[row["series"]] = row
    if len(last) < 2 or len(last) * APART > Y.pixels + APART:
        return []
    ranked = sorted(last, key=lambda name: Y.at(last[name]["y"]))
    heights: list[float] = []
    for name in ranked:
        wanted = min(max(Y.at(last[name]["y"]), 0.0), Y.pixels)
        heights.append(max(wanted, heights[-1] + APART) if heights else wanted)
    top = Y.pixels + APART / 2
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], top)
        top = heights[i] - APART
    found = []
    for name, height in zip(ranked, heights, strict=True):
        x, y = X.value(X.pixels + GAP), Y.value(height)
        begin = {"x": last[name]["x"], "y": Y.value(min(max(Y.at(last[name]["y"]), 0.0), Y.pixels))}
        found.append({"series": name, "x": x, "y": y, "align": "left", "leader": [begin, {"x": x, "y": y}]})
    return found


def peak_labels(rows: Sequence[Mapping[str, Any]], X: Extent) -> list[dict[str, Any]]:
    """The name of each series beside its highest point, outside of the others."""
    top: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["series"] not in top or row["y"] > top[row["series"]]["y"]:
            top[row["series"]] = row
    found = []
    for i, name in enumerate(ranked := sorted(top, key=lambda name: top[name]["x"])):
        left = 2 * i < len(ranked) - 1
        x = X.value(X.at(top[name]["x"]) + (-GAP if left else GAP))
        found.append({"series": name, "x": x, "y": top[name]["y"], "align": "right" if left else "left", "leader": []})
    return found


def guide_lines(
    rows: Sequence[Mapping[str, Any]], guides: Mapping[str, float], X: Extent, Y: Extent
) -> list[dict[str, Any]]:
    """For each series the line of its slope in log-log axes, a little below its start, over a third of the panel."""
    found = []
    for name, power in guides.items():
        start = min((r for r in rows if r["series"] == name), key=lambda r: r["x"], default=None)
        if start is None:
            continue
        x = (start["x"], X.value(X.at(start["x"]) + X.pixels / 3))
        y = [Y.value(Y.at(start["y"] * (at / x[0]) ** power) - BELOW) for at in x]
        found.append(
            {
                "line": [{"x": a, "y": b} for a, b in zip(x, y, strict=True)],
                "label": [{"x": x[0], "y": y[0], "text": f"slope {power:g}"}],
            }
        )
    return found
