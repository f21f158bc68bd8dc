"""Extreme eigenpairs of a symmetric operator by restarted (block) Lanczos, each with its residual.

For a symmetric operator and a unit vector v some eigenvalue lies within |A v - theta v| of theta: the residual is a
rigorous error bound, not a spread over samples. What no Krylov method can prove is that *no* eigenvalue was missed: a
multiple eigenvalue shows one copy to one start vector. After convergence a fresh random direction, orthogonal to all
that is known, is therefore followed for a few products; if it brings something new, the search goes on.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.errors import InputError, TooLarge
from ..core.number import Estimate, Side
from ..core.operator import Operator
from ..core.precision import own_precision
from ..core.progress import Progress, Report
from ..core.showing import fields_in_brief
from ..core.space import Vector
from ..distributed.processes import group_of
from .krylov import Krylov
from .resume import Checkpoint, State
from .vectors import at_least, multiply, need_symmetric, probes, rows_that_fit, working_dtype

#: Rows of the basis before it is restarted, where memory allows; more for many pairs.
ROWS = 48
#: Rows of the smallest basis beyond the wanted pairs and two blocks: fresh directions, and something to restart with.
_SPARE = 6
#: How much longer than usual a fresh direction is followed while it still comes closer to the wanted values.
_LONGEST = 3


@dataclass(frozen=True)
class Eigenpairs:
    """Extreme eigenvalues, largest first in `top`, smallest first in `bottom`; vectors and residuals in that order.

    `vectors` is `{name: (k, *shape)}`, unit vectors; `residuals` is `(k,)`, |A v - theta v|. `asymmetry` is the part
    of the projected operator that is not symmetric (relative): round-off, or the noise of the products.
    """

    top: tuple[Estimate, ...]
    bottom: tuple[Estimate, ...]
    vectors: dict[str, Tensor]
    residuals: Tensor
    products: int
    asymmetry: float

    __repr__ = fields_in_brief

    @property
    def values(self) -> tuple[Estimate, ...]:
        return self.top + self.bottom

    @property
    def converged(self) -> bool:
        return all(e.converged for e in self.values)

    def __str__(self) -> str:
        rows = [f"top {e}" for e in self.top] + [f"bottom {e}" for e in self.bottom]
        return "\n".join([*rows, f"{self.products} products"])


@own_precision()
def eigenpairs(
    A: Operator,
    top: int = 5,
    bottom: int = 0,
    *,
    tol: float = 1e-3,
    max_products: int | None = None,
    block: int = 1,
    start: Vector | None = None,
    reorthogonalise: Literal["full", "selective"] = "full",
    rows: int | None = None,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Eigenpairs:
    """The `top` largest and `bottom` smallest eigenvalues of a symmetric operator, with vectors and residuals.

    A pair has converged when |A v - theta v| <= tol max(|theta|, tol |A|). Its value is then an `estimate` whose
    error is the residual, a rigorous bound of the distance to an eigenvalue. A pair that has not converged after
    `max_products` (default 60, or 20 a pair) is a `bound`: by interlacing the i-th largest eigenvalue is at least the
    i-th largest Ritz value. When the basis spans the whole space the values are `exact`. On spaces smaller than `top`
    there are as many pairs as dimensions.

    `start` (one vector or a stack, such as the eigenvectors at an earlier step of training) is multiplied first.
    `block` vectors are multiplied at once: cheaper per vector on a GPU, more products in all; 1 needs the fewest.
    At most `rows` basis vectors (default 48, more for many pairs) are kept, fewer where `memory` (bytes) is short, with
    thick restart. `resume` names a folder that keeps the state; a larger `max_products` continues it.
    """
    need_symmetric(A, "eigenpairs")
    n = group_of(A.domain).size(A.domain.size)
    top, bottom = min(at_least("top", top, 0), n), min(at_least("bottom", bottom, 0), n)
    wanted, block = top + bottom, min(at_least("block", block, 1), n)
    if wanted == 0:
        raise InputError("eigenpairs of nothing: ask for top >= 1 or bottom >= 1.")
    if not tol > 0:
        raise InputError(f"tol is a positive relative residual; got {tol}.")
    if reorthogonalise not in ("full", "selective"):
        raise InputError(f"reorthogonalise is 'full' or 'selective'; got {reorthogonalise!r}.")
    budget = max(60, 20 * wanted) if max_products is None else at_least("max_products", max_products, 1)
    if budget < max(top, bottom):
        raise InputError(f"{max(top, bottom)} eigenpairs need as many products at least; got max_products={budget}.")
    given = _start_rows(A, start)
    width = min(n, max(block, len(given)))
    least = min(n, wanted + 2 * width + _SPARE)
    # Beside the basis: one batch and its images, and at the end the vectors that are returned.
    slices = group_of(A.domain).slices  # these are whole, the basis is in slices
    fit = rows_that_fit(A, memory, least=least + 2 * width * slices, purpose="Lanczos", sliced=True)
    rows = max(ROWS, 2 * wanted + 24) if rows is None else at_least("rows", rows, 1)
    capacity = min(n, max(least, fit - (2 * width + wanted) * slices), max(rows, least))
    short = capacity + (2 * width + wanted) * slices > fit
    digest = hashlib.sha256(given.cpu().numpy().tobytes()).hexdigest()[:8] if len(given) else "random"
    if len(given) and group_of(A.domain).cut:
        digest = f"{len(given)} given"  # cut in another way their shards are others
    settings: dict[str, Any] = {"tol": tol, "block": block, "seed": seed, "rows": rows, "start": digest}
    settings["reorthogonalise"] = reorthogonalise

    with Checkpoint(resume, f"eigenpairs-{top}-{bottom}", A, settings, sliced="Q") as checkpoint:
        search = _Search(A, given, top, bottom, tol, block, capacity, reorthogonalise == "selective", seed)
        if checkpoint.found is not None:
            search.load(*checkpoint.found)
        with Progress(budget, "products", show=progress) as shown:
            if search.products:
                shown.step(search.products)
            while search.products < budget and not search.done():
                used = search.step(budget - search.products)
                checkpoint.reached(search.state)
                shown.step(used, search.text())
    return search.result(short)  # the state is saved: the basis may go


def _start_rows(A: Operator, start: Vector | None) -> Tensor:
    """Given start vectors as rows (k, n), none by default."""
    if start is None:
        return torch.zeros((0, A.domain.size), dtype=working_dtype(A), device=A.device)
    flat = A.domain.flatten(start).detach()
    rows = (flat[:, None] if flat.dim() == 1 else flat).T.to(device=A.device, dtype=working_dtype(A)).contiguous()
    if not bool(rows.isfinite().all()):
        raise InputError("a start vector is NaN or infinite.")
    return rows


class _Search:
    """The state of one search, and what to multiply next."""

    def __init__(
        self,
        A: Operator,
        given: Tensor,
        top: int,
        bottom: int,
        tol: float,
        block: int,
        capacity: int,
        selective: bool,
        seed: int,
    ) -> None:
        self.given = len(given)
        self.A, self.top, self.bottom, self.tol, self.block = A, top, bottom, tol, block
        self.products, self.width = 0, block
        self.followed = -1  # products along the last fresh direction; -1: none since something new appeared
        # A direction missed so far has about 1/sqrt(n) of itself in a random vector. If its eigenvalue stands 3 times
        # farther out than the rest, j products raise it by T_j(3) ~ 5.8^j / 2: it shows when 5.8^(2j) > 4 n.
        n = group_of(A.domain).size(A.domain.size)
        self.enough = 2 + math.ceil(math.log(4 * n) / (2 * math.log(5.83)))
        self.krylov = Krylov(
            A.domain.size,
            capacity,
            lambda i: given[i] if i < len(given) else probes(A, seed, "eigenpairs", [i], "gaussian")[0],
            dtype=working_dtype(A),
            device=A.device,
            width=max(block, len(given)),
            selective=selective,
            group=group_of(A.domain),
        )

    # --- one step ---------------------------------------------------------------------------------------------------
    def chosen(self, theta: Tensor) -> Tensor:
        """Positions of the wanted Ritz values: largest first, then smallest first."""
        places = torch.arange(len(theta))
        return torch.cat([places.flip(0)[: self.top], places[: self.bottom]])

    def open(self, theta: Tensor, residual: Tensor) -> Tensor:
        """Positions of the wanted pairs that have not converged."""
        norm = max(self.krylov.norm_seen, float(theta.abs().max()))
        noise = 100 * torch.finfo(self.krylov.Q.dtype).eps * norm
        chosen = self.chosen(theta)
        allowed = (self.tol * theta[chosen].abs().clamp(min=self.tol * norm)).clamp(min=noise)
        return chosen[residual[chosen] > allowed]

    def done(self) -> bool:
        krylov = self.krylov
        if krylov.whole:
            return True
        if krylov.multiplied < max(self.top, self.bottom):
            return False
        theta, _, residual = krylov.ritz()
        if len(self.open(theta, residual)) or self.followed < self.enough:
            return False
        return self.followed >= _LONGEST * self.enough or not self.contested(theta, residual)

    def contested(self, theta: Tensor, residual: Tensor) -> bool:
        """Whether the next Ritz value inside may still grow past the last wanted one, by the size of its residual."""
        m, rise = len(theta), theta + residual
        high = 0 < self.top < m and bool(rise[m - self.top - 1] > theta[m - self.top])
        low = 0 < self.bottom < m and bool((theta - residual)[self.bottom] < theta[self.bottom - 1])
        return high or low

    def step(self, left: int) -> int:
        """Multiply the rows that were prepared, then prepare the next; returns the number of products.

        Nothing changes before the product has come back, so a state that is saved when the operator fails is whole.
        """
        krylov = self.krylov
        images = multiply(self.A, krylov.first(min(self.width, left)))
        krylov.absorb(images)
        self.products += len(images)
        self.followed += self.followed >= 0
        if not self.done():
            self.prepare()
        return len(images)

    def prepare(self) -> None:
        """Turn the pending rows so that what matters most comes first; restart or add a fresh direction as needed."""
        krylov, self.width = self.krylov, self.block
        if krylov.multiplied >= max(self.top, self.bottom) and self.products >= self.given:
            theta, S, residual = krylov.ritz()
            open_ = self.open(theta, residual)
            if len(open_):
                self.followed = -1
                direction = krylov.coupling(S[:, open_])
            else:  # all is found, it seems: follow a fresh direction in the complement of what was multiplied
                self.width = 1
                direction = krylov.last_image()[:, None]
            self.make_room(theta, S, self.width + 1)
            noise = 100 * torch.finfo(krylov.Q.dtype).eps * krylov.norm_seen
            ended = not len(open_) and float(direction.norm()) <= noise
            if not len(open_) and (self.followed < 0 or ended):
                self.followed = max(self.followed, 0)
                fresh = krylov.inject()
                direction = fresh[:, None] if fresh is not None else krylov.last_image()[:, None]
            krylov.turn(direction)
        if not krylov.pending:  # an invariant subspace: go on outside it
            krylov.inject()

    def make_room(self, theta: Tensor, S: Tensor, room: int) -> None:
        """Thick restart when fewer than `room` rows are free: keep the wanted Ritz vectors and half of the others."""
        krylov = self.krylov
        if krylov.count + room <= krylov.capacity or krylov.capacity == krylov.n:
            return
        m, wanted = len(theta), self.top + self.bottom
        most = krylov.capacity - krylov.pending - room
        keep = min(most, m - 1, wanted + max(0, most - wanted) // 2)
        if keep < wanted:
            raise TooLarge(
                f"{krylov.capacity} basis vectors are too few for {wanted} eigenpairs with {krylov.pending} open"
                " directions. Raise `memory=` or `rows=`, or ask for fewer pairs."
            )
        extra = keep - wanted
        high = self.top + (extra if not self.bottom else extra - extra // 2 if self.top else 0)
        low = keep - high
        S = torch.cat([S[:, :low], S[:, m - high :]], 1)
        krylov.restart(S)

    # --- what it says -----------------------------------------------------------------------------------------------
    def text(self) -> str:
        theta, _, residual = self.krylov.ritz()
        i = -1 if self.top else 0
        return f"lambda_{'max' if self.top else 'min'} {float(theta[i]):.4g} (+-{float(residual[i]):.1g})"

    def result(self, short: bool) -> Eigenpairs:
        """The pairs; where memory is `short` the basis is given up for their vectors, and the search has ended."""
        krylov = self.krylov
        theta, S, residual = krylov.ritz()
        chosen, open_ = self.chosen(theta), set(self.open(theta, residual).tolist())
        complete = self.done()

        def value(place: int, name: str, side: Side) -> Estimate:
            lam, r = float(theta[place]), float(residual[place])
            if krylov.whole:
                return Estimate(lam, matvecs=self.products, note=f"all {krylov.n} dimensions were multiplied")
            relative = r / abs(lam) if lam else r
            if place in open_:
                words = "a lower" if side == "lower" else "an upper"
                note = (
                    f"{name} {lam:.4g} after {self.products} products, residual {relative:.0e} > {self.tol:.0e}."
                    f" Reported as {words} bound; resume with products={2 * self.products}."
                )
                return Estimate(lam, r, "bound", self.products, False, note, "residual", side)
            note = f"relative residual {relative:.0e}; an eigenvalue lies within +- the residual"
            if not complete:
                note += "; products ran out before a fresh direction was followed, so others may have been missed"
            return Estimate(lam, r, "estimate", self.products, True, note, "residual")

        top = min(self.top, len(theta))
        names = ["lambda_max", *(f"lambda_{i + 1}" for i in range(1, top))]
        ends = ["lambda_min", *(f"lambda_-{i + 1}" for i in range(1, len(chosen) - top))]
        asymmetry = krylov.asymmetry()
        vectors = krylov.ended(S[:, chosen]) if short else krylov.vectors(S[:, chosen])
        return Eigenpairs(
            top=tuple(value(int(p), names[i], "lower") for i, p in enumerate(chosen[:top])),
            bottom=tuple(value(int(p), ends[i], "upper") for i, p in enumerate(chosen[top:])),
            vectors=self.A.domain.unflatten(vectors.T),
            residuals=residual[chosen],
            products=self.products,
            asymmetry=asymmetry,
        )

    def state(self) -> State:
        tensors, numbers = self.krylov.state()
        return tensors, {**numbers, "products": self.products, "width": self.width, "followed": self.followed}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        numbers = dict(numbers)
        self.products, self.width = int(numbers.pop("products")), int(numbers.pop("width"))
        self.followed = int(numbers.pop("followed"))
        self.krylov.load(tensors, numbers)
