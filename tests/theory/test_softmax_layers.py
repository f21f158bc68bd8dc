"""Biases, grouped keys and token weights, against automatic differentiation of the layer written down again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import randn, seeds, weight
from torch import Tensor

from quadform.core.errors import InputError
from quadform.testing import check_operator
from quadform.theory import AttentionLayer, MultiHeadAttentionLayer
from quadform.theory.layer import PARTS, autodiff_hessian

small = st.integers(1, 3)


def left_padded(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """A causal mask of sequences with 0, 1, ... padding tokens on the left, and weights that leave those out."""
    at = torch.arange(tokens)
    real = at >= torch.arange(batch)[:, None].clamp_max(tokens - 1)
    visible = (at[None, :] <= at[:, None]) & real[:, None, :]
    return visible, real.double()


@st.composite
def problems(draw: st.DrawFn, *, many: bool) -> dict[str, Any]:
    """Keyword arguments of a layer: biases on or off, grouped keys, cross-attention, both losses, token weights."""
    g = torch.Generator().manual_seed(draw(seeds))
    group, kv, B, L, d, d_K, d_V, d_out = (draw(small) for _ in range(8))
    group, kv = (group, kv) if many else (1, 1)
    cross = draw(st.booleans())
    S, d_Z = (draw(small), draw(small)) if cross else (L, d)
    problem: dict[str, Any] = {
        "X": randn(g, B, L, d),
        "W_Q": weight(g, d, group * kv * d_K),
        "W_K": weight(g, d_Z, kv * d_K),
        "W_V": weight(g, d_Z, kv * d_V),
        "context": randn(g, B, S, d_Z) if cross else None,
        "temperature": draw(st.sampled_from([1.0, 0.5])),
    }
    if many:
        problem |= {"W_O": weight(g, group * kv * d_V, d_out), "heads": group * kv, "kv_heads": kv}
    width = d_out if many else d_V
    for name in ("b_Q", "b_K", "b_V", "b_O") if many else ("b_Q", "b_K", "b_V"):
        if draw(st.booleans()):
            problem[name] = randn(g, problem["W" + name[1:]].shape[1])
    if draw(st.booleans()):
        problem |= {"Y": torch.randint(0, width, (B, L), generator=g), "loss": "cross-entropy"}
    else:
        problem["Y"] = randn(g, B, L, width)
    if not cross and draw(st.booleans()):
        problem["mask"], problem["token_weights"] = left_padded(B, L)
    elif draw(st.booleans()):
        problem["token_weights"] = 0.1 + torch.rand(B, L, generator=g, dtype=torch.float64)
    return problem


def plain_loss(problem: dict[str, Any], w: dict[str, Tensor]) -> Tensor:
    """The definition: project, cut into heads, repeat keys, attend, put together; then the weighted mean."""
    X, context, heads = problem["X"], problem["context"], problem.get("heads", 1)
    Z, kv = (X if context is None else context), problem.get("kv_heads", 1)

    def project(x: Tensor, name: str, count: int) -> Tensor:
        y = x @ w["W_" + name] + w.get("b_" + name, 0)
        return y.unflatten(-1, (count, -1)).transpose(1, 2)

    q, k, v = project(X, "Q", heads), project(Z, "K", kv), project(Z, "V", kv)
    k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
    T = q @ k.mT / (problem["temperature"] * q.shape[-1] ** 0.5)
    if "mask" in problem:
        T = T.masked_fill(~problem["mask"][:, None], -1e30)
    F = (T.softmax(-1) @ v).transpose(1, 2).flatten(2)
    F = F @ w["W_O"] + w.get("b_O", 0) if "W_O" in w else F
    each = problem.get("token_weights", torch.ones(F.shape[:2], dtype=F.dtype))
    if problem.get("loss") == "cross-entropy":
        losses = torch.nn.functional.cross_entropy(F.flatten(0, 1), problem["Y"].flatten(), reduction="none")
        losses = losses.reshape(each.shape)
    else:
        losses = (F - problem["Y"]).square().mean(-1)
    return (each * losses).sum() / each.sum()


def check(problem: dict[str, Any], layer: AttentionLayer | MultiHeadAttentionLayer) -> None:
    def scalar(w: dict[str, Tensor]) -> Tensor:
        return plain_loss(problem, w)

    H = autodiff_hessian(scalar, layer.weights)
    size = H.abs().max().clamp_min(1e-300)
    assert float((layer.matrix() - H).abs().max() / size) <= 1e-12
    assert float((layer.loss - scalar(layer.weights)).abs()) <= 1e-13 * float(layer.loss)
    want = torch.func.grad(scalar)(layer.weights)
    top = max(float(t.abs().max()) for t in want.values())
    for name, got in layer.gradients().items():
        assert float((got - want[name]).abs().max()) <= 1e-13 * max(top, 1e-3)
    for part in PARTS:
        layer.check(part, tolerance=1e-12)
        M = layer.matrix(part)
        assert torch.allclose(layer.space.flatten(layer.diagonal(part)), M.diagonal(), rtol=0, atol=1e-13 * float(size))
        for (a, b), norm in layer.norms(part).items():
            exact = float(layer.dense(part, a, b).norm())
            assert norm.value == pytest.approx(exact, rel=1e-7, abs=1e-13 * float(size))
    for A in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        check_operator(A)


@given(problems(many=False))
def test_one_head(problem: dict[str, Any]) -> None:
    """b_Q, b_K, b_V and token weights of `AttentionLayer`."""
    check(problem, AttentionLayer(**problem))


@given(problems(many=True))
def test_several_heads(problem: dict[str, Any]) -> None:
    """Grouped keys, b_Q, b_K, b_V, b_O and token weights of `MultiHeadAttentionLayer`, every block by head."""
    check(problem, MultiHeadAttentionLayer(**problem))


def test_a_network_behind_biases_and_groups() -> None:
    """The Jacobians of whole weights, biases and single key heads, which a loss that couples tokens needs."""
    g = torch.Generator().manual_seed(0)
    X, W = randn(g, 2, 3, 3), [weight(g, 3, 4), weight(g, 3, 2), weight(g, 3, 2), weight(g, 4, 3)]
    b = {"b_Q": randn(g, 4), "b_V": randn(g, 2), "b_O": randn(g, 3)}
    zero = torch.zeros(2, 3, 3).double(), torch.zeros(2, 3, 3, 3).double()
    layer = MultiHeadAttentionLayer(X, *W, heads=2, kv_heads=1, loss=zero, **b)
    J = torch.func.jacfwd(layer.forward)(layer.weights)
    for name, want in J.items():
        assert torch.allclose(layer.jacobian(name), want.flatten(2), atol=1e-14), name
    assert torch.allclose(layer.jacobian("b_Q[1]"), J["b_Q"][..., 2:], atol=1e-14)
    assert torch.allclose(layer.jacobian("W_K[0]"), J["W_K"].flatten(2), atol=1e-14)


def test_a_key_bias_changes_nothing() -> None:
    """Softmax does not see a number added to all scores of a query: H(b_K, b_K) = 0."""
    g = torch.Generator().manual_seed(0)
    layer = AttentionLayer(randn(g, 4, 3), *(weight(g, 3, 2) for _ in range(3)), randn(g, 4, 2), b_K=randn(g, 2))
    assert float(layer.block("b_K", "b_K").abs().max()) <= 1e-15 * float(layer.matrix().abs().max())


def test_names_of_biases() -> None:
    """Biases come after the weights, whole or by head."""
    g = torch.Generator().manual_seed(0)
    W = [weight(g, 4, 4), weight(g, 4, 2), weight(g, 4, 2), weight(g, 4, 3)]
    layer = MultiHeadAttentionLayer(
        randn(g, 3, 4), *W, randn(g, 3, 3), heads=4, kv_heads=2, b_K=randn(g, 2), b_O=randn(g, 3), prefix="a."
    )
    assert layer.space.names == ("a.W_Q", "a.W_K", "a.W_V", "a.W_O", "a.b_K", "a.b_O")
    assert {a for a, _ in layer.norms()} >= {"W_Q[3]", "W_K[1]", "b_K[1]", "b_O"}
    assert layer.block("W_K[1]", "W_Q[0]").shape == (4, 4)
    assert layer.functional("W_K[1]", "W_Q[0]").abs().max() == 0  # head 0 uses key head 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"b_Q": torch.zeros(3).double()}, r"b_Q has shape \(3,\); W_Q \(4, 4\) needs \(4,\)"),
        ({"b_V": torch.zeros(2)}, "one floating dtype"),
        ({"kv_heads": 3}, "kv_heads divides heads"),
        ({"W_V": torch.zeros(4, 4).double()}, "as many rows as the values of 2 heads have columns"),
        ({"token_weights": torch.ones(2)}, "one number for each of 3 tokens"),
        ({"token_weights": torch.tensor([1.0, -1.0, 1.0])}, "none below 0"),
        ({"token_weights": torch.zeros(3)}, "one above"),
        ({"mask": torch.eye(3, 3).tril(-1).bool()}, "the token weight 0"),
        (
            {
                "Y": None,
                "loss": (torch.ones(3, 3).double(), torch.ones(3, 3, 3).double()),
                "token_weights": torch.ones(3),
            },
            "leave token_weights out",
        ),
    ],
)
def test_bad_input_says_what_to_do(change: dict[str, Any], text: str) -> None:
    g = torch.Generator().manual_seed(0)
    W = {"W_Q": weight(g, 4, 4), "W_K": weight(g, 4, 2), "W_V": weight(g, 4, 2), "W_O": weight(g, 4, 3)}
    good = {"X": randn(g, 3, 4), **W, "Y": randn(g, 3, 3), "heads": 2, "kv_heads": 1}
    with pytest.raises(InputError, match=text):
        MultiHeadAttentionLayer(**(good | change))


def test_a_token_left_out_by_its_class_number_may_see_no_key() -> None:
    """-100 under cross-entropy, and a gradient and Hessian of 0, leave a token out as the weight 0 does."""
    g = torch.Generator().manual_seed(0)
    X, W = randn(g, 3, 2), [weight(g, 2, 2) for _ in range(3)]
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    mask[0] = False
    Y = torch.tensor([-100, 1, 0])
    layer = AttentionLayer(X, *W, Y, mask=mask, loss="cross-entropy")
    rest = AttentionLayer(X[1:], *W, Y[1:], mask=mask[1:], context=X, loss="cross-entropy")
    assert torch.allclose(layer.matrix(), rest.matrix(), atol=1e-15)
    given = AttentionLayer(X, *W, mask=mask, loss=(layer.g, layer.output.token_matrices()))
    assert torch.allclose(given.matrix(), rest.matrix(), atol=1e-15)
