"""Theorems of linear attention."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError, UnknownName
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.testing import check_operator
from quadform.theory.linear_attention import LinearAttentionLayer

torch.set_num_threads(1)
TOL = 1e-12
NAMES = ("W_Q", "W_K", "W_V")


def rand(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


@st.composite
def layers(draw):
    """(layer, its arguments): sizes 1 to 4, one sequence or a batch, self- or cross-attention, masks, both losses."""
    L, d, d_K, d_V = (draw(st.integers(1, 4)) for _ in range(4))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    loss = draw(st.sampled_from(["mse", "cross-entropy"]))
    X, W_Q, W_K, W_V = rand(gen, *batch, L, d), rand(gen, d, d_K), rand(gen, d, d_K), rand(gen, d, d_V)
    Y = rand(gen, *batch, L, d_V)
    Y = Y if loss == "mse" else torch.softmax(Y, -1)
    context = rand(gen, *batch, draw(st.integers(1, 4)), d) if draw(st.booleans()) else None
    t = draw(st.sampled_from([0.5, 1.0, 3.0]))
    keys = L if context is None else context.shape[-2]
    kinds = {
        "none": None,
        "causal": "causal",
        "padding": torch.rand((*batch, L, keys), generator=gen) < 0.6,
        "decay": torch.rand((L, keys), generator=gen, dtype=torch.float64),
    }
    mask = kinds[draw(st.sampled_from([k for k in kinds if context is None or k != "causal"]))]
    layer = LinearAttentionLayer(X, W_Q, W_K, W_V, Y, mask=mask, temperature=t, context=context, loss=loss)
    return layer, (X, W_Q, W_K, W_V, Y, t, context, loss, mask)


def oracle(X, W_Q, W_K, W_V, Y, t, context, loss, mask):
    """H, H_o and gradient by dense autograd on an independent forward with the (L, L) attention matrix."""
    Z = X if context is None else context
    seen = torch.ones(X.shape[-2], Z.shape[-2], dtype=X.dtype)
    if mask is not None:
        seen = torch.tril(seen) if isinstance(mask, str) else mask.to(X.dtype)
    sizes = [W_Q.numel(), W_K.numel(), W_V.numel()]

    def forward(theta):
        Q, K, V = (p.reshape(W.shape) for p, W in zip(theta.split(sizes), (W_Q, W_K, W_V), strict=True))
        A = (X @ Q) @ (Z @ K).transpose(-1, -2) / (t * math.sqrt(W_Q.shape[1]))
        return (seen * A) @ (Z @ V)

    def risk(F):
        if loss == "mse":
            return ((F - Y) ** 2).mean()
        return -(Y * torch.log_softmax(F, -1)).sum(-1).mean()

    theta = torch.cat([W.reshape(-1) for W in (W_Q, W_K, W_V)])
    g = grad(lambda th: risk(forward(th)))
    F = forward(theta)
    J = jacfwd(lambda th: forward(th).reshape(-1))(theta)
    Hl = jacfwd(grad(lambda f: risk(f.reshape(F.shape))))(F.reshape(-1))
    return jacfwd(g)(theta), J.T @ Hl @ J, g(theta)


def by_products(operator):
    return operator @ torch.eye(operator.shape[1], dtype=operator.dtype)


def assembled(layer, part):
    return torch.cat([torch.cat([getattr(layer, part)(a, b) for b in NAMES], 1) for a in NAMES], 0)


@settings(max_examples=50, deadline=None)
@given(layers())
def test_blocks_are_autograd(drawn):
    """H_o(a, b) = sum l_a l_b^T kron R_a^T Hl R_b, H_f in g and G2, and their sum, are the autograd split, any mask."""
    layer, given_ = drawn
    H, H_o, g = oracle(*given_)
    assert torch.allclose(layer.A @ layer.Z @ layer.weights["W_V"], layer.F, rtol=1e-10, atol=1e-12)
    size = max(float(H.abs().max()), float(H_o.abs().max()), 1e-30)
    for got, want in [
        (assembled(layer, "block"), H),
        (assembled(layer, "outer"), H_o),
        (assembled(layer, "functional"), H - H_o),
        (layer.hessian().dense(), H),
        (layer.outer_operator().dense(), H_o),
        (layer.functional_operator().dense(), H - H_o),
        (by_products(layer.hessian()), H),
        (by_products(layer.outer_operator()), H_o),
        (by_products(layer.functional_operator()), H - H_o),
    ]:
        assert float((got - want).abs().max()) <= TOL * size
    got = torch.cat([layer.gradients()[n].reshape(-1) for n in NAMES])
    assert float((got - g).abs().max()) <= TOL * max(float(g.abs().max()), 1e-3)


@settings(max_examples=20, deadline=None)
@given(layers())
def test_functional_is_block_hollow(drawn):
    """H_f(a, a) = 0 exactly: F is linear in each weight."""
    layer, _ = drawn
    for name in NAMES:
        assert layer.functional(name, name).shape == (layer.weights[name].numel(),) * 2
        assert not layer.functional(name, name).any()


@settings(max_examples=20, deadline=None)
@given(layers())
def test_diagonal_blocks_are_psd(drawn):
    """H(a, a) = H_o(a, a) is positive semi-definite, unlike softmax attention's."""
    layer, _ = drawn
    for name in NAMES:
        values = torch.linalg.eigvalsh(layer.block(name, name))
        # A saturated softmax has a token Hessian far below p (1 - p) rounding: compare with what J^T J could give.
        assert float(values[0]) >= -1e-14 * float(layer.jacobian(name).square().sum())


