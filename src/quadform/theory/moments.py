"""Centred moments of attention: the cumulants through which the data enters the Hessian.

Row i of the attention matrix A is a probability over the keys z_j. With c_ij = z_j - M1_i,

    M1_i = sum_j A_ij z_j                          (d,)
    M2_i = sum_j A_ij c_ij c_ij^T                  (d, d)
    M3_i = sum_j A_ij c_ij kron (c_ij c_ij^T)      (d^2, d)

are gradient, Hessian and third derivative at 0 of the log-partition h -> log sum_j A_ij exp(h . z_j); that is why only
CENTRED moments appear. Source: [ODS25, Sec. 3]. All sums run over centred c_ij: the subtraction form loses digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.showing import fields_in_brief
from .inputs import one_kind

if TYPE_CHECKING:
    from jaxtyping import Float

#: Bytes of centred keys (rows x keys x width) held at a time.
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Moments:
    """The three moments of every row; leading axes are those of the attention matrix without its last."""

    M1: Float[Tensor, "*rows d"]
    M2: Float[Tensor, "*rows d d"]
    M3: Float[Tensor, "*rows d2 d"]

    __repr__ = fields_in_brief


def attention_moments(A: Float[Tensor, "*batch i j"], Z: Float[Tensor, "*batch j d"]) -> Moments:
    """M1, M2, M3 of attention A over keys Z. M3 is `(L, d^2, d)`: small widths only; nothing else here builds it."""
    one_kind({"A": A, "Z": Z})
    if A.dim() < 2 or Z.dim() < 2 or A.shape[-1] != Z.shape[-2]:
        raise InputError(f"give A (..., i, j) and Z (..., j, d); got {tuple(A.shape)} and {tuple(Z.shape)}.")
    M1 = A @ Z
    c = Z[..., None, :, :] - M1[..., :, None, :]
    M2 = torch.einsum("...ij,...ija,...ijb->...iab", A, c, c)
    M3 = torch.einsum("...ij,...ija,...ijb,...ijc->...iabc", A, c, c, c).flatten(-3, -2)
    return Moments(M1, M2, M3)


def moment_norms(A: Float[Tensor, "i j"], Z: Float[Tensor, "j d"]) -> Float[Tensor, " three"]:
    """Frobenius norms of M1, M2, M3, each the mean over the rows of A, without building M3.

    |M_k|^2 = sum_jl A_ij A_il (c_ij . c_il)^k for the centred moments k = 2, 3.
    """
    M1 = A @ Z
    c = Z - M1[:, None, :]
    gram, weight = c @ c.mT, A[:, :, None] * A[:, None, :]
    rows = [M1.norm(dim=-1)] + [(weight * gram**k).sum((1, 2)).clamp(min=0).sqrt() for k in (2, 3)]
    return torch.stack(rows).mean(1)


def less_top(A: Tensor, M: Tensor) -> Tensor:
    """Rows of M `(..., i, j)` less their entry at the key that row i of A sees most.

    Where rows are centred afterwards this changes nothing, and nearly one-hot attention keeps its digits: the mean of M
    would be M at the top key to the last digit, and their difference the rounding alone.
    """
    return M - M.gather(-1, A.argmax(-1, keepdim=True).expand(*M.shape[:-1], 1))


def centre(A: Tensor, M: Tensor) -> Tensor:
    """`A o (M - rowsum(A o M))`: the softmax Jacobian applied to rows of M, any leading axes."""
    M = less_top(A, M)
    return A * (M - (A * M).sum(-1, keepdim=True))


@torch.no_grad()
def second_and_contracted_third(
    A: Float[Tensor, "b i j"], Z: Float[Tensor, "b j d"], phi: Float[Tensor, "b i j"]
) -> tuple[Float[Tensor, "n d d"], Float[Tensor, "n d d"]]:
    """M2 and N = sum_j A_ij (phi_ij - <phi>_i) c_ij c_ij^T for all n = (b, i).

    With phi_ij = z_j . gamma_i, N is M3 contracted with gamma. Two batched products over the keys: O(L^2 d^2) flops,
    O(L d^2) memory; centred keys are held a few rows at a time.
    """
    batch, rows, keys = A.shape
    d = Z.shape[2]
    M1 = A @ Z
    w = centre(A, phi)
    M2 = torch.empty((batch * rows, d, d), dtype=Z.dtype, device=Z.device)
    N = torch.empty_like(M2)
    for b, i in _chunks(batch, rows, keys * d * Z.element_size()):
        c = Z[b, None] - M1[b, i, None]  # (b, i, j, d)
        c = c.flatten(0, 1)
        at = _positions(b, i, rows)
        ct = c.transpose(1, 2)
        torch.bmm(ct, c * A[b, i].flatten(0, 1)[..., None], out=M2[at])
        torch.bmm(ct, c * w[b, i].flatten(0, 1)[..., None], out=N[at])
    return M2, N


def _chunks(batch: int, rows: int, row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Pieces of (sequence, row) pairs: whole sequences when several fit the budget, else rows of one sequence."""
    fit = max(1, _CHUNK_BYTES // max(row_bytes, 1))
    if fit >= rows:
        step = fit // rows
        for b in range(0, batch, step):
            yield slice(b, min(b + step, batch)), slice(0, rows)
    else:
        for b in range(batch):
            for i in range(0, rows, fit):
                yield slice(b, b + 1), slice(i, min(i + fit, rows))


def _positions(b: slice, i: slice, rows: int) -> slice:
    """Where the rows `i` of the sequences `b` lie among the n = (b, i); contiguous by construction of `_chunks`."""
    return slice(b.start * rows + i.start, (b.stop - 1) * rows + i.stop)
