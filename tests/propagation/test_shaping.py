"""Signal-preserving attention: the kernels it promises, the order it needs, the digits it keeps."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quadform.core.errors import InputError
from quadform.propagation import shaping
from quadform.propagation.mixing import centring, mix, running_mean, uniform

torch.set_num_threads(1)
f64 = torch.float64

tokens = st.integers(1, 24)
families = st.sampled_from(shaping.FAMILIES)


@st.composite
def steps(draw):
    """(family, prev, next) in the right order, far apart or very near."""
    family = draw(families)
    low = draw(st.floats(0.0, 0.9) if family == "u-spa" else st.floats(0.01, 3.0))
    gap = draw(st.sampled_from([1e-7, 1e-3, 0.05, 0.09]))
    if family == "u-spa":
        return family, low, low + gap
    return family, draw(st.sampled_from([low + gap, math.inf])), low


def schedule(family, depth):
    return shaping.u_spa_schedule(0.8, depth) if family == "u-spa" else shaping.e_spa_schedule(0.005, depth)


def masked_softmax(B, causal):
    if causal:
        B = B.masked_fill(torch.triu(torch.ones_like(B, dtype=torch.bool), 1), -math.inf)
    return B.softmax(-1)


@given(tokens, st.floats(0.0, 0.95))
def test_uniform_factor(T, rho):
    """The closed-form U-SPA factor is the Cholesky factor: lower triangular, L L^T = Sigma."""
    L = shaping.u_spa_factor(rho, T)
    torch.testing.assert_close(L @ L.T, shaping.u_spa_target(rho, T), rtol=0, atol=1e-14)
    assert torch.equal(L, torch.tril(L))
    assert bool((L.diagonal() > 0).all())


@given(tokens, st.floats(0.001, 5.0) | st.just(math.inf))
def test_exponential_factor(T, gamma):
    """The closed-form E-SPA factor is the Cholesky factor: lower triangular, L L^T = Sigma."""
    L = shaping.e_spa_factor(gamma, T)
    torch.testing.assert_close(L @ L.T, shaping.e_spa_target(gamma, T), rtol=0, atol=1e-13)
    assert torch.equal(L, torch.tril(L))
    assert bool((L.diagonal() > 0).all())


@given(steps(), tokens)
def test_matrix_is_the_cholesky_quotient(step, T):
    """A = L_next L_prev^{-1}, lower triangular and non-negative."""
    family, prev, next = step
    factor = shaping.u_spa_factor if family == "u-spa" else shaping.e_spa_factor
    A = shaping.spa_matrix(family, prev, next, T)
    torch.testing.assert_close(A @ factor(prev, T), factor(next, T), rtol=0, atol=1e-12)
    assert torch.equal(A, torch.tril(A))
    assert bool((A >= 0).all())


@given(steps(), tokens, st.booleans())
def test_matrix_carries_the_kernel(step, T, causal):
    """A Sigma(prev) A^T = Sigma(next), A >= 0, causal and bidirectional."""
    family, prev, next = step
    A = shaping.spa_matrix(family, prev, next, T, causal)
    assert bool((A >= 0).all())
    moved = A @ shaping.target(family, prev, T) @ A.T
    torch.testing.assert_close(moved, shaping.target(family, next, T), rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("family", shaping.FAMILIES)
def test_stack_reaches_the_target(family, causal):
    """Pi Sigma_0 Pi^T = Sigma_L to 1e-12 after 36 layers at T = 64."""
    T, strengths = 64, schedule(family, 36)
    Sigma = torch.eye(T, dtype=f64)
    for prev, next in pairwise(strengths):
        A = shaping.spa_matrix(family, prev, next, T, causal)
        Sigma = A @ Sigma @ A.T
    assert float((Sigma - shaping.target(family, strengths[-1], T)).abs().max()) < 1e-12


@given(steps(), tokens, st.booleans())
def test_bias_and_scale_give_the_matrix(step, T, causal):
    """diag(D) softmax(B) = A under the mask, and D is A's row sum, never below one."""
    family, prev, next = step
    A = shaping.spa_matrix(family, prev, next, T, causal)
    B, D = shaping.spa_bias(family, prev, next, T, causal, dtype=f64)
    torch.testing.assert_close(D[:, None] * masked_softmax(B, causal), A, rtol=0, atol=1e-13)
    assert bool((D >= 1 - 1e-12).all())


@pytest.mark.parametrize("family", shaping.FAMILIES)
def test_bias_is_finite_in_float32(family):
    """At T = 1024 the bias of the first, middle and last of 72 layers is finite in float32 (and differs from 0)."""
    strengths = schedule(family, 72)
    for layer in (1, 36, 72):
        B, D = shaping.spa_bias(family, strengths[layer - 1], strengths[layer], 1024)
        assert B.dtype == torch.float32
        assert bool(torch.isfinite(B).all() & torch.isfinite(D).all())
        assert bool((B[1:, 0] < 0).all())


