"""The spectral density of a symmetric operator by stochastic Lanczos quadrature, with an error band over the probes.

A random unit vector z sees the spectrum through the measure sum_i (z . v_i)^2 delta(lambda - lambda_i), whose mean is
the spectral density. Lanczos steps from z give Gauss rules of that measure: nodes (Ritz values) and weights (squared
first coordinates; Golub and Meurant 2010; Ubaru, Chen, Saad 2017). Everything that is a mean over the spectrum follows
from the nodes and weights without further products.

A Hessian's spectrum crowds around zero, where many functions of interest have a kink (sign, absolute value, positive
part). There the Gauss rules of m and m + 1 points err to opposite sides. Used here is therefore the mean of the Gauss
rule of m - 1 points and Laurie's anti-Gauss rule of m points (1996; the last off-diagonal entry times sqrt 2): exact to
the same degree 2m - 1 as the Gauss rule of m points, and half the difference of the two is an error estimate.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import InputError, TooLarge
from ..core.operator import Operator
from ..core.precision import own_precision
from ..core.progress import Progress, Report
from ..distributed.processes import Group, group_of, holders
from .krylov import Krylov
from .lanczos import Eigenpairs
from .resume import Checkpoint, State
from .spectral_density import Density
from .vectors import (
    AT_ONCE,
    at_least,
    multiply,
    need_symmetric,
    orthogonalise,
    probes,
    rows_that_fit,
    working_dtype,
)


@own_precision()
def density(
    A: Operator,
    probes: int = 8,
    steps: int = 30,
    *,
    known: Eigenpairs | None = None,
    reorthogonalise: Literal["auto", "full", "selective", "none"] = "auto",
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Density:
    """The spectral density of a symmetric operator from `probes * steps` products, several probes at once.

    Exact (all eigenvalues, n products) where n <= probes * steps. `known` eigenpairs enter with their exact weight 1/n
    each, and the probes see only what is orthogonal to them: outliers, which make most of the spread over probes, then
    make none. `none` keeps three vectors a probe instead of
    `steps`: the rule stays good, but extreme eigenvalues may appear as several nodes that share their weight; `auto`
    is full where the memory budget allows it, else none.
    """
    need_symmetric(A, "the spectral density")
    probes, steps, held = at_least("probes", probes, 2), at_least("steps", steps, 2), holders(A.domain)
    n = held.size(A.domain.size)
    if reorthogonalise not in ("auto", "full", "selective", "none"):
        raise InputError(f"reorthogonalise is auto, full, selective or none; got {reorthogonalise!r}.")
    eps = torch.finfo(A.dtype).eps
    if n <= probes * steps and not held.cut:
        nodes = torch.linalg.eigvalsh(_symmetric(A.dense().double())).cpu()[None]
        weights = torch.full_like(nodes, 1 / n)
        return Density(nodes, weights, ((nodes, weights),) * 2, n, n, True, eps, f"exact: all {n} eigenvalues")
    values, V = _distinct(A, known)
    world, what = group_of(A.domain).slices, "Lanczos quadrature"
    each, k = steps + 4 * world, len(V) * world  # bases are in slices, the rest is whole
    try:
        fit = (rows_that_fit(A, memory, least=each + k, purpose=what, sliced=True) - k) // each
    except TooLarge:
        if reorthogonalise in ("full", "selective"):
            raise
        reorthogonalise = "none"
    if reorthogonalise == "none":
        each = 2 + 4 * world
        fit = (rows_that_fit(A, memory, least=each + k, purpose=what, sliced=True) - k) // each
    reorthogonalise = "full" if reorthogonalise == "auto" else reorthogonalise
    settings = {"steps": steps, "seed": seed, "reorthogonalise": reorthogonalise, "known": values.tolist()}
    run = _Quadrature(A, V, probes, steps, reorthogonalise, max(1, min(fit, probes, AT_ONCE)), seed)
    with (
        Checkpoint(resume, "density", A, settings, sliced="Q") as checkpoint,
        Progress(probes * steps, "products", show=progress) as shown,
    ):
        if checkpoint.found is not None:
            run.load(*checkpoint.found)
            shown.step(min(run.products, probes * steps))
        while not run.done():
            used = run.step()
            checkpoint.reached(run.state)
            shown.step(used, run.text())
    T = run.T[:probes]
    gauss, anti = (_with_known(x, w, values, n) for x, w in _rules(T, A.psd))
    nodes, order = torch.cat([gauss[0], anti[0]], 1).sort(1)
    weights = torch.cat([gauss[1], anti[1]], 1).gather(1, order) / 2
    note = f"Lanczos quadrature, {probes} probes of {steps} steps, reorthogonalisation {reorthogonalise}"
    note += f", {len(V)} known eigenvalues" if len(V) else ""
    return Density(nodes, weights, (gauss, anti), n, run.products, False, eps, note)


def _symmetric(M: Tensor) -> Tensor:
    return (M + M.T) / 2


def _rules(T: Tensor, psd: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Gauss rule of m - 1 and anti-Gauss rule of m points of tridiagonal matrices `(probes, m, m)`.

    Where Lanczos ended early the zeros that pad its matrix get no weight, and both rules are exact. An outer anti-Gauss
    node may lie beyond the spectrum; for a positive semi-definite operator none is negative.
    """
    T = (T + T.transpose(1, 2)) / 2
    anti = T.clone()
    anti[:, -1, -2] *= math.sqrt(2)
    anti[:, -2, -1] *= math.sqrt(2)
    low, high = _nodes(T[:, :-1, :-1]), _nodes(anti)
    return (low, (high[0].clamp(min=0), high[1])) if psd else (low, high)


