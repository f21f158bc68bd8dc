"""How a sum over tokens `sum_n r_n c_n^T (x) E_n` becomes a block in memory, and its transpose beside it.

A term is a sum over tokens of products of two small matrices, `V_n = r_n c_n^T` and E_n; call them A_n and B_n. Each
has one row index and one column index of `block[(i, k), (j, l)]`:

    straight   sum_n A_n[i, j] B_n[k, l]            crossed   sum_n A_n[k, j] B_n[i, l]

so the block is one matrix product over the tokens, `A^T B`, in another order of its entries. The product is taken for
a few i at a time into a scratch that stays in the cache, and copied from there to its place and to the mirror. The rows
of a scratch lie a few entries further apart than needed: at a power of two they would all share the same lines of the
cache when they are read across. What was measured: docs/decisions/0010.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .terms import Term, merged

#: Bytes of a scratch.
_SCRATCH = 1 << 22
#: Entries of a block from which the cache matters; below, a block is one product and one copy.
_LARGE = 1 << 17
#: Entries between the end of a row of a scratch and the next.
_PAD = 8


@torch.no_grad()
def block(terms: Sequence[Term], out: Tensor, mirror: Tensor | None = None) -> None:
    """Write the sum of the terms into `out`, and its transpose into `mirror`; an empty sum is 0. Values alone are
    written: weights that are being trained may be given, no derivative is kept.

    Both have four axes: the two of the row weight and the two of the column weight, with any strides; `mirror` has the
    columns first.
    """
    places = [out] if mirror is None else [out, _turned(mirror)]
    terms = merged(terms)
    _write([t for t in terms if not t.shared], places)
    for term in terms:
        if term.shared:
            _add_shared(term, places)


def _write(terms: Sequence[Term], places: Sequence[Tensor]) -> None:
    """The sum of terms with a matrix per token into each place, in the way that suits it."""
    large = places[0].numel() >= _LARGE
    if not terms:
        for place in places:
            place.zero_()
    elif len(terms) == 1 and not large:
        _write_product(terms[0], places)
    elif len(terms) == 1 and terms[0].symmetric:
        _write_symmetric(terms[0], places)
    elif _share_columns(terms):
        _write_slabs(terms, places)
    elif _share_columns(turned := [t.T for t in terms]):
        _write_slabs(turned, [_turned(place) for place in places])
    else:
        for i, term in enumerate(terms):
            _write_product(term, places, add=i > 0)


def _turned(place: Tensor) -> Tensor:
    """Columns before rows, or back."""
    return place.permute(2, 3, 0, 1)


def _scratch(like: Tensor, rows: int, cols: int) -> Tensor:
    return like.new_empty((rows, cols + _PAD))[:, :cols]


def _steps(count: int, entries: int, dtype: torch.dtype) -> Iterator[slice]:
    """0..count in pieces of at most a scratch, at least one each, when every one of them takes `entries`."""
    step = max(1, min(count, _SCRATCH // (entries * dtype.itemsize)))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _outer(term: Term) -> Tensor:
    """V_n = r_n c_n^T, `(N, p, q)`."""
    return term.r[:, :, None] * term.c[:, None, :]


def _write_product(term: Term, places: Sequence[Tensor], *, add: bool = False) -> None:
    """One term: `A^T B`, a few i at a time, the last column index l last."""
    V = _outer(term)
    A, B = (V, term.E) if term.cols_vector_first else (term.E, V)  # A has the index j, B the index l
    straight = term.rows_vector_first == term.cols_vector_first
    for i in _steps(places[0].shape[0], places[0][0].numel(), V.dtype):
        left, right = (A[:, i], B) if straight else (A, B[:, i])
        T = _scratch(V, left[0].numel(), right[0].numel())
        torch.mm(left.flatten(1).T, right.flatten(1), out=T)
        value = T.view(*left.shape[1:], *right.shape[1:]).permute((0, 2, 1, 3) if straight else (2, 0, 1, 3))
        for place in places:
            place[i].add_(value) if add else place[i].copy_(value)


def _write_symmetric(term: Term, places: Sequence[Tensor]) -> None:
    """A term with r = c and symmetric E_n: the block does not change when i and j change places, nor when k and l do.
    The product is taken for i <= j."""
    V = _outer(term)
    A, B = (V, term.E) if term.rows_vector_first else (term.E, V)  # A has the indices i and j, B has k and l
    p, right = A.shape[1], B.flatten(1)
    upper = torch.triu_indices(p, p, device=A.device)
    left = A[:, upper[0], upper[1]]
    first = [i * p - i * (i - 1) // 2 for i in range(p + 1)]  # where the pairs (i, j >= i) begin
    rows = max(p, _SCRATCH // (right.shape[1] * A.element_size()))
    T = _scratch(A, min(rows, first[p]), right.shape[1])
    start = 0
    while start < p:
        stop = bisect_right(first, first[start] + rows) - 1
        pairs = slice(first[start], first[stop])
        value = torch.mm(left[:, pairs].T, right, out=T[: pairs.stop - pairs.start])
        for i, part in enumerate(value.split([p - i for i in range(start, stop)]), start):
            part = part.view(-1, *B.shape[1:])  # (j, k, l)
            for place in places:
                place[i, :, i:].copy_(part.transpose(0, 1))
                place[i + 1 :, :, i].copy_(part[1:])
        start = stop


def _share_columns(terms: Sequence[Term]) -> bool:
    """Whether all terms have the same column vector in the same place."""
    return all(t.c is terms[0].c and t.cols_vector_first == terms[0].cols_vector_first for t in terms)


def _write_slabs(terms: Sequence[Term], places: Sequence[Tensor]) -> None:
    """Terms over the same column vector by one product, `c^T R`, where R_n is the sum of `r_n[i] E_n[k, .]` and, with
    the other order of rows, `E_n[i, .] r_n[k]`. Index k comes last in R: the mirror is copied in runs."""
    c, vector_first = terms[0].c, terms[0].cols_vector_first
    N, q = c.shape
    p, e, f = *places[0].shape[:2], terms[0].E.shape[2]
    factors = [  # each (N, i, f, k), 1 where an index is missing
        (t.r[:, :, None, None], t.E.mT.contiguous()[:, None])
        if t.rows_vector_first
        else (t.E[:, :, :, None], t.r[:, None, None, :])
        for t in terms
    ]
    for i in _steps(p, 4 * max(N, q) * e * f, c.dtype):  # R, R as the product packs it, T
        n = i.stop - i.start
        if i.start == 0:
            R, T = _scratch(c, N, n * f * e), _scratch(c, q, n * f * e)
        R, T = R[:, : n * f * e], T[:, : n * f * e]
        total = R.view(N, n, f, e)
        for t, (A, B) in zip(terms, factors, strict=True):
            torch.mul(A[:, i], B, out=total) if t is terms[0] else total.addcmul_(A[:, i], B)
        torch.mm(c.T, R, out=T)
        value = T.view(q, n, f, e)
        value = value.permute(1, 3, 0, 2) if vector_first else value.permute(1, 3, 2, 0)
        for place in places:
            place[i].copy_(value)


def _add_shared(term: Term, places: Sequence[Tensor]) -> None:
    """Add `(sum_n r_n c_n^T) kron E`; a diagonal E touches the diagonal alone."""
    small, E = term.r.T @ term.c, term.E[0]
    diagonal = E.diagonal()
    sparse = torch.equal(E, torch.diag_embed(diagonal))
    value = small[:, :, None] * diagonal if sparse else small[:, None, :, None] * E[:, None]
    order = ((0, 1) if term.rows_vector_first else (1, 0)) + ((2, 3) if term.cols_vector_first else (3, 2))
    for place in places:
        place = place.permute(order)  # (p, e, q, f)
        (place.diagonal(dim1=1, dim2=3) if sparse else place).add_(value)
