"""Theorems of the deep linear Transformer."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError, UnknownName
from quadform.testing import check_operator
from quadform.theory.deep_linear import DeepLinearTransformer, Ranged
from quadform.theory.linear_attention import LinearAttentionLayer

torch.set_num_threads(1)
TOL = 1e-12


def rand(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


def draw_model(seed, depth, n=3, d=2, d_K=2, batch=(), sigma=1.0, targets=1.0, t=1.0):
    gen = torch.Generator().manual_seed(seed)
    widths = [d] + [2 + (l % 2) for l in range(depth)]
    layers = [(rand(gen, w, d_K), rand(gen, w, d_K), rand(gen, w, v)) for w, v in pairwise(widths)]
    X, Y = sigma * rand(gen, *batch, n, d), targets * rand(gen, *batch, n, widths[-1])
    return DeepLinearTransformer(X, layers, Y, temperature=t), (X, layers, Y, t)


def oracle(X, layers, Y, t):
    """H, H_o and gradient by dense autograd on an independent forward with (n, n) attention."""
    Ws = [W for triple in layers for W in triple]
    sizes = [W.numel() for W in Ws]

    def forward(theta):
        parts = [p.reshape(W.shape) for p, W in zip(theta.split(sizes), Ws, strict=True)]
        F = X
        for Q, K, V in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            F = (F @ Q) @ (F @ K).transpose(-1, -2) @ (F @ V) / (t * math.sqrt(Q.shape[1]))
        return F

    theta = torch.cat([W.reshape(-1) for W in Ws])
    g = grad(lambda th: ((forward(th) - Y) ** 2).mean())
    J = jacfwd(lambda th: forward(th).reshape(-1))(theta)
    return jacfwd(g)(theta), 2 / Y.numel() * J.T @ J, g(theta)


def assembled(model, part):
    names = list(model.weights)
    return torch.cat([torch.cat([getattr(model, part)(a, b).value() for b in names], 1) for a in names], 0)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from([(), (2,)]),
    st.sampled_from([0.5, 1.0]), st.integers(0, 999),
)  # fmt: skip
def test_blocks_are_autograd(depth, n, d, d_K, batch, t, seed):
    """H_o, H_f and H of any depth, from the normalised network and its exponents, are the autograd split."""
    model, args = draw_model(seed, depth, n, d, d_K, batch, sigma=0.7, t=t)
    H, H_o, g = oracle(*args)
    # Entries of different blocks differ by orders of magnitude: each block is held to its own size.
    slices = model.space.slices()
    for part, want in [("outer", H_o), ("block", H)]:
        got = assembled(model, part)
        for a in model.weights:
            for b in model.weights:
                size = max(float(H_o[slices[a], slices[b]].abs().max()), float(H[slices[a], slices[b]].abs().max()))
                assert float((got - want)[slices[a], slices[b]].abs().max()) <= 1e-11 * max(size, 1e-300)
    assert list(model.gradients()) == list(model.weights)
    got = torch.cat([t.reshape(-1) for t in model.gradients().values()])
    assert float((got - g).abs().max()) <= TOL * float(g.abs().max())
    for operator, want in [(model.hessian(), H), (model.outer_operator(), H_o), (model.functional_operator(), H - H_o)]:
        assert float((operator.dense() - want).abs().max()) <= TOL * float(H.abs().max().clamp_min(H_o.abs().max()))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("exponent", [-100, -3, 0, 2, 50])
def test_two_times_three_to_the_depth(depth, exponent):
    """|H_o(a, b)| of EVERY block is of degree 2 * 3^D in the input scale, at scales from 1e-100 to 1e50."""
    one, _ = draw_model(7, depth)
    far, _ = draw_model(7, depth, sigma=10.0**exponent)
    assert one.degree == 3**depth
    for pair, at_one in one.log_norms("outer").items():
        slope = 2 * one.degree * exponent * math.log(10)
        assert far.log_norms("outer")[pair] == pytest.approx(at_one + slope, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_functional_degrees(depth):
    """H_f is of degree 3^D in the input scale while |F| << |Y| and 2 * 3^D when |F| >> |Y|."""
    for exponents, degree in [((-30, -29), 3**depth), ((19, 20), 2 * 3**depth)]:
        low, high = (draw_model(3, depth, sigma=10.0**e)[0].log_norms("functional") for e in exponents)
        for pair, value in low.items():
            if value > -math.inf:
                assert (high[pair] - value) / math.log(10) == pytest.approx(degree, rel=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_hollow_only_in_the_last_layer(depth):
    """H_f(a, a) is exactly 0 in the last layer and in no earlier one."""
    model, _ = draw_model(5, depth)
    for name in model.weights:
        last = name.startswith(f"layers.{depth - 1}.")
        assert bool(model.functional(name, name).mantissa.any()) != last


def test_depth_one_is_linear_attention():
    """Depth 1 is the linear attention layer."""
    model, (X, layers, Y, t) = draw_model(11, 1, batch=(2,), t=2.0)
    layer = LinearAttentionLayer(X, *layers[0], Y, temperature=t)
    want = layer.matrix()
    assert float((assembled(model, "block") - want).abs().max()) <= TOL * float(want.abs().max())
    assert math.isclose(math.exp(model.log_loss()), float(layer.loss), rel_tol=1e-12)


def test_weights_of_any_scale():
    """Scaling the first W_Q by s multiplies F by s^(3^(D-1)), H_o(b, b) of every other weight by its square."""
    (X, layers, Y, _), s = draw_model(2, 3)[1], 1e30
    (W_Q, W_K, W_V), *rest = layers
    one = DeepLinearTransformer(X, layers, Y)
    far = DeepLinearTransformer(X, [(s * W_Q, W_K, W_V), *rest], Y)
    for name in list(one.weights)[1:]:
        want = one.outer(name, name).log_norm() + 2 * 9 * math.log(s)
        assert far.outer(name, name).log_norm() == pytest.approx(want, rel=1e-12)


def test_ranged():
    """e^log mantissa: sums keep the larger exponent, values that do not fit are refused with their size."""
    a = Ranged.of(torch.tensor([3e200, 4e200], dtype=torch.float64))
    assert a.log_norm() == pytest.approx(math.log(5) + 200 * math.log(10))
    assert torch.allclose(a.value(), torch.tensor([3e200, 4e200], dtype=torch.float64), rtol=1e-12)
    assert Ranged.of(torch.zeros(2)).log_norm() == -math.inf
    total = a + Ranged(torch.tensor([1.0, 0.0], dtype=torch.float64), a.log + math.log(2))
    assert torch.allclose(total.value(), torch.tensor([13e200, 4e200], dtype=torch.float64), rtol=1e-12)
    assert torch.equal((a + Ranged.of(torch.zeros(2, dtype=torch.float64))).mantissa, a.mantissa)
    with pytest.raises(InputError, match="does not fit"):
        Ranged(a.mantissa, 900.0).value()


@pytest.mark.parametrize("part", ["hessian", "outer_operator", "functional_operator"])
def test_operator_contract(part):
    """The operators keep the contract."""
    check_operator(getattr(draw_model(1, 2, batch=(2,))[0], part)())


def test_input_errors():
    """What cannot be used is named."""
    model, (X, layers, Y, _) = draw_model(1, 2)
    with pytest.raises(UnknownName, match="no parameter matches 'W_Q'"):
        model.outer("W_Q", "W_Q")
    with pytest.raises(UnknownName, match="no parameter matches 'W_Q'"):
        model.functional("W_Q", "W_Q")
    with pytest.raises(InputError, match="targets Y have shape"):
        DeepLinearTransformer(X, layers, Y[:-1])
    with pytest.raises(InputError, match="temperature is a positive number"):
        DeepLinearTransformer(X, layers, Y, temperature=math.inf)
    with pytest.raises(InputError, match="layer 1 takes tokens of width"):
        DeepLinearTransformer(X, [layers[0], (layers[0][0][:1], layers[0][0][:1], layers[0][2])], Y)


def test_labels_name_the_weights():
    """`query` is W_Q here as everywhere."""
    model, _ = draw_model(0, 2)
    got, want = (model.block(a, "layers.0.attn.W_V").value() for a in ("layers.1.attn.query", "layers.1.attn.W_Q"))
    assert torch.equal(got, want)


def test_too_large_for_single_precision_is_infinite_and_zero_stays_zero():
    """`e^log mantissa` where e^(log / 2) alone leaves float32: 0 e^log is 0, not 0 times infinity."""
    for log in (100.0, 200.0, 5000.0):
        assert Ranged(torch.tensor([0.0, 0.6, -0.8]), log).flushed().tolist() == [0.0, math.inf, -math.inf]
