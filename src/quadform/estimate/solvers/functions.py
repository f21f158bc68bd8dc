"""f(A) b by Lanczos: |A|^-1, A^-1/2, log A, exp A or any function of the eigenvalues, without a matrix.

With an orthonormal basis Q of the (block) Krylov space of b, T = Q A Q^T and b = Q^T C, the approximation is
Q^T f(T) C. It is exact for polynomials of a degree below the number of steps (Saad 1992).

**Errors.** x^-1, x^-1/2 and log x are integrals of 1 / (x + t) over t >= 0 with a positive weight w(t). The residual of
the shifted system at t is that of the recurrence, r_t = (coupling of Q to what lies outside) (T + t)^-1 C; so for
A >= delta > 0

    |f(A) b - Q^T f(T) C| <= int w(t) |r_t| / (delta + t) dt ,

a bound (after Frommer, Guettel, Schweitzer 2014; w: Dirac at 0, t^-1/2 / pi, 1). For other functions, and where no
delta > 0 is known, the error is the difference to an approximation with fewer steps, which estimates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.operator import Operator
from ...core.precision import own_precision
from ...core.progress import Progress, Report
from ...core.showing import fields_in_brief
from ...core.space import Vector
from ...distributed.processes import group_of
from ..krylov import Krylov
from ..resume import Checkpoint, State
from ..vectors import (
    at_least,
    multiply,
    need_symmetric,
    orthonormal_rows,
    refused_of_shards,
    rows_that_fit,
    working_dtype,
)
from .solution import digest, formed, rows_of, unit
from .system import column

Function = Literal["inverse", "abs-inverse", "inverse-sqrt", "log", "exp"] | Callable[[Tensor], Tensor]
#: f(x + damping); |x|^-1 is damped as 1 / (|x| + damping).
NAMED: dict[str, Callable[[Tensor, float], Tensor]] = {
    "inverse": lambda x, damping: 1 / (x + damping),
    "abs-inverse": lambda x, damping: 1 / (x.abs() + damping),
    "inverse-sqrt": lambda x, damping: (x + damping).rsqrt(),
    "log": lambda x, damping: (x + damping).log(),
    "exp": lambda x, damping: (x + damping).exp(),
}
#: w(t) of those that are integrals of 1 / (x + t).
_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "inverse-sqrt": lambda t: t.rsqrt() / math.pi,
    "log": torch.ones_like,
}
#: Steps between two looks at the error, and between the two approximations that are compared.
_EVERY = 4
#: Basis rows where `max_products` is not given.
STEPS = 200


@dataclass(frozen=True)
class FunctionValue:
    """f(A) b in the form of b. `error` is |value - f(A) b| / |b| for each b, `(k,)`: a `bound`, or an `estimate`."""

    value: Vector | Tensor
    error: Tensor
    error_kind: Literal["bound", "estimate"]
    products: int
    converged: bool
    note: str = ""

    __repr__ = fields_in_brief

    def __str__(self) -> str:
        end = "converged" if self.converged else "NOT converged"
        tail = f": {self.note}" if self.note else ""
        return f"{end}, error {float(self.error.max()):.1e} [{self.error_kind}], {self.products} products{tail}"


@own_precision()
def matrix_function(
    A: Operator,
    b: Vector | Tensor,
    f: Function,
    *,
    damping: float = 0.0,
    tol: float = 1e-6,
    max_products: int | None = None,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> FunctionValue:
    """f(A + damping I) b of a symmetric operator, until the error is below tol |f(A) b|.

    `f` is "inverse", "abs-inverse" (1 / (|x| + damping)), "inverse-sqrt", "log", "exp", or a function of a float64
    tensor of eigenvalues. The whole basis is kept: at most `max_products` rows (default 200 for each b), fewer where
    `memory` is short. One Krylov space serves all k vectors.
    """
    need_symmetric(A, "a function of an operator")
    if not (callable(f) or f in NAMED):
        raise InputError(f"a function is one of {', '.join(NAMED)} or a callable; got {f!r}.")
    if not 0 < tol < 1:
        raise InputError(f"tol is a relative error between 0 and 1; got {tol}.")
    B, scale = unit(rows_of(A.domain, A, b, "b"))
    k, n = len(B), A.domain.size
    budget = min(n, k * STEPS) if max_products is None else at_least("max_products", max_products, 1)
    beside = 4 * k * group_of(A.domain).world
    fit = rows_that_fit(A, memory, least=2 * k + beside, purpose="Lanczos", sliced=True) - beside
    settings = {"function": f if isinstance(f, str) else getattr(f, "__qualname__", repr(f)), "damping": damping}
    settings |= {"tol": tol}
    with (
        Checkpoint(resume, f"function-{digest(B, scale)}", A, settings, sliced="Q") as checkpoint,
        Progress(budget, "products", show=progress) as shown,
    ):
        run = _Basis(A, B, f, damping, tol, min(n, budget + k, fit))
        if checkpoint.found is not None:
            run.load(*checkpoint.found)
            shown.skip(run.krylov.multiplied)
        while not run.done() and run.krylov.multiplied < min(budget, run.krylov.capacity):
            used = run.step(budget - run.krylov.multiplied)
            checkpoint.reached(run.state)
            shown.step(used, f"error {float(run.cut.max()):.1e}")
    return run.result(b, scale)


class _Basis:
    """The Krylov space of k unit vectors, and f(A) b in its coordinates."""

    def __init__(self, A: Operator, B: Tensor, f: Function, damping: float, tol: float, capacity: int) -> None:
        self.A, self.f, self.damping, self.tol = A, f, damping, tol
        if group_of(A.domain).cut:
            raise refused_of_shards("matrix function")
        start, self.C = orthonormal_rows(B)  # b = start^T C
        self.width = len(start)
        self.krylov = Krylov(
            A.domain.size,
            max(capacity, self.width),
            lambda i: start[i],
            dtype=working_dtype(A),
            device=A.device,
            width=self.width,
            group=group_of(A.domain),
        )
        k = len(B)
        self.Y = torch.zeros((0, k), dtype=torch.float64)  # f(A) b in coordinates of the basis, at the last look
        self.change = torch.full((k,), math.inf, dtype=torch.float64)
        self.cut = torch.full((k,), math.inf if self.width else 0.0, dtype=torch.float64)  # by ending the recurrence
        self.round_off = torch.zeros(k, dtype=torch.float64)
        self.looked = 0

    @property
    def bounded(self) -> bool:
        """Whether the error is a bound: A >= 0 by promise, a damping, and an integral of 1 / (x + t)."""
        return self.A.psd and self.damping > 0 and self.f in ("inverse", *_WEIGHTS)

    def done(self) -> bool:
        enough = torch.maximum(self.tol * self.Y.norm(dim=0) - self.round_off, self.round_off / 10)
        return not self.krylov.pending or bool((self.cut <= enough).all())

    def step(self, left: int) -> int:
        krylov = self.krylov
        images = multiply(self.A, krylov.first(min(self.width, left, krylov.capacity - krylov.multiplied)))
        krylov.absorb(images)
        ended = krylov.multiplied in (krylov.capacity, krylov.multiplied + left - len(images)) or not krylov.pending
        if krylov.multiplied >= self.width and (ended or krylov.multiplied - self.looked >= _EVERY * self.width):
            self.look()
        return len(images)

    def look(self) -> None:
        """f(A) b with the basis as it is, and the error of it."""
        krylov = self.krylov
        theta, S, _ = krylov.ritz()
        theta = theta.clamp(min=0) if self.A.psd else theta
        low, noise = float(theta.min()) + self.damping, torch.finfo(krylov.Q.dtype).eps * krylov.norm_seen
        if self.f in _WEIGHTS and low <= noise:
            raise InputError(
                f"{self.f} needs a positive operator; A + damping I has an eigenvalue of at most {low:.3g}. Give a"
                f" damping beyond {self.damping - low:.3g}, or use abs-inverse."
            )
        C = S[: self.width].T @ self.C
        Y = S @ (self._values(theta)[:, None] * C)
        if not bool(Y.isfinite().all()):  # a Ritz value on a pole, for a step
            Y, self.change = torch.full_like(Y, math.inf), torch.full_like(self.change, math.inf)
        change = (Y - torch.cat([self.Y, Y.new_zeros(len(Y) - len(self.Y), Y.shape[1])])).norm(dim=0)
        change = torch.where(change.isfinite(), change, math.inf)
        eps = torch.finfo(krylov.Q.dtype).eps
        moved = 2 * krylov.norm_seen * self._slope(theta) * self.C.norm(dim=0)  # by the round-off of A
        self.round_off = eps * ((4 + math.sqrt(len(Y))) * Y.norm(dim=0) + moved)
        if not krylov.pending:
            self.cut = torch.zeros_like(change)
        elif self.bounded:
            self.cut = self._bound(theta + self.damping, krylov.coupling(S), C)
        else:  # the error of the last look, as if the changes went on to fall geometrically
            rate = (change / self.change).nan_to_num(1.0).clamp(max=0.99)
            self.cut = change / (1 - rate) if self.looked else torch.full_like(change, math.inf)
        self.Y, self.change, self.looked = Y, change, krylov.multiplied

    def _values(self, x: Tensor) -> Tensor:
        return self.f(x + self.damping) if callable(self.f) else NAMED[self.f](x, self.damping)

    def _slope(self, theta: Tensor) -> float:
        """The largest slope of f between Ritz values (and at zero, for a bound): what the round-off of A is worth."""
        x = theta
        if self.bounded:
            zero = theta.new_tensor([0.0, 1e-3 * self.damping])
            x = torch.cat([zero, theta[theta > zero[1]]])
        gap = x.diff()
        wide = gap > math.sqrt(torch.finfo(torch.float64).eps) * self.krylov.norm_seen
        wide[:1] |= self.bounded
        slopes = (self._values(x).diff().abs() / gap)[wide]
        return float(slopes.max()) if len(slopes) else 0.0

    def _bound(self, x: Tensor, coupling: Tensor, C: Tensor) -> Tensor:
        """The integral of the module's text, by the trapezoidal rule in log t."""
        delta = self.damping

        def residual(t: Tensor) -> Tensor:
            return torch.einsum("jm,pm,mk->pjk", coupling, 1 / (x + t[:, None]), C).norm(dim=1)

        if self.f == "inverse":
            return residual(x.new_zeros(1))[0] / delta
        s = torch.linspace(math.log(1e-14 * delta), math.log(1e8 * float(x.max())), 400, dtype=torch.float64)
        t = s.exp()
        integrand = (_WEIGHTS[str(self.f)](t) * t / (delta + t))[:, None] * residual(t)
        return 1.01 * torch.trapezoid(integrand, s, dim=0)

    def result(self, b: Vector | Tensor, scale: Tensor) -> FunctionValue:
        if self.width and not len(self.Y):
            raise InputError(f"f(A) b of {self.width} vectors needs as many products at least.")
        size, m = self.Y.norm(dim=0), len(self.Y)
        if self.width:
            x = self.krylov.vectors(torch.cat([self.Y, self.Y.new_zeros(self.krylov.multiplied - m, len(scale))]))
        else:
            x = torch.zeros((len(scale), self.A.domain.size), dtype=working_dtype(self.A), device=self.A.device)
        error, note = self.cut + self.round_off, ""
        if not bool((error <= self.tol * size).all()):
            note = f"error above {self.tol:.0e} |f(A) b| after {self.krylov.multiplied} products; "
            note += "raise `max_products`" if bool((self.cut > self.round_off).any()) else "round-off alone is as large"
        return FunctionValue(
            value=formed(x * column(scale, x), self.A.domain, b),
            error=error,
            error_kind="bound" if self.bounded else "estimate",
            products=self.krylov.multiplied,
            converged=not note,
            note=note,
        )

    # --- saving -----------------------------------------------------------------------------------------------------
    def state(self) -> State:
        tensors, numbers = self.krylov.state()
        own = {name: getattr(self, name) for name in ("Y", "change", "cut", "round_off")}
        return {**tensors, **own}, {**numbers, "looked": self.looked}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        numbers, tensors = dict(numbers), dict(tensors)
        self.looked = int(numbers.pop("looked"))
        for name in ("Y", "change", "cut", "round_off"):
            setattr(self, name, tensors.pop(name).clone())
        more = max(0, self.krylov.capacity - int(numbers["capacity"]))  # more products than before
        numbers["capacity"] += more
        for name in ("T", "lost"):
            tensors[name] = torch.nn.functional.pad(tensors[name], (0, more, 0, more))
        self.krylov.load(tensors, numbers)
