"""Duals of activations: E[phi(u) phi(v)] against two-dimensional quadrature and against each other."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from quadform.core.errors import UnknownName
from quadform.propagation import duals as D

torch.set_num_threads(1)
f64 = torch.float64
SLOPE = 0.3
FUNCTIONS = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky": lambda x: math.sqrt(2 / (1 + SLOPE**2)) * F.leaky_relu(x, SLOPE),
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),  # torch's own is x beyond 20
}


def kernel(seed, T=4, scale=1.0):
    X = torch.randn(T, 3, generator=torch.Generator().manual_seed(seed), dtype=f64)
    return scale * (X @ X.T / 3 + 0.05 * torch.eye(T, dtype=f64))


def quadrature(phi, Sigma, points=801):
    """The double integral on a grid of the independent coordinates."""
    z = torch.linspace(-8, 8, points, dtype=f64)
    w = torch.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    out = torch.zeros_like(Sigma)
    for i in range(len(Sigma)):
        for j in range(len(Sigma)):
            a, b = math.sqrt(Sigma[i, i]), float(Sigma[i, j]) / math.sqrt(Sigma[i, i])
            rest = math.sqrt(max(float(Sigma[j, j]) - b * b, 0.0))
            out[i, j] = (phi(a * z)[:, None] * phi(b * z[:, None] + rest * z) * w[:, None] * w).sum()
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_dual_is_the_gaussian_expectation(name, seed):
    """K(Sigma)_ij = E[phi(u) phi(v)] with (u, v) ~ N(0, Sigma_{ij}), diagonals unequal, correlations of both signs."""
    Sigma = kernel(seed)
    kinks = 2e-5 if name in ("relu", "leaky") else 1e-12  # the grid resolves a kink to the square of its step
    torch.testing.assert_close(D.dual(name, Sigma, SLOPE), quadrature(FUNCTIONS[name], Sigma), rtol=kinks, atol=kinks)


#: The same functions in mpmath.
PRECISE = {
    "gelu": lambda x: x * mp.ncdf(x),
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "tanh": mp.tanh,
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "relu": lambda x: max(x, mp.mpf(0)),
}


@pytest.mark.parametrize("name", PRECISE)
@pytest.mark.parametrize("q", [1e-8, 1e-2, 1.0, 25.0, 1e4, 1e8])
def test_duals_at_any_size(name, q):
    """E[phi(a z) phi(+-b z)] in 30 digits (one-dimensional integrals): 1e-12 of sqrt(K_ii K_jj), q from 1e-8 to 1e8."""
    phi, p = PRECISE[name], 3.0
    a, b = mp.sqrt(q), mp.sqrt(p)
    Sigma = torch.tensor([[q, s * math.sqrt(q * p)] for s in (1, -1)], dtype=f64)
    cuts = sorted({x for e in (a, b) for n in (1, 6, 40) for x in (-n / e, n / e) if abs(x) < 12} | {-12, 0, 12})

    def mean(f, g):
        return mp.quad(lambda z: phi(f * z) * phi(g * z) * mp.npdf(z), cuts)

    with mp.workdps(30):
        K = {(f, g): mean(f, g) for f, g in [(a, a), (b, b), (a, b), (a, -b)]}
    for row, sign in zip(Sigma, (1, -1), strict=True):
        got = D.dual(name, torch.stack([row, torch.stack([row[1], row.new_tensor(p)])]))
        scale = float(mp.sqrt(K[a, a] * K[b, b]))
        assert abs(float(got[0, 0]) - float(K[a, a])) <= 1e-12 * float(K[a, a])
        assert abs(float(got[0, 1]) - float(K[a, sign * b])) <= 1e-12 * scale
        assert torch.equal(got, got.mT)


@pytest.mark.parametrize("name", ["gelu", "silu", "tanh", "softplus"])
@pytest.mark.parametrize("scale", [1e-4, 30.0, 300.0])
def test_duals_of_correlated_tokens_at_any_size(name, scale):
    """The same off the diagonal, by the double integral on a grid that resolves phi."""
    Sigma = kernel(2, T=3, scale=scale)
    want = quadrature(FUNCTIONS[name], Sigma, points=2001)
    size = torch.sqrt(want.diagonal()[:, None] * want.diagonal())
    assert float(((D.dual(name, Sigma) - want).abs() / size).max()) < 1e-12


@given(st.floats(-60, 60))
def test_logistic_mixture(x):
    """sigma(x) = E[Phi(x / lambda)]: twelve nodes give the logistic function itself to 1e-6, its duals far better."""
    scales, weights = D.logistic_mixture()
    got = (weights * torch.special.ndtr(x / scales)).sum()
    assert float(weights.sum()) == pytest.approx(1, abs=1e-14)
    assert float((weights * scales**2).sum()) == pytest.approx(math.pi**2 / 3, rel=1e-12)
    assert float(got) == pytest.approx(1 / (1 + math.exp(-x)), abs=1e-6)


@given(st.integers(0, 99), st.floats(0.0, 0.95))
def test_scaled_leaky_keeps_the_diagonal(seed, slope):
    """The scaled leaky ReLU keeps every Sigma_ii; equal tokens stay equal (cosine 1 is fixed)."""
    Sigma = kernel(seed)
    K = D.dual("leaky", Sigma, slope)
    torch.testing.assert_close(K.diagonal(), Sigma.diagonal())
    twins = torch.full((2, 2), 1.7, dtype=f64)
    torch.testing.assert_close(D.dual("leaky", twins, slope), twins)


@pytest.mark.parametrize(("gated", "plain"), [("geglu", "gelu"), ("swiglu", "silu")])
def test_gates_multiply(gated, plain):
    """A gated unit's dual is the elementwise product of the gate's and the value's: independent weights."""
    Sigma = kernel(3)
    torch.testing.assert_close(D.dual(gated, Sigma), D.dual(plain, Sigma) * Sigma)


def test_orthonormal_hermite():
    """Hermite coefficients of h_5 itself are the fifth unit vector; E[phi^2] is 1."""

    def h5(z):
        return (z**5 - 10 * z**3 + 15 * z) / math.sqrt(120)

    a, second = D.hermite_coefficients(h5, torch.ones(1, dtype=f64))
    expected = torch.zeros_like(a)
    expected[0, 5] = 1
    torch.testing.assert_close(a, expected, rtol=0, atol=1e-12)
    assert float(second) == pytest.approx(1)


def test_a_zero_token_stays_zero():
    """A zero token has no direction: its row is zero under a ReLU, not NaN."""
    Sigma = torch.diag(torch.tensor([1.0, 0.0], dtype=f64))
    torch.testing.assert_close(D.dual("relu", Sigma), torch.diag(torch.tensor([0.5, 0.0], dtype=f64)))


def test_unknown_activation():
    with pytest.raises(UnknownName, match="Did you mean `gelu`"):
        D.dual("gellu", torch.eye(2))
