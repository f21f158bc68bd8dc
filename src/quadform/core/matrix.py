"""The papers' matrix calculus: row-major vec, Kronecker, commutation, row-block Khatri-Rao.

Convention of [ODS25]: `vec_r(P B Q) = (P kron Q^T) vec_r(B)`, Jacobians in numerator layout. These build matrices
outright: they are the language of the theorems and of the tests. Products elsewhere use the moment form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .errors import InputError


def vec(B: Tensor) -> Tensor:
    """Row-major vec, `(m, n)` -> `(m n,)`: the rows of B one after the other."""
    return B.reshape(-1)


def unvec(b: Tensor, m: int, n: int) -> Tensor:
    """The `(m, n)` matrix whose row-major vec is `b`."""
    if b.numel() != m * n:
        raise InputError(f"a vector of {b.numel()} entries cannot be read as a {m} x {n} matrix.")
    return b.reshape(m, n)


def kron(A: Tensor, B: Tensor, *more: Tensor) -> Tensor:
    """A kron B kron ...: `out[(i, k), (j, l)] = A[i, j] B[k, l]`. Operands may be transposed or otherwise strided."""
    for M in (A, B):
        if M.dim() != 2:
            raise InputError(f"kron multiplies matrices; got a tensor of shape {tuple(M.shape)}.")
    out = torch.einsum("ij,kl->ikjl", A, B).reshape(A.shape[0] * B.shape[0], A.shape[1] * B.shape[1])
    return kron(out, *more) if more else out


def commutation(m: int, n: int, **options: Any) -> Tensor:
    """`K_{m,n}`, the `(m n, m n)` permutation with `K_{m,n} vec_c(B) = vec_c(B^T)` for B of shape `(m, n)`.

    In row-major words it sends `vec_r(C)` to `vec_r(C^T)` for C of shape `(n, m)`:
    `K_{dK,d} vec_r(W_K) = vec_r(W_K^T)`.
    """
    index = torch.arange(m * n).reshape(n, m).T.reshape(-1)
    return torch.eye(m * n, **options)[index]


def khatri_rao(*stacks: Tensor) -> Tensor:
    """Row-block Khatri-Rao product: block i of the result is `A_i kron B_i kron ...`.

    Each operand is `(N, p, q)`, its blocks along the first axis; the result is the stacked `(N p p' ..., q q' ...)`.
    The paper's `X * M2` is `khatri_rao(X[:, None, :], M2)`.
    """
    if any(s.dim() != 3 for s in stacks) or len({s.shape[0] for s in stacks}) != 1:
        raise InputError(
            f"row-block Khatri-Rao needs (N, p, q) stacks with one N; got {[tuple(s.shape) for s in stacks]}."
        )
    out = stacks[0]
    for s in stacks[1:]:
        out = torch.einsum("npq,nrs->nprqs", out, s).reshape(
            out.shape[0], out.shape[1] * s.shape[1], out.shape[2] * s.shape[2]
        )
    return out.reshape(-1, out.shape[2])
