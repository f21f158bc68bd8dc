"""The growth calculus: derived exponents against the paper's tables and against measured ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError, UnknownName
from quadform.theory.attention import AttentionLayer
from quadform.theory.deep_linear import DeepLinearTransformer
from quadform.theory.growth import (
    Dense,
    Growth,
    GrowthModel,
    LayerNorm,
    LinearAttention,
    Relu,
    Residual,
    SoftmaxAttention,
    log_norms,
    measure,
)
from quadform.theory.linear_attention import LinearAttentionLayer
from quadform.theory.mlp import HiddenLayerMLP, LinearMLP

torch.set_num_threads(1)
Q, K, V = "W_Q", "W_K", "W_V"
PAIRS = [(Q, Q), (K, Q), (K, K), (V, Q), (V, K), (V, V)]


def rand(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


def agree(measured, predicted, tol):
    assert set(measured) == set(predicted)
    for pair, slope in measured.items():
        if predicted[pair] == -math.inf:
            assert slope.value == -math.inf, pair
        else:
            assert slope.value == pytest.approx(predicted[pair], abs=tol), pair


# --- the paper's tables ---------------------------------------------------------------------------------------------
#: Data, moments and weights of one softmax layer, as the slides print them [ODS25]; H_f(V, V) is exactly 0, not O(1).
OUTER = {
    "X": ["X^6", "X^6", "X^6", "X^4", "X^4", "X^2"],
    "M": ["M2^2", "M2^2", "M2^2", "M1 M2", "M1 M2", "M1^2"],
    "W": ["W_K^2 W_V^2", "W_K W_Q W_V^2", "W_Q^2 W_V^2", "W_K W_V", "W_Q W_V", "1"],
}
FUNCTIONAL = {
    "X": ["X^5", "X^3 + X^5", "X^5", "X^3", "X^3", None],
    "M": ["M3", "M2 + M3", "M3", "M2", "M2", None],
    "W": ["W_K^2 W_V", "W_K W_Q W_V + W_V", "W_Q^2 W_V", "W_K", "W_Q", None],
}
COLUMNS = {"X": ("X",), "M": ("M1", "M2", "M3"), "W": (Q, K, V)}


@pytest.mark.parametrize("column", ["X", "M", "W"])
def test_tables_of_the_paper(column):
    """The calculus derives the paper's O-tables in the data, in the moments and in the weights."""
    model = GrowthModel(SoftmaxAttention())
    for part, table in [(model.outer, OUTER), (model.functional, FUNCTIONAL)]:
        for (a, b), want in zip(PAIRS, table[column], strict=True):
            growth = part(a, b)
            assert part(b, a) == growth
            seen = (growth.in_moments() if column == "M" else growth).only(*COLUMNS[column])
            assert str(seen) == ("0" if want is None else f"O({want})")


def test_linear_attention_in_covariances():
    """Linear attention: H_o in O(Sigma^3), H_f in O(Omega Sigma), hollow diagonal."""
    model = GrowthModel(LinearAttention())
    for a, b in PAIRS:
        assert str(model.outer(a, b).in_covariances().only("Sigma", "Omega")) == "O(Sigma^3)"
        f = model.functional(a, b).in_covariances().only("Sigma", "Omega")
        assert str(f) == ("0" if a == b else "O(Omega Sigma)")


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_linear_mlp_in_covariances(depth):
    """Linear MLP of any depth: H_o in O(Sigma), H_f in O(Omega)."""
    model = GrowthModel(*[Dense()] * depth)
    for i, a in enumerate(model.parameters):
        for b in model.parameters[: i + 1]:
            assert str(model.outer(a, b).in_covariances().only("Sigma", "Omega")) == "O(Sigma)"
            assert str(model.functional(a, b).in_covariances().only("Sigma", "Omega")) == (
                "0" if a == b else "O(Omega)"
            )


