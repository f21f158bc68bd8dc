"""Mean-field maps of norms and attention against drawn logits and exact special cases."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.propagation import collapse, kernels, shaping
from quadform.propagation.mixing import centring

torch.set_num_threads(1)
f64 = torch.float64


def kernel(T, seed, shared=0.3):
    X = torch.randn(T, 3 * T, generator=torch.Generator().manual_seed(seed), dtype=f64)
    return (1 - shared) * X @ X.T / (3 * T) + shared


def drawn(Sigma, tau2, causal, draws, P=None, shape=lambda A: A):
    """E[M Sigma M^T], M = shape(A), by drawing Gaussian logits with covariance tau2 Sigma (x) Sigma, by Cholesky."""
    T = len(Sigma)
    L = torch.linalg.cholesky(Sigma)
    generator = torch.Generator().manual_seed(5)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) if causal else torch.zeros(T, T, dtype=torch.bool)
    total = torch.zeros_like(Sigma)
    for _ in range(draws):
        G = math.sqrt(tau2) * L @ torch.randn(T, T, generator=generator, dtype=f64) @ L.T
        G = G if P is None else G + torch.log(P)
        A = shape(G.masked_fill(hidden, -math.inf).softmax(-1))
        total += A @ Sigma @ A.T / draws
    return total


@given(st.integers(1, 8), st.integers(0, 99), st.booleans())
def test_zero_queries_are_exact(T, seed, causal):
    """With tau2 = 0 the map is M Sigma M^T for M = alpha I + beta C - gamma C."""
    Sigma = kernel(T, seed)
    M = 0.7 * torch.eye(T, dtype=f64) + (0.5 - 0.2) * centring(T, causal)
    out, mean = kernels.attend(Sigma, causal=causal, alpha=0.7, beta=0.5, gamma=0.2)
    torch.testing.assert_close(out, M @ Sigma @ M.T)
    torch.testing.assert_close(mean, M)


@given(st.integers(1, 8), st.integers(0, 99), st.booleans())
def test_shaped_attention_starts_as_the_identity(T, seed, causal):
    """alpha = beta = gamma = 1 and W_Q = 0: the kernel passes unchanged."""
    Sigma = kernel(T, seed)
    torch.testing.assert_close(kernels.attend(Sigma, causal=causal, alpha=1.0, beta=1.0, gamma=1.0)[0], Sigma)


@pytest.mark.parametrize("family", shaping.FAMILIES)
def test_signal_preserving_attention_moves_the_target(family):
    """With P, D of a SPA layer the map sends Sigma(prev) to Sigma(next)."""
    prev, next = (0.1, 0.3) if family == "u-spa" else (0.8, 0.2)
    A = shaping.spa_matrix(family, prev, next, 12)
    D = A.sum(-1)
    out, _ = kernels.attend(shaping.target(family, prev, 12), P=A / D[:, None], D=D)
    torch.testing.assert_close(out, shaping.target(family, next, 12))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tau2", [0.25, 1.0])
@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_gaussian_logits(causal, tau2, shared):
    """E[A Sigma A^T] for random queries and keys is met within 5 % of the largest entry and 0.02 in cosine."""
    Sigma = kernel(40, 1, shared)
    out, _ = kernels.attend(Sigma, causal=causal, tau2=tau2)
    truth = drawn(Sigma, tau2, causal, 1500)
    plain, _ = kernels.attend(Sigma, causal=causal)
    assert float((out - truth).abs().max()) < 0.05 * float(truth.max())
    gap = abs(float(collapse.kernel_cosine(out) - collapse.kernel_cosine(truth)))
    assert gap < 0.02
    assert gap < 0.25 * abs(float(collapse.kernel_cosine(plain) - collapse.kernel_cosine(truth)))  # it matters


def test_gaussian_logits_on_a_biased_base():
    """The same with a signal-preserving bias under the softmax: E[A Sigma A^T] around P instead of uniform."""
    A = shaping.spa_matrix("u-spa", 0.0, 0.3, 32)
    P = A / A.sum(-1, keepdim=True)
    Sigma = kernel(32, 2, 0.1)
    truth = drawn(Sigma, 1.0, True, 1000, P)
    out, _ = kernels.attend(Sigma, P=P, tau2=1.0)
    assert float((out - truth).abs().max()) < 0.08 * float(truth.max())
    assert abs(float(collapse.kernel_cosine(out) - collapse.kernel_cosine(truth))) < 0.01


def test_random_logits_flatten_a_biased_base():
    """E[A] is not P there: with an identity and a centring beside it, E[M Sigma M^T] and E[M] need its true value."""
    A = shaping.spa_matrix("u-spa", 0.0, 0.3, 16)
    P = A / A.sum(-1, keepdim=True)
    Sigma, I, C = kernel(16, 2, 0.1), torch.eye(16, dtype=f64), centring(16)
    weights = {"alpha": -0.5, "beta": 0.8, "gamma": 0.2}
    truth = drawn(Sigma, 2.0, True, 4000, P, lambda A: -0.5 * I + 0.8 * A - 0.2 * C)
    out, M = kernels.attend(Sigma, P=P, tau2=2.0, **weights)
    assert float((out - truth).abs().max()) < 0.12 * float(truth.max())  # 256 draws; with P for E[A] it is 0.29
    _, plain = kernels.attend(Sigma, P=P, **weights)
    assert float((M.diagonal() - plain.diagonal()).abs().max()) > 0.05  # it matters


def test_large_logits_are_sampled():
    """Beyond the reach of the series the logits are drawn: cosine within 0.02 of independent draws at tau2 = 9."""
    Sigma = kernel(40, 3, 0.2)
    out, _ = kernels.attend(Sigma, tau2=9.0)
    cosine = collapse.kernel_cosine(drawn(Sigma, 9.0, True, 300))
    assert abs(float(collapse.kernel_cosine(out) - cosine)) < 0.02


@pytest.mark.parametrize(("n", "v"), [(1, 1.0), (2, 1.0), (10, 4.0), (50, 9.0)])
def test_softmax_participation(n, v):
    """R = E[sum A_j^2] of a softmax of independent normal logits, within five standard errors of draws."""
    A = (math.sqrt(v) * torch.randn(40_000, n, generator=torch.Generator().manual_seed(n), dtype=f64)).softmax(-1)
    sample = A.square().sum(-1)
    R = kernels.softmax_participation(torch.tensor([float(n)], dtype=f64), torch.tensor([v], dtype=f64))
    assert abs(float(R) - float(sample.mean())) <= 5 * float(sample.std()) / 200 + 1e-6


@pytest.mark.parametrize("v", [1e-3, 1.0, 9.0, 25.0])
def test_softmax_participation_of_two(v):
    """R = 1 - 2 E[sigma(g) sigma(-g)], g ~ N(0, 2 v): to 1e-4 up to v = 25."""
    z = torch.linspace(-12, 12, 4001, dtype=f64)
    weight = torch.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    R = 1 - 2 * float((weight * torch.sigmoid(math.sqrt(2 * v) * z) * torch.sigmoid(-math.sqrt(2 * v) * z)).sum())
    got = kernels.softmax_participation(torch.tensor([2.0], dtype=f64), torch.tensor([v], dtype=f64))
    assert float(got) == pytest.approx(R, rel=1e-4)


@given(st.integers(1, 6), st.integers(0, 99), st.booleans())
def test_linear_attention(T, seed, causal):
    """E[A Sigma A^T] for A = Q K^T / sqrt(d_k): the fourth moment written out over all index pairs."""
    Sigma = kernel(T, seed)
    out = kernels.linear_attend(Sigma, causal=causal, tau2=0.5)
    for i in range(T):
        for k in range(T):
            pairs = [(j, l) for j in range(T) for l in range(T) if not causal or (j <= i and l <= k)]
            truth = 0.5 * float(Sigma[i, k]) * sum(float(Sigma[j, l]) ** 2 for j, l in pairs)
            assert float(out[i, k]) == pytest.approx(truth)


@given(st.integers(1, 6), st.integers(0, 99), st.sampled_from([0.0, 1e-2]))
def test_normalise_is_rmsnorm(T, seed, eps):
    """The kernel of RMSNorm(X) is normalise(kernel of X), eps inside the root."""
    X = torch.randn(T, 7, generator=torch.Generator().manual_seed(seed), dtype=f64)
    N = torch.nn.functional.rms_norm(X, (7,), eps=eps)
    torch.testing.assert_close(kernels.normalise(X @ X.T / 7, eps), N @ N.T / 7)


def test_nothing_exceeds_cauchy_schwarz():
    """Near collapse the annealed formula alone gives cosines beyond one; the map does not."""
    Sigma, beyond = torch.eye(100, dtype=f64), 0.0
    for _ in range(8):
        beyond = max(beyond, float(kernels.normalise(kernels.annealed_second_moment(Sigma, 2.5)).max()) - 1)
        Sigma = kernels.attend(Sigma, tau2=2.5)[0]
        assert float(kernels.normalise(Sigma).abs().max()) <= 1 + 1e-12
    assert beyond > 1e-4
