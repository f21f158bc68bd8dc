"""What the experiments on trained models compute themselves: the Gauss-Newton matrix, the laws of attention."""

from __future__ import annotations

import torch

from quadform.core.designs import design
from quadform.curvature import Risk, gauss_newton
from quadform.experiments.cross_attention import Config as CrossConfig
from quadform.experiments.cross_attention import _entropy, _laws, sites
from quadform.experiments.trained_hessian import outer_dense
from quadform.nn.transformer import IGNORE, Transformer


def _encoder_risk() -> Risk:
    config = design("post-ln", depth=2, d_model=6, heads=2, d_ff=8, vocab=7, seq_len=5, kind="encoder")
    model = Transformer(config, seed=1, dtype=torch.float64)
    tokens = torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(0))
    labels = tokens.masked_fill(torch.arange(5) % 2 == 0, IGNORE)
    return Risk(model, None, {"tokens": tokens, "labels": labels}, quiet=True)


def _translator_risk() -> tuple[Transformer, Risk]:
    config = design("pre-ln", depth=2, d_model=8, heads=2, d_ff=8, vocab=9, source_vocab=7, seq_len=8,
                    kind="encoder-decoder", biases=("q", "k", "v", "o"))  # fmt: skip
    model = Transformer(config, seed=0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".b_" in name:
                p.normal_(generator=generator)
    source, target = (torch.randint(3, v, (2, n), generator=generator) for v, n in ((7, 6), (9, 5)))
    return model, Risk(model, None, {"source": source, "target": target}, quiet=True)


def test_gauss_newton_from_the_jacobian() -> None:
    """sum_i J_i^T (diag p_i - p_i p_i^T) J_i / N over the counted tokens is H_o of the risk."""
    risk = _encoder_risk()
    H_o = gauss_newton(risk).dense()
    torch.testing.assert_close(outer_dense(risk), H_o, rtol=0, atol=1e-12 * float(H_o.abs().max()))


def test_laws_hold_in_an_encoder_decoder() -> None:
    """Key bias flat, gauge identity, H_f(V, V) = 0 in cross-attention; the model is left as it was."""
    model, risk = _translator_risk()
    assert list(sites(model)) == [f"{k} {i}" for k in ("encoder self", "decoder self", "cross") for i in (1, 2)]
    for path in sites(model).values():
        laws = _laws(CrossConfig(), risk, path)
        assert all(float(laws[k]) < 1e-10 for k in ("hollow", "key_bias", "gauge", "outer_gauge"))
        assert 0 < float(laws["entropy"]) <= 1


def test_entropy_of_an_attention_that_cannot_choose() -> None:
    """W_Q = 0 and b_Q = 0: every row is uniform over what it may see, entropy 1 of 1."""
    _, risk = _translator_risk()
    for path in ("layers.0.attn", "layers.0.cross"):
        for name in ("W_Q", "b_Q"):
            risk.params[f"{path}.{name}"].zero_()
        torch.testing.assert_close(float(_entropy(risk, path)), 1.0, rtol=1e-12, atol=0)
