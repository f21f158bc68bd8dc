"""What is solved: (A + damping I) x = b with a preconditioner, or the least squares of [A; sqrt(damping) I] x = [b; 0].

Vectors are rows; of several processes each keeps its slice of every row (`group_of(space)`), inner products are added
up and are float64 on the host, the same bits everywhere. Products see whole rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.operator import Operator
from ...core.space import Space
from ...distributed.processes import group_of
from ..vectors import AT_ONCE, multiply, refused_of_shards, working_dtype


def product(A: Operator, rows: Tensor) -> Tensor:
    """A times each whole row, a few at a time."""
    return torch.cat([multiply(A, part) for part in rows.split(AT_ONCE)])


@final
class Rows:
    """Rows of a space: cutting, joining, inner products. `sliced=False`: every process keeps whole rows."""

    def __init__(self, space: Space, *, sliced: bool = True) -> None:
        self.group, self.n, self.sliced = group_of(space), space.size, sliced
        if self.group.cut:
            raise refused_of_shards("solve")
        self.mine = self.group.slice(self.n) if sliced else slice(None)

    def cut(self, whole: Tensor) -> Tensor:
        return whole[:, self.mine]

    def whole(self, rows: Tensor) -> Tensor:
        return self.group.whole(rows, self.n) if self.sliced else rows

    def _joined(self, numbers: Tensor) -> Tensor:
        return self.group.sum(numbers) if self.sliced else self.group.same(numbers)

    def dot(self, U: Tensor, V: Tensor) -> Tensor:
        """u_i . v_i, `(k,)`."""
        return self._joined((U * V).sum(1, dtype=torch.float64).cpu())

    def gram(self, U: Tensor, V: Tensor) -> Tensor:
        """u_i . v_j, `(k, l)`."""
        return self._joined((U @ V.T).double().cpu())

    def norm(self, U: Tensor) -> Tensor:
        return self.dot(U, U).sqrt()


def column(numbers: Tensor, like: Tensor) -> Tensor:
    """A number for each row, ready to multiply the rows."""
    return numbers.to(like)[:, None]


@dataclass(frozen=True)
class Checked:
    """The residual b - A x of given solutions, from new products: rows, how far from converged, and |gradient|.

    `off` is |r| (unit b), or what stands for it in least squares; `gradient` is |r|, or |A^T r|.
    """

    R: Tensor
    off: Tensor
    gradient: Tensor


class System(ABC):
    """A linear system with unit right-hand sides, known by its products.

    `products` counts the vectors that were multiplied with A or its transpose; `norm_seen` is the longest image of a
    unit vector, a lower bound of |A|.
    """

    check_cost = 1  # products of one check of one right-hand side

    def __init__(self, A: Operator, damping: float, *, sliced: bool) -> None:
        self.A, self.damping, self.rows = A, damping, Rows(A.domain, sliced=sliced)
        self.eps = torch.finfo(working_dtype(A)).eps
        self.products, self.norm_seen = 0, 0.0

    @abstractmethod
    def times(self, V: Tensor) -> Tensor:
        """The matrix of the system times rows."""

    @abstractmethod
    def given(self, B: Tensor) -> Tensor:
        """The right-hand sides of the system from whole rows of A's codomain."""

    @abstractmethod
    def check(self, B: Tensor, X: Tensor) -> Checked:
        """b - A x."""

    @abstractmethod
    def round_off(self, X: Tensor) -> Tensor:
        """The round-off of `Checked.gradient`, `(k,)`: four roundings of the largest terms."""

    def _count(self, given: Tensor, image: Tensor) -> None:
        self.products += len(given)
        sizes = self.rows.norm(image) / self.rows.norm(given).clamp(min=1e-300)
        self.norm_seen = max(self.norm_seen, float(sizes.max()))


@final
class Symmetric(System):
    """(A + damping I) x = b, with a preconditioner M ~ (A + damping I)^-1, symmetric and positive definite."""

    def __init__(self, A: Operator, damping: float, preconditioner: Operator | None) -> None:
        super().__init__(A, damping, sliced=True)
        self.M = preconditioner

    def times(self, V: Tensor) -> Tensor:
        image = self.rows.cut(product(self.A, self.rows.whole(V)))
        if self.damping:
            image = torch.add(image, V, alpha=self.damping)
        self._count(V, image)
        return image

    def given(self, B: Tensor) -> Tensor:
        return self.rows.cut(B)

    def precondition(self, R: Tensor) -> tuple[Tensor, Tensor]:
        """M r, and r . M r."""
        if self.M is None:
            return R, self.rows.dot(R, R)
        Z = self.rows.cut(product(self.M, self.rows.whole(R)))
        energy = self.rows.dot(R, Z)
        if not bool(((energy > 0) | (self.rows.norm(R) == 0)).all()):
            raise InputError(
                f"the preconditioner {self.M!r} is not positive definite: r . M r = {float(energy.min()):.3g}."
                " Give an approximation of the inverse that is, or none."
            )
        return Z, energy

    def check(self, B: Tensor, X: Tensor) -> Checked:
        R = B - self.times(X)
        size = self.rows.norm(R)
        return Checked(R, size, size)

    def round_off(self, X: Tensor) -> Tensor:
        return 4 * self.eps * (1 + self.norm_seen * self.rows.norm(X))


@final
class LeastSquares(System):
    """min |A x - b|^2 + damping |x|^2 as [A; sqrt(damping) I] x ~ [b; 0]. Every process keeps whole rows."""

    check_cost = 2

    def __init__(self, A: Operator, damping: float) -> None:
        super().__init__(A, damping, sliced=False)
        self.back, self.root, self.m = A.T, math.sqrt(damping), A.codomain.size

    def times(self, V: Tensor) -> Tensor:
        image = product(self.A, V)
        if self.damping:
            image = torch.cat([image, self.root * V], 1)
        self._count(V, image)
        return image

    def transposed(self, U: Tensor) -> Tensor:
        image = product(self.back, U[:, : self.m])
        if self.damping:
            image = torch.add(image, U[:, self.m :], alpha=self.root)
        self._count(U, image)
        return image

    def given(self, B: Tensor) -> Tensor:
        return torch.cat([B, B.new_zeros(len(B), self.A.domain.size)], 1) if self.damping else B

    def check(self, B: Tensor, X: Tensor) -> Checked:
        """Converged is |r| <= tol |b|, or |A^T r| <= tol |A| |r|: x is exact for a matrix that close (LSMR's rules)."""
        R = B - self.times(X)
        size, gradient = self.rows.norm(R), self.rows.norm(self.transposed(R))
        return Checked(R, self.off(size, gradient), gradient)

    def off(self, size: Tensor, gradient: Tensor) -> Tensor:
        """How far from converged: the smaller of |r| and |A^T r| / (|A| |r|)."""
        return torch.minimum(size, gradient / (self.norm_seen * size).clamp(min=1e-300))

    def round_off(self, X: Tensor) -> Tensor:
        return 4 * self.eps * self.norm_seen * (1 + self.norm_seen * self.rows.norm(X))
