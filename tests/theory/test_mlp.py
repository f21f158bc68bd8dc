"""Theorems of the comparison MLPs: linear of any depth, convolutional, one hidden layer."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, jacfwd

from quadform.core.errors import InputError, UnknownName
from quadform.testing import check_operator
from quadform.theory.mlp import HiddenLayerMLP, LinearMLP, Structured, convolution, linear_mlp_ranks

torch.set_num_threads(1)
TOL = 1e-12


def rand(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets(seed, F_shape, loss):
    if loss == "mse":
        return rand(seed, *F_shape)
    return torch.softmax(rand(seed, *F_shape), -1)


def value(F, Y, loss):
    """The loss, written independently of the library."""
    if loss == "mse":
        return ((F - Y) ** 2).mean()
    return -(Y * torch.log_softmax(F, -1)).sum(-1).mean()


def oracle(forward, weights, Y, loss):
    """H and H_o by dense autograd, and the gradient, over the flat weights."""
    sizes = [w.numel() for w in weights]
    shapes = [w.shape for w in weights]

    def unflat(theta):
        return [t.reshape(s) for t, s in zip(theta.split(sizes), shapes, strict=True)]

    theta = torch.cat([w.reshape(-1) for w in weights])
    H = jacfwd(grad(lambda th: value(forward(*unflat(th)), Y, loss)))(theta)
    F = forward(*weights)
    J = jacfwd(lambda th: forward(*unflat(th)).reshape(-1))(theta)
    Hl = jacfwd(grad(lambda f: value(f.reshape(F.shape), Y, loss)))(F.reshape(-1))
    return H, J.T @ Hl @ J, grad(lambda th: value(forward(*unflat(th)), Y, loss))(theta)


def by_products(operator):
    return operator @ torch.eye(operator.shape[1], dtype=operator.dtype)


def assembled(model, part):
    names = list(model.weights)
    return torch.cat([torch.cat([getattr(model, part)(a, b) for b in names], 1) for a in names], 0)


def agree(model, forward, Y, loss):
    H, H_o, g = oracle(forward, list(model.weights.values()), Y, loss)
    size = float(H.abs().max().clamp_min(H_o.abs().max())) + 1e-30
    for got, want in [
        (assembled(model, "block"), H),
        (assembled(model, "outer"), H_o),
        (assembled(model, "functional"), H - H_o),
        (model.hessian().dense(), H),
        (model.outer_operator().dense(), H_o),
        (model.functional_operator().dense(), H - H_o),
        (by_products(model.hessian()), H),
        (by_products(model.outer_operator()), H_o),
        (by_products(model.functional_operator()), H - H_o),
    ]:
        assert float((got - want).abs().max()) <= TOL * size
    diagonal = torch.cat([t.reshape(-1) for t in model.diagonal().values()])
    assert float((diagonal - H.diagonal()).abs().max()) <= TOL * size
    got = torch.cat([t.reshape(-1) for t in model.gradients().values()])
    assert float((got - g).abs().max()) <= TOL * max(float(g.abs().max()), 1e-3)


sizes = st.integers(1, 4)
losses = st.sampled_from(["mse", "cross-entropy"])
seeds = st.integers(0, 2**31)


@settings(max_examples=30, deadline=None)
@given(st.lists(sizes, min_size=2, max_size=5), st.integers(1, 6), losses, seeds)
def test_linear_mlp(widths, N, loss, seed):
    """H_o = (A_l^T S A_m) kron (B_l Hl B_m^T) and H_f = C (x) A^T Gamma B^T are the split of the autograd Hessian."""
    weights = [rand(seed + i, a, b) for i, (a, b) in enumerate(pairwise(widths))]
    X, Y = rand(seed + 50, N, widths[0]), targets(seed + 51, (N, widths[-1]), loss)

    def forward(*Ws):
        F = X
        for W in Ws:
            F = F @ W
        return F

    agree(LinearMLP(X, weights, Y, loss=loss), forward, Y, loss)


@settings(max_examples=15, deadline=None)
@given(st.lists(sizes, min_size=3, max_size=5), seeds)
def test_linear_mlp_sees_data_through_sigma_and_omega(widths, seed):
    """O(Sigma), O(Omega) at every depth: orthogonally mixed samples (same Sigma, Omega) give the same H_o and H_f,
    and `H_o = (2/d_out) (A^T Sigma A) kron (B B^T)` literally."""
    N = 6
    weights = [rand(seed + i, a, b) for i, (a, b) in enumerate(pairwise(widths))]
    X, Y = rand(seed + 50, N, widths[0]), rand(seed + 51, N, widths[-1])
    Q = torch.linalg.qr(rand(seed + 52, N, N)).Q
    one, two = LinearMLP(X, weights, Y), LinearMLP(Q @ X, weights, Q @ Y)
    for part in ("outer", "functional"):
        a, b = assembled(one, part), assembled(two, part)
        assert float((a - b).abs().max()) <= TOL * max(float(a.abs().max()), 1e-3)
    first = 2 / widths[-1] * torch.kron(one.Sigma, one.B[0] @ one.B[0].T)
    assert float((one.outer("W_1", "W_1") - first).abs().max()) <= TOL * float(first.abs().max())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3), seeds)
def test_ranks_of_singh(r, K, hidden, seed):
    """rank H_o = q(r+K-q), rank H_f = 2q sum M + 2qs - D q^2, rank H = their sum + q(q-2s): exact integers."""
    assert measured_ranks(r, K, hidden, seed, "mse") == linear_mlp_ranks(r, K, hidden)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(2, 4), st.lists(st.integers(1, 4), min_size=1, max_size=2), seeds)
def test_ranks_under_cross_entropy(r, K, hidden, seed):
    """Under cross-entropy the same formulas hold with K - 1 for K."""
    assert measured_ranks(r, K, hidden, seed, "cross-entropy") == linear_mlp_ranks(r, K, hidden, loss="cross-entropy")


def measured_ranks(r, K, hidden, seed, loss):
    from quadform.theory.mlp import Ranks

    d, N = 5, 24
    widths = [d, *hidden, K]
    weights = []
    for i, (a, b) in enumerate(pairwise(widths)):  # generic and well conditioned
        U, _, V = torch.linalg.svd(rand(seed + i, a, b), full_matrices=False)
        weights.append(U @ torch.diag(torch.linspace(1, 1.5, min(a, b), dtype=torch.float64)) @ V)
    X = torch.linalg.qr(rand(seed + 50, N, r)).Q @ torch.linalg.qr(rand(seed + 51, d, r)).Q.T * N**0.5
    model = LinearMLP(X, weights, targets(seed + 52, (N, K), loss), loss=loss)
    ranks = []
    for part in ("outer", "functional", "block"):
        values = torch.linalg.svdvals(assembled(model, part))
        ranks.append(int((values > 1e-9 * values[0]).sum()))
    return Ranks(*ranks)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(0, 1), st.integers(1, 2), losses, seeds)
def test_linear_cnn(c_in, c_out, k, padding, stride, loss, seed):
    """A convolution followed by a dense map: H of the kernel is T H_W T^T, the chain through `W = sum_k w_k T_k`."""
    length, N, o = 4, 3, 2
    kernel = rand(seed, c_out, c_in, k)
    layer = convolution(kernel, length, stride=stride, padding=padding)
    X = rand(seed + 1, N, c_in * length)
    W = rand(seed + 2, layer.T.shape[2], o)
    Y = targets(seed + 3, (N, o), loss)

    def forward(w, W):
        image = torch.nn.functional.conv1d(X.reshape(N, c_in, length), w, stride=stride, padding=padding)
        return image.reshape(N, -1) @ W

    agree(LinearMLP(X, [layer, W], Y, loss=loss), forward, Y, loss)


@settings(max_examples=10, deadline=None)
@given(losses, seeds)
def test_deep_linear_cnn(loss, seed):
    """Convolution, dense, convolution, dense: every pair of structured and plain weights."""
    N = 3
    kernels, Ws = [rand(seed, 2, 1, 2), rand(seed + 1, 1, 2, 2)], [rand(seed + 2, 4, 6), rand(seed + 3, 2, 2)]
    X, Y = rand(seed + 4, N, 3), targets(seed + 5, (N, 2), loss)
    layers = [convolution(kernels[0], 3), Ws[0], convolution(kernels[1], 3), Ws[1]]

    def forward(w, W, v, V):
        F = torch.nn.functional.conv1d(X[:, None], w).reshape(N, -1) @ W
        return torch.nn.functional.conv1d(F.reshape(N, 2, 3), v).reshape(N, -1) @ V

    agree(LinearMLP(X, layers, Y, loss=loss), forward, Y, loss)


@pytest.mark.parametrize(("size", "kernel"), [((3, 4), (2, 1, 2, 3)), ((2, 3, 2), (1, 2, 2, 2, 1))])
def test_convolution_is_torch(size, kernel):
    """`x @ W` with the structured W is torch's conv2d, conv3d."""
    w = rand(0, *kernel)
    x = rand(1, 5, kernel[1], *size)
    conv = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[len(size)]
    want = conv(x, w, padding=1).reshape(5, -1)
    got = x.reshape(5, -1) @ convolution(w, size, padding=1).matrix()
    assert float((got - want).abs().max()) <= 1e-13


