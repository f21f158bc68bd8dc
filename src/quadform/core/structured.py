"""Operators of known structure: a diagonal, sums of Kronecker products, a diagonal in a Kronecker eigenbasis.

Each inverts in closed form where its structure allows: `spectral`, `exact_inverse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from . import operator
from .errors import InputError
from .inverting import eigh, inverted
from .operator import Operator
from .space import Space, Vector


@final
class Diagonal(Operator):
    """diag(d): every coordinate times its own number. `d` is one vector `{name: shape}`."""

    def __init__(self, d: Vector, space: Space | None = None) -> None:
        space = Space.of(d) if space is None else space
        if space.lead(d):
            raise InputError("the diagonal of an operator is one vector; got a stack of vectors.")
        first = d[space.names[0]]
        psd = all(bool((t >= 0).all()) for t in d.values())
        super().__init__(space, dtype=first.dtype, device=first.device, symmetric=True, psd=psd)
        self.d = self._given(d)

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return {name: t * V[name] for name, t in self.d.items()}

    def sub(self, rows: Space, cols: Space) -> Operator:
        if rows.parts != cols.parts:
            return super().sub(rows, cols)
        return Diagonal(self.domain.restrict(rows, self.d), rows)

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator:
        return Diagonal(self.domain.unflatten(f(self.domain.flatten(self.d))), self.domain)


@final
class KroneckerSum(Operator):
    """`sum_n A_n kron B_n`, acting on one matrix: `V -> sum_n A_n V B_n^T` (row-major vec).

    `A` is `(N, p, q)`, `B` is `(N, r, s)`; the domain holds one `(q, s)` tensor, the codomain one `(p, r)` tensor.
    Every token-wise Gauss-Newton block of attention has this form with rank-one `A_n`. Source: [ODS25, Thm 3.1].
    """

    def __init__(
        self, A: Tensor, B: Tensor, domain: Space, codomain: Space | None = None, *, psd: bool = False
    ) -> None:
        codomain = domain if codomain is None else codomain
        if A.dim() != 3 or B.dim() != 3 or A.shape[0] != B.shape[0] or A.dtype != B.dtype or A.device != B.device:
            raise InputError(
                "the factors of a Kronecker sum are (N, p, q) and (N, r, s) of one kind; got"
                f" {A.dtype} {tuple(A.shape)} on {A.device} and {B.dtype} {tuple(B.shape)} on {B.device}."
            )
        want_in, want_out = (A.shape[2], B.shape[2]), (A.shape[1], B.shape[1])
        if tuple(s for _, s in domain) != (want_in,) or tuple(s for _, s in codomain) != (want_out,):
            raise InputError(
                f"factors {tuple(A.shape)} and {tuple(B.shape)} map one tensor of shape {want_in} to one of shape"
                f" {want_out}; got {domain} -> {codomain}."
            )
        symmetric = domain.parts == codomain.parts and bool(
            torch.equal(A, A.transpose(1, 2)) and torch.equal(B, B.transpose(1, 2))
        )
        super().__init__(domain, codomain, dtype=A.dtype, device=A.device, symmetric=symmetric, psd=psd)
        self.A = A
        self.B = B

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,), (out,) = self.domain.names, self.codomain.names
        k, p, s = V[name].shape[0], self.A.shape[1], self.B.shape[2]
        step = max(1, operator._SCRATCH // max(1, k * p * s))  # A_n V is (step, k, p, s)
        total = V[name].new_zeros((k, p, self.B.shape[1]))
        for A, B in zip(self.A.split(step), self.B.split(step), strict=True):
            total += torch.einsum("npq,kqs,nrs->kpr", A, V[name], B)
        return {out: total}

    def adjoint(self) -> Operator:
        if self.symmetric:
            return self
        return KroneckerSum(self.A.transpose(1, 2), self.B.transpose(1, 2), self.codomain, self.domain)

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator | None:
        if not self.symmetric or len(self.A) != 1:
            return None
        (a, U), (b, V) = eigh(self.A[0]), eigh(self.B[0])
        values = (a[:, None] * b).to(self.dtype)
        values = f(values.clamp(min=0) if self.psd else values)
        return KroneckerDiagonal((U.to(self.dtype), V.to(self.dtype)), values, self.domain)

    def exact_inverse(self, damping: float = 0.0) -> Operator | None:
        (p, q), (r, s) = self.A.shape[1:], self.B.shape[1:]
        if self.symmetric or len(self.A) != 1 or p != q or r != s or damping:
            return super().exact_inverse(damping)
        return KroneckerSum(inverted(self.A[0])[None], inverted(self.B[0])[None], self.codomain, self.domain)


@final
class KroneckerDiagonal(Operator):
    """(U_1 kron U_2 kron ...) diag(s) (.)^T with orthogonal U_i, on one tensor of the shape of s; None is the identity.

    For two bases `X -> U (s * (U^T X V)) V^T` (row-major vec): any function of A kron B with symmetric factors, and
    EKFAC.
    """

    def __init__(self, bases: Sequence[Tensor | None], s: Tensor, domain: Space) -> None:
        lengths = tuple(n if U is None else len(U) for U, n in zip(bases, s.shape, strict=False))
        if tuple(shape for _, shape in domain) != (tuple(s.shape),) or s.shape != lengths or len(bases) != s.dim():
            shapes = ", ".join("identity" if U is None else str(tuple(U.shape)) for U in bases)
            raise InputError(f"bases {shapes} and values {tuple(s.shape)} do not act on {domain}.")
        super().__init__(domain, dtype=s.dtype, device=s.device, symmetric=True, psd=bool((s >= 0).all()))
        self.bases, self.s = tuple(bases), s

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,) = self.domain.names
        turned = along_axes([None if U is None else U.mT for U in self.bases], V[name])
        return {name: along_axes(self.bases, self.s * turned)}

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator:
        return KroneckerDiagonal(self.bases, f(self.s), self.domain)


def along_axes(factors: Sequence[Tensor | None], X: Tensor) -> Tensor:
    """Each axis of k stacked tensors times its factor: a matrix, a diagonal, or None for the identity."""
    for axis, F in enumerate(factors, start=1):
        if F is None:
            continue
        if F.dim() == 1:
            X = X * F.view(-1, *(1,) * (X.dim() - axis - 1))
        else:
            X = (X.movedim(axis, -1) @ F.mT).movedim(-1, axis)
    return X
