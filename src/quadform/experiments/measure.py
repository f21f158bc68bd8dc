"""Arithmetic that several experiments share: slopes, geometric grids, means over draws, rank correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate
from ..core.rng import stream
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


def over_seeds(each: Sequence[Tensor], note: str = "") -> Estimate:
    """The mean of the first numbers, one pair (value, error) for each seed; of one seed the value with its error."""
    of = f"{note}, " * bool(note)
    if len(each) > 1:
        return mean([float(e[0]) for e in each], f"{of}{len(each)} seeds")
    value, error = each[0].tolist()
    return Estimate(value, error, "estimate", note=f"{of}ONE seed; the error is that of the sample")


def standard_error(t: Tensor, dim: int) -> Tensor:
    """Of the mean over a dimension; 0 where there is one number."""
    n = t.shape[dim]
    return t.std(dim, correction=min(1, n - 1)) / n**0.5


def band(e: Estimate, errors: float = 2.0) -> dict[str, float]:
    """The ends of a number's error bar in a figure, `low` and `high`; nothing where it has no error."""
    return {"low": e.value - errors * e.error, "high": e.value + errors * e.error} if e.error else {}


def ranks(x: Tensor) -> Tensor:
    """Ranks along the last axis from 1 on, ties at their mean."""
    a, b = x[..., :, None], x[..., None, :]
    return (a > b).sum(-1) + ((a == b).sum(-1) + 1) / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's rank correlation along the last axis; NaN where one of both is constant."""
    u, v = (ranks(t).double() for t in (x, y))
    u, v = u - u.mean(-1, keepdim=True), v - v.mean(-1, keepdim=True)
    return (u * v).sum(-1) / (u.square().sum(-1) * v.square().sum(-1)).sqrt()


def bootstrapped(f: Callable[[Tensor], Tensor], count: int, note: str, draws: int = 1000) -> Estimate:
    """f of all `count` units, with the error and the 95 % interval of draws of units with replacement.

    f takes numbers of units (rows, count) and gives a value for each row; rows without one (NaN) are left out.
    """
    value = float(f(torch.arange(count)[None]))
    found = f(torch.randint(count, (draws, count), generator=stream(0, f"bootstrap/{count}"))).double()
    found = found[found.isfinite()]
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    said = f"{note}; 95 % interval {low:.2f} to {high:.2f}, {draws} draws with replacement"
    return Estimate(value, error=float(found.std()), kind="estimate", note=said)
