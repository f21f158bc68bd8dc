"""Theorems of the merged parametrisation W_QK and of the T-outer / T-functional split."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError
from quadform.testing import check_operator
from quadform.theory.attention import AttentionLayer
from quadform.theory.merged_qk import MergedLayer
from quadform.theory.score_split import ScoreSplit, score_gradient

torch.set_num_threads(1)
TOL = 1e-12
ROWS = "W_Q", "W_K"


def rand(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


@st.composite
def layers(draw):
    """(layer, arguments): sizes 1 to 4, batches, causal masks, cross-attention of another width, both losses."""
    L, d, d_K, d_V = (draw(st.integers(1, 4)) for _ in range(4))
    batch = draw(st.sampled_from([(), (2,)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["self", "causal", "cross"]))
    d_Z = draw(st.integers(1, 4)) if kind == "cross" else d
    context = rand(gen, *batch, draw(st.integers(1, 4)), d_Z) if kind == "cross" else None
    loss = draw(st.sampled_from(["mse", "cross-entropy"]))
    X, W_Q, W_K, W_V = rand(gen, *batch, L, d), rand(gen, d, d_K), rand(gen, d_Z, d_K), rand(gen, d_Z, d_V)
    Y = rand(gen, *batch, L, d_V)
    Y = Y if loss == "mse" else torch.softmax(Y, -1)
    t = draw(st.sampled_from([0.5, 1.0, 2.0]))
    mask = "causal" if kind == "causal" else None
    layer = AttentionLayer(X, W_Q, W_K, W_V, Y, mask=mask, temperature=t, context=context, loss=loss)
    return layer, (X, W_Q @ W_K.T, W_V, Y, d_K, mask, t, context, loss)


def oracle(X, W, W_V, Y, d_K, mask, t, context, loss):
    """H, H_o and gradient over (W_QK, W_V) by dense autograd on an independent forward."""
    Z = X if context is None else context
    hide = torch.zeros(X.shape[-2], Z.shape[-2], dtype=X.dtype)
    if mask == "causal":
        hide = hide.masked_fill(~torch.ones_like(hide, dtype=torch.bool).tril(), -math.inf)

    def forward(theta):
        w, v = theta[: W.numel()].reshape(W.shape), theta[W.numel() :].reshape(W_V.shape)
        return torch.softmax(X @ w @ Z.transpose(-1, -2) / (t * math.sqrt(d_K)) + hide, -1) @ (Z @ v)

    def risk(F):
        return ((F - Y) ** 2).mean() if loss == "mse" else -(Y * torch.log_softmax(F, -1)).sum(-1).mean()

    theta = torch.cat([W.reshape(-1), W_V.reshape(-1)])
    g = grad(lambda th: risk(forward(th)))
    F = forward(theta)
    J = jacfwd(lambda th: forward(th).reshape(-1))(theta)
    Hl = jacfwd(grad(lambda f: risk(f.reshape(F.shape))))(F.reshape(-1))
    return jacfwd(g)(theta), J.T @ Hl @ J, g(theta)


def by_products(operator):
    return operator @ torch.eye(operator.shape[1], dtype=operator.dtype)


@settings(max_examples=30, deadline=None)
@given(layers())
def test_merged_hessian_is_autograd(drawn):
    """H_o(W, W) = sum x x^T kron B^T Hl B, H_f(W, W) = sc^2 sum x x^T kron N, and all blocks with W_V."""
    layer, args = drawn
    H, H_o, g = oracle(*args)
    X, W, W_V, Y, d_K, mask, t, context, loss = args
    size = max(float(H.abs().max()), float(H_o.abs().max()), 1e-6)
    built = MergedLayer(X, W, W_V, Y, d_K=d_K, mask=mask, temperature=t, context=context, loss=loss)
    for merged in (MergedLayer.of(layer), built):
        for part, want in [("total", H), ("outer", H_o), ("functional", H - H_o)]:
            assert float((merged.matrix(part) - want).abs().max()) <= TOL * size
        assert float((by_products(merged.hessian()) - H).abs().max()) <= TOL * size
        got = torch.cat([p.reshape(-1) for p in merged.gradients().values()])
        assert float((got - g).abs().max()) <= TOL * max(float(g.abs().max()), 1e-3)
    assert torch.allclose(built.loss, layer.loss, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(layers())
def test_split_is_the_hessian(drawn):
    """H = P^T H_W P + [[0, G kron I], [G^T kron I, 0]], over W_Q, W_K and W_V."""
    layer, _ = drawn
    split = ScoreSplit(layer)
    H = layer.hessian().dense()
    got = split.t_outer().dense() + split.t_functional().dense()
    assert float((got - H).abs().max()) <= TOL * max(float(H.abs().max()), 1e-6)


@settings(max_examples=20, deadline=None)
@given(layers())
def test_outer_part_lies_in_t_outer(drawn):
    """All of H_o is P^T (merged H_o) P; the T-functional part belongs to H_f alone."""
    layer, _ = drawn
    H_o = layer.outer_operator().dense()
    got = ScoreSplit(layer).t_outer("outer").dense()
    assert float((got - H_o).abs().max()) <= TOL * max(float(H_o.abs().max()), 1e-6)


@settings(max_examples=30, deadline=None)
@given(layers())
def test_t_functional_spectrum(drawn):
    """The eigenvalues of the T-functional part are +- the singular values of G = dL/dW_QK, each d_K-fold."""
    layer, _ = drawn
    split = ScoreSplit(layer)
    part = split.t_functional().block(ROWS, ROWS).dense()
    size = max(float(split.G.abs().max()), 1e-9)
    assert float((split.t_functional_spectrum() - torch.linalg.eigvalsh(part)).abs().max()) <= TOL * size
    assert math.isclose(split.t_functional_norm(), float(part.norm()), rel_tol=1e-12, abs_tol=1e-300)


@settings(max_examples=20, deadline=None)
@given(layers())
def test_score_gradient(drawn):
    """G = dL/d(W_Q W_K^T): dL/dW_Q = G W_K and dL/dW_K = G^T W_Q."""
    layer, _ = drawn
    G, grads = score_gradient(layer.head), layer.gradients()
    size = max(float(G.abs().max()), 1e-6)
    assert float((G @ layer.weights["W_K"] - grads["W_Q"]).abs().max()) <= 10 * TOL * size
    assert float((G.T @ layer.weights["W_Q"] - grads["W_K"]).abs().max()) <= 10 * TOL * size
    assert float((G - MergedLayer.of(layer).gradients()["W_QK"]).abs().max()) <= TOL * size


def example(prefix=""):
    gen = torch.Generator().manual_seed(3)
    W = [rand(gen, 3, 2), rand(gen, 3, 2), rand(gen, 3, 2)]
    return AttentionLayer(rand(gen, 2, 4, 3), *W, rand(gen, 2, 4, 2), mask="causal", prefix=prefix)


def test_operator_contracts():
    """Merged layer and split keep the operator contract, with a prefix."""
    layer = example("layers.0.attn.")
    split = ScoreSplit(layer)
    merged = MergedLayer.of(layer)
    parts = [merged.hessian(), merged.outer_operator(), split.t_functional(), split.t_outer(), split.t_outer("outer")]
    for operator in parts:
        check_operator(operator)
    assert merged.hessian().domain.names == ("layers.0.attn.W_QK", "layers.0.attn.W_V")


def test_merged_shares():
    """What every layer offers works here too: exact norms without blocks, shares of tokens that sum to 1."""
    merged = MergedLayer.of(example())
    want = float(merged.block("W_QK", "W_V").norm())
    assert math.isclose(merged.norm("W_QK", "W_V").value, want, rel_tol=1e-9)
    shares = merged.attribution("W_QK", "W_QK")
    assert shares.shape == (2, 4)
    assert math.isclose(float(shares.sum()), 1.0, rel_tol=1e-9)


def test_input_errors():
    """What cannot be used is named."""
    gen = torch.Generator().manual_seed(3)
    X, W_V, Y = rand(gen, 4, 3), rand(gen, 3, 2), rand(gen, 4, 2)
    with pytest.raises(InputError, match="W_QK has shape"):
        MergedLayer(X, rand(gen, 3, 2), W_V, Y, d_K=2)
    with pytest.raises(InputError, match="d_K is at least 1"):
        MergedLayer(X, rand(gen, 3, 3), W_V, Y, d_K=0)
