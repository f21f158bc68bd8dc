"""The paper's block: closed forms and norms by Grams are the network's own Hessian."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from quadform.curvature import Risk, functional, gauss_newton, hessian
from quadform.experiments import gram_norms
from quadform.experiments.paper_block import PARTS, batch_of, last_attention, network_norms, paper_model


def sum_of_squares(out: torch.Tensor, batch: Any) -> torch.Tensor:
    return (out - batch[1]).square().sum()


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


@pytest.mark.parametrize(
    ("depth", "squared", "how"),
    [
        (3, False, {"norm": "none"}),
        (2, False, {"norm": "layer"}),
        (2, True, {"norm": "layer", "name": "post-ln"}),
        (2, True, {"linear": True, "skip": 0.0}),
    ],
    ids=["none", "pre-ln", "post-ln", "linear"],
)
def test_norms_by_grams_are_those_of_the_dense_blocks(depth: int, squared: bool, how: dict[str, Any]) -> None:
    """|H_o|, |H_f|, |H| of W_Q and W_V in every layer, none of their blocks built."""
    model, batch = paper_model(3, depth, seed=1, sigma=0.3, **how), batch_of(3, seed=1)
    if squared:
        batch = (batch["tokens"], one_hot(batch["tokens"], 12).double())
    risk = Risk(model, sum_of_squares if squared else None, batch, quiet=True)
    parts = {"outer": gauss_newton(risk), "functional": functional(risk), "total": hessian(risk)}
    names = [(part, f"layers.{layer}.attn.{w}") for layer in range(depth) for part, w in PARTS]
    dense = torch.stack([parts[part].block(name, name).dense().norm() for part, name in names])
    torch.testing.assert_close(network_norms(model, batch, squared=squared).flatten(), dense, rtol=1e-10, atol=1e-300)


def test_chunks_change_no_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are taken a few rows at a time where all do not fit."""
    model, batch = paper_model(2, 2, seed=1, sigma=0.5, norm="layer"), batch_of(2, seed=1)
    whole = network_norms(model, batch)
    monkeypatch.setitem(gram_norms.ENTRIES, "cpu", 1)
    torch.testing.assert_close(network_norms(model, batch), whole, rtol=1e-12, atol=0.0)


def test_a_loss_that_rounds_to_nothing_keeps_its_curvature() -> None:
    """Where the right digit has probability 1 - 1e-20, d2l/dlogits2 is of that size and not 0."""
    model, batch = paper_model(4, seed=1, sigma=1.0), batch_of(1, seed=1)
    net = gram_norms.GramNorms(model, batch)
    net.logits = torch.nn.functional.one_hot(net.wanted, 12) * 46.0
    C, g = net._loss()
    p = float(torch.tensor(-46.0, dtype=torch.float64).exp())
    assert float(C.square().sum()) == pytest.approx(2 * 11 * p, rel=1e-6)
    assert float(g.abs().sum()) == pytest.approx(2 * 11 * p, rel=1e-6)
