"""T-split, gauges, bulk and flattest points of layers with several heads, grouped keys and biases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import randn, seeds, weight
from test_softmax_layers import problems
from torch import Tensor

from quadform.core.errors import InputError
from quadform.testing import check_operator
from quadform.theory import (
    AttentionLayer,
    LinearAttentionLayer,
    MultiHeadAttentionLayer,
    ScoreSplit,
    flattest,
    gauges,
    layer_bulk,
)
from quadform.theory.layer import autodiff_hessian

layers = st.one_of(
    problems(many=False).map(lambda p: AttentionLayer(**p, prefix="h.")),
    problems(many=True).map(lambda p: MultiHeadAttentionLayer(**p, prefix="h.")),
)


def size_of(H: Tensor) -> float:
    return max(float(H.abs().max()), 1e-9)


@given(layers)
def test_split_is_the_hessian(layer: Any) -> None:
    """H = T-outer + T-functional, all of H_o is T-outer; the T-functional part is what autodiff finds with the scores'
    gradient held fixed: d2 of sum_h <G_h, W_Q[h] W_K[h]^T>."""
    split, H = ScoreSplit(layer), layer.matrix()
    size, T = size_of(H), split.t_functional().dense()
    assert float((split.t_outer().dense() + T - H).abs().max()) <= 1e-12 * size
    assert float((split.t_outer("outer").dense() - layer.matrix("outer")).abs().max()) <= 1e-12 * size

    def products(w: dict[str, Tensor]) -> Tensor:
        whole = layer.joined(w)
        pairs = [[whole[n][layer.at(n, h)] for n in ("W_Q", "W_K")] for h in range(len(layer.heads))]
        return sum((head.G * (Q @ K.T)).sum() for head, (Q, K) in zip(layer.heads, pairs, strict=True))

    assert float((T - autodiff_hessian(products, layer.weights)).abs().max()) <= 1e-13 * size
    check_operator(split.t_outer())
    check_operator(split.t_functional())


@given(layers)
def test_spectrum_and_norm_of_the_t_functional_part(layer: Any) -> None:
    """Plus and minus the singular values of G, below each other where keys are shared, each d_K-fold."""
    split = ScoreSplit(layer)
    names = [n for n in ("W_Q", "W_K", "b_Q", "b_K") if n in layer.weights]
    M = split.t_functional().block(tuple("h." + n for n in names)).dense()
    size = max(float(split.G.abs().max()), 1e-9)
    values = split.t_functional_spectrum()
    assert values.shape == (len(M),)
    assert float((values - torch.linalg.eigvalsh(M)).abs().max()) <= 1e-12 * size
    assert split.t_functional_norm() == pytest.approx(float(M.norm()), rel=1e-12, abs=1e-14 * size)


@given(layers, seeds)
def test_gauge_identities(layer: Any, seed: int) -> None:
    """H (P B, -Q B^T) = (-g_P B^T, g_Q B) for every pair, with its biases and all heads of its group; 0 elsewhere."""
    pairs = gauges(layer)
    assert len(pairs) == len(layer.groups) * (2 if "W_O" in layer.weights else 1)
    H, g = layer.hessian(), torch.Generator().manual_seed(seed)
    size = size_of(H.dense())
    for pair in pairs:
        B = randn(g, pair.P.shape[1], pair.P.shape[1])
        sub = layer.space.select(*pair.names)
        got = H @ layer.space.embed(sub, pair.direction(B))
        want = layer.space.embed(sub, pair.action(B))
        assert max(float((got[n] - want[n]).abs().max()) for n in got) <= 1e-11 * size
        assert set(pair.direction(B)) == set(pair.names)


@given(seeds, st.booleans(), st.integers(1, 2))
def test_bulk_of_every_head(seed: int, biased: bool, kv_heads: int) -> None:
    """+-s are eigenvalues of the full Hessian, `vectors()` their eigenvectors, by head and under the layer's names."""
    g = torch.Generator().manual_seed(seed)
    d, d_K, heads = 1, 7, 2
    W = [weight(g, d, heads * d_K), weight(g, d, kv_heads * d_K), weight(g, d, 2 * kv_heads), weight(g, 2 * heads, 3)]
    b = {"b_Q": randn(g, heads * d_K), "b_K": randn(g, kv_heads * d_K), "b_V": randn(g, 2 * kv_heads)} if biased else {}
    layer = MultiHeadAttentionLayer(
        randn(g, 4, d), *W, randn(g, 4, 3), heads=heads, kv_heads=kv_heads, prefix="h.", **b
    )
    H, found = layer.hessian(), layer_bulk(layer)
    size = size_of(H.dense())
    pairs = [pair for pair in gauges(layer) if not pair.transposed]
    expected = [2 * min(p.P.shape[0], p.Q.shape[0]) for p in pairs]
    assert len(found) == sum(expected)
    assert max(part.multiplicity for part in found) >= d_K - sum(pairs[0].P.shape[:1]) - pairs[0].Q.shape[0] + 1 > 0
    for part in found:
        vectors = part.vectors()
        V = layer.space.embed(layer.space.select(*vectors), vectors)
        image = H @ V
        assert max(float((image[n] - part.eigenvalue * V[n]).abs().max()) for n in V) <= 1e-10 * size
        flat = layer.space.flatten(V)
        assert torch.allclose(flat.T @ flat, torch.eye(part.multiplicity).double(), atol=1e-10)


