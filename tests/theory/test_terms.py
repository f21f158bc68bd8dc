"""Sums over tokens `sum_n r_n c_n^T (x) E_n`: every way of using them against the block written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import randn, seeds
from torch import Tensor

from quadform.theory import Term
from quadform.theory import writing as room
from quadform.theory.terms import attribution, squared_norm
from quadform.theory.writing import block

ROWS, COLS = (3, 4), (2, 5)


def written_out(term: Term) -> Tensor:
    """The block by definition, with the axes (row weight, column weight)."""
    rows = "pe" if term.rows_vector_first else "ep"
    cols = "qf" if term.cols_vector_first else "fq"
    return torch.einsum(f"np,nq,nef->{rows}{cols}", term.r, term.c, term.E.expand(len(term.r), -1, -1))


@st.composite
def term_lists(draw: st.DrawFn) -> list[Term]:
    """One to three terms of the same (3 x 4, 2 x 5) block, in all orders, shared or not, sharing vectors or not."""
    g = torch.Generator().manual_seed(draw(seeds))
    N = draw(st.integers(1, 4))
    vectors = {
        (side, first): randn(g, N, (ROWS if side == "r" else COLS)[0 if first else 1])
        for side in "rc"
        for first in (True, False)
    }
    terms = []
    same_cols = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        rows_first = draw(st.booleans())
        cols_first = terms[0].cols_vector_first if terms and same_cols else draw(st.booleans())
        e, f = ROWS[1 if rows_first else 0], COLS[1 if cols_first else 0]
        shared = draw(st.booleans())
        E = (
            torch.diag_embed(randn(g, 1, min(e, f)))[:, :e, :f]
            if shared and e == f
            else randn(g, 1 if shared else N, e, f)
        )
        r = vectors["r", rows_first] if draw(st.booleans()) else randn(g, N, ROWS[0 if rows_first else 1])
        c = vectors["c", cols_first] if draw(st.booleans()) else randn(g, N, COLS[0 if cols_first else 1])
        terms.append(Term(r, c, E, rows_first, cols_first))
    return terms


@given(term_lists())
def test_block_and_mirror(terms: list[Term]) -> None:
    """The written block equals the sum written out, and the mirror is its transpose."""
    want = torch.stack([written_out(t) for t in terms]).sum(0)
    out, mirror = torch.full((*ROWS, *COLS), torch.nan).double(), torch.full((*COLS, *ROWS), torch.nan).double()
    block(terms, out, mirror)
    assert torch.allclose(out, want, atol=1e-12)
    assert torch.equal(mirror, out.permute(2, 3, 0, 1))


@given(term_lists())
def test_norms_and_token_shares(terms: list[Term]) -> None:
    """||sum||_F^2 and <B_n, B> by Gram sums, in every combination of orders."""
    whole = torch.stack([written_out(t) for t in terms]).sum(0)
    assert torch.allclose(squared_norm(terms), whole.square().sum(), rtol=1e-10, atol=1e-10)
    tokens = range(len(terms[0].r))

    def one(t: Term, n: int) -> Term:
        at = slice(n, n + 1)
        return Term(t.r[at], t.c[at], t.E if t.shared else t.E[at], t.rows_vector_first, t.cols_vector_first)

    want = [(torch.stack([written_out(one(t, n)) for t in terms]).sum(0) * whole).sum() for n in tokens]
    assert torch.allclose(attribution(terms), torch.stack(want), rtol=1e-9, atol=1e-9)


@given(seeds, st.integers(1, 3), st.booleans(), st.booleans(), st.booleans())
def test_spans_change_nothing(seed: int, groups: int, cols_first: bool, same_rows: bool, with_rows: bool) -> None:
    """Inner products in the bases of short sequences equal those of the small matrices themselves."""
    g = torch.Generator().manual_seed(seed)
    n, e, k = 2, 9, 2
    U = [torch.linalg.qr(randn(g, groups, e, k)).Q for _ in range(2)]
    V = [torch.linalg.qr(randn(g, groups, e, k)).Q for _ in range(2)]

    def term(i: int, rows_first: bool) -> Term:
        left = U[i] if with_rows else torch.eye(e, dtype=torch.float64).expand(groups, e, e)
        core = randn(g, groups, n, left.shape[2], k)
        E = (left[:, None] @ core @ V[i][:, None].mT).flatten(0, 1)
        r, c = randn(g, groups * n, e), randn(g, groups * n, e)
        return Term(r, c, E, rows_first, cols_first, U[i] if with_rows else None, V[i])

    a, b = term(0, True), term(1, same_rows)
    assert a._cores() is not None
    plain = [Term(t.r, t.c, t.E, t.rows_vector_first, t.cols_vector_first) for t in (a, b)]
    assert torch.allclose(a.inner(b), plain[0].inner(plain[1]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rows_first", [True, False])
def test_diagonal_and_trace(rows_first: bool) -> None:
    """Of a square block, without the block."""
    g = torch.Generator().manual_seed(0)
    for shared in (False, True):
        term = Term(randn(g, 5, 3), randn(g, 5, 3), randn(g, 1 if shared else 5, 4, 4), rows_first, rows_first)
        dense = written_out(term).reshape(12, 12)
        assert torch.allclose(term.diagonal(), dense.diagonal(), atol=1e-13)
        assert torch.allclose(term.trace(), dense.trace(), atol=1e-12)


@pytest.fixture
def little_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block counts as large, and a scratch holds two of its first row indices at most."""
    monkeypatch.setattr(room, "_LARGE", 0)
    monkeypatch.setattr(room, "_SCRATCH", 2 * 8 * ROWS[1] * COLS[0] * COLS[1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(term_lists())
def test_large_blocks_in_several_steps(little_scratch: None, terms: list[Term]) -> None:
    """The same block and mirror by steps, also into columns that are not in one run (a head of a wider weight)."""
    want = torch.stack([written_out(t) for t in terms]).sum(0)
    wide = torch.full((*ROWS, COLS[0], 2 * COLS[1]), torch.nan).double()
    out, mirror = wide[..., : COLS[1]], torch.full((*COLS, *ROWS), torch.nan).double()
    block(terms, out, mirror)
    assert torch.allclose(out, want, atol=1e-12)
    assert torch.equal(mirror, out.permute(2, 3, 0, 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.booleans())
def test_symmetric_terms(little_scratch: None, seed: int, p: int, e: int, first: bool, turned: bool) -> None:
    """r = c and symmetric small matrices: the block from the products with i <= j alone."""
    g = torch.Generator().manual_seed(seed)
    r, E = randn(g, 3, p), randn(g, 3, e, e)
    term = Term(r, r, E + E.mT, first, first, symmetric=True)
    out = torch.full((p, e, p, e) if first else (e, p, e, p), torch.nan).double()
    block([term.T if turned else term], out)
    assert torch.allclose(out, written_out(term), atol=1e-12)