# --- softmax attention measured -------------------------------------------------------------------------------------
def softmax_layer(seed, scale, path, L=5, d=3, d_K=2, d_V=2, targets=None):
    """A layer with every symbol scaled by scale^path; `targets` None: a loss with constant g and Hl."""
    gen = torch.Generator().manual_seed(seed)
    X, W_Q, W_K, W_V = rand(gen, L, d), rand(gen, d, d_K), rand(gen, d, d_K), rand(gen, d, d_V)
    g, R, Y = rand(gen, L, d_V), rand(gen, L, d_V, d_V), rand(gen, L, d_V)
    by = {name: scale ** path.get(name, 0) for name in ("X", Q, K, V, "t")}
    loss = {"loss": (g, R @ R.mT)} if targets is None else {"Y": targets * Y}
    return AttentionLayer(
        by["X"] * X, by[Q] * W_Q, by[K] * W_K, by[V] * W_V, temperature=by["t"], **loss
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.integers(-2, 2), st.integers(-2, 2), st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 999))
def test_exact_along_paths_that_hold_the_scores(x, q, k, v, seed):
    """Where t scales as X^2 W_Q W_K (A held fixed), every predicted exponent is exact, at any scale, jointly in all."""
    path = {"X": x, Q: q, K: k, V: v, "t": 2 * x + q + k}
    model = GrowthModel(SoftmaxAttention())
    assert model.holds_scores(path)
    for part in ("outer", "functional"):
        measured = measure(lambda s, part=part: log_norms(softmax_layer(seed, s, path), part), [0.5, 1.0, 4.0])
        agree(measured, model.exponents(part, path), 1e-9)
        assert model.exponents(part, path, "small") == model.exponents(part, path, "large")
        assert all(slope.spread <= 1e-9 for slope in measured.values())


@pytest.mark.parametrize(("targets", "dl"), [(1.0, "squared"), (0.0, "squared, Y = 0")])
def test_small_inputs(targets, dl):
    """sigma -> 0 under mean squared error: 6 6 6 4 4 2 | 5 3 5 3 3, and one more in H_f where Y = 0."""
    model = GrowthModel(SoftmaxAttention())
    for part in ("outer", "functional"):
        predicted = model.exponents(part, "X", dl=dl)
        agree(
            measure(lambda s, part=part: log_norms(softmax_layer(1, s, {"X": 1}, targets=targets), part), [1e-4, 1e-3]),
            predicted,
            1e-3,
        )
    more = 1 if targets == 0 else 0
    assert [predicted[p] for p in PAIRS[:-1]] == [5 + more, 3 + more, 5 + more, 3 + more, 3 + more]


def test_high_temperature():
    """t -> infinity: -2 -2 -2 -1 -1 0 | -2 -1 -2 -1 -1: H_f(Q, K), by its T-functional part, outlives H_o."""
    model = GrowthModel(SoftmaxAttention())
    for part, want in [("outer", [-2, -2, -2, -1, -1, 0]), ("functional", [-2, -1, -2, -1, -1, -math.inf])]:
        predicted = model.exponents(part, "t", "large", dl="squared")
        assert [predicted[p] for p in PAIRS] == want
        measured = measure(
            lambda s, part=part: log_norms(softmax_layer(2, s, {"t": 1}, targets=1.0), part), [1e3, 1e4, 1e5]
        )
        agree(measured, predicted, 1e-2)


def test_mixed_block():
    """H_f(Q, K) mixes X^3 (T-functional, wins for small inputs) and X^5; with A held fixed they grow alike."""
    model = GrowthModel(SoftmaxAttention())
    growth = model.functional(Q, K)
    assert (model.exponent(growth, "X", "small"), model.exponent(growth, "X", "large")) == (3, 5)
    fixed = {"X": 1, "t": 2}
    assert model.exponent(growth, fixed, "small") == model.exponent(growth, fixed, "large") == 1
    assert not model.holds_scores({"X": 1})


