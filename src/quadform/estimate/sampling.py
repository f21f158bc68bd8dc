"""Means over random probes: the loop that multiplies them in batches, keeps the state, shows progress and stops."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor

from ..core.operator import Operator
from ..core.progress import Progress, Report
from .resume import Checkpoint, State
from .vectors import AT_ONCE, Probe, chunks, multiply, probes, rows_that_fit

#: Probes below which a standard error is too rough to stop on.
_FEWEST = 10


def batch_size(A: Operator, memory: float | None, *, each: int, kept: int = 0, purpose: str) -> int:
    """Vectors per product when each needs `each` rows of memory beside the `kept` ones."""
    fit = rows_that_fit(A, memory, least=each + kept, purpose=purpose)
    return max(1, min(AT_ONCE, (fit - kept) // each))


def sweep(
    A: Operator,
    numbers: range,
    batch: int,
    rows: Callable[[range], Tensor],
    take: Callable[[range, Tensor, Tensor], None],
    *,
    checkpoint: Checkpoint,
    state: Callable[[], State],
    shown: Progress,
    text: Callable[[], str] = str,
    stop: Callable[[], bool] = bool,
) -> None:
    """Multiply the rows with these numbers, `batch` at a time, and hand rows and images to `take`."""
    for which in chunks(numbers.start, numbers.stop, batch):
        if stop():
            return
        Z = rows(which)
        take(which, Z, multiply(A, Z))
        checkpoint.reached(state)
        shown.step(len(which), text())


def student(k: int) -> float:
    """What widens the standard error of k samples so that 2 of it cover as 2 sigma do: t_{k-1}(Phi(2)) / 2, above 1."""
    return float(stdtrit(k - 1, ndtr(2.0))) / 2 if k > 1 else math.inf


def widening(values: Tensor) -> Tensor:
    """The factor from s / sqrt(k) to a standard error that covers, for samples along the first axis.

    Student's factor, and G (2 t^2 + 1) / (6 sqrt k) at t = 2 with G the adjusted Fisher-Pearson skewness. Johnson's
    expansion (1978; Hall 1992) moves the farther end of the interval of a skew sample by that many s / sqrt(k); here
    it is twice as many, because the skewness of a few samples is about half of the true one where that is large
    (chi square of one degree). Both ends are moved: an error has one size.
    """
    k, off = len(values), values - values.mean(0)
    spread = off.square().mean(0).sqrt()
    skewness = torch.where(spread > 0, off.pow(3).mean(0).abs() / spread.pow(3), torch.zeros_like(spread))
    adjusted = math.sqrt(k * (k - 1)) / (k - 2) * skewness if k > 2 else skewness
    return student(k) + 1.5 * adjusted / math.sqrt(k)


def mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the first axis and its standard error, `widening` s / sqrt(k); infinite for one sample."""
    k = len(values)
    if k < 2:
        return values.mean(0), torch.full_like(values[0], math.inf)
    return values.mean(0), widening(values) * values.std(0) / math.sqrt(k)


def jackknife(whole: float, left_out: Tensor) -> float:
    """The standard error of a statistic from its value and its values with each of k samples left out, `(k,)`."""
    k = len(left_out)
    return float(mean_and_error(k * whole - (k - 1) * left_out)[1])


def sample(
    A: Operator,
    statistic: Callable[[Tensor, Tensor], Tensor],
    name: str,
    count: int,
    *,
    probe: Probe,
    tol: float | None = None,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
    label: str = "",
    settings: dict[str, Any] | None = None,
) -> Tensor:
    """`statistic(Z, A Z)` for `count` probes z: a float64 tensor `(k, ...)`, one entry per probe.

    With `tol` it stops when the standard error of the first statistic is below `tol` times its mean (10 probes at
    least). A probe depends on the seed, the name and its number alone, so more probes extend a run.
    """
    values: list[Tensor] = []

    def take(which: range, Z: Tensor, AZ: Tensor) -> None:
        values.append(statistic(Z, AZ).double().cpu())

    def state() -> State:
        return {"values": torch.cat(values)}, {"batch": batch}

    def first() -> tuple[float, float]:
        mean, error = mean_and_error(torch.cat(values).flatten(1)[:, 0] if values[0].dim() > 1 else torch.cat(values))
        return float(mean), float(error)

    def text() -> str:
        mean, error = first()
        return f"{label or name} {mean:.4g} (+-{error:.2g})"

    def stop() -> bool:
        if tol is None or sum(map(len, values)) < min(_FEWEST, count):
            return False
        mean, error = first()
        return error <= tol * abs(mean)

    with Checkpoint(resume, name, A, {"probe": probe, "seed": seed, "tol": tol, **(settings or {})}) as checkpoint:
        batch, done = batch_size(A, memory, each=4, purpose=name), 0
        if checkpoint.found is not None:
            values, batch = [checkpoint.found[0]["values"]], int(checkpoint.found[1]["batch"])
            done = len(values[0])
        with Progress(count, "products", show=progress) as shown:
            if done:
                shown.step(min(done, count))
            sweep(
                A,
                range(done, max(count, done)),
                batch,
                lambda which: probes(A, seed, name, which, probe),
                take,
                checkpoint=checkpoint,
                state=state,
                shown=shown,
                text=text,
                stop=stop,
            )
    return torch.cat(values)[:count]
