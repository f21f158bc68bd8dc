"""K-FAC and Shampoo against the closed-form Gauss-Newton blocks of one attention head, without sampling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadform as qf
from quadform.core.errors import InputError
from quadform.core.matrix import kron
from quadform.preconditioners import kfac
from quadform.theory import LinearAttentionLayer, MultiHeadAttentionLayer
from quadform.theory.kronecker import KINDS, kfac_factors, kronecker_errors

WEIGHTS = ("W_Q", "W_K", "W_V")


def head(loss: str = "mse", mask: str | None = None, batch: int = 3, tokens: int = 4, seed: int = 0) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    X, *W, Y = (
        torch.randn(s, generator=generator, dtype=torch.float64)
        for s in ((batch, tokens, 5), (5, 3), (5, 3), (5, 2), (batch, tokens, 2))
    )
    Y = Y if loss == "mse" else torch.randint(0, 2, (batch, tokens), generator=generator)
    return qf.AttentionLayer(X, *W, Y, loss=loss, mask=mask), (X, W, Y)


class Module(nn.Module):
    """The same head as a module."""

    def __init__(self, weights: list[Tensor], causal: bool) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(w) for w in weights)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x @ self.W_Q, x @ self.W_K, x @ self.W_V, is_causal=self.causal)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_closed_form_factors_are_those_of_the_model(loss: str, mask: str | None, sharing: str) -> None:
    """A kron B of every weight equals `kfac` with exact scores, which sends every loss term back through autograd."""
    layer, (X, W, Y) = head(loss, mask)

    def value(out: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(out, batch[1]) if loss == "mse" else F.cross_entropy(out.flatten(0, 1), batch[1].flatten())

    P = kfac(qf.Risk(Module(W, mask == "causal"), value, (X, Y), quiet=True), sharing=sharing, scores="exact")
    for name in WEIGHTS:
        found = kron(*kfac_factors(layer, name, sharing))
        assert torch.allclose(found, P.block(name).dense(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("written", [0, 1 << 16], ids=["not formed", "written out"])
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_errors_are_those_of_the_matrices(loss: str, written: int, monkeypatch) -> None:
    """Every error against the dense block: partial traces for Shampoo, singular values for the nearest product."""
    monkeypatch.setattr("quadform.theory.kronecker.WRITTEN", written)
    layer, _ = head(loss, "causal")
    errors = kronecker_errors(layer)
    for name in WEIGHTS:
        H = layer.outer(name, name)
        p, e = layer.weights[name].shape
        four = H.view(p, e, p, e)
        L, R = torch.einsum("ieje->ij", four), torch.einsum("ieif->ef", four)
        near = {f"K-FAC {s}": kron(*kfac_factors(layer, name, s)) for s in ("expand", "reduce")}
        near["Shampoo, one power step"] = kron(L, R) / H.trace()
        roots = kron(*((U * s.clamp_min(0).sqrt()) @ U.T for s, U in map(torch.linalg.eigh, (L, R))))
        near["Shampoo"] = (roots * H).sum() / roots.square().sum() * roots
        s = torch.linalg.svdvals(four.permute(0, 2, 1, 3).reshape(p * p, e * e))
        want = {kind: float((K - H).norm() / H.norm()) for kind, K in near.items()}
        want["nearest"] = float(s[1:].norm() / s.norm())
        assert tuple(errors[name]) == KINDS
        assert errors[name] == pytest.approx(want, abs=1e-7)
        assert all(errors[name]["nearest"] <= error + 1e-7 for error in errors[name].values())


def test_values_are_a_kronecker_product_that_kfac_misses() -> None:
    """H_o(V, V) = (sum m m^T) (x) c I under a squared loss: the nearest product and Shampoo's power step are exact,
    K-FAC takes the mean of x x^T in place of m m^T."""
    errors = kronecker_errors(head()[0])["W_V"]
    assert errors["nearest"] < 1e-7
    assert errors["Shampoo, one power step"] < 1e-7
    assert errors["K-FAC expand"] > 0.1


def test_reduce_gives_keys_nothing() -> None:
    """Adding one vector to all keys changes no attention: B_K of K-FAC reduce is 0, its error 1."""
    errors = kronecker_errors(head(mask="causal")[0])["W_K"]
    assert errors["K-FAC reduce"] == pytest.approx(1, abs=1e-12)


def test_one_query_is_a_kronecker_product() -> None:
    """With one query token every block of H_o is l l^T (x) E; K-FAC is exact on W_Q."""
    generator = torch.Generator().manual_seed(1)
    X, Z, W_Q, W_K, W_V, Y = (
        torch.randn(s, generator=generator, dtype=torch.float64)
        for s in ((1, 5), (4, 5), (5, 3), (5, 3), (5, 2), (1, 2))
    )
    errors = kronecker_errors(qf.AttentionLayer(X, W_Q, W_K, W_V, Y, context=Z))
    assert max(errors[name]["nearest"] for name in WEIGHTS) < 1e-7
    assert errors["W_Q"]["K-FAC expand"] < 1e-7
    assert errors["W_K"]["K-FAC expand"] > 0.1


def test_refusals() -> None:
    _, (X, W, Y) = head()
    I = torch.eye(2)
    for other in (LinearAttentionLayer(I, I, I, I, I), MultiHeadAttentionLayer(I, I, I, I, I, I, heads=2)):
        with pytest.raises(InputError, match=f"available for AttentionLayer; got {type(other).__name__}"):
            kronecker_errors(other)
    with pytest.raises(InputError, match="without biases"):
        kronecker_errors(qf.AttentionLayer(X, *W, Y, b_Q=torch.zeros(3, dtype=torch.float64)))
    flat = qf.AttentionLayer(X, W[0], W[1], torch.zeros_like(W[2]), Y)
    with pytest.raises(InputError, match=r"H_o\(W_Q, W_Q\) is 0"):
        kronecker_errors(flat)
