"""Mean-field maps: what each part of a block at initialisation does to the token kernel, in the limit of large width.

A kernel is Sigma (T, T), Sigma_ij = <x_i, x_j> / d. The maps are plain functions kernel -> kernel; a design is their
composition (`quadform.propagation.profile`). They hold at d, d_k -> infinity with independent random weights:

    normalise    Sigma_ij / sqrt(Sigma_ii Sigma_jj)     RMSNorm; LayerNorm too, since random coordinates have mean zero
    attend       E[M Sigma M^T], M = alpha I + beta diag(D) A - gamma C     values through random or identity W_V, W_O
    mlp          dual kernel of the activation (`duals`), times the gains of the two layers
    add          independent branches: squared gains add up

The attention matrix A = softmax(G + B) has Gaussian logits, Cov(G_ij, G_kl) = tau2 Sigma_ik Sigma_jl, with tau2 = 0 for
W_Q = 0 (then A = P = softmax(B) and everything is exact).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform.core.rng import stream

from .duals import dual, normal_grid
from .mixing import centring, mix

if TYPE_CHECKING:
    from jaxtyping import Float

Averager = Callable[[Tensor], Tensor]
#: The largest logit variance the annealed series is trusted with; beyond it, logits are sampled.
REACH = 2.5


def normalise(Sigma: Float[Tensor, "T T"], eps: float = 0.0) -> Float[Tensor, "T T"]:
    """RMSNorm (or LayerNorm of zero-mean coordinates): Sigma_ij / sqrt((Sigma_ii + eps)(Sigma_jj + eps))."""
    scale = inverse_rms(Sigma, eps)
    return scale[:, None] * Sigma * scale


def inverse_rms(Sigma: Float[Tensor, "T T"], eps: float = 0.0) -> Float[Tensor, " T"]:
    """1 / sqrt(Sigma_ii + eps), (T,); 0 for a zero token."""
    q = Sigma.diagonal() + eps
    return torch.where(q > 0, q, math.inf).rsqrt()


def mlp(Sigma: Tensor, activation: str, slope: float = 0.0, gain_in: float = 1.0, gain_out: float = 1.0) -> Tensor:
    """phi(X W_1) W_2: gain_out K_phi(gain_in Sigma), gains = (second moment of a weight) x fan-in."""
    return gain_out * dual(activation, gain_in * Sigma, slope)


def attend(
    Sigma: Float[Tensor, "T T"],
    *,
    causal: bool = True,
    P: Float[Tensor, "T T"] | None = None,
    D: Float[Tensor, " T"] | None = None,
    tau2: float = 0.0,
    alpha: float = 0.0,
    beta: float = 1.0,
    gamma: float = 0.0,
) -> tuple[Float[Tensor, "T T"], Float[Tensor, "T T"]]:
    """(E[M Sigma M^T], E[M]) for M = alpha I + beta diag(D) A - gamma C; both (T, T).

    P (T, T) is the attention matrix at zero logits (None: uniform over visible keys), D its row scale (None: ones).
    Random logits: the annealed series for uniform P and logits of variance up to `REACH`, where E[A] is taken as P, its
    value for tokens of equal norm; drawn logits otherwise.
    """
    T = Sigma.shape[0]
    base = P if P is not None else centring(T, causal, Sigma.dtype, Sigma.device)
    scale = torch.ones(T, dtype=Sigma.dtype, device=Sigma.device) if D is None else D
    mean, spread = base, None
    if tau2 and beta:
        small = P is None and tau2 * float(Sigma.diagonal().max()) ** 2 <= REACH
        if small:
            moment = annealed_second_moment(Sigma, tau2, causal)
        else:
            mean, moment = sampled_moments(Sigma, tau2, base)
        spread = scale[:, None] * (moment - mean @ Sigma @ mean.T) * scale
    M = mix(scale[:, None] * mean, centring(T, causal, Sigma.dtype, Sigma.device), alpha, beta, gamma)
    out = M @ Sigma @ M.T
    if spread is not None:
        out = out + beta**2 * spread
    return _cauchy_schwarz(out), M


def linear_attend(Sigma: Float[Tensor, "T T"], *, causal: bool = True, tau2: float = 1.0) -> Float[Tensor, "T T"]:
    """E[A Sigma A^T] for linear attention A = Q K^T / sqrt(d_k), masked: tau2 Sigma_ik sum_{j,l visible} Sigma_jl^2.

    E[A] = 0. One draw of A spreads widely around this mean (A is not normalised), so expect it only on average.
    """
    T = Sigma.shape[0]
    n = torch.arange(1, T + 1, dtype=Sigma.dtype, device=Sigma.device) if causal else torch.full((T,), float(T))
    count = (n[:, None] * n).to(Sigma)
    return tau2 * Sigma * count * _uniform_average(T, causal, Sigma.dtype)(Sigma.square())


def annealed_second_moment(Sigma: Float[Tensor, "T T"], tau2: float, causal: bool = True) -> Float[Tensor, "T T"]:
    """E[A Sigma A^T] for A = softmax(G), G Gaussian with Cov(G_ij, G_kl) = tau2 Sigma_ik Sigma_jl, (T, T).

    Annealed: A_ij = e^{G_ij} / Z_i with Z_i near its mean gives, over the visible keys,

        E[A_ij A_kl] = e^{t_ik Sigma_jl} / sum_{j'l'} e^{t_ik Sigma_j'l'},   t_ik = tau2 Sigma_ik

    which a power series in t turns into averages of Sigma^{o m} over the visible pairs: running sums, O(T^2) a term.
    Where few keys are seen Z_i fluctuates; t is then replaced by sqrt(r_i r_k) t, with r_i such that the formula is
    exact for independent logits of the same spread (`renormalisation`). Against sampled Gaussian logits the mean cosine
    errs below 0.01 at tau2 = 1 and 0.03 at tau2 = 4, for unit tokens. [own]
    """
    average = _uniform_average(len(Sigma), causal, Sigma.dtype)
    r = torch.sqrt(renormalisation(Sigma, tau2, causal))
    t = tau2 * r[:, None] * r * Sigma
    low = float(Sigma.min())
    shifted = Sigma - low  # a constant shift of the exponent cancels in the quotient; positive terms lose no digits
    size = float(shifted.max())
    if size <= 1e-12 * float(Sigma.abs().max()):
        return average(Sigma)
    shifted, t = shifted / size, t * size
    numerator, denominator = average(Sigma), torch.ones_like(Sigma)
    power, factor = torch.ones_like(Sigma), torch.ones_like(Sigma)
    for m in range(1, _terms(float(t.abs().max())) + 1):
        power, factor = power * shifted, factor * t / m
        denominator = denominator + factor * average(power)
        numerator = numerator + factor * average(power * Sigma)
    return numerator / denominator


def sampled_moments(
    Sigma: Tensor, tau2: float, P: Tensor, draws: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """(E[A], E[A Sigma A^T]), each (T, T), over draws A = softmax(G + log P), G = sqrt(tau2) S Z S, S = Sigma^{1/2}.

    For any base P and logits of any size, up to attention that picks single keys. Sums over keys average as draws do,
    so the default number of draws falls with T (4096 / T, at least 8).
    """
    draws = max(8, 4096 // len(Sigma)) if draws is None else draws
    lam, U = torch.linalg.eigh(Sigma)
    S = (U * torch.sqrt(lam.clamp_min(0))) @ U.T
    generator, log_P = stream(seed, "attention logits", Sigma.device), torch.log(P)
    mean, total = torch.zeros_like(Sigma), torch.zeros_like(Sigma)
    for _ in range(draws):
        Z = torch.randn(Sigma.shape, generator=generator, dtype=Sigma.dtype, device=Sigma.device)
        A = (math.sqrt(tau2) * S @ Z @ S + log_P).softmax(-1)
        mean, total = mean + A / draws, total + A @ Sigma @ A.T / draws
    return mean, total


def renormalisation(Sigma: Tensor, tau2: float, causal: bool = True) -> Tensor:
    """r_i in [0, 1]: the share of the logits' variance that reaches the annealed formula, (T,).

    Query i sees n keys, whose logits differ with variance v = tau2 Sigma_ii (mean of Sigma_jj - mean of Sigma_jl,
    j != l). With R(n, v) = E[sum_j A_j^2] for n independent N(0, v) logits, the annealed formula
    e^w / (n - 1 + e^w) = R is solved for w, and r = w / v.
    """
    T, q = len(Sigma), Sigma.diagonal()
    n = torch.arange(1, T + 1, dtype=Sigma.dtype, device=Sigma.device) if causal else torch.full_like(q, T)
    alone = q.cumsum(0) / n if causal else q.mean().expand(T)
    together = _uniform_average(T, causal, Sigma.dtype)(Sigma).diagonal()
    v = tau2 * q * (alone - together) * n / (n - 1).clamp_min(1)
    usable = (n > 1) & (v > 1e-6)
    n_safe, v_safe = torch.where(usable, n, 2.0), torch.where(usable, v, 1.0)
    R = softmax_participation(n_safe, v_safe)
    w = torch.log(R * (n_safe - 1) / (1 - R).clamp_min(1e-300))
    small = torch.where(n > 1, 1.0, 0.0)  # no spread: nothing to correct; one key: no freedom at all
    return torch.where(usable, (w / v_safe).clamp(0, 1), small)


def softmax_participation(n: Tensor, v: Tensor) -> Tensor:
    """R = E[sum_j A_j^2] of a softmax over n independent N(0, v) logits, elementwise (n real, >= 1).

    With 1/Z^2 = int t e^{-tZ} dt: R = n int t E[e^{2g - t e^g}] E[e^{-t e^g}]^{n-1} dt, by two trapezoid rules.
    Relative error below 1e-4 up to v = 25.
    """
    z, weight = normal_grid(v.dtype, v.device, reach=7.0, points=49)
    u = torch.linspace(0, 1, 65, dtype=v.dtype, device=v.device)
    out = []
    for n_i, v_i in zip(n.split(64), v.split(64), strict=True):  # bounded memory at any T
        spread = torch.sqrt(v_i)[:, None]
        low, high = -10.0, 3 + v_i[:, None] / 2 + 5 * spread  # of log(t n e^{v/2}); Z may be far below its mean
        e = torch.exp(spread * z)
        t = torch.exp(low + (high - low) * u - v_i[:, None] / 2) / n_i[:, None]
        kill = torch.exp(-t[:, :, None] * e[:, None, :])
        one, two = (kill * weight).sum(-1), (kill * (weight * e.square())[:, None, :]).sum(-1)
        area = (t.square() * two * one.clamp_min(1e-300) ** (n_i - 1)[:, None]).sum(-1)
        out.append(n_i * area * (high[:, 0] - low) / (len(u) - 1))
    return torch.cat(out)


def _terms(x: float, tolerance: float = 1e-10) -> int:
    """How many terms of e^x are needed for the rest to stay below the tolerance."""
    m, term = 0, 1.0
    while term > tolerance or m < 2 * x:
        m += 1
        term *= x / m
    return m


def _uniform_average(T: int, causal: bool, dtype: torch.dtype) -> Averager:
    """Z -> C Z C^T of a symmetric Z for uniform attention, by running sums (along rows: the fast axis)."""
    if not causal:
        return lambda Z: Z.mean().expand(T, T)
    n = torch.arange(1, T + 1, dtype=dtype)
    count = n[:, None] * n
    return lambda Z: Z.cumsum(1).mT.contiguous().cumsum(1) / count.to(Z.device)


def _cauchy_schwarz(Sigma: Tensor) -> Tensor:
    """|Sigma_ij| <= sqrt(Sigma_ii Sigma_jj), which an approximate map may miss by a little near collapse."""
    q = torch.sqrt(Sigma.diagonal().clamp_min(0))
    most = q[:, None] * q
    return torch.minimum(torch.maximum(Sigma, -most), most)
