"""Multi-head attention with W_O: all blocks within and between heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import draw_loss, randn, seeds, weight
from torch import Tensor

from quadform.core.errors import InputError
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.testing import check_operator
from quadform.theory import AttentionLayer, MultiHeadAttentionLayer
from quadform.theory.layer import PARTS, autodiff_hessian


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    g = torch.Generator().manual_seed(draw(seeds))
    small = st.integers(1, 3)
    heads, B, L, d, d_K, d_V, d_out = draw(small), *(draw(small) for _ in range(6))
    cross = draw(st.booleans())
    S, d_Z = (draw(small), draw(small)) if cross else (L, d)
    return {
        "X": randn(g, B, L, d),
        "W_Q": weight(g, d, heads * d_K),
        "W_K": weight(g, d_Z, heads * d_K),
        "W_V": weight(g, d_Z, heads * d_V),
        "W_O": weight(g, heads * d_V, d_out),
        "heads": heads,
        "context": randn(g, B, S, d_Z) if cross else None,
        "mask": None if cross or draw(st.booleans()) else "causal",
        **draw_loss(draw(st.sampled_from(["mse", "cross-entropy", "given"])), g, (B, L, d_out)),
    }


@given(problems())
def test_every_block_equals_automatic_differentiation(problem: dict) -> None:
    """H, H_o and H_f over W_Q, W_K, W_V, W_O, between all heads."""
    layer = MultiHeadAttentionLayer(**problem)
    for part in PARTS:
        layer.check(part, tolerance=1e-12)


@given(problems())
def test_operators_keep_the_contract(problem: dict) -> None:
    layer = MultiHeadAttentionLayer(**problem, prefix="layers.3.attn.")
    for A in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        check_operator(A)


@given(problems())
def test_norms_diagonals_and_gradients(problem: dict) -> None:
    """Per head and per whole weight, without the block."""
    layer = MultiHeadAttentionLayer(**problem)
    for part in PARTS:
        whole = layer.matrix(part)
        scale = float(whole.abs().max()) ** 2 * whole.numel()
        pairs = [*layer.norms(part), *((a, b) for a in layer.weights for b in layer.weights)]
        for a, b in pairs:
            assert abs(layer.norm(a, b, part).value ** 2 - layer.dense(part, a, b).norm() ** 2) <= 1e-12 * max(
                scale, 1e-300
            )
        diagonal = layer.space.flatten(layer.diagonal(part))
        assert float((diagonal - whole.diagonal()).abs().max()) <= 1e-13 * max(float(whole.abs().max()), 1e-300)
    want = torch.func.grad(layer.loss_at)(layer.weights)
    for name, value in layer.gradients().items():
        assert torch.allclose(value, want[name], atol=1e-13)


def test_functional_part_vanishes_between_heads_but_outer_couples_them() -> None:
    """H_f(a[h], b[h']) = 0 for h != h', H_f(O, O) = 0; H_o(a[h], b[h']) is not."""
    g = torch.Generator().manual_seed(0)
    layer = MultiHeadAttentionLayer(
        randn(g, 5, 4), *(weight(g, 4, 6) for _ in range(3)), weight(g, 6, 4), randn(g, 5, 4), heads=2
    )
    for a in layer.weights:
        for b in layer.weights:
            assert not layer.functional(f"{a}[0]", f"{b}[1]").any()
            assert float(layer.outer(f"{a}[0]", f"{b}[1]").norm()) > 1e-6
    assert not layer.functional("W_O", "W_O").any()
    assert float(layer.attribution("W_Q", "W_V").sum()) == pytest.approx(1)


def test_one_head_with_identity_output_is_the_single_head_layer() -> None:
    """W_O = I and one head: the blocks of W_Q, W_K, W_V are those of `AttentionLayer`."""
    g = torch.Generator().manual_seed(0)
    X, W, Y = randn(g, 2, 5, 4), [weight(g, 4, 3) for _ in range(3)], randn(g, 2, 5, 3)
    one = AttentionLayer(X, *W, Y, mask="causal")
    many = MultiHeadAttentionLayer(X, *W, torch.eye(3, dtype=X.dtype), Y, heads=1, mask="causal")
    assert torch.allclose(many.matrix(names=("W_Q", "W_K", "W_V")), one.matrix(), atol=1e-15)


def test_an_output_matrix_that_is_the_identity() -> None:
    """A head's rows of W_O = I are one where row meets column, and still no identity."""
    g = torch.Generator().manual_seed(0)
    X, W, Y = randn(g, 5, 3), [weight(g, 3, 2) for _ in range(3)], randn(g, 5, 2)
    layer = MultiHeadAttentionLayer(X, *W, torch.eye(2, dtype=X.dtype), Y, heads=2)
    for part in PARTS:
        layer.check(part, tolerance=1e-12)


def test_a_network_behind_the_layer_that_couples_tokens() -> None:
    g = torch.Generator().manual_seed(0)
    X, W = randn(g, 4, 3), [weight(g, 3, 4) for _ in range(3)]
    mix = randn(g, 4, 4)

    def behind(F: Tensor) -> Tensor:
        return torch.tanh(mix @ F.reshape(4, 3)).square().mean()

    zero = (torch.zeros(4, 3, dtype=X.dtype), torch.zeros(4, 3, 3, dtype=X.dtype))
    W_O = weight(g, 4, 3)
    F = MultiHeadAttentionLayer(X, *W, W_O, heads=2, loss=zero).F
    curvature = Dense(autodiff_hessian(lambda w: behind(w["F"]), {"F": F}), Space((("F", tuple(F.shape)),)))
    layer = MultiHeadAttentionLayer(X, *W, W_O, heads=2, loss=(torch.func.grad(behind)(F), curvature))
    want = autodiff_hessian(lambda w: behind(layer.forward(w)), layer.weights)
    assert torch.allclose(layer.matrix(), want, atol=1e-13)
    check_operator(layer.hessian())


@pytest.mark.parametrize(
    ("change", "text"),
    [({"temperature": 0.0}, "above 0"), ({"context": torch.zeros(2, 3, 4).double()}, "one context per sequence")],
)
def test_bad_input_is_refused_as_by_one_head(change: dict[str, Any], text: str) -> None:
    g = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match=text):
        MultiHeadAttentionLayer(randn(g, 2, 4), *(weight(g, 4, 4) for _ in range(4)), randn(g, 2, 4), heads=2, **change)


def test_heads_must_divide_the_width() -> None:
    g = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match="cannot be cut into 3 heads"):
        MultiHeadAttentionLayer(randn(g, 2, 4), *(weight(g, 4, 4) for _ in range(4)), randn(g, 2, 4), heads=3)