@given(seeds, st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_flattest_point(seed: int, group: int, kv_heads: int, value_bias: bool) -> None:
    """Same function, the least tr H_o(Q,Q) + tr H_o(K,K); no other point of the orbit of any head is below."""
    g = torch.Generator().manual_seed(seed)
    d, d_K, heads = 3, 2, group * kv_heads
    X, Y, W_O = randn(g, 6, d), randn(g, 6, 3), weight(g, 2 * heads, 3)
    W_Q, W_K, W_V = 2 * randn(g, d, heads * d_K), randn(g, d, kv_heads * d_K), weight(g, d, 2 * kv_heads)
    extra = {"b_V": randn(g, 2 * kv_heads)} if value_bias else {}

    def at(Q: Tensor, K: Tensor) -> MultiHeadAttentionLayer:
        return MultiHeadAttentionLayer(X, Q, K, W_V, W_O, Y, heads=heads, kv_heads=kv_heads, **extra)

    def trace(Q: Tensor, K: Tensor) -> float:
        return sum(at(Q, K).trace("outer", name).value for name in ("W_Q", "W_K"))

    Q, K = flattest(at(W_Q, W_K))
    assert torch.allclose(at(Q, K).F, at(W_Q, W_K).F, atol=1e-9)
    rivals = [trace(W_Q, W_K)]
    for scale in (0.03, 0.3):
        S = torch.eye(d_K).double() + scale * randn(g, kv_heads, d_K, d_K)
        per_head = S.repeat_interleave(group, 0)
        turned_Q = (Q.unflatten(1, (heads, d_K)).transpose(0, 1) @ per_head).transpose(0, 1).flatten(1)
        turned_K = (K.unflatten(1, (kv_heads, d_K)).transpose(0, 1) @ torch.linalg.inv(S).mT).transpose(0, 1).flatten(1)
        assert torch.allclose(at(turned_Q, turned_K).F, at(Q, K).F, atol=1e-7)
        rivals.append(trace(turned_Q, turned_K))
    assert all(trace(Q, K) <= rival * (1 + 1e-9) for rival in rivals)


def test_other_layers_are_refused_by_name() -> None:
    g = torch.Generator().manual_seed(0)
    W = [weight(g, 3, 2) for _ in range(3)]
    linear = LinearAttentionLayer(randn(g, 4, 3), *W, randn(g, 4, 2))
    with pytest.raises(
        InputError, match="the T-split is available for AttentionLayer and MultiHeadAttentionLayer; got Lin"
    ):
        ScoreSplit(linear)
    with pytest.raises(InputError, match="the flattest point exists for AttentionLayer"):
        flattest(linear)
    with pytest.raises(InputError, match="without query and key biases"):
        flattest(AttentionLayer(randn(g, 4, 3), *W, randn(g, 4, 2), b_Q=randn(g, 2)))
