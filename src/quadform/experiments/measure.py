"""Arithmetic that several experiments share: slopes, geometric grids, means over draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate
from ..theory.attention import AttentionLayer


def grid(low: float, high: float, points: int) -> Tensor:
    """`points` numbers from low to high, equal ratios between neighbours, (points,) float64."""
    return torch.logspace(math.log10(low), math.log10(high), points, dtype=torch.float64)


def norm_of(layer: AttentionLayer, block: str, part: Any) -> float:
    """The norm of a block written `W_Q,W_K`."""
    a, b = block.split(",")
    return layer.norm(a, b, part).value


def slope(x: Tensor, y: Tensor) -> float:
    """Least-squares slope of log y over log x; NaN where fewer than two values are positive."""
    keep = (y > 0) & torch.isfinite(y)
    if int(keep.sum()) < 2:
        return math.nan
    u, v = x[keep].log(), y[keep].log()
    u, v = u - u.mean(), v - v.mean()
    return float((u * v).sum() / u.square().sum())


def slope_of_mean(x: Tensor, Y: Tensor, low: float, high: float) -> Estimate:
    """The slope of the mean over draws of Y (draws, points) for low <= x <= high, as the sources fit it.

    Standard error: the spread of the slopes of single draws over the root of their number (0 for one draw).
    """
    inside = (x >= low * (1 - 1e-9)) & (x <= high * (1 + 1e-9))
    x, Y = x[inside], Y[:, inside]
    each = torch.tensor([slope(x, row) for row in Y], dtype=torch.float64)
    error = float(each.std() / math.sqrt(len(each))) if len(each) > 1 else 0.0
    note = f"slope of the mean norm of {len(each)} draws over [{low:g}, {high:g}], {int(inside.sum())} points"
    return Estimate(slope(x, Y.mean(0)), error=error, kind="estimate", note=note)


def mean(values: Sequence[float] | Tensor, note: str = "") -> Estimate:
    """Mean and standard error over draws."""
    t = torch.as_tensor(values, dtype=torch.float64).flatten()
    error = float(t.std() / math.sqrt(len(t))) if len(t) > 1 else 0.0
    return Estimate(float(t.mean()), error=error, kind="estimate", note=note or f"mean of {len(t)} draws")


def standard_error(t: Tensor, dim: int) -> Tensor:
    """Of the mean over a dimension; 0 where there is one number."""
    n = t.shape[dim]
    return t.std(dim, correction=min(1, n - 1)) / n**0.5


def band(e: Estimate, errors: float = 2.0) -> dict[str, float]:
    """The ends of a number's error bar in a figure, `low` and `high`; nothing where it has no error."""
    return {"low": e.value - errors * e.error, "high": e.value + errors * e.error} if e.error else {}