def test_toeplitz():
    """The matrix of a one-channel convolution is constant along its diagonals."""
    W = convolution(rand(0, 1, 1, 3), 6).matrix()
    assert torch.equal(W[1:, 1:], W[:-1, :-1])
    assert not torch.equal(W[0], W[1])


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 5), st.sampled_from(["relu", "gelu", "tanh", "identity"]), losses,
       st.booleans(), st.booleans(), seeds)  # fmt: skip
def test_hidden_layer_mlp(d, M, o, N, activation, loss, with_b1, with_b2, seed):
    """The closed-form blocks of phi(X W_1 + b_1) W_2 + b_2 are the split of the autograd Hessian, any activation."""
    X, Y = rand(seed, 2, N, d), targets(seed + 1, (2, N, o), loss)
    W_1, W_2 = rand(seed + 2, d, M), rand(seed + 3, M, o)
    b_1, b_2 = (rand(seed + 4, M) if with_b1 else None), (rand(seed + 5, o) if with_b2 else None)
    phi = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh, "identity": lambda h: h}
    model = HiddenLayerMLP(X, W_1, W_2, Y, b_1=b_1, b_2=b_2, activation=activation, loss=loss)

    def forward(*given):
        w = dict(zip(model.weights, given, strict=True))
        return phi[activation](X @ w["W_1"] + w.get("b_1", 0.0)) @ w["W_2"] + w.get("b_2", 0.0)

    agree(model, forward, Y, loss)