def test_whole_hessian_is_indefinite():
    """The whole H has negative eigenvalues although its diagonal blocks have none."""
    gen = torch.Generator().manual_seed(0)
    layer = LinearAttentionLayer(*(rand(gen, *s) for s in [(5, 3), (3, 2), (3, 2), (3, 2), (5, 2)]))
    values = torch.linalg.eigvalsh(layer.hessian().dense())
    assert float(values[0]) < -1e-3 * float(values[-1])


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(2, 5), st.integers(0, 999)
)
def test_powers_of_length(L, d, d_K, d_V, copies, seed):
    """At fixed Sigma and Omega, H_o grows as L^2 and H_f as L: each token `copies` times, with the same residual."""
    gen = torch.Generator().manual_seed(seed)
    X, R = rand(gen, L, d), rand(gen, L, d_V)
    W = [rand(gen, d, d_K), rand(gen, d, d_K), rand(gen, d, d_V)]
    short, long = [], []
    for out, Xs, Rs in [(short, X, R), (long, X.repeat(copies, 1), R.repeat(copies, 1))]:
        F = LinearAttentionLayer(Xs, *W, torch.zeros_like(Rs)).F
        layer = LinearAttentionLayer(Xs, *W, F - Rs)
        out += [layer.Sigma, assembled(layer, "outer"), assembled(layer, "functional")]
    assert torch.allclose(short[0], long[0], rtol=1e-12, atol=1e-14)
    for power, a, b in [(2, short[1], long[1]), (1, short[2], long[2])]:
        assert float((copies**power * a - b).abs().max()) <= TOL * max(float(b.abs().max()), 1e-6) * 10


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 999))
def test_sigma_form(L, d, d_K, d_V, seed):
    """H_o(Q, Q) = (2 L^2 / (d_V d_K)) Sigma kron W_K^T Sigma W_V W_V^T Sigma W_K: O(Sigma^3)."""
    gen = torch.Generator().manual_seed(seed)
    W_Q, W_K, W_V = rand(gen, d, d_K), rand(gen, d, d_K), rand(gen, d, d_V)
    layer = LinearAttentionLayer(rand(gen, L, d), W_Q, W_K, W_V, rand(gen, L, d_V))
    S = layer.Sigma[0]
    want = 2 * L**2 / (d_V * d_K) * torch.kron(S, W_K.T @ S @ W_V @ W_V.T @ S @ W_K)
    got = layer.outer("W_Q", "W_Q")
    assert float((got - want).abs().max()) <= TOL * max(float(want.abs().max()), 1e-30)


@settings(max_examples=20, deadline=None)
@given(layers())
def test_norms_without_blocks(drawn):
    """The exact block norms by token Gram sums are the norms of the dense blocks."""
    layer, _ = drawn
    for part, dense in [("total", layer.block), ("outer", layer.outer), ("functional", layer.functional)]:
        for (a, b), norm in layer.norms(part).items():
            want = float(dense(a, b).norm())
            assert abs(norm.value - want) <= 1e-7 * max(want, float(layer.outer(a, b).norm()), 1e-30)


