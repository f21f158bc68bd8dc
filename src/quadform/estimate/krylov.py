"""A Krylov basis of a symmetric operator: rows, the projected matrix, expansion, Ritz pairs, thick restart.

The basis is kept as rows `Q` (count, n). The first m of them have been multiplied; for these

    A q_j = sum_i T_ij q_i ,   i over all rows, j < m

holds to round-off (the coefficients are those of the orthogonalisation). The rows after the first m are *pending*:
any direction in their span may be multiplied next, so single-vector Lanczos (one pending row), block Lanczos (several)
and a basis that is widened by a fresh random direction half-way are one and the same object (after Ruhe's band Lanczos,
1979). Restart
keeps chosen Ritz vectors and all pending rows (thick restart, Wu and Simon 2000; Stewart's Krylov-Schur, 2002).

T is not symmetrised in storage: what a noisy product lacks in symmetry stays in it and counts in every residual. A
restart keeps the size of what it can no longer express (`lost`, a Gram matrix; for a symmetric operator nothing), and
`dropped` is the size of what was too small for a row of its own, so that the norms `ritz` gives are bounds:

    |A v - theta v| <= |T s - theta s| + sqrt(restarts) sqrt(s^T lost s) + dropped + round-off ,

by the triangle inequality (Cauchy-Schwarz over the restarts and over the columns). The round-off of images, rows and of
v, a sum of m rows, is taken as (4 + sqrt m) eps |A|.

With a group of processes each keeps its slice of the columns of Q, count x n / world entries; inner products are added
up, and small matrices are those of the first process everywhere. Rows go in and come out whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..distributed.processes import ALONE, Group
from .vectors import columns, orthogonalise

#: Columns of the basis that one step of a restart rotates: bounds its temporary memory.
_PANEL = 2**18
_NUMBERS = ("count", "multiplied", "drawn", "norm_seen", "restarts", "dropped", "_loss", "capacity")


class Krylov:
    """An orthonormal basis that grows by products. `draw(i)` gives the i-th start row, random ones in the end.

    `selective=True` orthogonalises once where that suffices: a running bound of the loss of orthogonality decides when
    the second pass is needed, so that the basis stays orthogonal to sqrt(eps) (semi-orthogonal, Simon 1984).
    """

    def __init__(
        self,
        n: int,
        capacity: int,
        draw: Callable[[int], Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
        width: int = 1,
        selective: bool = False,
        group: Group = ALONE,
    ) -> None:
        self.n = group.size(n)
        self.capacity = min(capacity, self.n)
        self.group, self.mine = group, group.slice(n)
        self.Q = torch.empty((self.capacity, self.mine.stop - self.mine.start), dtype=dtype, device=device)
        self.T = torch.zeros((self.capacity, self.capacity), dtype=torch.float64)
        self.lost = torch.zeros_like(self.T)
        self.selective = selective
        self.count = self.multiplied = self.drawn = 0
        self.norm_seen = 0.0  # the longest image of a unit vector so far: a lower bound of the norm of A
        self.restarts, self.dropped = 0, 0.0
        self._draw = draw
        self._eps = torch.finfo(dtype).eps
        self._loss = self._eps  # a bound of the largest |q_i . q_j|, i != j
        self._ritz: tuple[Tensor, Tensor, Tensor] | None = None  # of the current rows
        for _ in range(min(width, self.capacity)):
            self.inject()

    # --- growing ----------------------------------------------------------------------------------------------------
    @property
    def pending(self) -> int:
        return self.count - self.multiplied

    @property
    def whole(self) -> bool:
        """Whether the multiplied rows span the whole space: every Ritz pair is then an eigenpair."""
        return self.multiplied == self.n

    def inject(self) -> Tensor | None:
        """Append the next row drawn, made orthogonal to all; None where there is no room for one.

        Returns the coordinates of the drawn row in the pending rows, the new one included.
        """
        while self.count < self.capacity:
            drawn = self._draw(self.drawn)[self.mine]
            self.drawn += 1
            h, w = orthogonalise(drawn, self.Q[: self.count], passes=3, group=self.group)
            size = self.group.norm(w)
            if size > 100 * self._eps * self.group.norm(drawn):
                self.Q[self.count] = w / size
                self.count += 1
                return torch.cat([h[self.multiplied :], h.new_tensor([size])])
        return None

    def turn(self, directions: Tensor) -> None:
        """Rotate the pending rows so that the first ones span the leading left singular vectors of `directions`.

        `directions` is (pending, k). What is multiplied next is then what these directions have most in common.
        """
        if self.pending < 2:
            return
        U = self.group.same(torch.linalg.svd(directions, full_matrices=True).U)
        m, small = self.multiplied, U.T.to(self.Q).contiguous()
        for panel in self._panels():
            self.Q[m : self.count, panel] = small @ columns(self.Q[m : self.count], panel)
        self.T[m : self.count, :m] = U.T @ self.T[m : self.count, :m]
        self._ritz = None

    def first(self, width: int) -> Tensor:
        """The first pending rows, at most `width`: what to multiply and absorb next."""
        return self.group.whole(self.Q[self.multiplied : min(self.multiplied + width, self.count)], self.n)

    def absorb(self, images: Tensor) -> None:
        """Take in the images of the first pending rows: one column of T each, and one new row unless it is noise.

        The part of an image outside a full basis is dropped, and counts in every residual. Restart before that.
        """
        for w in images[:, self.mine]:
            size = self.group.norm(w)
            self.norm_seen = max(self.norm_seen, size)
            h, w = self._orthogonalise(w, size)
            self.T[: self.count, self.multiplied] = h
            rest = self.group.norm(w)
            grown = rest > 100 * self._eps * self.norm_seen and self.count < self.capacity
            if grown:
                self.Q[self.count] = w / rest
                self.T[self.count, self.multiplied] = rest
            else:
                self.dropped = math.hypot(self.dropped, rest)
            self.multiplied += 1
            self.count += grown
            self._ritz = None

    def _orthogonalise(self, w: Tensor, size: float) -> tuple[Tensor, Tensor]:
        Q = self.Q[: self.count]
        if not self.selective:
            return orthogonalise(w, Q, group=self.group)
        h, once = orthogonalise(w, Q, passes=1, group=self.group)
        rest = self.group.norm(once)
        loss = (math.sqrt(self.count) * self._loss + self._eps) * size / rest if rest > 0 else math.inf
        if loss <= math.sqrt(self._eps):
            self._loss = max(loss, self._loss)
            return h, once
        more, twice = orthogonalise(once, Q, group=self.group)
        return h + more, twice

    # --- reading ----------------------------------------------------------------------------------------------------
    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values (m,) ascending, their coordinates S (m, m), and bounds of |A v - theta v| (m,)."""
        m = self.multiplied
        if self._ritz is not None:
            return self._ritz
        T = self.T[:m, :m]
        both = self.group.same(torch.cat([t.view(-1, m) for t in torch.linalg.eigh((T + T.T) / 2)]))
        theta, S = both[0], both[1:]
        rest = self.T[: self.count, :m] @ S
        rest[:m] -= S * theta
        lost = ((self.lost[:m, :m] @ S) * S).sum(0).clamp(min=0)
        fixed = self.dropped + (4 + math.sqrt(m)) * self._eps * self.norm_seen
        self._ritz = theta, S, rest.norm(dim=0) + math.sqrt(self.restarts) * lost.sqrt() + fixed
        return self._ritz

    def vectors(self, S: Tensor) -> Tensor:
        """The rows `S^T Q` of the space for coordinates S (m, k)."""
        out = self.Q.new_empty((S.shape[1], self.Q.shape[1]))
        self._rotate(S, out)
        return self.group.whole(out, self.n)

    def ended(self, S: Tensor) -> Tensor:
        """`vectors` where a device has no room for them beside the basis, which is given up: through the host."""
        out = torch.empty((S.shape[1], self.Q.shape[1]), dtype=self.Q.dtype)
        self._rotate(S, out)
        self.Q, device = self.Q.new_empty(0), self.Q.device
        return self.group.whole(out.to(device), self.n)

    def coupling(self, S: Tensor) -> Tensor:
        """The residuals of the Ritz vectors S in coordinates of the pending rows: `(pending, k)`."""
        return self.T[self.multiplied : self.count, : self.multiplied] @ S

    def last_image(self) -> Tensor:
        """The last image in coordinates of the pending rows: where Lanczos on the complement of the rest goes next."""
        return self.T[self.multiplied : self.count, self.multiplied - 1]

    def asymmetry(self) -> float:
        """|T - T^T| / (2 |T|) in the Frobenius norm: zero for exact products of a symmetric operator."""
        T = self.T[: self.multiplied, : self.multiplied]
        size = float(T.norm())
        return float((T - T.T).norm()) / (2 * size) if size > 0 else 0.0

    # --- restarting -------------------------------------------------------------------------------------------------
    def restart(self, S: Tensor) -> None:
        """Go on with the Ritz vectors of coordinates S (m, k) and the pending rows; everything else is forgotten."""
        m, p, k = self.multiplied, self.pending, S.shape[1]
        T, lost = torch.zeros_like(self.T), torch.zeros_like(self.T)
        T[:k, :k] = S.T @ self.T[:m, :m] @ S
        outside = self.T[:m, :m] @ S - S @ T[:k, :k]  # zero for a symmetric operator
        lost[:k, :k] = S.T @ self.lost[:m, :m] @ S + outside.T @ outside
        T[k : k + p, :k] = self.T[m : self.count, :m] @ S
        self._rotate(S, self.Q)
        for i in range(p):
            self.Q[k + i] = self.Q[m + i]
        self.T, self.lost, self.multiplied, self.count, self._ritz = T, lost, k, k + p, None
        self.restarts += 1

    def _rotate(self, S: Tensor, out: Tensor) -> None:
        m, k = S.shape
        small = S.to(self.Q).T.contiguous()
        for panel in self._panels():
            out[:k, panel] = small @ columns(self.Q[:m], panel)

    def _panels(self) -> list[slice]:
        return [slice(a, a + _PANEL) for a in range(0, self.Q.shape[1], _PANEL)]

    # --- saving -----------------------------------------------------------------------------------------------------
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on: tensors (of Q this process's slice) and numbers."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"Q": self.Q[: self.count], "T": self.T, "lost": self.lost}, numbers

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Become the basis that `state` was taken from."""
        if numbers["capacity"] != self.capacity:
            self.capacity = int(numbers["capacity"])
            self.Q = self.Q.new_empty((self.capacity, self.Q.shape[1]))
        self.Q[: len(tensors["Q"])] = tensors["Q"].to(self.Q)
        self.T, self.lost, self._ritz = tensors["T"].clone(), tensors["lost"].clone(), None
        self.restarts = int(bool(self.lost.any()))  # states of old do not say
        for name, value in numbers.items():
            setattr(self, name, value)
