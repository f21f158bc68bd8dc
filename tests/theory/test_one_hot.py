"""Attention that is nearly one-hot: everything of order 1 - A_max keeps its digits."""

from __future__ import annotations

import pytest
import torch
from strategies import randn, weight
from torch import Tensor

from quadform.theory import AttentionLayer, MultiHeadAttentionLayer, ScoreAttentionLayer, ScoreSplit, attention_moments
from quadform.theory.layer import PARTS
from quadform.theory.moments import moment_norms
from quadform.theory.scores import dot_product

GAPS = (4.0, 15.0, 32.0, 80.0)


def problem(gap: float) -> dict[str, Tensor]:
    """Keys whose scores lie `gap` and more apart, so that 1 - A_max is about exp(-gap); gradients given."""
    g = torch.Generator().manual_seed(3)
    tokens, d = 4, 3
    mask = -gap * torch.arange(tokens, dtype=torch.float64).expand(tokens, tokens)
    W = {"W_Q": weight(g, d, 2), "W_K": weight(g, d, 2), "W_V": weight(g, d, 2)}
    loss = randn(g, tokens, 2), torch.zeros(tokens, 2, 2, dtype=torch.float64)
    return {"X": 0.3 * randn(g, tokens, d), **W, "mask": mask, "loss": loss}


def shifted(layer: AttentionLayer) -> Tensor:
    """D = A o (phi - <phi>) from differences to key 0, which all queries see most: no digits are lost."""
    phi = layer.head.phi - layer.head.phi[..., :1]
    return layer.A * (phi - (layer.A * phi).sum(-1, keepdim=True))


def close(got: Tensor, want: Tensor, digits: float = 1e-12) -> None:
    assert float((got - want).abs().max()) <= digits * float(want.abs().max())


@pytest.mark.parametrize("gap", GAPS)
def test_gradients_and_score_gradient(gap: float) -> None:
    """dL/dW_Q = sc X^T D K, dL/dW_K = sc Z^T D^T Q, G = sc X^T D Z."""
    layer = AttentionLayer(**problem(gap))
    h, D = layer.head, shifted(layer)
    close(layer.gradients()["W_Q"], h.sc * (h.X.mT @ D @ h.K)[0])
    close(layer.gradients()["W_K"], h.sc * (h.Z.mT @ D.mT @ h.Q)[0])
    close(ScoreSplit(layer).G, h.sc * (h.X.mT @ D @ h.Z)[0])


@pytest.mark.parametrize("gap", GAPS)
def test_products_equal_the_dense_blocks(gap: float) -> None:
    """H_f v by the analytic product, and by blocks, whose sums run over centred keys."""
    inputs = problem(gap)
    eye = torch.eye(2, dtype=torch.float64)
    layers = [
        AttentionLayer(**inputs),
        AttentionLayer(**(inputs | {"loss": (inputs["loss"][0], eye.expand(4, 2, 2))})),
        MultiHeadAttentionLayer(**inputs, W_O=eye, heads=2),
    ]
    for layer in layers:
        for part in PARTS:
            matrix = layer.matrix(part)
            if not matrix.any():
                continue
            for a in ("W_Q", "W_K"):  # rows of the value block are of order 1
                rows = layer.space.coordinates(layer.space.select(a))
                operator = {"total": layer.hessian, "outer": layer.outer_operator}.get(part, layer.functional_operator)
                close((operator() @ torch.eye(len(matrix)).double())[rows], matrix[rows])


@pytest.mark.parametrize("gap", GAPS)
def test_second_moments(gap: float) -> None:
    """M2 = sum_{j<k} A_j A_k (z_j - z_k)(z_j - z_k)^T, a sum of positive parts; nothing is subtracted."""
    layer = AttentionLayer(**problem(gap))
    A, Z = layer.A[0], layer.X[0]
    c = Z[:, None] - Z
    want = 0.5 * torch.einsum("ij,ik,jka,jkb->iab", A, A, c, c)
    close(layer.head.M2, want)
    moments = attention_moments(A, Z)
    close(moments.M2, want)
    close(moment_norms(A, Z)[1], want.flatten(1).norm(dim=1).mean())


@pytest.mark.parametrize("gap", GAPS)
def test_any_score_function(gap: float) -> None:
    """The master formula with dot-product scores is the attention layer."""
    inputs = problem(gap)
    layer = AttentionLayer(**inputs)
    scores = dot_product(inputs["X"], bias=inputs["mask"])
    theta = {"W_Q": inputs["W_Q"], "W_K": inputs["W_K"]}
    general = ScoreAttentionLayer(scores, theta, inputs["X"], inputs["W_V"], loss=inputs["loss"])
    close(general.matrix("functional"), layer.matrix("functional"))
