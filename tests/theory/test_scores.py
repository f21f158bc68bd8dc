"""The master cumulant formula for arbitrary score functions."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import randn, seeds, weight
from torch import Tensor

from quadform.core.errors import InputError
from quadform.core.space import Space
from quadform.testing import check_operator
from quadform.theory import AttentionLayer, MultiHeadAttentionLayer, ScoreAttentionLayer
from quadform.theory.layer import autodiff_hessian
from quadform.theory.scores import alibi, dot_product, masked, per_head, qk_norm, rope, soft_cap, with_sink

INSTANCES: dict[str, Callable[[Tensor], tuple[object, list[str]]]] = {
    "dot product": lambda X: (dot_product(X), []),
    "rope": lambda X: (rope(X), []),
    "alibi": lambda X: (dot_product(X, bias=alibi(X.shape[1], 0.3, dtype=X.dtype)), []),
    "qk-norm": lambda X: (qk_norm(X), ["scale"]),
    "soft-cap": lambda X: (soft_cap(dot_product(X), 0.7), []),
    "sink": lambda X: (with_sink(dot_product(X)), ["sink"]),
    "capped rope with a sink": lambda X: (with_sink(soft_cap(rope(X), 1.5)), ["sink"]),
    "causal rope": lambda X: (masked(rope(X), torch.ones(X.shape[1], X.shape[1], dtype=torch.bool).tril()), []),
}


def build(name: str, seed: int, batch: int, L: int, d: int, d_V: int, loss: str) -> ScoreAttentionLayer:
    g = torch.Generator().manual_seed(seed)
    X = randn(g, batch, L, d)
    scores, extra = INSTANCES[name](X)
    theta = {"W_Q": weight(g, d, 4), "W_K": weight(g, d, 4)} | {n: randn(g, 1)[0] for n in extra}
    Z = torch.cat([X, torch.zeros_like(X[:, :1])], dim=1) if "sink" in extra else X
    Y = randn(g, batch, L, d_V) if loss == "mse" else torch.randint(0, d_V, (batch, L), generator=g)
    return ScoreAttentionLayer(scores, theta, Z, weight(g, d, d_V), Y, loss=loss)


@pytest.mark.parametrize("name", INSTANCES)
@given(
    seeds,
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["mse", "cross-entropy"]),
)
def test_master_formula(name: str, seed: int, batch: int, L: int, d: int, d_V: int, loss: str) -> None:
    """H_f = sum_i [k3(phi, dT, dT') + Cov(phi, d2T)] + value cross terms; H_o = J^T (d2l) J with dF = Cov(v, dT)."""
    layer = build(name, seed, batch, L, d, d_V, loss)
    H_f = autodiff_hessian(lambda w: (layer.output.g * layer.forward(w)).sum(), layer.weights)
    scalar = {
        "mse": lambda w: (
            (layer.forward(w) - (layer.forward(layer.weights) - layer.output.g * layer.output.g.numel() / 2))
            .square()
            .mean()
        ),
        "cross-entropy": lambda w: _cross_entropy(layer, w),
    }[loss]
    H = autodiff_hessian(scalar, layer.weights)
    size = H.abs().max().clamp_min(1e-300)
    assert float((layer.matrix("functional") - H_f).abs().max() / size) <= 1e-12
    assert float((layer.matrix() - H).abs().max() / size) <= 1e-12
    assert float((layer.matrix("outer") - (H - H_f)).abs().max() / size) <= 1e-12


def _cross_entropy(layer: ScoreAttentionLayer, w: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy with the targets read back from g = (p - y) / N."""
    F0 = layer.forward(layer.weights)
    target = (F0.softmax(-1) - layer.output.g * F0.shape[0]).detach()
    return -(target * layer.forward(w).log_softmax(-1)).sum() / F0.shape[0]


def test_dot_product_scores_give_the_attention_layer() -> None:
    """The general formula and Theorems 3.1, 3.2 are the same matrix."""
    g = torch.Generator().manual_seed(0)
    X, W, Y = randn(g, 2, 5, 4), [weight(g, 4, 3) for _ in range(3)], randn(g, 2, 5, 3)
    general = ScoreAttentionLayer(dot_product(X), {"W_Q": W[0], "W_K": W[1]}, X, W[2], Y)
    special = AttentionLayer(X, *W, Y)
    for part in ("total", "outer", "functional"):
        assert torch.allclose(general.matrix(part), special.matrix(part), atol=1e-14)


@pytest.mark.parametrize("name", ["dot product", "rope", "qk-norm", "capped rope with a sink", "causal rope"])
@pytest.mark.parametrize(("kv_heads", "output"), [(2, True), (1, True), (2, False)])
def test_several_heads(name: str, kv_heads: int, output: bool) -> None:
    """Any scores per head, with W_O: H, H_f, gradients and norms against automatic differentiation."""
    g = torch.Generator().manual_seed(0)
    X = randn(g, 2, 3, 3)
    scores, extra = INSTANCES[name](X)
    theta = {"W_Q": weight(g, 3, 4), "W_K": weight(g, 3, 2 * kv_heads)} | {n: randn(g, 2) for n in extra}
    Z = torch.cat([X, torch.zeros_like(X[:, :1])], dim=1) if "sink" in extra else X
    W_O = weight(g, 4, 3) if output else None
    Y = randn(g, 2, 3, 3 if output else 4)
    weights = torch.rand(2, 3, generator=g, dtype=X.dtype)
    layer = ScoreAttentionLayer(
        per_head(scores, 2, kv_heads), theta, Z, weight(g, 3, 4), Y, W_O=W_O, token_weights=weights, prefix="h."
    )

    def scalar(w: dict[str, Tensor]) -> Tensor:
        T = per_head(scores, 2, kv_heads)({n: w[n] for n in theta})
        z = torch.cat([T[:, h].softmax(-1) @ Z @ w["W_V"][:, 2 * h : 2 * h + 2] for h in range(2)], -1)
        F = z @ w["W_O"] if output else z
        return (weights * (F - Y).square().mean(-1)).sum() / weights.sum()

    H = autodiff_hessian(scalar, layer.weights)
    H_f = autodiff_hessian(lambda w: (layer.output.g * layer.forward(w)).sum(), layer.weights)
    size = float(H.abs().max())
    assert float(layer.loss) == pytest.approx(float(scalar(layer.weights)), rel=1e-13)
    for part, want in (("total", H), ("functional", H_f), ("outer", H - H_f)):
        assert float((layer.matrix(part) - want).abs().max()) <= 1e-12 * size
    for n, want in torch.func.grad(scalar)(layer.weights).items():
        assert torch.allclose(layer.gradients()["h." + n], want, rtol=0, atol=1e-13)
    at = Space.of(layer.weights).slices()
    for (a, b), norm in layer.norms().items():
        assert norm.value == pytest.approx(float(H[at[a], at[b]].norm()), rel=1e-9)
    for A in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        check_operator(A)


def test_dot_product_scores_per_head_give_the_multi_head_layer() -> None:
    """With grouped keys, named by head."""
    g = torch.Generator().manual_seed(0)
    X, Y = randn(g, 2, 4, 3), randn(g, 2, 4, 3)
    W_Q, W_K, W_V, W_O = weight(g, 3, 4), weight(g, 3, 2), weight(g, 3, 4), weight(g, 4, 3)
    general = ScoreAttentionLayer(per_head(dot_product(X), 2, 1), {"W_Q": W_Q, "W_K": W_K}, X, W_V, Y, W_O=W_O)
    keys = torch.cat([W_K, W_K], 1)  # the same function; blocks without W_K are the same too
    special = MultiHeadAttentionLayer(X, W_Q, keys, W_V, W_O, Y, heads=2)
    for a, b in (("W_V[1]", "W_Q"), ("W_O[0]", "W_V[1]"), ("W_O[1]", "W_O[0]")):
        got, want = general.hessian().block(a, b).dense(), special.hessian().block(a, b).dense()
        assert torch.allclose(got, want, atol=1e-14), (a, b)
        assert general.norm(a, b).value == pytest.approx(float(want.norm()), rel=1e-12)


def test_score_functions_are_what_they_say() -> None:
    """Entry by entry: rotary pairs as complex numbers, distances, root mean squares of a token, caps, one more key."""
    g = torch.Generator().manual_seed(0)
    L, d_K = 5, 6
    X, W_Q, W_K = randn(g, 2, L, 3), weight(g, 3, d_K), weight(g, 3, d_K)
    theta = {"W_Q": W_Q, "W_K": W_K}
    plain, turned, normed = (
        dot_product(X)(theta),
        rope(X)(theta),
        qk_norm(X, eps=0.0)(theta | {"scale": X.new_tensor(2)}),
    )
    capped, more = soft_cap(dot_product(X), 0.7)(theta), with_sink(dot_product(X))(theta | {"sink": X.new_tensor(-3)})
    near = dot_product(X, bias=alibi(L, 0.3, dtype=X.dtype))(theta)
    visible = torch.ones(L, L, dtype=torch.bool).tril()
    hidden = masked(dot_product(X), visible)(theta)
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(L), torch.arange(L)).tolist():
        q, k = X[b, i] @ W_Q, X[b, j] @ W_K
        score = float(q @ k) / d_K**0.5
        turn = sum(
            complex(q[m], q[m + 3]) * complex(k[m], -k[m + 3]) * cmath.exp(1j * (i - j) * 10_000 ** (-2 * m / d_K))
            for m in range(3)
        )
        wanted = {
            "plain": (plain, score),
            "rope": (turned, turn.real / d_K**0.5),
            "alibi": (near, score - 0.3 * abs(i - j)),
            "qk-norm": (normed, 2 * float(q @ k) * d_K / float(q.norm() * k.norm()) / d_K**0.5),
            "soft cap": (capped, 0.7 * math.tanh(score / 0.7)),
            "sink": (more, score),
            "mask": (hidden, score if j <= i else -math.inf),
        }
        for name, (T, value) in wanted.items():
            assert float(T[b, i, j]) == pytest.approx(value, abs=1e-12), name
    assert more.shape == (2, L, L + 1)
    assert torch.equal(more[..., -1], torch.full_like(more[..., -1], -3))


def test_operators_keep_the_contract() -> None:
    layer = build("capped rope with a sink", 0, 2, 3, 2, 2, "mse")
    for A in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        check_operator(A)


def test_scores_of_the_wrong_shape_are_refused() -> None:
    g = torch.Generator().manual_seed(0)
    X, W = randn(g, 3, 2), weight(g, 2, 2)
    with pytest.raises(InputError, match=r"expected \(batch, tokens, keys\)"):
        ScoreAttentionLayer(
            with_sink(dot_product(X)), {"W_Q": W, "W_K": W, "sink": torch.tensor(0.0).double()}, X, W, X
        )
    with pytest.raises(InputError, match="even width"):
        ScoreAttentionLayer(rope(X), {"W_Q": W[:, :1], "W_K": W[:, :1]}, X, W, X)
    theta = {"W_Q": W, "W_K": W}
    with pytest.raises(InputError, match="cannot be cut into 3 heads"):
        ScoreAttentionLayer(per_head(dot_product(X), 3), theta, X, W, X)
    with pytest.raises(InputError, match="kv_heads divides heads"):
        per_head(dot_product(X), 3, 2)
    with pytest.raises(InputError, match=r"these keys and 2 heads need \(2, 2 d_V\)"):
        ScoreAttentionLayer(per_head(dot_product(X), 2), theta, X, W[:, :1], X)
    with pytest.raises(InputError, match="as many rows as W_V"):
        ScoreAttentionLayer(dot_product(X), theta, X, W, X, W_O=W[:1])