def test_relu_functional_is_hollow():
    """For ReLU every diagonal block of H_f is zero; for GELU H_f(W_1, W_1) is not."""
    X, Y, W_1, W_2 = rand(0, 6, 3), rand(1, 6, 2), rand(2, 3, 4), rand(3, 4, 2)
    relu, gelu = (HiddenLayerMLP(X, W_1, W_2, Y, activation=a) for a in ("relu", "gelu"))
    assert not relu.functional("W_1", "W_1").any()
    assert not relu.functional("W_2", "W_2").any()
    assert float(gelu.functional("W_1", "W_1").abs().max()) > 1e-3


def test_loss_by_its_derivatives():
    """A loss given as (g, Hl) gives the blocks of the loss it came from, and no value."""
    X, Y, W = rand(0, 4, 3), rand(1, 4, 2), [rand(2, 3, 3), rand(3, 3, 2)]
    known = LinearMLP(X, W, Y)
    other = LinearMLP(X, W, loss=(known.g, known.output.token_matrices().expand(4, 2, 2)))
    assert torch.allclose(assembled(known, "block"), assembled(other, "block"), rtol=1e-12, atol=1e-14)
    assert other.loss is None
    assert torch.allclose(known.loss, ((known.F - Y) ** 2).mean(), rtol=1e-14)


@pytest.mark.parametrize("part", ["hessian", "outer_operator", "functional_operator"])
def test_operator_contracts(part):
    """The operators keep the contract, structured weights and prefixes included."""
    X = rand(0, 5, 4)
    linear = LinearMLP(X, [convolution(rand(1, 2, 1, 2), 4), rand(2, 6, 3), rand(3, 3, 2)], rand(4, 5, 2), prefix="a.")
    hidden = HiddenLayerMLP(X, rand(5, 4, 3), rand(6, 3, 2), rand(4, 5, 2), b_1=rand(7, 3), activation="gelu")
    for model in (linear, hidden):
        check_operator(getattr(model, part)())
    assert linear.hessian().domain.names == ("a.W_1", "a.W_2", "a.W_3")


def test_input_errors():
    """What cannot be used is named."""
    X, W = rand(0, 4, 3), rand(1, 3, 2)
    with pytest.raises(UnknownName, match="no parameter matches 'W_9'"):
        LinearMLP(X, [W], rand(2, 4, 2)).outer("W_1", "W_9")
    with pytest.raises(InputError, match="do not match"):
        LinearMLP(X, [W, W], rand(2, 4, 2))
    with pytest.raises(InputError, match="needs targets Y"):
        LinearMLP(X, [W])
    with pytest.raises(InputError, match="the output is 4 tokens x 2"):
        LinearMLP(X, [W], rand(2, 4, 1))
    with pytest.raises(UnknownName, match="no activation 'rely'"):
        HiddenLayerMLP(X, W, rand(3, 2, 2), rand(2, 4, 2), activation="rely")
    with pytest.raises(InputError, match="one hidden layer"):
        linear_mlp_ranks(3, 2, [])
    with pytest.raises(UnknownName, match="Did you mean `cross-entropy`"):
        linear_mlp_ranks(3, 2, [4], loss="crossentropy")
    with pytest.raises(InputError, match="kernel for images of 2 axes"):
        convolution(rand(0, 1, 1, 2), (3, 3))
    with pytest.raises(InputError, match="kernel for images of 1 axes"):
        convolution(rand(0, 3), 3)
    with pytest.raises(InputError, match=r"the kernel \(2, 6\) is larger than the image \(3, 3\) with padding 1"):
        convolution(rand(0, 1, 1, 2, 6), (3, 3), padding=1)
    for size, how in [(3, {"stride": 0}), (3, {"padding": -1}), (0, {"padding": 3})]:
        with pytest.raises(InputError, match="sizes and stride are at least 1"):
            convolution(rand(0, 1, 1, 2), size, **how)
    assert Structured(torch.ones(1), torch.ones(1, 2, 3)).matrix().shape == (2, 3)
