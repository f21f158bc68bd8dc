"""Gauge pairs of the layers without a softmax."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import randn, seeds

from quadform.core.errors import InputError
from quadform.theory import DeepLinearTransformer, HiddenLayerMLP, LinearAttentionLayer, LinearMLP, MergedLayer
from quadform.theory.gauge import gauges
from quadform.theory.mlp import convolution

torch.set_num_threads(1)
sizes = st.integers(1, 4)


def holds(layer, pair, seed):
    """`H direction(B) = action(B)`, and 0 on every other weight, by products with the whole Hessian."""
    r = pair.P.shape[1]
    B = randn(torch.Generator().manual_seed(seed), r, r)
    zero = {name: torch.zeros(shape, dtype=B.dtype) for name, shape in layer.space.parts}
    got, want = layer.hessian() @ (zero | pair.direction(B)), zero | pair.action(B)
    size = max(float(layer.hessian().dense().abs().max()) * float(B.abs().max()), 1e-9)
    assert max(float((got[name] - want[name]).abs().max()) for name in zero) <= 1e-10 * size
    assert pair.defect <= 1e-9 or float(pair.Gam.abs().max()) <= 1e-10 * size


@settings(max_examples=20, deadline=None)
@given(sizes, sizes, sizes, sizes, st.sampled_from([None, "causal"]), st.sampled_from(["", "layers.0.attn."]), seeds)
def test_linear_attention(L, d, d_K, d_V, mask, prefix, seed):
    """Linear attention sees W_Q, W_K through W_Q W_K^T alone, masked or not."""
    g = torch.Generator().manual_seed(seed)
    W = randn(g, d, d_K), randn(g, d, d_K), randn(g, d, d_V)
    layer = LinearAttentionLayer(randn(g, L, d), *W, randn(g, L, d_V), mask=mask, prefix=prefix)
    (pair,) = gauges(layer)
    assert pair.names == (prefix + "W_Q", prefix + "W_K")
    holds(layer, pair, seed)


@settings(max_examples=15, deadline=None)
@given(st.lists(sizes, min_size=3, max_size=5), st.sampled_from(["mse", "cross-entropy"]), seeds)
def test_linear_mlp(widths, loss, seed):
    """A linear MLP sees W_i, W_{i+1} through their product: D - 1 pairs."""
    g = torch.Generator().manual_seed(seed)
    W = [randn(g, a, b) for a, b in pairwise(widths)]
    Y = randn(g, 3, widths[-1])
    layer = LinearMLP(randn(g, 3, widths[0]), W, Y if loss == "mse" else Y.softmax(-1), loss=loss)
    pairs = gauges(layer)
    assert [p.names for p in pairs] == [(f"W_{i}", f"W_{i + 1}") for i in range(1, len(W))]
    for pair in pairs:
        holds(layer, pair, seed)


@pytest.mark.parametrize("slope", [1.0, 0.0])
def test_deep_linear(slope):
    """(W_Q, W_K) and (W_V, W_O) of every layer, (W_1, W_2) of linear MLPs, under masks and skips."""
    g = torch.Generator().manual_seed(5)
    shapes = {"W_Q": (2, 3), "W_K": (2, 3), "W_V": (2, 2), "W_O": (2, 2), "W_1": (2, 3), "W_2": (3, 2)}
    layers = [{name: randn(g, *shape) for name, shape in shapes.items()} for _ in range(2)]
    model = DeepLinearTransformer(
        randn(g, 3, 2), layers, randn(g, 3, 2), mask="causal", attn_skip=0.5, mlp_skip=1.0, slope=slope
    )
    pairs = gauges(model)
    assert len(pairs) == (6 if slope == 1 else 4)
    for pair in pairs:
        holds(model, pair, 6)


def test_layers_without_pairs():
    """One matrix W_QK and convolutions have none; weights with a nonlinearity between them are refused by name."""
    g = torch.Generator().manual_seed(0)
    X, Y = randn(g, 4, 3), randn(g, 4, 2)
    assert gauges(MergedLayer(X, randn(g, 3, 3), randn(g, 3, 2), Y, d_K=2)) == []
    kernels = [convolution(randn(g, 1, 1, 1), 3), randn(g, 3, 3), randn(g, 3, 2)]
    assert [p.names for p in gauges(LinearMLP(X, kernels, Y))] == [("W_2", "W_3")]
    with pytest.raises(InputError, match=r"gauge pairs are available for .*; got HiddenLayerMLP"):
        gauges(HiddenLayerMLP(X, randn(g, 3, 2), randn(g, 2, 2), Y))
