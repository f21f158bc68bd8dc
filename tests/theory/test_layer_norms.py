"""Norms of blocks: by Gram sums or from the block, whichever costs less, and no digit that is not there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import randn, seeds, weight
from test_terms import term_lists, written_out
from torch import Tensor

from quadform.theory import AttentionLayer, LinearMLP, MultiHeadAttentionLayer, Term, norms
from quadform.theory.terms import attribution, squared_norm


def mirrored(change: float, dtype: torch.dtype = torch.float64) -> tuple[AttentionLayer, Tensor]:
    """Tokens x and -x with gradients g and (1 + change) g, and the one number their block H_f(V, Q) is made of."""
    g = torch.Generator().manual_seed(0)
    x, out = randn(g, 1, 3).to(dtype), randn(g, 1, 2).to(dtype)
    G = torch.cat([out, (1 + change) * out])
    W = [weight(g, 3, n).to(dtype) for n in (2, 2, 2)]
    layer = AttentionLayer(torch.cat([x, -x]), *W, loss=(G, torch.zeros(2, 2, 2, dtype=dtype)))
    return layer, (G[1] - G[0]).norm() * x.norm() * layer.head.M2K[0].norm()


@pytest.mark.parametrize("change", [1.0, 1e-3, 1e-6])
def test_a_block_that_cancels_keeps_its_digits(change: float) -> None:
    """H_f(V, Q) = sum g_n x_n^T (x) sc M2 W_K is change |g| |x| |M2 W_K|: the sum comes before the square."""
    layer, want = mirrored(change)
    norm = layer.norm("W_V", "W_Q", "functional")
    assert norm.kind == "exact"
    assert norm.value == pytest.approx(float(want), rel=1e-13 / change, abs=0)


@pytest.mark.parametrize("change", [0.0, 1e-10])
def test_what_is_left_of_rounding_is_told_as_a_bound(change: float) -> None:
    """Where less than half of the digits are left the norm is an upper bound, not exact, and never 0."""
    layer, want = mirrored(change)
    norm = layer.norm("W_V", "W_Q", "functional")
    assert (norm.kind, norm.side) == ("bound", "upper")
    assert float(want) <= norm.value <= float(want) + 1e-14


def test_zero_is_exact_where_nothing_was_added() -> None:
    """g = 0: every token's share is 0."""
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32):
        W = [weight(g, 3, 2).to(dtype) for _ in range(3)]
        zero = torch.zeros(4, 2, dtype=dtype), torch.zeros(4, 2, 2, dtype=dtype)
        norm = AttentionLayer(randn(g, 4, 3).to(dtype), *W, loss=zero).norm("W_Q", "W_Q")
        assert (norm.value, norm.kind) == (0.0, "exact")


def test_blocks_below_float32_are_computed_in_float64() -> None:
    """H_o(Q, Q) ~ scale^6 = 1e-48 of a float32 layer: nothing of it is a float32 number, its norm is."""
    g = torch.Generator().manual_seed(0)
    W, X, Y = [weight(g, 3, 2).float() for _ in range(4)], 1e-8 * randn(g, 4, 3).float(), randn(g, 4, 3).float()
    W[3] = W[3].T.contiguous()
    double = [w.double() for w in W]
    pairs = [
        (AttentionLayer(X, *W[:3], Y[:, :2]), AttentionLayer(X.double(), *double[:3], Y[:, :2].double())),
        (
            MultiHeadAttentionLayer(X, *W, Y, heads=2),
            MultiHeadAttentionLayer(X.double(), *double, Y.double(), heads=2),
        ),
    ]
    for small, twin in pairs:
        for part in ("total", "outer", "functional"):
            for a, b in small.norms(part):
                want = float(twin.dense(part, a, b).norm())
                assert small.norm(a, b, part).value == pytest.approx(want, rel=1e-5, abs=0), (part, a, b)
    chain = [W[0], W[0].T.contiguous()]
    small, twin = LinearMLP(1e-15 * X, chain, Y), LinearMLP(1e-15 * X.double(), [w.double() for w in chain], Y.double())
    for a, b in twin.norms():
        assert small.norm(a, b, "outer").value == pytest.approx(twin.norm(a, b, "outer").value, rel=1e-5, abs=0)


@given(term_lists())
def test_both_ways_are_the_norm(terms: list[Term]) -> None:
    """Gram sum, entries of the block, and whichever is chosen."""
    want = float(torch.stack([written_out(t) for t in terms]).sum(0).norm())
    assert norms.squared_norm_by_rows(terms) == pytest.approx(want**2, rel=1e-10, abs=1e-10)
    assert float(squared_norm(terms)) == pytest.approx(want**2, rel=1e-10, abs=1e-10)
    assert norms.block_norm([terms]).value == pytest.approx(want, rel=1e-10, abs=1e-10)


@given(seeds, st.booleans(), st.integers(1, 3))
def test_rows_of_a_block(seed: int, first: bool, stop: int) -> None:
    """`rows` cuts the first axis of the row weight."""
    g = torch.Generator().manual_seed(seed)
    term = Term(randn(g, 4, 3), randn(g, 4, 2), randn(g, 4, 3, 5), first, True)
    assert torch.allclose(written_out(term.rows(slice(0, stop))), written_out(term)[:stop], atol=1e-14)


def test_the_way_is_chosen_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tokens and a small block: no Gram sum of 4,096^2 pairs; few tokens and a wide block: no block."""
    g = torch.Generator().manual_seed(0)
    small = Term(randn(g, 4096, 2), randn(g, 4096, 2), randn(g, 4096, 2, 2))
    wide = Term(randn(g, 2, 30), randn(g, 2, 30), randn(g, 2, 30, 30))

    def refuse(*_: object) -> float:
        raise AssertionError("the dearer way")

    with monkeypatch.context() as patch:
        patch.setattr(norms, "squared_norm", refuse)
        want = float(written_out(small).norm())
        assert norms.block_norm([[small]]).value == pytest.approx(want, rel=1e-12)
    with monkeypatch.context() as patch:
        patch.setattr(norms, "squared_norm_by_rows", refuse)
        want = float(written_out(wide).norm())
        assert norms.block_norm([[wide]]).value == pytest.approx(want, rel=1e-12)


def test_a_block_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block larger than the scratch is squared a few rows at a time."""
    g = torch.Generator().manual_seed(0)
    terms = [Term(randn(g, 5, 4), randn(g, 5, 2), randn(g, 5, 4, 3), first, True) for first in (True, False)]
    monkeypatch.setattr(norms, "_SCRATCH", 30)
    want = float(torch.stack([written_out(t) for t in terms]).sum(0).square().sum())
    assert norms.squared_norm_by_rows(terms) == pytest.approx(want, rel=1e-13)


def test_shares_of_tokens_do_not_overflow() -> None:
    """<B_n, B> / ||B||^2 of terms scaled by powers of two is the same share."""
    g = torch.Generator().manual_seed(0)
    layer = AttentionLayer(randn(g, 4, 3), *(weight(g, 3, 2) for _ in range(3)), randn(g, 4, 2))
    want = attribution(layer.terms("total", "W_V", "W_V"))
    assert torch.allclose(layer.attribution("W_V", "W_V").flatten(), want / want.sum(), atol=1e-14)
