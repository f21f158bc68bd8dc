"""The diagonal of an operator: exact by unit vectors where that is cheaper, else from random probes.

Bekas, Kokiopoulou, Saad 2007: diag A = E z o (A z) for probes with E z z^T = I. With signs the error of an entry comes
from the off-diagonal part of its row alone, s.e.^2 = sum_{j != i} A_ij^2 / k.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..core.number import Kind
from ..core.operator import Operator
from ..core.precision import own_precision
from ..core.progress import Progress, Report
from ..core.showing import fields_in_brief
from .resume import Checkpoint, State
from .sampling import batch_size, student, sweep
from .vectors import AT_ONCE, Probe, at_least, chunks, need_square, probes, working_dtype


@dataclass(frozen=True)
class Diagonal:
    """A diagonal as named tensors: `value` and `stderr` are `{name: shape}`; an exact one has stderr 0."""

    value: dict[str, Tensor]
    stderr: dict[str, Tensor]
    kind: Kind
    matvecs: int
    converged: bool
    note: str

    __repr__ = fields_in_brief


@own_precision()
def diagonal(
    A: Operator,
    products: int = 60,
    *,
    probe: Probe = "rademacher",
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Diagonal:
    """diag A with a standard error for every entry; exact where the dimension is at most `products`."""
    need_square(A, "the diagonal")
    products, n = at_least("products", products, 2), A.domain.size
    dtype = working_dtype(A)
    if n <= products:
        value = torch.empty(n, dtype=dtype, device=A.device)
        for which in chunks(0, n, AT_ONCE):
            value[which.start : which.stop] = A.columns(which.start, which.stop)[which.start : which.stop].diagonal()
        zero = torch.zeros_like(value)
        named = A.domain.unflatten(value), A.domain.unflatten(zero)
        return Diagonal(*named, "exact", n, True, f"exact by {n} unit vectors")

    done, mean, square = 0, *(torch.zeros(n, dtype=dtype, device=A.device) for _ in range(2))

    def take(which: range, Z: Tensor, AZ: Tensor) -> None:
        nonlocal done
        for z, Az in zip(Z, AZ, strict=True):  # Welford's running mean and sum of squared deviations
            done += 1
            x = z * Az
            off = x - mean
            mean.add_(off / done)
            square.add_(off * (x - mean))

    def state() -> State:
        return {"mean": mean, "square": square}, {"done": done, "batch": batch}

    with Checkpoint(resume, "diagonal", A, {"probe": probe, "seed": seed}) as checkpoint:
        batch = batch_size(A, memory, each=4, kept=4, purpose="the diagonal")
        if checkpoint.found is not None:
            tensors, numbers = checkpoint.found
            mean, square = tensors["mean"].to(mean), tensors["square"].to(square)
            done, batch = int(numbers["done"]), int(numbers["batch"])
        with Progress(products, "products", show=progress) as shown:
            if done:
                shown.step(min(done, products))
            sweep(
                A,
                range(done, max(done, products)),
                batch,
                lambda which: probes(A, seed, "diagonal", which, probe),
                take,
                checkpoint=checkpoint,
                state=state,
                shown=shown,
                text=lambda: f"trace {float(mean.sum()):.4g}",
            )
    stderr = student(done) * (square / (done - 1) / done).sqrt()
    named = A.domain.unflatten(mean), A.domain.unflatten(stderr)
    return Diagonal(*named, "estimate", done, True, f"{done} {probe} probes")
