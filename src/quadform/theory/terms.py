"""A Hessian block as a sum over tokens: `sum_n r_n c_n^T (x) E_n`.

Every block of the attention Hessian is a sum of one or two such terms: two vectors and one small matrix per token
(the moment form: no Kronecker, commutation or third-moment matrix is ever built). Rows of the block are pairs of
indices, one from `r` and one from the rows of `E`; `rows_vector_first` says which comes first in the row-major order of
the weight matrix, and likewise for columns:

    block[(i, k), (j, l)] = sum_n r_n[i] c_n[j] E_n[k, l]        both vector first

A shared matrix (`E` with one entry for all tokens) makes the term a Kronecker product `(sum_n r_n c_n^T) kron E`.
Norms, inner products, diagonals and the share of each token come from Gram sums over tokens; the block is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Bytes a temporary may take inside a Gram sum before it is cut into chunks of tokens.
_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class Term:
    """`sum_n r_n c_n^T (x) E_n`: r `(N, p)`, c `(N, q)`, E `(N, e, f)` or, shared by all tokens, `(1, e, f)`."""

    r: Tensor
    c: Tensor
    E: Tensor
    rows_vector_first: bool = True
    cols_vector_first: bool = True
    #: Orthonormal bases `(G, e, k)` and `(G, f, l)` of spaces that hold the rows and columns of E_n, one for each of G
    #: equal runs of tokens (the keys of a short sequence); None where the whole space is needed.
    rows_span: Tensor | None = None
    cols_span: Tensor | None = None
    #: Whether r is c and every E_n is symmetric.
    symmetric: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.r.shape[1] * self.E.shape[1], self.c.shape[1] * self.E.shape[2]

    @property
    def shared(self) -> bool:
        return self.E.shape[0] == 1 and self.r.shape[0] != 1

    @property
    def T(self) -> Term:
        return Term(
            self.c,
            self.r,
            self.E.transpose(1, 2),
            self.cols_vector_first,
            self.rows_vector_first,
            self.cols_span,
            self.rows_span,
            self.symmetric,
        )

    def __add__(self, other: Term) -> Term:
        """The sum of two terms over the same vectors: their small matrices add."""
        return replace(self, E=self.E + other.E, symmetric=self.symmetric and other.symmetric)

    def aligned(self, other: Term) -> bool:
        """Whether the two terms have the very same vectors in the same places, so that `+` applies."""
        return (
            self.r is other.r
            and self.c is other.c
            and self.rows_vector_first == other.rows_vector_first
            and self.cols_vector_first == other.cols_vector_first
        )

    @property
    def row_shape(self) -> tuple[int, int]:
        """The shape of the row weight."""
        p, e = self.r.shape[1], self.E.shape[1]
        return (p, e) if self.rows_vector_first else (e, p)

    def rows(self, at: slice) -> Term:
        """The rows of the block whose first index lies in `at`; the first axis of the row weight is cut."""
        if self.rows_vector_first:
            return replace(self, r=self.r[:, at], symmetric=False)
        return replace(self, E=self.E[:, at], rows_span=None, symmetric=False)

    # --- scalars ----------------------------------------------------------------------------------------------------
    def own_squares(self) -> Tensor:
        """`||r_n c_n^T (x) E_n||_F^2` for every token, `(N,)`."""
        return self.r.square().sum(1) * self.c.square().sum(1) * self.E.square().sum((1, 2))

    def is_zero(self) -> bool:
        """Whether one of the three factors is zero for all tokens."""
        return not all(bool(t.any()) for t in (self.r, self.c, self.E))

    def diagonal(self) -> Tensor:
        """The diagonal of a square block, `(rows,)`."""
        along = self.r * self.c  # (N, p)
        small = self.E.diagonal(dim1=1, dim2=2)  # (N or 1, e)
        both = along.sum(0)[:, None] * small if self.shared else along.T @ small
        return (both if self.rows_vector_first else both.T).reshape(-1)

    def trace(self) -> Tensor:
        """The trace of a square block."""
        return ((self.r * self.c).sum(1) * self.E.diagonal(dim1=1, dim2=2).sum(1)).sum()

    # --- Gram sums --------------------------------------------------------------------------------------------------
    def compressed(self) -> Term:
        """The same block from at most min(p, q) vectors when the matrix is shared; else itself."""
        if not self.shared or self.r.shape[0] <= min(self.r.shape[1], self.c.shape[1]):
            return self
        U, s, Vh = torch.linalg.svd(self.r.T @ self.c, full_matrices=False)
        return replace(self, r=(U * s).T.contiguous(), c=Vh.contiguous(), symmetric=False)

    def inner(self, other: Term) -> Tensor:
        """`<self_n, other>` for every token n of self, `(N,)`: Frobenius inner products without the block."""
        other = other.compressed()
        same_rows = self.rows_vector_first == other.rows_vector_first
        same_cols = self.cols_vector_first == other.cols_vector_first
        if same_rows and not same_cols:
            return self.T.inner(other.T)
        mine, its = self._cores(), other._cores()
        if (
            same_cols
            and mine is not None
            and its is not None
            and (not same_rows or (mine.U is None) == (its.U is None))
        ):
            return mine.inner(its, same_rows)
        N, M = self.r.shape[0], other.r.shape[0]
        E, F = self.E, other.E
        width = M * (1 if same_rows and same_cols else max(E.shape[1:])) * E.element_size()
        step = max(1, min(N, _CHUNK_BYTES // max(width, 1)))
        total = torch.empty(N, dtype=E.dtype, device=E.device)
        for start in range(0, N, step):
            n = slice(start, min(start + step, N))
            r, c = self.r[n], self.c[n]
            En = E if E.shape[0] == 1 else E[n]
            if same_rows and same_cols:  # (r.r')(c.c')<E, E'>
                gram = En.flatten(1) @ F.flatten(1).T
                total[n] = ((r @ other.r.T) * (c @ other.c.T) * gram).sum(1)
            elif same_cols:  # (c.c') sum_l (E^T r')_l (E'^T r)_l: the row index of one is the vector of the other
                left = torch.einsum("nel,me->nml", En, other.r)
                right = torch.einsum("mel,ne->nml", F, r)
                total[n] = ((c @ other.c.T) * (left * right).sum(2)).sum(1)
            else:  # (r'^T E c')(r^T E' c)
                left = (torch.einsum("nef,mf->nme", En, other.c) * other.r).sum(2)
                right = torch.einsum("nmf,nf->nm", torch.einsum("mef,ne->nmf", F, r), c)
                total[n] = (left * right).sum(1)
        return total

    def width(self) -> int:
        """Multiplications of one inner product of two small matrices, in their spans where those are used."""
        e, f = self.E.shape[1:]
        if self.shared or self.cols_span is None:
            return e * f
        within = (e if self.rows_span is None else self.rows_span.shape[2]) * self.cols_span.shape[2]
        return within if 3 * within <= e * f else e * f

    def _cores(self) -> _Cores | None:
        """The small matrices in the bases of their spans, where that is worth it: many short sequences."""
        if self.shared or self.cols_span is None or self.width() == self.E.shape[1] * self.E.shape[2]:
            return None
        U, V, groups = self.rows_span, self.cols_span, self.cols_span.shape[0]
        core = self.E.unflatten(0, (groups, -1)) @ V[:, None]
        core = core if U is None else U[:, None].mT @ core
        return _Cores(self.r.unflatten(0, (groups, -1)), self.c.unflatten(0, (groups, -1)), core, U, V)


@dataclass(frozen=True)
class _Cores:
    """A term by groups of tokens: r `(G, n, p)`, c `(G, n, q)`, E_gn = U_g core_gn V_g^T; no U means the identity."""

    r: Tensor
    c: Tensor
    core: Tensor
    U: Tensor | None
    V: Tensor

    def inner(self, other: _Cores, same_rows: bool) -> Tensor:
        """`Term.inner` with every inner product taken in the bases: O(N^2 k^2) instead of O(N^2 e f).

        One group t of the other against all of ours at a time, in products that are as large as the bases allow.
        """
        total = torch.zeros(self.r.shape[:2], dtype=self.r.dtype, device=self.r.device)
        groups, n = self.core.shape[:2]
        flat = self.core.flatten(2)
        for t in range(other.core.shape[0]):
            r, c, core = other.r[t], other.c[t], other.core[t]
            cols = self.V.mT @ other.V[t]  # (g, l, l')
            weight = self.c @ c.T  # (g, n, m)
            if same_rows:
                moved = torch.einsum("mkj,glj->gkml", core, cols)  # the other's small matrices in our bases ...
                if self.U is not None and other.U is not None:
                    moved = ((self.U.mT @ other.U[t]) @ moved.flatten(2)).unflatten(
                        2, moved.shape[2:]
                    )  # ... both sides
                gram = flat @ moved.permute(0, 1, 3, 2).flatten(1, 2)  # (g, n, m)
                total += (weight * (self.r @ r.T) * gram).sum(2)
            else:
                seen = r.T.expand(groups, -1, -1) if self.U is None else self.U.mT @ r.T  # (g, k, m)
                left = (self.core.mT.flatten(1, 2) @ seen).unflatten(1, (n, -1)).mT  # (g, n, m, l)
                right = torch.einsum("mkj,gnk->gnmj", core, self.r if other.U is None else self.r @ other.U[t])
                both = (left.flatten(1, 2) @ cols).view_as(right) * right
                total += (weight * both.sum(3)).sum(2)
        return total.flatten()


def is_identity(E: Tensor) -> bool:
    """Whether the shared matrix `(1, e, f)` is the identity."""
    return (
        E.shape[0] == 1
        and E.shape[1] == E.shape[2]
        and torch.equal(E[0], torch.eye(*E.shape[1:], dtype=E.dtype, device=E.device))
    )


def merged(terms: Sequence[Term]) -> list[Term]:
    """The same sum with terms over the same vectors added up."""
    out: list[Term] = []
    for term in terms:
        partner = next((i for i, m in enumerate(out) if m.aligned(term)), None)
        if partner is None:
            out.append(term)
        else:
            out[partner] = out[partner] + term
    return out


def attribution(terms: Sequence[Term]) -> Tensor:
    """What each token adds to `||block||_F^2`, `(N,)`: <B_n, B> for the block B = sum_n B_n; may be negative."""
    terms = merged(terms)
    return torch.stack([a.inner(b) for a in terms for b in terms]).sum(0)


def in_range(groups: Sequence[Sequence[Term]]) -> tuple[list[list[Term]], int]:
    """The same sums, all divided by one power of two (its exponent comes second) that brings their squares into
    floating point; nothing is rounded. Terms that are zero are left out."""

    def exponents(term: Term) -> list[int]:
        return [math.frexp(float(t.abs().max()))[1] for t in (term.r, term.c, term.E)]

    kept = [[(t, exponents(t)) for t in merged(terms) if not t.is_zero()] for terms in groups]
    top = max((sum(e) for group in kept for _, e in group), default=0)

    def divided(t: Term, e: list[int]) -> Term:
        r, c, E = (_shifted(x, -size) for x, size in zip((t.r, t.c, t.E), e, strict=True))
        return replace(t, r=r, c=c, E=_shifted(E, sum(e) - top))

    return [[divided(t, e) for t, e in group] for group in kept if group], top


def _shifted(x: Tensor, exponent: int) -> Tensor:
    """x 2^exponent, in two steps: the power itself may leave floating point."""
    half = exponent // 2
    return x * 2.0**half * 2.0 ** (exponent - half)


def squared_norm(terms: Sequence[Term]) -> Tensor:
    """`||sum of terms||_F^2`, for at least one term; cross products are taken once."""
    parts = [t.compressed() for t in merged(terms)]
    products = [
        a.inner(b).sum() * (1 if i == j else 2) for i, a in enumerate(parts) for j, b in enumerate(parts) if j >= i
    ]
    return torch.stack(products).sum().clamp_min(0)