# --- comparison models measured -------------------------------------------------------------------------------------
def test_linear_attention_measured():
    """H_o of every block 6 at any scale; H_f 3 while F << Y and 6 when F >> Y; diagonal blocks of H_f zero."""
    gen = torch.Generator().manual_seed(0)
    X, W, Y = rand(gen, 4, 3), [rand(gen, 3, 2), rand(gen, 3, 2), rand(gen, 3, 2)], rand(gen, 4, 2)
    model = GrowthModel(LinearAttention())
    for scales, regime in [([1e-4, 1e-3], "small"), ([1e3, 1e4], "large")]:
        for part in ("outer", "functional"):
            measured = measure(lambda s, part=part: log_norms(LinearAttentionLayer(s * X, *W, Y), part), scales)
            agree(measured, model.exponents(part, "X", regime, dl="squared"), 1e-6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deep_linear_measured(depth):
    """2 * 3^D for every block of H_o; H_f 3^D -> 2 * 3^D, zero on the last layer's diagonal: at 1e-20 and 1e20."""
    gen = torch.Generator().manual_seed(depth)
    layers = [tuple(rand(gen, 2, 2) for _ in range(3)) for _ in range(depth)]
    X, Y = rand(gen, 3, 2), rand(gen, 3, 2)
    model = GrowthModel(*[LinearAttention()] * depth)
    rename = (lambda n: n) if depth > 1 else (lambda n: n.removeprefix("layers.0.attn."))
    for scales, regime in [([1e-20, 1e-19], "small"), ([1e19, 1e20], "large")]:
        for part in ("outer", "functional"):
            measured = measure(lambda s, part=part: log_norms(DeepLinearTransformer(s * X, layers, Y), part), scales)
            measured = {(rename(a), rename(b)): slope for (a, b), slope in measured.items()}
            agree(measured, model.exponents(part, "X", regime, dl="squared"), 1e-6)


@pytest.mark.parametrize("symbol", ["X", "W_1", "W_2", "W_3"])
def test_linear_mlp_measured(symbol):
    """Exponents of a linear MLP in the data (2 | 1) and in each of its weights, exact for a constant dl."""
    gen = torch.Generator().manual_seed(5)
    X, W = rand(gen, 6, 3), [rand(gen, 3, 2), rand(gen, 2, 2), rand(gen, 2, 2)]
    g, R = rand(gen, 6, 2), rand(gen, 6, 2, 2)
    model = GrowthModel(Dense(), Dense(), Dense())

    def at(s, part):
        scaled = [s * w if symbol == f"W_{i + 1}" else w for i, w in enumerate(W)]
        return log_norms(LinearMLP(s * X if symbol == "X" else X, scaled, loss=(g, R @ R.mT)), part)

    for part in ("outer", "functional"):
        agree(measure(lambda s, part=part: at(s, part), [0.1, 1.0, 10.0]), model.exponents(part, symbol), 1e-9)


@pytest.mark.parametrize("symbol", ["X", "W_1", "W_2"])
def test_relu_mlp_measured(symbol):
    """A ReLU MLP is positively homogeneous: same calculus with a function of degree 1 and no second derivative."""
    gen = torch.Generator().manual_seed(6)
    X, W_1, W_2 = rand(gen, 6, 3), rand(gen, 3, 4), rand(gen, 4, 2)
    g, R = rand(gen, 6, 2), rand(gen, 6, 2, 2)
    model = GrowthModel(Dense(), Relu(), Dense())

    def at(s, part):
        X_s, A, B = (s * t if symbol == n else t for n, t in [("X", X), ("W_1", W_1), ("W_2", W_2)])
        return log_norms(HiddenLayerMLP(X_s, A, B, loss=(g, R @ R.mT)), part)

    for part in ("outer", "functional"):
        agree(measure(lambda s, part=part: at(s, part), [0.1, 1.0, 10.0]), model.exponents(part, symbol), 1e-9)


# --- normalisation and depth, by autograd ---------------------------------------------------------------------------
def norm(S):
    return (S - S.mean(-1, keepdim=True)) / S.var(-1, keepdim=True, correction=0).sqrt()


def network_log_norms(forward, weights, part):
    """Block log norms of H_o (cross-entropy at the output) or H_f = <dl, d2F> of any forward, dl and d2l constant."""
    names, sizes = list(weights), [w.numel() for w in weights.values()]

    def unflat(theta):
        return {n: p.reshape(weights[n].shape) for n, p in zip(names, theta.split(sizes), strict=True)}

    theta = torch.cat([w.reshape(-1) for w in weights.values()])
    F = forward(weights)
    dl = torch.linspace(-1, 1.3, F.numel(), dtype=torch.float64).reshape(F.shape)
    if part == "outer":
        J = jacfwd(lambda th: forward(unflat(th)).reshape(-1))(theta)
        H = J.T @ J
    else:
        H = jacfwd(grad(lambda th: (dl * forward(unflat(th))).sum()))(theta)
    rows = dict(zip(names, torch.arange(len(theta)).split(sizes), strict=True))
    out = {}
    for i, a in enumerate(names):
        for b in names[: i + 1]:
            size = float(H[rows[a]][:, rows[b]].norm())
            out[a, b] = math.log(size) if size > 0 else -math.inf
    return out


def test_normalised_input_does_not_grow():
    """Pre-LN, bare layer: every exponent in X is 0."""
    gen = torch.Generator().manual_seed(0)
    X, W, Y = rand(gen, 5, 4), [rand(gen, 4, 2), rand(gen, 4, 2), rand(gen, 4, 3)], rand(gen, 5, 3)
    model = GrowthModel(LayerNorm(), SoftmaxAttention())
    for part in ("outer", "functional"):
        measured = measure(lambda s, part=part: log_norms(AttentionLayer(norm(s * X), *W, Y), part), [1e-3, 1.0, 1e3])
        for regime in ("small", "large"):
            agree(measured, model.exponents(part, "X", regime, dl="squared"), 1e-6)


def test_pre_norm_block():
    """A Pre-LN block with a final norm, sigma >> 1: H_o -2, H_f(Q, Q) -1, H_f(V, V) -2, as the paper's figure shows."""
    gen = torch.Generator().manual_seed(1)
    X = rand(gen, 4, 3)
    weights = {Q: rand(gen, 3, 2), K: rand(gen, 3, 2), V: rand(gen, 3, 3), "W_1": rand(gen, 3, 2)}

    def forward(w, s):
        S = norm(s * X)
        A = torch.softmax((S @ w[Q]) @ (S @ w[K]).T / math.sqrt(2), -1)
        return norm(s * X + A @ S @ w[V]) @ w["W_1"]

    model = GrowthModel(Residual(LayerNorm(), SoftmaxAttention()), LayerNorm(), Dense())
    for part in ("outer", "functional"):
        measured = measure(
            lambda s, part=part: network_log_norms(lambda w: forward(w, s), weights, part), [1e4, 1e5, 1e6]
        )
        agree(measured, model.exponents(part, "X", "large"), 1e-3)
    assert model.exponents("outer", "X", "large")[Q, Q] == -2
    assert [model.exponents("functional", "X", "large")[p] for p in [(Q, Q), (V, V)]] == [-1, -2]


def two_layers(causal):
    """Forward (weights, scale) of two residual softmax layers, and the weights."""
    gen = torch.Generator().manual_seed(2)
    X = rand(gen, 4, 3)
    names = [f"layers.{l}.attn.{n}" for l in range(2) for n in (Q, K, V)]
    shapes = [(3, 2), (3, 2), (3, 3)] * 2
    weights = {n: rand(gen, *s) for n, s in zip(names, shapes, strict=True)} | {"W_1": rand(gen, 3, 2)}
    hide = torch.zeros(4, 4, dtype=torch.float64)
    if causal:
        hide = hide.masked_fill(~torch.ones(4, 4, dtype=torch.bool).tril(), -math.inf)

    def forward(w, s):
        S = s * X
        for l in range(2):
            W_Q, W_K, W_V = (w[f"layers.{l}.attn.{n}"] for n in (Q, K, V))
            S = S + torch.softmax((S @ W_Q) @ (S @ W_K).T / math.sqrt(2) + hide, -1) @ S @ W_V
        return S @ w["W_1"]

    return forward, weights


def test_two_softmax_layers():
    """Two residual causal softmax layers, sigma -> 0: every block as derived; H_f(V, V) 3 in the first layer, 0 in the
    last, H_o 2 and 6 as in one layer: the depths of the paper's figure."""
    forward, weights = two_layers(causal=True)
    model = GrowthModel(Residual(SoftmaxAttention()), Residual(SoftmaxAttention()), Dense())
    for part in ("outer", "functional"):
        measured = measure(lambda s, part=part: network_log_norms(lambda w: forward(w, s), weights, part), [1e-3, 1e-2])
        agree(measured, model.exponents(part, "X"), 2e-2)
    functional = model.exponents("functional", "X")
    assert functional["layers.0.attn.W_V", "layers.0.attn.W_V"] == 3
    assert functional["layers.1.attn.W_V", "layers.1.attn.W_V"] == -math.inf


def test_cancellation_without_a_mask():
    """Without a mask uniform attention moves all tokens alike, and H_f(V, V) of the first layer is X^5, not X^3."""
    forward, weights = two_layers(causal=False)
    name = "layers.0.attn.W_V"
    measured = measure(lambda s: network_log_norms(lambda w: forward(w, s), weights, "functional"), [1e-3, 1e-2])
    assert measured[name, name].value == pytest.approx(5, abs=2e-2)


# --- the tools ------------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(st.floats(-60, 60), st.floats(-5, 5))
def test_measure_recovers_a_power(power, offset):
    """The slope of an exact power law is the power, its spread 0; a block of zeros has slope -inf."""
    slopes = measure(lambda s: {"a": offset + power * math.log(s), "0": -math.inf}, [1e-3, 0.1, 2.0, 50.0])
    assert slopes["a"].value == pytest.approx(power, abs=1e-9)
    assert slopes["a"].spread == pytest.approx(0, abs=1e-9)
    assert slopes["0"].value == -math.inf


def test_spread_shows_a_mixture():
    """For s + s^3 the local exponents run from 1 to 3: the spread is their distance, and no single power is claimed."""
    slope = measure(lambda s: {"a": math.log(s + s**3)}, [1e-6, 1e-5, 1e5, 1e6])["a"]
    assert slope.spread == pytest.approx(2, abs=1e-6)
    assert 1 < slope.value < 3


def test_moments_keep_the_query_tokens():
    """H_o(Q, Q) = M2^2 X^2 ...: of the six powers of X four are in the moments, two are the query tokens."""
    model = GrowthModel(SoftmaxAttention())
    assert str(model.outer(Q, Q).in_moments().only("M2", "X")) == "O(M2^2 X^2)"
    assert str(model.functional(Q, Q).in_moments().only("M3", "X")) == "O(M3 X^2)"
    assert str(model.outer(V, V).in_moments().only("M1", "X")) == "O(M1^2)"


def test_growth_algebra():
    """Sums, products and powers of records; an empty sum is zero."""
    X, W = Growth.symbol("X"), Growth.symbol("W")
    assert str((X + W) ** 2) == "O(W X + W^2 + X^2)"
    assert str(X * Growth.symbol("X", -1)) == "O(1)"
    assert (Growth() * X).zero
    assert str(Growth()) == "0"


def test_input_errors():
    """What cannot be used is named."""
    model = GrowthModel(SoftmaxAttention())
    with pytest.raises(UnknownName, match="no parameter matches 'W_O'"):
        model.outer("W_O", Q)
    with pytest.raises(UnknownName, match="no symbol 'Z'"):
        model.exponent(model.output, "Z")
    for stages in [("softmax",), (SoftmaxAttention,), ([Dense()],), (Residual(LayerNorm(), "softmax"),)]:
        with pytest.raises(InputError, match=r"is not a stage; give SoftmaxAttention\(\)"):
            GrowthModel(*stages)
    with pytest.raises(InputError, match="linear models"):
        model.functional(Q, V).in_covariances()
    with pytest.raises(InputError, match="two positive scales"):
        measure(lambda s: {}, [1.0])
    for scales in ([1.0, 1.0], [math.nan, 1.0]):
        with pytest.raises(InputError, match="two positive scales"):
            measure(lambda s: {"a": 0.0}, scales)
    with pytest.raises(InputError, match="powers of 0 and above; got -1"):
        Growth.symbol("X") ** -1
    with pytest.raises(InputError, match=r"block a is zero or infinite at scale 0\.1"):
        measure(lambda s: {"a": math.log(s) if s > 0.5 else -math.inf}, [0.1, 1.0, 2.0])
    with pytest.raises(UnknownName, match="unknown part 'total'; choose from outer, functional"):
        model.exponents("total", "X")
    with pytest.raises(UnknownName, match=r"unknown dl .*; choose from constant"):
        model.exponents("outer", "X", dl="square")
    with pytest.raises(UnknownName, match=r"unknown regime .*; choose from small, large"):
        model.exponents("outer", "X", "tiny")


def test_labels_name_the_blocks():
    """`query` is W_Q here as everywhere."""
    model = GrowthModel(SoftmaxAttention())
    assert model.functional("query", "value") == model.functional(Q, V)