def _nodes(T: Tensor) -> tuple[Tensor, Tensor]:
    nodes, S = torch.linalg.eigh(T)
    return nodes, S[:, 0, :] ** 2


def _with_known(nodes: Tensor, weights: Tensor, values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The measure of the whole space from that of the complement of k eigenvectors and their eigenvalues."""
    k, rows = len(values), len(nodes)
    nodes = torch.cat([nodes, values.expand(rows, k)], 1)
    weights = torch.cat([weights * (n - k) / n, torch.full((rows, k), 1 / n, dtype=weights.dtype)], 1)
    nodes, order = nodes.sort(1)
    return nodes, weights.gather(1, order)


def _distinct(A: Operator, known: Eigenpairs | None) -> tuple[Tensor, Tensor]:
    """Converged eigenvalues (k,) and their vectors as rows (k, n), each pair once."""
    if known is None:
        return torch.zeros(0, dtype=torch.float64), torch.zeros((0, A.domain.size), dtype=working_dtype(A))
    V = A.domain.flatten(known.vectors).T
    seen = holders(A.domain).sum(V @ V.T).abs().tril(-1).amax(1).cpu() > 0.5
    keep = [i for i, e in enumerate(known.values) if e.converged and not seen[i]]
    return torch.tensor([known.values[i].value for i in keep], dtype=torch.float64), V[keep]


class _Quadrature:
    """Lanczos from several probes at once. T is `(probes, steps, steps)`; unreached steps stay zero and weightless."""

    def __init__(
        self, A: Operator, V: Tensor, count: int, steps: int, reorthogonalise: str, together: int, seed: int
    ) -> None:
        self.V = V  # the operator is P A P with P = I - V^T V
        self.A, self.count, self.steps, self.together, self.seed = A, count, steps, together, seed
        self.reorthogonalise, self.group = reorthogonalise, group_of(A.domain)
        self.T = torch.zeros((count, steps, steps), dtype=torch.float64)
        self.finished = self.products = 0  # probes done; products made
        self.running: list[Krylov | _ThreeTerm] = []

    def _start(self, number: int) -> Krylov | _ThreeTerm:
        def draw(i: int) -> Tensor:
            return self._outside(probes(self.A, self.seed, "density", [number], "gaussian")[0])

        if self.reorthogonalise == "none":
            return _ThreeTerm(draw(0), self.steps, self.group)
        return Krylov(
            self.A.domain.size,
            self.steps,
            draw,
            dtype=working_dtype(self.A),
            device=self.A.device,
            selective=self.reorthogonalise == "selective",
            group=self.group,
        )

    def _outside(self, w: Tensor) -> Tensor:
        """What of a vector is orthogonal to the known ones."""
        return orthogonalise(w, self.V, group=holders(self.A.domain))[1]

    def done(self) -> bool:
        return self.finished >= self.count

    def step(self) -> int:
        """One product for each probe that is running."""
        if not self.running:
            last = min(self.finished + self.together, self.count)
            self.running = [self._start(i) for i in range(self.finished, last)]
        active = [k for k in self.running if k.pending]
        rows = torch.cat([k.first(1) for k in active])
        images = multiply(self.A, rows)
        for k, image in zip(active, images, strict=True):
            k.absorb(self._outside(image)[None])
        self.products += len(active)
        if not any(k.pending for k in self.running):
            for i, k in enumerate(self.running, start=self.finished):
                self.T[i, : k.multiplied, : k.multiplied] = k.T[: k.multiplied, : k.multiplied]
            self.finished, self.running = self.finished + len(self.running), []
        return len(active)

    def text(self) -> str:
        if self.running:
            return f"lambda_max {max(float(k.ritz()[0].max()) for k in self.running):.4g}"
        return f"{self.finished} of {self.count} probes"

    def state(self) -> State:
        """Finished probes and the running ones."""
        tensors: dict[str, Tensor] = {"T": self.T[: self.finished]}
        numbers: dict[str, Any] = {
            "finished": self.finished,
            "products": self.products,
            "together": self.together,
            "running": [],
        }
        for i, k in enumerate(self.running):
            own, known = k.state()
            tensors |= {f"{i}/{name}": t for name, t in own.items()}
            numbers["running"].append(known)
        return tensors, numbers

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.finished, self.products = int(numbers["finished"]), int(numbers["products"])
        self.together = int(numbers["together"])
        if self.finished > self.count:
            self.T = torch.zeros((self.finished, self.steps, self.steps), dtype=torch.float64)
        self.T[: self.finished] = tensors["T"]
        for i, known in enumerate(numbers["running"]):
            k = self._start(self.finished + i)
            k.load({name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{i}/")}, known)
            self.running.append(k)


class _ThreeTerm:
    """Lanczos without reorthogonalisation: two vectors are kept. The part of `Krylov` that the quadrature uses."""

    def __init__(self, start: Tensor, steps: int, group: Group) -> None:
        self.n, self.group, self.mine = len(start), group, group.slice(len(start))
        start = start[self.mine]
        start = start / group.norm(start)
        self.Q = torch.stack([torch.zeros_like(start), start])  # the previous row and the pending one
        self.T = torch.zeros((steps, steps), dtype=torch.float64)
        self.multiplied, self.pending, self.norm_seen = 0, 1, 0.0

    def first(self, width: int) -> Tensor:
        return self.group.whole(self.Q[1:], self.n)

    def absorb(self, images: Tensor) -> None:
        j, w = self.multiplied, images[0, self.mine]
        self.norm_seen = max(self.norm_seen, self.group.norm(w))
        before = float(self.T[j, j - 1]) if j else 0.0
        w = w - before * self.Q[0]
        alpha = float(self.group.sum(self.Q[1] @ w))
        w = w - alpha * self.Q[1]
        beta = self.group.norm(w)
        self.T[j, j] = alpha
        self.multiplied += 1
        self.pending = int(j + 1 < len(self.T) and beta > 100 * torch.finfo(w.dtype).eps * self.norm_seen)
        if self.pending:
            self.T[j + 1, j] = self.T[j, j + 1] = beta
            self.Q = torch.stack([self.Q[1], w / beta])

    def ritz(self) -> tuple[Tensor, ...]:
        return (torch.linalg.eigvalsh(self.T[: self.multiplied, : self.multiplied]),)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"Q": self.Q, "T": self.T}, {
            name: getattr(self, name) for name in ("multiplied", "pending", "norm_seen")
        }

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.Q, self.T = tensors["Q"].to(self.Q), tensors["T"].clone()
        for name, value in numbers.items():
            setattr(self, name, value)
