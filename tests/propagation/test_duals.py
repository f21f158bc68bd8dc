"""Duals of activations: E[phi(u) phi(v)] against two-dimensional quadrature and against each other."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

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
    "softplus": F.softplus,
}


def kernel(seed, T=4, scale=1.0):
    X = torch.randn(T, 3, generator=torch.Generator().manual_seed(seed), dtype=f64)
    return scale * (X @ X.T / 3 + 0.05 * torch.eye(T, dtype=f64))


def quadrature(phi, Sigma):
    """The double integral on a 801 x 801 grid of the independent coordinates."""
    z = torch.linspace(-8, 8, 801, dtype=f64)
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


@given(st.integers(0, 99), st.sampled_from([1e-3, 1.0, 10.0]))
def test_gelu_closed_form_equals_mehler(seed, scale):
    """The closed GELU dual equals the Hermite series (96 terms) to 1e-7 of the largest entry, small tokens or large."""
    Sigma = kernel(seed, scale=scale)
    error = (D.gelu_dual(Sigma) - D.smooth_dual(F.gelu, Sigma)).abs().max()
    assert float(error) < 1e-7 * float(Sigma.max())


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