def test_every_digit_of_the_uniform_matrix():
    """U-SPA entries agree with 60-digit arithmetic to 1e-13 relative, even for a step of 1e-9."""
    mp = pytest.importorskip("mpmath")
    T, prev, next = 12, 0.3, 0.3 + 1e-9
    with mp.workdps(60):

        def factor(rho):
            rho = mp.mpf(rho)
            return mp.cholesky(mp.matrix(T, T) + rho + (1 - rho) * mp.eye(T))

        exact = factor(next) * mp.inverse(factor(prev))
        A = shaping.spa_matrix("u-spa", prev, next, T)
        worst = max(abs(float(A[i, j]) / exact[i, j] - 1) for i in range(T) for j in range(i + 1))
    assert worst < 1e-13


@given(steps(), st.integers(2, 20), st.integers(1, 10))
def test_a_longer_sequence_extends_a_shorter_one(step, T, more):
    """Causal A, B and D of T tokens are the leading blocks of those of T' > T: a cache may grow them."""
    family, prev, next = step
    B, D = shaping.spa_bias(family, prev, next, T, dtype=f64)
    B2, D2 = shaping.spa_bias(family, prev, next, T + more, dtype=f64)
    torch.testing.assert_close(B2[:T, :T], B, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(D2[:T], D, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("family", "prev", "next"), [("u-spa", 0.3, 0.1), ("e-spa", 0.1, 0.3)])
def test_the_wrong_order_is_refused(family, prev, next):
    """A falling rho or rising gamma is refused by matrix, bias, schedule and check, and the refusal is deserved."""
    factor = shaping.u_spa_factor if family == "u-spa" else shaping.e_spa_factor
    assert float((factor(next, 6) @ torch.linalg.inv(factor(prev, 6))).min()) < -0.05
    for ask in (shaping.spa_matrix, shaping.spa_bias):
        with pytest.raises(InputError, match="must not"):
            ask(family, prev, next, 6)
    with pytest.raises(InputError, match="at layer 2"):
        shaping.check_schedule(family, (prev, prev, next))
    build = shaping.u_spa_schedule if family == "u-spa" else shaping.e_spa_schedule
    with pytest.raises(InputError, match="must not"):
        build(next, 4, prev)


@given(st.integers(1, 40), st.floats(0.001, 2.0), st.just(math.inf) | st.floats(2.1, 4.0))
def test_exponential_schedule_keeps_one_diagonal(depth, gamma_L, gamma_0):
    """Every E-SPA layer has the same diagonal number (a_L / a_0)^{1/L} beyond the first token."""
    strengths = shaping.e_spa_schedule(gamma_L, depth, gamma_0)
    assert len(strengths) == depth + 1
    assert (strengths[0], strengths[-1]) == (gamma_0, gamma_L)
    a = [math.sqrt(-math.expm1(-2 * g)) for g in (gamma_0, gamma_L)]
    for prev, next in pairwise(shaping.check_schedule("e-spa", strengths)):
        A = shaping.spa_matrix("e-spa", prev, next, 3)
        assert math.isclose(float(A[2, 2]), (a[1] / a[0]) ** (1 / depth), rel_tol=1e-9)


@given(st.integers(1, 40), st.floats(0.3, 0.95), st.floats(0.0, 0.29))
def test_uniform_schedule_is_geometric(depth, rho_L, rho_0):
    """1 - rho falls by one factor a layer, from rho_0 to rho_L."""
    strengths = shaping.check_schedule("u-spa", shaping.u_spa_schedule(rho_L, depth, rho_0))
    assert (len(strengths), strengths[0], strengths[-1]) == (depth + 1, rho_0, rho_L)
    factor = ((1 - rho_L) / (1 - rho_0)) ** (1 / depth)
    for prev, next in pairwise(strengths):
        assert math.isclose((1 - next) / (1 - prev), factor, rel_tol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_a_measured_kernel_of_any_diagonal_is_carried(causal):
    """spa_bias_between: diag(D) softmax(B) maps a measured Sigma_0 with unequal diagonal to the target."""
    T = 16
    generator = torch.Generator().manual_seed(3)
    scale = 0.5 + torch.rand(T, generator=generator, dtype=f64) if causal else torch.full((T,), 1.7, dtype=f64)
    Sigma_0 = scale[:, None] * shaping.u_spa_target(0.1, T) * scale
    Sigma_1 = shaping.u_spa_target(0.25, T)
    B, D = shaping.spa_bias_between(Sigma_0, Sigma_1, causal, dtype=f64)
    A = D[:, None] * masked_softmax(B, causal)
    torch.testing.assert_close(A @ Sigma_0 @ A.T, Sigma_1, rtol=0, atol=1e-11)


def test_a_measured_kernel_that_cannot_be_carried_is_refused():
    """A more correlated start than the target, and a singular one, are refused with what to do."""
    with pytest.raises(InputError, match="which a softmax cannot give"):
        shaping.spa_bias_between(shaping.u_spa_target(0.5, 8), shaping.u_spa_target(0.1, 8))
    twice = torch.eye(4, dtype=f64)[[0, 1, 1, 2]]
    for causal in (True, False):
        with pytest.raises(InputError, match="repeated tokens"):
            shaping.spa_bias_between(twice @ twice.T, shaping.u_spa_target(0.5, 4), causal)


@settings(deadline=None)
@given(st.integers(2, 12), st.floats(0.0, 0.9), st.floats(0.05, 4.0), st.integers(0, 9))
def test_measured_start_finds_the_family_member(T, rho, gamma, seed):
    """measured_start recovers the strength of a rescaled member of the family, with misfit zero."""
    scale = 0.5 + torch.rand(T, generator=torch.Generator().manual_seed(seed), dtype=f64)
    for family, strength in (("u-spa", rho), ("e-spa", gamma)):
        Sigma_0 = scale[:, None] * shaping.target(family, strength, T) * scale
        found, misfit = shaping.measured_start(family, Sigma_0)
        assert found == pytest.approx(strength, rel=1e-5, abs=1e-6)
        assert misfit < 1e-6


def test_the_identity_needs_no_bias():
    """Equal strengths give A = I, and a bias for it is refused instead of being -inf."""
    assert torch.equal(shaping.spa_matrix("u-spa", 0.2, 0.2, 5), torch.eye(5, dtype=f64))
    with pytest.raises(InputError, match="identity"):
        shaping.spa_bias("u-spa", 0.2, 0.2, 5)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: shaping.spa_matrix("v-spa", 0, 0.1, 4),
        lambda: shaping.u_spa_target(1.0, 4),
        lambda: shaping.e_spa_target(0.0, 4),
        lambda: shaping.e_spa_target(math.nan, 4),
        lambda: shaping.u_spa_target(0.5, 0),
        lambda: shaping.u_spa_schedule(0.5, 0),
        lambda: shaping.measured_start("u-spa", torch.zeros(3, 3)),
        lambda: shaping.measured_start("u-spa", torch.zeros(3, 4)),
        lambda: centring(0),
        lambda: centring(torch.ones(3)),
    ],
)
def test_bad_input_is_named(ask):
    """Every unusable value is an InputError, never a bare assert or a NaN."""
    with pytest.raises(InputError):
        ask()


