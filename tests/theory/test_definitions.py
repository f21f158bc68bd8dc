"""Every closed-form layer is the Hessian of a loss that plain torch writes in a line or two, with none of our code."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from strategies import randn, weight
from torch import Tensor

from quadform.theory import (
    AttentionLayer,
    DeepLinearTransformer,
    HiddenLayerMLP,
    LinearAttentionLayer,
    LinearMLP,
    MergedLayer,
    MultiHeadAttentionLayer,
    ScalarTokenModel,
    convolution,
)

B, L, D, D_K, D_V, T = 2, 4, 3, 2, 3, 1.7
Case = tuple[object, Callable[..., Tensor], list[Tensor]]


def double_backward(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """d2 loss / d theta2, a row for each entry of the gradient."""
    theta = theta.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(theta), theta, create_graph=True)
    return torch.stack([torch.autograd.grad(entry, theta, retain_graph=True)[0] for entry in gradient])


def one_head(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    W = [weight(g, D, D_K), weight(g, D, D_K), weight(g, D, D_V)]
    layer = AttentionLayer(X, *W, Y, mask="causal", temperature=T)
    scale = 1 / (T * math.sqrt(D_K))
    return (
        layer,
        lambda Q, K, V: (
            ((X @ Q) @ (X @ K).mT * scale).masked_fill(torch.ones(L, L).triu(1).bool(), -math.inf).softmax(-1) @ X @ V
        ),
        W,
    )


def many_heads(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    W = [weight(g, D, 3 * D_K), weight(g, D, 3 * D_K), weight(g, D, 3 * 2), weight(g, 3 * 2, D_V)]
    layer = MultiHeadAttentionLayer(X, *W, Y, heads=3, mask="causal", temperature=T)
    cut = lambda M: M.unflatten(-1, (3, -1)).transpose(1, 2)  # noqa: E731
    scale = 1 / (T * math.sqrt(D_K))

    def plain(Q: Tensor, K: Tensor, V: Tensor, O: Tensor) -> Tensor:
        scores = (cut(X @ Q) @ cut(X @ K).mT * scale).masked_fill(torch.ones(L, L).triu(1).bool(), -math.inf)
        return (scores.softmax(-1) @ cut(X @ V)).transpose(1, 2).flatten(2) @ O

    return layer, plain, W


def merged(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    W = [weight(g, D, D), weight(g, D, D_V)]
    layer = MergedLayer(X, *W, Y, d_K=D_K, temperature=T)
    return layer, lambda W_QK, V: (X @ W_QK @ X.mT / (T * math.sqrt(D_K))).softmax(-1) @ X @ V, W


def linear(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    W = [weight(g, D, D_K), weight(g, D, D_K), weight(g, D, D_V)]
    layer = LinearAttentionLayer(X, *W, Y, temperature=T)
    return layer, lambda Q, K, V: ((X @ Q) @ (X @ K).mT / (T * math.sqrt(D_K))) @ (X @ V), W


def deep_linear(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    W = [weight(g, D, D_K), weight(g, D, D_K), weight(g, D, D), weight(g, D, 1), weight(g, D, 1), weight(g, D, D_V)]

    def plain(*W: Tensor) -> Tensor:
        out = X
        for Q, K, V in (W[:3], W[3:]):
            out = ((out @ Q) @ (out @ K).mT / (T * math.sqrt(Q.shape[1]))) @ (out @ V)
        return out

    return DeepLinearTransformer(X, [tuple(W[:3]), tuple(W[3:])], Y, temperature=T), plain, W


def perceptron(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    W = [weight(g, D, 5), randn(g, 5), weight(g, 5, D_V), randn(g, D_V)]
    layer = HiddenLayerMLP(X, W[0], W[2], Y, b_1=W[1], b_2=W[3], activation="gelu")
    return layer, lambda W_1, b_1, W_2, b_2: F.gelu(X @ W_1 + b_1) @ W_2 + b_2, W


def convolutional(g: torch.Generator, X: Tensor, Y: Tensor) -> Case:
    images, kernel, last = randn(g, B * L, 2, 5), randn(g, 3, 2, 2), weight(g, 3 * 3, D_V)
    layer = LinearMLP(images.flatten(1), [convolution(kernel, 5, stride=2, padding=1), last], Y.flatten(0, 1))
    return layer, lambda k, W: F.conv1d(images, k, stride=2, padding=1).flatten(1) @ W, [kernel, last]


@pytest.mark.parametrize("build", [one_head, many_heads, merged, linear, deep_linear, perceptron, convolutional])
def test_the_layer_is_what_plain_torch_says(build: Callable[[torch.Generator, Tensor, Tensor], Case]) -> None:
    """H(layer) = d2/dW2 of the mean squared error of the formula in its docstring, at targets Y."""
    g = torch.Generator().manual_seed(0)
    X, Y = randn(g, B, L, D), randn(g, B, L, D_V)
    layer, plain, W = build(g, X, Y)
    shapes = [w.shape for w in W]

    def loss(theta: Tensor) -> Tensor:
        parts = theta.split([s.numel() for s in shapes])
        out = plain(*(p.reshape(s) for p, s in zip(parts, shapes, strict=True)))
        return F.mse_loss(out, Y.reshape(out.shape))

    want = double_backward(loss, torch.cat([w.reshape(-1) for w in W]))
    got = layer.hessian().dense()
    assert float((got - want).abs().max() / want.abs().max()) <= 1e-12


def test_scalar_tokens_are_what_plain_torch_says() -> None:
    """loss = mean (w_V softmax(<w_Q, w_K> x x^T / (t sqrt(d_K)) + bias) x - y)^2; condition = max |lambda| / min."""
    g = torch.Generator().manual_seed(0)
    x, y, q, k, v, bias = randn(g, 2, 4), randn(g, 2, 4), randn(g, 3), randn(g, 3), randn(g, 1)[0], randn(g, 4, 4)
    model = ScalarTokenModel(x, y, q, k, v, bias, T)

    def loss(theta: Tensor) -> Tensor:
        scores = theta[:3] @ theta[3:6] * x[:, :, None] * x[:, None, :] / (T * math.sqrt(3)) + bias
        return F.mse_loss(theta[6] * (scores.softmax(-1) @ x[:, :, None])[..., 0], y)

    H = double_backward(loss, torch.cat([q, k, v[None]]))
    assert float((model.hessian().dense() - H).abs().max() / H.abs().max()) <= 1e-12
    size = torch.linalg.eigvalsh(H).abs()
    assert model.spectrum().condition_number == pytest.approx(float(size.max() / size.min()), rel=1e-9)