def test_loss_that_couples_tokens():
    """For a network behind the layer, H = J^T [d2(l o D)/dF2] J + H_f, with its middle matrix as an operator."""
    gen = torch.Generator().manual_seed(4)
    X, W = rand(gen, 2, 3, 3), [rand(gen, 3, 2), rand(gen, 3, 2), rand(gen, 3, 2)]
    n = 2 * 3 * 2
    M = rand(gen, n, n)
    behind = Dense(M + M.T, Space((("F", (n,)),)), symmetric=True)
    layer = LinearAttentionLayer(X, *W, loss=(rand(gen, 2, 3, 2), behind))
    assert layer.check().value <= TOL
    assert layer.check("functional").value <= TOL


@pytest.mark.parametrize("part", ["hessian", "outer_operator", "functional_operator"])
def test_operator_contract(part):
    """The matrix-free operators keep the contract."""
    gen = torch.Generator().manual_seed(1)
    X, Y = rand(gen, 2, 4, 3), torch.softmax(rand(gen, 2, 4, 5), -1)
    W = [rand(gen, 3, 2), rand(gen, 3, 2), rand(gen, 3, 5)]
    for loss in ("mse", "cross-entropy"):
        check_operator(getattr(LinearAttentionLayer(X, *W, Y, loss=loss, prefix="layers.0.attn."), part)())


def test_input_errors():
    """What cannot be used is named."""
    gen = torch.Generator().manual_seed(1)
    X, W, W_V = rand(gen, 4, 3), rand(gen, 3, 2), rand(gen, 3, 5)
    with pytest.raises(InputError, match="linear attention needs X"):
        LinearAttentionLayer(X, W, rand(gen, 3, 4), W_V, rand(gen, 4, 5))
    with pytest.raises(InputError, match="keys and values"):
        LinearAttentionLayer(X, W, W, rand(gen, 2, 5), rand(gen, 4, 5))
    with pytest.raises(InputError, match="temperature must be above 0"):
        LinearAttentionLayer(X, W, W, W_V, rand(gen, 4, 5), temperature=0.0)
    with pytest.raises(UnknownName, match="no parameter matches 'W_O'"):
        LinearAttentionLayer(X, W, W, W_V, rand(gen, 4, 5)).outer("W_O", "W_Q")


def test_masks_are_named():
    """A mask multiplies scores: -inf and integers are refused, with what to give instead; a query may see no key."""
    gen = torch.Generator().manual_seed(1)
    X, W, Y = rand(gen, 4, 3), rand(gen, 3, 2), rand(gen, 4, 2)
    bias = torch.zeros(4, 4).masked_fill(~torch.ones(4, 4).tril().bool(), -math.inf)
    with pytest.raises(InputError, match="multiplies the scores"):
        LinearAttentionLayer(X, W, W, W, Y, mask=bias)
    with pytest.raises(InputError, match="give a boolean one"):
        LinearAttentionLayer(X, W, W, W, Y, mask=torch.ones(4, 4, dtype=torch.long))
    with pytest.raises(InputError, match="mask has shape"):
        LinearAttentionLayer(X, W, W, W, Y, mask=torch.ones(3, 4).bool())
    blind = torch.ones(4, 4).bool()
    blind[2] = False
    assert not LinearAttentionLayer(X, W, W, W, Y, mask=blind).F[0, 2].any()


def test_a_causal_token_sees_its_past_alone():
    """Under a causal mask the Hessian of the first token's loss is that of a sequence of this token alone."""
    gen = torch.Generator().manual_seed(2)
    X, W, g = rand(gen, 4, 3), [rand(gen, 3, 2) for _ in range(3)], torch.zeros(4, 2, dtype=torch.float64)
    Hl = torch.zeros(4, 2, 2, dtype=torch.float64)
    g[0], Hl[0] = rand(gen, 2), torch.eye(2, dtype=torch.float64)
    whole = LinearAttentionLayer(X, *W, mask="causal", loss=(g, Hl))
    alone = LinearAttentionLayer(X[:1], *W, loss=(g[:1], Hl[:1]))
    torch.testing.assert_close(whole.matrix(), alone.matrix(), rtol=1e-12, atol=1e-12)