@given(tokens, st.booleans())
def test_centring_is_attention_at_zero_logits(T, causal):
    """C is the attention matrix of zero logits, so shaped attention is exactly I there."""
    A = masked_softmax(torch.zeros(T, T, dtype=f64), causal)
    C = centring(T, causal)
    torch.testing.assert_close(C, A, rtol=0, atol=1e-15)
    torch.testing.assert_close(mix(A, C, 1.0, 1.0, 1.0), torch.eye(T, dtype=f64), rtol=0, atol=1e-15)


@given(st.integers(1, 8), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_centring_respects_padding(T, batch, causal, seed):
    """C of a padding mask is uniform over visible keys, by loops; C V is the running mean even past NaN padding."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, T, generator=generator) < 0.6
    C = centring(mask, causal)
    for b in range(batch):
        for i in range(T):
            seen = [j for j in range(T) if mask[b, j] and (j <= i or not causal)]
            for j in range(T):
                assert float(C[b, i, j]) == pytest.approx(1 / len(seen) if j in seen else 0.0, abs=1e-15)
    V = torch.randn(batch, T, 3, generator=generator, dtype=f64)
    mean = running_mean(V.masked_fill(~mask[..., None], math.nan), mask, causal)
    torch.testing.assert_close(mean, C @ V, rtol=0, atol=1e-14)


@given(tokens, st.booleans())
def test_running_mean_is_C_V(T, causal):
    """running_mean(V) = C V without padding, over leading axes."""
    V = torch.randn(2, 3, T, 4, generator=torch.Generator().manual_seed(T), dtype=f64)
    torch.testing.assert_close(running_mean(V, causal=causal), centring(T, causal) @ V, rtol=0, atol=1e-14)


def test_rows_of_the_mix_sum_to_alpha_beta_gamma():
    """Rows of alpha I + beta A - gamma C sum to alpha + beta - gamma, per head."""
    A = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=f64).softmax(-1)
    alpha, beta, gamma = (torch.tensor(v, dtype=f64)[:, None, None] for v in ([1.0, 0.5], [0.3, 2.0], [0.1, 0.7]))
    rows = mix(A, uniform(torch.ones(5, 5, dtype=torch.bool)), alpha, beta, gamma).sum(-1)
    torch.testing.assert_close(rows, (alpha + beta - gamma)[..., 0].expand(2, 5), rtol=0, atol=1e-14)
