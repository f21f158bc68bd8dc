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
from quadform.theory.deep_linear import DeepLinearTransformer
from quadform.theory.growth import GrowthModel, LinearAttention, Residual
from quadform.theory.linear_attention import LinearAttentionLayer
from quadform.theory.ranged import Ranged

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


# --- masks, output matrices, MLPs and skips -------------------------------------------------------------------------
def draw_whole(
    seed, depth, *, n=3, d=2, d_K=2, batch=(), hidden=(3,), output=True, mask=None, skips=(0.0, 0.0), slope=1.0,
    sigma=1.0,
):  # fmt: skip
    """A model with all parts, and what the oracle needs of it."""
    gen = torch.Generator().manual_seed(seed)
    widths = [d, *hidden, d]
    layers = []
    for _ in range(depth):
        layer = {"W_Q": rand(gen, d, d_K), "W_K": rand(gen, d, d_K), "W_V": rand(gen, d, 2 if output else d)}
        layer |= {"W_O": rand(gen, 2, d)} if output else {}
        layer |= {f"W_{i + 1}": rand(gen, a, b) for i, (a, b) in enumerate(pairwise(widths)) if hidden}
        layers.append(layer)
    X, Y = sigma * rand(gen, *batch, n, d), rand(gen, *batch, n, d)
    model = DeepLinearTransformer(X, layers, Y, mask=mask, attn_skip=skips[0], mlp_skip=skips[1], slope=slope)
    return model, (X, layers, Y, mask, skips, slope)


def whole_oracle(X, layers, Y, mask, skips, slope):
    """H, H_o and gradient by dense autograd on a plain forward with (n, n) attention."""
    names = [(l, name) for l, layer in enumerate(layers) for name in layer]
    Ws = [layers[l][name] for l, name in names]
    sizes, n = [W.numel() for W in Ws], X.shape[-2]
    seen = torch.ones(n, n, dtype=X.dtype)
    if mask is not None:
        seen = seen.tril() if isinstance(mask, str) else mask.to(X.dtype)

    def forward(theta):
        parts = dict(zip(names, (p.reshape(W.shape) for p, W in zip(theta.split(sizes), Ws, strict=True)), strict=True))
        F = X
        for l, layer in enumerate(layers):
            w = {name: parts[l, name] for name in layer}
            A = seen * ((F @ w["W_Q"]) @ (F @ w["W_K"]).mT) / math.sqrt(w["W_Q"].shape[1])
            out = A @ F @ w["W_V"]
            F = skips[0] * F + (out @ w["W_O"] if "W_O" in w else out)
            if "W_1" in w:
                h, m = F, len([name for name in w if name[2:].isdigit()])
                for i in range(1, m):
                    h = torch.nn.functional.leaky_relu(h @ w[f"W_{i}"], slope)
                F = skips[1] * F + h @ w[f"W_{m}"]
        return F

    theta = torch.cat([W.reshape(-1) for W in Ws])
    g = grad(lambda th: ((forward(th) - Y) ** 2).mean())
    J = jacfwd(lambda th: forward(th).reshape(-1))(theta)
    return jacfwd(g)(theta), 2 / Y.numel() * J.T @ J, g(theta)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 4), st.integers(1, 3), st.sampled_from([(), (2,)]),
    st.sampled_from([(), (1,), (3,), (2, 3)]), st.booleans(), st.sampled_from([None, "causal", "decay", "padding"]),
    st.sampled_from([(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, -0.7)]), st.sampled_from([1.0, 0.0, 0.2]),
    st.integers(0, 999),
)  # fmt: skip
def test_every_part_is_autograd(depth, n, d, batch, hidden, output, mask, skips, slope, seed):
    """H, H_o, H_f and the gradient with masks, W_O, linear or ReLU MLPs and skips are the autograd split."""
    gen = torch.Generator().manual_seed(seed)
    masks = {
        "decay": torch.rand(n, n, generator=gen, dtype=torch.float64),
        "padding": torch.rand(n, n, generator=gen) < 0.7,
    }
    model, args = draw_whole(
        seed, depth, n=n, d=d, batch=batch, hidden=hidden, output=output, mask=masks.get(mask, mask), skips=skips,
        slope=slope, sigma=0.7,
    )  # fmt: skip
    H, H_o, g = whole_oracle(*args)
    size = float(H.abs().max().clamp_min(H_o.abs().max()))
    for operator, want in [(model.hessian(), H), (model.outer_operator(), H_o), (model.functional_operator(), H - H_o)]:
        assert float((operator.dense() - want).abs().max()) <= 1e-11 * max(size, 1e-9)
    got = torch.cat([t.reshape(-1) for t in model.gradients().values()])
    assert float((got - g).abs().max()) <= 1e-11 * max(float(g.abs().max()), 1e-9)
    slices = model.space.slices()
    for a in model.weights:
        for b in model.weights:
            block = H[slices[a], slices[b]]
            bound = 1e-10 * max(float(block.abs().max()), float(H_o[slices[a], slices[b]].abs().max()), 1e-12 * size)
            assert float((model.block(a, b).flushed() - block).abs().max()) <= bound


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("slope", [1.0, 0.0])
def test_the_papers_model_keeps_its_degree(depth, slope):
    """Figures 4 and 7 (causal, no skip around attention, an MLP with its skip): all of H_o is of degree 2 * 3^D."""
    how = {"mask": "causal", "skips": (0.0, 1.0), "slope": slope}
    one, far = (draw_whole(3, depth, sigma=sigma, **how)[0].log_norms("outer") for sigma in (1.0, 1e40))
    for pair, value in one.items():
        if value > -math.inf:
            assert far[pair] - value == pytest.approx(2 * 3**depth * 40 * math.log(10), rel=1e-12)


