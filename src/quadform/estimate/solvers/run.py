"""One solve: recurrences, one after the other, each from the true residual of the one before.

Recurrences drift: what they believe to be the residual is not b - A x after many steps. When one is finished the
residual is therefore computed from x; a right-hand side that is not at its tolerance starts again from there, as long
as that at least halves the residual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.space import Vector
from ..resume import State
from .recurrence import REASONS, Recurrence
from .solution import Solution, formed
from .system import System, column

_WHY = (*REASONS, "the residual no longer falls: round-off of the products")
_STALLED = len(REASONS)
#: A recurrence goes on to this part of the tolerance, so that its drift does not leave the true residual just above.
_SAFETY = 0.9


class Run:
    """Unit right-hand sides B, the best solutions X so far with their true residuals R, and the recurrence at work."""

    def __init__(self, system: System, kind: type[Recurrence], B: Tensor, tol: float) -> None:
        self.system, self.kind, self.B, self.tol = system, kind, B, tol
        k, width = len(B), len(range(system.A.domain.size)[system.rows.mine])
        self.X, self.R = B.new_zeros((k, width)), B.clone()
        self.off = system.rows.norm(B)  # 1, or 0 where b = 0
        self.gradient = self.off.clone()
        self.why = torch.zeros(k, dtype=torch.int64)
        self.which = torch.arange(k)  # the right-hand sides of the recurrence
        self.inner: Recurrence | None = None
        self.spent = (0, 0.0)  # products and norm seen when the last step was complete

    @property
    def open(self) -> Tensor:
        return (self.off > self.tol) & (self.why == 0)

    def done(self) -> bool:
        return not bool(self.open.any())

    def cost(self) -> int:
        """Products of the next step and of the check that must follow it."""
        step = int(self.open.sum()) if self.inner is None else self.inner.cost if bool(self.inner.open.any()) else 0
        return step + self.system.check_cost * int(self.open.sum())

    def advance(self) -> None:
        """Start a recurrence, make one step of it, or take in what it found."""
        if self.inner is None:
            which = self.open.nonzero()[:, 0]
            target = torch.full((len(which),), _SAFETY * self.tol, dtype=torch.float64)
            self.inner, self.which = self.kind.start(self.system, self.R[which.to(self.R.device)], target), which
        elif bool(self.inner.open.any()):
            self.inner.step()
        else:
            self.take()
        self.spent = (self.system.products, self.system.norm_seen)

    def take(self) -> None:
        """Add what the recurrence found where it makes the true residual smaller; give up where it does not halve."""
        inner, which = self.inner, self.which
        if inner is None:
            return
        before, ended = self.off[which].clone(), ~inner.open
        sure = inner.open if inner.error_falls else torch.zeros_like(ended)
        self.look(self.X[which.to(self.X.device)] + inner.vectors["X"], which, sure)
        stalled = torch.where(self.off[which] > before / 2, _STALLED, 0)
        why = torch.where(inner.scalars["why"] > 0, inner.scalars["why"], stalled)
        self.why[which] = torch.where(ended & (self.off[which] > self.tol), why, 0)
        self.inner = None

    def look(self, X: Tensor, which: Tensor | None = None, sure: Tensor | None = None) -> None:
        """The true residuals of these solutions, which are kept where they are better, or surely better."""
        which = self.which if which is None else which
        there = which.to(self.X.device)
        found = self.system.check(self.B[there], X)
        better = found.off < self.off[which]
        better = better if sure is None else better | sure
        rows, chosen = there[better.to(there.device)], better.to(X.device)
        self.X[rows], self.R[rows] = X[chosen], found.R[chosen]
        self.off[which[better]], self.gradient[which[better]] = found.off[better], found.gradient[better]

    # --- what it says -----------------------------------------------------------------------------------------------
    def text(self) -> str:
        if self.inner is None:
            return f"{float(self.off.max()):.1e}"
        return f"{float(self.inner.scalars['size'].max()):.1e}"

    def result(self, b: Vector | Tensor, scale: Tensor, method: str) -> Solution:
        """The solution; a recurrence that is not finished is taken in first."""
        self.take()
        system, A = self.system, self.system.A
        absolute = system.rows.norm(self.R[:, : A.codomain.size]) if not system.rows.sliced else self.off
        bound = None
        if system.damping > 0 and (A.psd or not system.rows.sliced):
            bound = (self.gradient + system.round_off(self.X)) / system.damping * scale
        missed = self.off > self.tol
        x = system.rows.whole(self.X) * column(scale, self.X)
        return Solution(
            x=formed(x, A.domain, b),
            residual=absolute,
            absolute=absolute * scale,
            bound=bound,
            products=system.products,
            converged=not bool(missed.any()),
            method=method,
            note=self._note(missed),
        )

    def _note(self, missed: Tensor) -> str:
        notes = []
        if not self.system.rows.sliced and not bool(missed.all()):
            left = float(self.system.rows.norm(self.R[~missed]).max())
            if left > self.tol:
                notes.append(f"a least-squares solution: |b - A x| is {left:.2g} of |b|")
        short = (
            f"residual above {self.tol:.0e} after {self.system.products} products; raise `max_products`, or give a"
            " damping or a preconditioner"
        )
        for code in self.why[missed].unique().tolist():
            count = int((missed & (self.why == code)).sum())
            who = f"{count} of {len(missed)} right-hand sides: " if len(missed) > 1 else ""
            notes.append(who + (_WHY[code] or short))
        return "; ".join(notes)

    # --- saving -----------------------------------------------------------------------------------------------------
    def state(self) -> State:
        form = "rows" if self.system.rows.sliced else "whole"
        tensors = {f"run/X/{form}": self.X, f"run/R/{form}": self.R}
        tensors |= {"run/off/number": self.off, "run/gradient/number": self.gradient, "run/why/number": self.why}
        if self.inner is not None:
            tensors |= {f"inner/{name}/{form}": t for name, t in self.inner.vectors.items()}
            tensors |= {f"inner/{name}/number": t for name, t in self.inner.scalars.items()}
            tensors["run/which/number"] = self.which
        return tensors, dict(zip(("products", "norm_seen"), self.spent, strict=True))

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.spent = int(numbers["products"]), float(numbers["norm_seen"])
        self.system.products, self.system.norm_seen = self.spent
        vectors: dict[str, Tensor] = {}
        scalars: dict[str, Tensor] = {}
        for key, t in tensors.items():
            owner, name, form = key.split("/")
            value = t.clone() if form == "number" else t.to(self.B).clone()  # aligned: the same bits from every product
            if owner == "run":
                setattr(self, name, value)
            else:
                (scalars if form == "number" else vectors)[name] = value
        if vectors:
            self.inner = self.kind(self.system, vectors, scalars)
