"""Theorems of the gauge symmetry: free Hessian products, negative curvature, exact bulk, balancing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError
from quadform.theory.attention import AttentionLayer
from quadform.theory.balancing import balance, balancing_map, flattest
from quadform.theory.gauge import Gauge, bulk, gauges
from quadform.theory.multihead import MultiHeadAttentionLayer
from quadform.theory.score_split import score_gradient

torch.set_num_threads(1)
TOL = 1e-12


def rand(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


@st.composite
def layers(draw, max_width=4, width=4):
    """Attention layers: sizes 1 to 4, one sequence or a batch, causal or not, both losses."""
    L, d, d_V = draw(st.integers(1, 4)), draw(st.integers(1, width)), draw(st.integers(1, 4))
    d_K = draw(st.integers(1, max_width))
    batch = draw(st.sampled_from([(), (2,)]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    loss = draw(st.sampled_from(["mse", "cross-entropy"]))
    Y = rand(gen, *batch, L, d_V)
    Y = Y if loss == "mse" else torch.softmax(Y, -1)
    W = [rand(gen, d, d_K), rand(gen, d, d_K), rand(gen, d, d_V)]
    mask = draw(st.sampled_from([None, "causal"]))
    return AttentionLayer(rand(gen, *batch, L, d), *W, Y, mask=mask, loss=loss)


def qk(layer):
    g = layer.gradients()
    return Gauge.qk(layer.weights["W_Q"], layer.weights["W_K"], g["W_Q"], g["W_K"])


def matrices(gauge, seed):
    r = gauge.P.shape[1]
    return rand(torch.Generator().manual_seed(seed), r, r)


@settings(max_examples=30, deadline=None)
@given(layers(), st.integers(0, 999))
def test_query_key_identity(layer, seed):
    """H vec(W_Q B, -W_K B^T) = vec(-g_Q B^T, g_K B), and zero on W_V, for every B."""
    gauge = qk(layer)
    B = matrices(gauge, seed)
    got = layer.hvp(gauge.direction(B) | {"W_V": torch.zeros_like(layer.weights["W_V"])})
    want = gauge.action(B)
    size = max(float(layer.hessian().dense().abs().max()) * float(B.abs().max()), 1e-9)
    for name in ("W_Q", "W_K"):
        assert float((got[name] - want[name]).abs().max()) <= 20 * TOL * size
    assert float(got["W_V"].abs().max()) <= 20 * TOL * size
    assert gauge.defect <= 1e-9 or float(gauge.Gam.abs().max()) <= 1e-12 * size


@settings(max_examples=30, deadline=None)
@given(layers(), st.integers(0, 999))
def test_curvature_along_the_orbit(layer, seed):
    """w^T H w = -2 tr(B^T Gam B^T) with Gam = W_Q^T g_Q."""
    gauge = qk(layer)
    B = matrices(gauge, seed)
    w = gauge.direction(B) | {"W_V": torch.zeros_like(layer.weights["W_V"])}
    image = layer.hvp(w)
    value = sum(float((w[name] * image[name]).sum()) for name in w)
    size = float(layer.hessian().dense().norm()) * sum(float(t.square().sum()) for t in w.values())
    assert abs(float(gauge.curvature(B)) - value) <= TOL * max(size, 1e-9)
    assert abs(float(gauge.curvature(B)) + 2 * float(torch.trace(B.T @ gauge.Gam @ B.T))) <= TOL * max(size, 1e-9)


def network(seed, d=3, d_K=2, d_V=2, hidden=4, classes=3, L=4):
    """A block with two heads, W_O, residual, tanh MLP and cross-entropy, and its autograd gradient and Hessian."""
    gen = torch.Generator().manual_seed(seed)
    X, y = rand(gen, L, d), torch.randint(classes, (L,), generator=gen)
    shapes = {}
    for h in range(2):
        shapes |= {f"Q{h}": (d, d_K), f"K{h}": (d, d_K), f"V{h}": (d, d_V), f"O{h}": (d_V, d)}
    shapes |= {"A": (d, hidden), "C": (hidden, classes)}
    weights = {name: rand(gen, *shape) for name, shape in shapes.items()}
    sizes = [w.numel() for w in weights.values()]

    def unflat(theta):
        return {n: p.reshape(shapes[n]) for n, p in zip(shapes, theta.split(sizes), strict=True)}

    def loss(theta):
        w = unflat(theta)
        stream = X
        for h in range(2):
            A = torch.softmax((X @ w[f"Q{h}"]) @ (X @ w[f"K{h}"]).T / math.sqrt(d_K), -1)
            stream = stream + A @ X @ w[f"V{h}"] @ w[f"O{h}"]
        logits = torch.tanh(stream @ w["A"]) @ w["C"]
        return -torch.log_softmax(logits, -1)[torch.arange(L), y].mean()

    theta = torch.cat([w.reshape(-1) for w in weights.values()])
    return weights, unflat(grad(loss)(theta)), jacfwd(grad(loss))(theta)


def embedded(weights, part):
    return torch.cat([part.get(n, torch.zeros_like(w)).reshape(-1) for n, w in weights.items()])


@pytest.mark.parametrize("kind", ["QK", "VO"])
def test_any_network_around_the_layer(kind):
    """Both identities hold inside a two-head block with residual, MLP and cross-entropy, on the full Hessian."""
    weights, g, H = network(0)
    for h in range(2):
        a, b = f"{kind[0]}{h}", f"{kind[1]}{h}"
        make = Gauge.qk if kind == "QK" else Gauge.vo
        gauge = make(weights[a], weights[b], g[a], g[b], (a, b))
        B = matrices(gauge, h)
        got, want = H @ embedded(weights, gauge.direction(B)), embedded(weights, gauge.action(B))
        assert float((got - want).abs().max()) <= TOL * float(H.abs().max())
        assert gauge.defect <= 1e-12
        found = gauge.negative_direction()
        w = embedded(weights, found.vector)
        assert float(w @ H @ w) == pytest.approx(found.curvature, rel=1e-9)
        assert float(torch.linalg.eigvalsh(H)[0]) <= found.rayleigh < 0


@pytest.mark.parametrize("heads", [1, 3])
def test_every_pair_of_a_multi_head_layer(heads):
    """Each head has two pairs; H acts on their directions as the gradient says, and not on any other weight."""
    gen = torch.Generator().manual_seed(heads)
    W = [rand(gen, 4, 2 * heads), rand(gen, 4, 2 * heads), rand(gen, 4, 3 * heads), rand(gen, 3 * heads, 2)]
    layer = MultiHeadAttentionLayer(rand(gen, 2, 5, 4), *W, rand(gen, 2, 5, 2), heads=heads, prefix="layers.0.attn.")
    pairs, H = gauges(layer), layer.hessian()
    assert len(pairs) == 2 * heads
    size = float(H.dense().abs().max())
    for gauge in pairs:
        sub = layer.space.select(*gauge.names)
        B = matrices(gauge, heads)
        got = H @ layer.space.embed(sub, gauge.direction(B))
        want = layer.space.embed(sub, gauge.action(B))
        assert max(float((got[name] - want[name]).abs().max()) for name in got) <= 20 * TOL * size


def test_pair_of_a_single_head():
    """A single head without an output matrix has the query-key pair alone, under its names."""
    gen = torch.Generator().manual_seed(0)
    W = [rand(gen, 3, 2), rand(gen, 3, 2), rand(gen, 3, 2)]
    layer = AttentionLayer(rand(gen, 4, 3), *W, rand(gen, 4, 2), prefix="a.")
    (gauge,) = gauges(layer)
    B = matrices(gauge, 1)
    got, want = layer.hessian().block(gauge.names) @ gauge.direction(B), gauge.action(B)
    assert set(got) == set(want) == {"a.W_Q", "a.W_K"}
    assert all(torch.allclose(got[name], want[name], rtol=0, atol=1e-12) for name in got)


def test_defect_shows_a_broken_symmetry():
    """A query bias breaks the symmetry, and the defect is of order 1."""
    gen = torch.Generator().manual_seed(0)
    X, W_Q, W_K, W_V, bias, Y = (rand(gen, *s) for s in [(5, 3), (3, 2), (3, 2), (3, 2), (2,), (5, 2)])

    def loss(Q, K):
        return ((torch.softmax((X @ Q + bias) @ (X @ K).T, -1) @ X @ W_V - Y) ** 2).mean()

    g_Q, g_K = grad(loss, argnums=(0, 1))(W_Q, W_K)
    assert Gauge.qk(W_Q, W_K, g_Q, g_K).defect > 1e-2


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.integers(0, 9999), st.sampled_from(["any", "positive", "negative", "skew"]))
def test_negative_direction_always_exists(r, seed, kind):
    """For r >= 2 and Gam != 0 of any kind there is B with -2 <Gam, B^2> < 0."""
    gen = torch.Generator().manual_seed(seed)
    M = rand(gen, r, r)
    Gam = {"any": M, "positive": M @ M.T, "negative": -M @ M.T, "skew": M - M.T}[kind]
    P, Q = rand(gen, r, r), rand(gen, r, r)
    gauge = Gauge.qk(P, Q, torch.linalg.solve(P.T, Gam), torch.linalg.solve(Q.T, Gam.T))
    found = gauge.negative_direction()
    assert found.curvature < 0
    assert found.rayleigh < 0
    if kind == "skew":  # not by rounding: -2 times the largest singular value
        assert found.curvature < -float(Gam.abs().max())
    assert float(gauge.curvature(found.B)) == pytest.approx(found.curvature)


@settings(max_examples=20, deadline=None)
@given(layers(max_width=3))
def test_ritz_values_interlace(layer):
    """Ritz values on the orbit tangent lie within the spectrum of H, and the explicit direction above the smallest."""
    gauge = qk(layer)
    ritz = gauge.ritz()
    values = torch.linalg.eigvalsh(layer.hessian().dense())
    slack = 1e-9 * max(float(values.abs().max()), 1e-9)
    assert float(values[0]) - slack <= float(ritz[0])
    assert float(ritz[-1]) <= float(values[-1]) + slack
    try:
        found = gauge.negative_direction()
    except InputError:
        return
    assert float(ritz[0]) <= found.rayleigh + slack


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("d", "d_K", "part"), [(4, 3, 1e-5), (4, 3, 1e-9), (4, 3, 0.0), (2, 6, 1.0)])
def test_ritz_values_interlace_for_weights_of_nearly_lower_rank(dtype, d, d_K, part):
    """Directions that the weights nearly kill are rounding: they are left out, and the bounds stay bounds."""
    gen = torch.Generator().manual_seed(0)
    X, Y, W = rand(gen, 5, d), rand(gen, 5, 3), [rand(gen, d, n) for n in (d_K, d_K, 3)]
    for w in W[:2]:
        w[:, -1] = part * w[:, -1] + (1 - part) * w[:, 0]
    ritz = qk(AttentionLayer(X.to(dtype), *(w.to(dtype) for w in W), Y.to(dtype))).ritz()
    values = torch.linalg.eigvalsh(AttentionLayer(X, *W, Y).matrix())
    slack = torch.finfo(dtype).eps ** 0.5 * float(values.abs().max())
    assert float(values[0]) - slack <= float(ritz[0])
    assert float(ritz[-1]) <= float(values[-1]) + slack


@settings(max_examples=25, deadline=None)
@given(layers(max_width=9, width=2))
def test_exact_bulk(layer):
    """+-s_k are eigenvalues of the FULL Hessian, (u z^T, +-v z^T) their vectors, at least d_K - 2d + 1 of each."""
    d, d_K = layer.weights["W_Q"].shape
    G = score_gradient(layer.head)
    H = layer.hessian().dense()
    size = max(float(H.abs().max()), 1e-9)
    found = bulk(layer.weights["W_Q"], layer.weights["W_K"], G)
    assert len(found) == 2 * min(G.shape)
    for part in found:
        assert part.multiplicity >= d_K - 2 * d + 1
        vectors = part.vectors()
        flat = torch.cat([vectors["W_Q"].flatten(1), vectors["W_K"].flatten(1)], 1)
        flat = torch.cat([flat, flat.new_zeros(len(flat), H.shape[0] - flat.shape[1])], 1)
        eye = torch.eye(len(flat), dtype=torch.float64)
        assert torch.allclose(flat @ flat.T, eye, rtol=0, atol=1e-10)
        if len(flat):
            assert float((flat @ H - part.eigenvalue * flat).abs().max()) <= 1e-10 * size


def test_bulk_multiplicity_is_seen():
    """d = 2, d_K = 9: six explicit eigenvectors to each of the four values."""
    gen = torch.Generator().manual_seed(0)
    W = [rand(gen, 2, 9), rand(gen, 2, 9), rand(gen, 2, 3)]
    layer = AttentionLayer(rand(gen, 6, 2), *W, rand(gen, 6, 3))
    found = bulk(W[0], W[1], score_gradient(layer.head))
    assert [part.multiplicity for part in found] == [6, 6, 6, 6]
    values = torch.linalg.eigvalsh(layer.hessian().dense())
    for part in found:
        assert int(((values - part.eigenvalue).abs() < 1e-10).sum()) >= 6


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 999))
def test_balance(m, n, r, seed):
    """Balancing keeps W_Q W_K^T, makes the Gram matrices equal, and reaches |W_Q|^2 + |W_K|^2 = 2 ||W_Q W_K^T||_*; all
    of it but for the directions that the product does not see, which stay."""
    gen = torch.Generator().manual_seed(seed)
    W_Q, W_K = 3 * rand(gen, m, r), rand(gen, n, r)
    stays = check_balanced(W_Q, W_K)
    if r <= min(m, n) or m == n:  # generic weights that the product sees whole
        assert stays == 0


@pytest.mark.parametrize(("zero_Q", "zero_K"), [(3, 0), (0, 3), (1, 1), (2, 1), (3, 3)])
def test_balance_keeps_what_the_product_does_not_see(zero_Q, zero_K):
    """W_Q = 0, or some of its columns, as at many starts: W_K keeps its rank there and the loss its gradient."""
    gen = torch.Generator().manual_seed(0)
    W_Q, W_K = rand(gen, 4, 3), rand(gen, 5, 3)
    W_Q[:, :zero_Q], W_K[:, 3 - zero_K :] = 0, 0
    check_balanced(W_Q, W_K)
    turn = torch.linalg.qr(rand(gen, 3, 3)).Q
    check_balanced(W_Q @ turn, W_K @ turn)
    if not W_Q.any():
        assert torch.allclose(balance(W_Q, W_K)[1], W_K, rtol=0, atol=1e-14)


def null_space(W):
    _, s, Vh = torch.linalg.svd(W)
    return Vh[int((s > 1e-10).sum()) :].T


def check_balanced(W_Q, W_K):
    """The theorem of `balance`; returns how many directions stay."""
    Q, K = balance(W_Q, W_K)
    M = W_Q @ W_K.T
    assert float((Q @ K.T - M).abs().max()) <= 10 * TOL * max(float(M.abs().max()), 1e-3)
    for new, old in ((Q, W_Q), (K, W_K)):
        assert torch.linalg.matrix_rank(new, tol=1e-10) == torch.linalg.matrix_rank(old, tol=1e-10)
    # z in the null space of one, orthogonal to that of the other
    z_Q = null_space(torch.cat([W_K, null_space(W_Q).T]))
    z_K = null_space(torch.cat([W_Q, null_space(W_K).T]))
    assert torch.allclose(Q @ z_Q, W_Q @ z_Q, rtol=0, atol=1e-12)
    assert torch.allclose(K @ z_K, W_K @ z_K, rtol=0, atol=1e-12)
    seen = null_space(torch.cat([z_Q, z_K], 1).T)
    assert torch.allclose(seen.T @ Q.T @ Q @ seen, seen.T @ K.T @ K @ seen, rtol=0, atol=1e-10)
    stays = float((W_Q @ z_Q).square().sum() + (W_K @ z_K).square().sum())
    least = 2 * float(torch.linalg.svdvals(M).sum()) + stays
    assert float(Q.square().sum() + K.square().sum()) == pytest.approx(least, rel=1e-9)
    assert float(W_Q.square().sum() + W_K.square().sum()) >= least * (1 - 1e-12)
    again = balance(Q, K)
    assert torch.allclose(again[0], Q, atol=1e-8)  # a balanced pair is its own nearest balanced pair
    assert torch.allclose(again[1], K, atol=1e-8)
    return z_Q.shape[1] + z_K.shape[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(0, 999))
def test_balancing_map(r, seed):
    """S A S = S^-1 B S^-1, and tr(S^T A S) + tr(S^-1 B S^-T) is least there among all invertible maps."""
    gen = torch.Generator().manual_seed(seed)
    W_Q, W_K, other = rand(gen, r + 2, r), rand(gen, r + 1, r), rand(gen, r, r)
    A, B = W_Q.T @ W_Q, W_K.T @ W_K
    S = balancing_map(A, B)
    inverse = torch.linalg.inv(S)
    assert torch.allclose(S @ A @ S, inverse @ B @ inverse, rtol=1e-8, atol=1e-9)

    def cost(T):
        T_inv = torch.linalg.inv(T)
        return float(torch.trace(T.T @ A @ T) + torch.trace(T_inv @ B @ T_inv.T))

    assert cost(S) <= cost(other) * (1 + 1e-12)
    assert cost(S) <= cost(torch.eye(r, dtype=torch.float64)) * (1 + 1e-12)
    near = S + 0.01 * other
    assert cost(S) <= cost(near) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_balancing_map_of_nearly_singular_matrices(seed):
    """S A S = S^-1 B S^-1 also for condition numbers of 1e10, as the keys of saturated attention give them."""
    E = torch.linalg.qr(rand(torch.Generator().manual_seed(seed), 3, 3)).Q
    A = E * torch.logspace(-10, 0, 3, dtype=torch.float64) @ E.T
    B = 2 * A
    S = balancing_map(A, B)
    inverse = torch.linalg.inv(S)
    left, right = S @ A @ S, inverse @ B @ inverse
    assert float((left - right).abs().max()) <= 1e-8 * float(left.abs().max())
    assert float(left.trace()) == pytest.approx(2**0.5 * float(A.trace()), rel=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 999))
def test_flattest_point(d, d_K, d_V, seed):
    """`flattest` keeps the function and minimises tr H_o(Q,Q) + tr H_o(K,K); no point of the orbit is below it."""
    gen = torch.Generator().manual_seed(seed)
    X, Y = rand(gen, 6, d), rand(gen, 6, d_V)
    W_Q, W_K, W_V = 2 * rand(gen, d, d_K), rand(gen, d, d_K), rand(gen, d, d_V)

    def trace(Q, K):
        layer = AttentionLayer(X, Q, K, W_V, Y)
        return sum(layer.trace("outer", name).value for name in ("W_Q", "W_K"))

    layer = AttentionLayer(X, W_Q, W_K, W_V, Y)
    Q, K = flattest(layer)
    assert torch.allclose(Q @ K.T, W_Q @ W_K.T, rtol=0, atol=1e-9 * float((W_Q @ W_K.T).abs().max()))
    least = trace(Q, K)
    rivals = [trace(W_Q, W_K), trace(*balance(W_Q, W_K))]
    for scale in (0.05, 0.5):
        S = torch.eye(d_K, dtype=torch.float64) + scale * rand(gen, d_K, d_K)
        rivals.append(trace(Q @ S, K @ torch.linalg.inv(S).T))
    assert all(least <= rival * (1 + 1e-9) for rival in rivals)


def test_input_errors():
    """What cannot be used is named."""
    gen = torch.Generator().manual_seed(0)
    W = rand(gen, 3, 1)
    with pytest.raises(InputError, match="no negative curvature"):
        Gauge.qk(W, W, -W, -W).negative_direction()
    with pytest.raises(InputError, match="critical point"):
        Gauge.qk(W, W, 0 * W, 0 * W).negative_direction()
    with pytest.raises(InputError, match="gauge pair"):
        Gauge.qk(W, rand(gen, 3, 2), W, rand(gen, 3, 2))
    with pytest.raises(InputError, match="positive definite"):
        balancing_map(torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    with pytest.raises(InputError, match="G has shape"):
        bulk(W, W, rand(gen, 2, 2))
    with pytest.raises(InputError, match="one inner width"):
        balance(W, rand(gen, 3, 2))
    with pytest.raises(InputError, match="W_K is not finite: nan"):
        balance(W, W * math.nan)
    with pytest.raises(InputError, match=r"W_Q is torch\.float16; closed forms work in float32 or float64"):
        balance(W.half(), W.half())


def test_flattest_point_of_a_zero_product():
    """W_Q = 0: no point of the orbit has less curvature than another in the limit; the weights stay."""
    gen = torch.Generator().manual_seed(0)
    W_K, W_V = rand(gen, 3, 2), rand(gen, 3, 2)
    layer = AttentionLayer(rand(gen, 5, 3), torch.zeros(3, 2).double(), W_K, W_V, rand(gen, 5, 2))
    Q, K = flattest(layer)
    assert not Q.any()
    assert torch.allclose(K, W_K, rtol=0, atol=1e-14)
