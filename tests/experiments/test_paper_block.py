"""The paper's block: the closed form of its last attention layer is the network's own Hessian."""

from __future__ import annotations

import pytest
import torch

from quadform.curvature import Risk, gauss_newton, hessian
from quadform.experiments.paper_block import batch_of, last_attention, paper_model


@pytest.mark.parametrize("depth", [1, 2])
def test_the_last_attention_layer_is_exact(depth: int) -> None:
    """H_o and H of W_Q, W_K, W_V from (g, d2l/dF2) at the layer equal those of the network, split at its logits."""
    model, batch = paper_model(4, depth, seed=0, sigma=0.5), batch_of(3, seed=1)
    layer, risk = last_attention(model, batch), Risk(model, None, batch, quiet=True)
    names = [f"layers.{depth - 1}.attn.{w}" for w in ("W_Q", "W_K", "W_V")]
    for operator, part in ((hessian(risk), "total"), (gauss_newton(risk), "outer")):
        H = operator.block(names, names).dense()
        assert float((layer.matrix(part) - H).abs().max() / H.abs().max()) < 1e-13


def test_the_scale_multiplies_the_embeddings_alone() -> None:
    small, large = paper_model(4, seed=3, sigma=0.1), paper_model(4, seed=3, sigma=1.0)
    for (name, a), (_, b) in zip(small.named_parameters(), large.named_parameters(), strict=True):
        torch.testing.assert_close(a * (10.0 if name.startswith("embed.") else 1.0), b)


def test_weights_have_the_published_size() -> None:
    """All W ~ N(0, (0.8 / sqrt d)^2)."""
    model = paper_model(64, seed=0)
    assert float(model.layers[0].mlp.W_1.detach().std()) == pytest.approx(0.8 / 8, rel=0.05)