@pytest.mark.parametrize(("regime", "exponents"), [("small", (-60, -59)), ("large", (30, 31))])
@pytest.mark.parametrize("part", ["outer", "functional"])
def test_skips_grow_as_the_calculus_says(regime, exponents, part):
    """With skips around two attention layers the exponent of every block is that of `GrowthModel`, at both ends."""
    calculus = GrowthModel(Residual(LinearAttention()), Residual(LinearAttention()))
    want = calculus.exponents(part, "X", regime, dl="squared")
    low, high = (
        draw_whole(5, 2, hidden=(), output=False, skips=(1.0, 0.0), sigma=10.0**e)[0].log_norms(part) for e in exponents
    )
    for pair, value in low.items():
        if value == -math.inf:
            assert want[pair] == -math.inf
        else:
            assert (high[pair] - value) / math.log(10) == pytest.approx(want[pair], rel=1e-6)


def test_silent_branch():
    """W_V = 0 behind a skip: the stream passes unchanged, and the Hessian of the silent weights is autograd's."""
    _, (X, layers, Y, mask, skips, slope) = draw_whole(4, 2, skips=(1.0, 1.0))
    layers[0]["W_V"] = torch.zeros_like(layers[0]["W_V"])
    model = DeepLinearTransformer(X, layers, Y, attn_skip=1.0, mlp_skip=1.0)
    H, _, _ = whole_oracle(X, layers, Y, mask, skips, slope)
    assert float((model.hessian().dense() - H).abs().max()) <= 1e-11 * float(H.abs().max())


def test_parts_that_do_not_fit_are_named():
    """Widths under a skip, names of weights, and sizes beyond the range that is kept."""
    _, (X, layers, Y, *_) = draw_whole(4, 1)
    with pytest.raises(InputError, match="a skip needs an output as wide as its input, 2"):
        DeepLinearTransformer(
            X,
            [(layers[0]["W_Q"], layers[0]["W_K"], torch.ones(2, 3).double())],
            torch.ones(3, 3).double(),
            attn_skip=1.0,
        )
    with pytest.raises(InputError, match="may have W_O, W_1, W_2"):
        DeepLinearTransformer(X, [{**layers[0], "W_up": layers[0]["W_Q"]}], Y)
    with pytest.raises(InputError, match=r"is \(W_Q, W_K, W_V\), or weights by name"):
        DeepLinearTransformer(X, [tuple(layers[0].values())], Y)
    with pytest.raises(InputError, match=r"is e\^-[0-9]+ of its stream, beyond torch.float64"):
        DeepLinearTransformer(1e-150 * X, layers, Y, attn_skip=1.0)
    with pytest.raises(InputError, match="skips and slope are finite"):
        DeepLinearTransformer(X, layers, Y, slope=math.nan)


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
    with pytest.raises(InputError, match=r"takes tokens of width 2; got layers\.1\.attn\.W_Q"):
        DeepLinearTransformer(X, [layers[0], (layers[0][0][:1], layers[0][0][:1], layers[0][2])], Y)


def test_labels_name_the_weights():
    """`query` is W_Q here as everywhere."""
    model, _ = draw_model(0, 2)
    got, want = (model.block(a, "layers.0.attn.W_V").value() for a in ("layers.1.attn.query", "layers.1.attn.W_Q"))
    assert torch.equal(got, want)


def test_products_that_leave_floating_point_are_refused():
    """Degree 6 at 1e60: the block is e^834, its logarithm is told, and no product is infinite."""
    g = torch.Generator().manual_seed(0)
    X, Y, *W = (rand(g, 3, 3) for _ in range(5))
    model = DeepLinearTransformer(1e60 * X, [W], Y)
    assert all(math.isfinite(log) for log in model.log_norms("outer").values())
    for operator in (model.hessian(), model.outer_operator(), model.functional_operator()):
        with pytest.raises(InputError, match=r"layers\.0\.attn\.W_Q.* leaves torch\.float64.*log_norms"):
            operator @ torch.ones(27).double()


def test_too_large_for_single_precision_is_infinite_and_zero_stays_zero():
    """`e^log mantissa` where e^(log / 2) alone leaves float32: 0 e^log is 0, not 0 times infinity."""
    for log in (100.0, 200.0, 5000.0):
        assert Ranged(torch.tensor([0.0, 0.6, -0.8]), log).flushed().tolist() == [0.0, math.inf, -math.inf]
