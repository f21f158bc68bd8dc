"""The solution of a linear system with what is known about its error, and right-hand sides as rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.operator import Operator
from ...core.showing import fields_in_brief
from ...core.space import Space, Vector
from ..vectors import working_dtype


@dataclass(frozen=True)
class Solution:
    """x of (A + damping I) x = b, in the form of b; numbers are `(k,)`, one for each right-hand side.

    `residual` is |b - (A + damping I) x| / |b| and `absolute` is |b - (A + damping I) x|, both from a product with the
    x that is returned. For least squares they are of |b - A x|. `bound` is a bound of |x - x*| where one is known:
    residual / damping for a positive semi-definite operator, |A^T (b - A x) - damping x| / damping for least squares;
    else None. `products` counts all vectors that were multiplied, `note` says what did not converge and why.
    """

    x: Vector | Tensor
    residual: Tensor
    absolute: Tensor
    bound: Tensor | None
    products: int
    converged: bool
    method: str
    note: str = ""

    __repr__ = fields_in_brief

    def __str__(self) -> str:
        worst = float(self.residual.max())
        end = "converged" if self.converged else "NOT converged"
        error = "" if self.bound is None else f", |x - x*| <= {float(self.bound.max()):.2g}"
        tail = f": {self.note}" if self.note else ""
        return f"{self.method}: {end}, relative residual {worst:.1e}{error}, {self.products} products{tail}"


def rows_of(space: Space, A: Operator, v: Vector | Tensor, what: str) -> Tensor:
    """One vector or k, a dict or flat, as whole rows `(k, n)` in the working precision."""
    flat = space.flatten(space.unflatten(v) if isinstance(v, Tensor) else v).detach()
    rows = (flat[:, None] if flat.dim() == 1 else flat).T.to(device=A.device, dtype=working_dtype(A)).contiguous()
    if not len(rows):
        raise InputError(f"{what} has no vector in it.")
    if not bool(rows.isfinite().all()):
        raise InputError(f"{what} is NaN or infinite.")
    return rows


def unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1 and the lengths they had, float64 `(k,)`; a zero row stays zero, with length 1."""
    largest = rows.abs().amax(1)
    scaled = rows / torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
    length = torch.linalg.vector_norm(scaled, dim=1, dtype=torch.float64)
    length = torch.where(length > 0, length, torch.ones_like(length))
    scale = torch.where(largest > 0, largest.double() * length, torch.ones_like(length))
    return scaled / length.to(rows)[:, None], scale.cpu()


def formed(rows: Tensor, space: Space, like: Vector | Tensor) -> Vector | Tensor:
    """Rows in the form of `like`: a dict or flat, one vector or a stack."""
    if isinstance(like, Tensor):
        return rows[0] if like.dim() == 1 else rows.T
    return space.unflatten(rows.T if next(iter(like.values())).dim() > len(next(iter(space))[1]) else rows[0])


def digest(*tensors: Tensor) -> str:
    """A short checksum of numbers: states of other right-hand sides have other names."""
    text = b"".join(t.cpu().contiguous().numpy().tobytes() for t in tensors)
    return hashlib.sha256(text).hexdigest()[:8]
