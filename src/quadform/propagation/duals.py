"""What a wide random layer does to a token kernel: E[phi(u) phi(v)] for jointly Gaussian u, v.

The rows of X W_1 with Gaussian W_1 are, at large width, Gaussian with the kernel Sigma; after the activation the kernel
is the dual K(Sigma)_ij = E[phi(u) phi(v)], (u, v) ~ N(0, [[Sigma_ii, Sigma_ij], [Sigma_ij, Sigma_jj]]). With
q = Sigma_ii, p = Sigma_jj, k = Sigma_ij, c = k / sqrt(q p):

    linear   k
    leaky    sqrt(q p) ((1 + s^2)/2 c + (1 - s)^2/(2 pi) (sqrt(1 - c^2) - c arccos c)); ReLU is s = 0
    gelu     k/4 + (k A + (q p sqrt(D) + k^2/sqrt(D)) / W) / (2 pi),   W = (1 + q)(1 + p), D = W - k^2,
                                                                      A = asin(k / sqrt(W))
    silu, tanh, softplus: the logistic function is a mixture of normal ones, sigma(x) = E[Phi(x / lambda)], so with
             W = (q + a)(p + b), D = W - k^2, A = asin(k / sqrt(W)), expected over two independent lambda, mu:
             silu      k/4 + (k A + (q p sqrt(D) + a b k^2/sqrt(D)) / W) / (2 pi),    a = lambda^2,   b = mu^2
             softplus  k/4 + (k A + sqrt(D)) / (2 pi),                                a = lambda^2,   b = mu^2
             tanh      2 A / pi,                                                      a = lambda^2/4, b = mu^2/4
    geglu    K_gelu(Sigma) o Sigma, swiglu K_silu(Sigma) o Sigma: gate and value read independent weights

lambda / 2 has the Kolmogorov distribution; its Gauss rule of `NODES` points gives the expectations to 1e-12 of
sqrt(K_ii K_jj), for q, p from 1e-8 to 1e8 and any c (tested). The others are closed forms.
Source: arc-cosine kernel, Cho and Saul 2009; logistic mixture, Andrews and Mallows 1974; the GELU form by Stein's
identity is [own] (known in the literature), and so are the duals by mixtures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform.core.errors import UnknownName, did_you_mean

if TYPE_CHECKING:
    from jaxtyping import Float

ACTIVATIONS: tuple[str, ...] = ("linear", "relu", "leaky", "gelu", "silu", "tanh", "softplus", "geglu", "swiglu")
#: Points of the Gauss rule of the logistic mixture.
NODES = 12


def dual(name: str, Sigma: Float[Tensor, "*batch T T"], slope: float = 0.0) -> Float[Tensor, "*batch T T"]:
    """K(Sigma) of the named activation, (..., T, T) -> (..., T, T).

    `leaky` is the scaled sqrt(2 / (1 + slope^2)) leaky_relu, whose dual keeps the diagonal; `relu` is unscaled.
    """
    if name == "linear":
        return Sigma
    if name == "relu":
        return leaky_dual(Sigma, 0.0)
    if name == "leaky":
        return 2 / (1 + slope**2) * leaky_dual(Sigma, slope)
    if name == "gelu":
        return gelu_dual(Sigma)
    if name == "geglu":
        return gelu_dual(Sigma) * Sigma
    if name == "swiglu":
        return silu_dual(Sigma) * Sigma
    if name in (named := {"silu": silu_dual, "tanh": tanh_dual, "softplus": softplus_dual}):
        return named[name](Sigma)
    raise UnknownName(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}.{did_you_mean(name, ACTIVATIONS)}")


def leaky_dual(Sigma: Float[Tensor, "*batch T T"], slope: float) -> Float[Tensor, "*batch T T"]:
    """Dual of the unscaled leaky ReLU max(x, slope x)."""
    size, c = _polar(Sigma)
    arc = torch.sqrt((1 - c * c).clamp_min(0)) - c * torch.arccos(c)
    return size * ((1 + slope**2) / 2 * c + (1 - slope) ** 2 / (2 * math.pi) * arc)


def gelu_dual(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch T T"]:
    """Dual of x Phi(x)."""
    return _gate(_Pairs(Sigma), 1.0, 1.0)


def silu_dual(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch T T"]:
    """Dual of x sigma(x)."""
    return _mixed(Sigma, lambda pairs, l, m: _gate(pairs, l * l, m * m))


def softplus_dual(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch T T"]:
    """Dual of log(1 + e^x) = E[max(x + lambda z, 0)], z normal: that of a ReLU with noise."""

    def noisy_relu(pairs: _Pairs, l: float, m: float) -> Tensor:
        root, A, _ = pairs.angle(l * l, m * m)
        return pairs.k / 4 + (pairs.k * A + root) / (2 * math.pi)

    return _mixed(Sigma, noisy_relu)


def tanh_dual(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch T T"]:
    """Dual of tanh x = 2 sigma(2x) - 1."""
    return _mixed(Sigma, lambda pairs, l, m: 2 / math.pi * pairs.angle(l * l / 4, m * m / 4)[1])


class _Pairs:
    """q, p, k of all pairs of tokens, (..., T, T) after broadcasting."""

    def __init__(self, Sigma: Tensor) -> None:
        diagonal = Sigma.diagonal(dim1=-2, dim2=-1)
        self.q, self.p, self.k = diagonal[..., :, None], diagonal[..., None, :], Sigma
        self.spread = (self.q * self.p - Sigma.square()).clamp_min(0)

    def angle(self, a: float, b: float) -> tuple[Tensor, Tensor, Tensor]:
        """sqrt(D), A and W of the table above; D is a sum of positive terms, so nothing cancels at any q."""
        W = (self.q + a) * (self.p + b)
        root = torch.sqrt(self.spread + a * self.p + b * self.q + a * b)
        return root, torch.atan2(self.k, root), W


def _gate(pairs: _Pairs, a: float, b: float) -> Tensor:
    """E[u Phi(u / sqrt(a)) v Phi(v / sqrt(b))]."""
    root, A, W = pairs.angle(a, b)
    rest = (pairs.q * pairs.p * root + a * b * pairs.k.square() / root) / W
    return pairs.k / 4 + (pairs.k * A + rest) / (2 * math.pi)


def _mixed(Sigma: Tensor, dual_of: Callable[[_Pairs, float, float], Tensor]) -> Tensor:
    """The expectation of a dual over two independent scales of the logistic mixture; exactly symmetric."""
    pairs, out = _Pairs(Sigma), torch.zeros_like(Sigma)
    scales, weights = (t.tolist() for t in logistic_mixture())
    for i in range(NODES):
        for j in range(i + 1):
            part = weights[i] * weights[j] * dual_of(pairs, scales[i], scales[j])
            out = out + (part if i == j else part + part.mT)
    return out


@lru_cache
def logistic_mixture(nodes: int = NODES) -> tuple[Tensor, Tensor]:
    """lambda_i and w_i with sigma(x) ~ sum_i w_i Phi(x / lambda_i): the Gauss rule in log(lambda) of the mixing law.

    lambda = 2 psi, psi of the Kolmogorov distribution: its density is 8 psi sum_n (-1)^(n-1) n^2 e^(-2 n^2 psi^2), and
    for small psi the same by Poisson summation.
    """
    t = torch.linspace(math.log(0.15), math.log(4.6), 400, dtype=torch.float64)  # the density is below 1e-20 outside
    psi, n = torch.exp(t), torch.arange(1, 20, dtype=torch.float64)[:, None]
    far = (8 * psi * (-1) ** (n - 1) * n**2 * torch.exp(-2 * (n * psi) ** 2)).sum(0)
    m = ((2 * n - 1) * math.pi) ** 2
    near = math.sqrt(2 * math.pi) * ((m / (4 * psi**4) - psi**-2) * torch.exp(-m / (8 * psi**2))).sum(0)
    mass = torch.where(psi < 1, near, far) * psi
    basis, alpha, beta = [torch.sqrt(mass / mass.sum())], [], []
    for _ in range(nodes):  # Lanczos for the Jacobi matrix of the discretised law
        v = t * basis[-1]
        alpha.append(basis[-1] @ v)
        for _ in range(2):
            v = v - torch.stack(basis).T @ (torch.stack(basis) @ v)
        beta.append(v.norm())
        basis.append(v / beta[-1])
    J = torch.diag(torch.stack(alpha)) + sum(torch.diag(torch.stack(beta[:-1]), side) for side in (1, -1))
    values, vectors = torch.linalg.eigh(J)
    return 2 * torch.exp(values), vectors[0].square()


def hermite_coefficients(phi: Callable[[Tensor], Tensor], q: Tensor, terms: int = 96) -> tuple[Tensor, Tensor]:
    """a_n = E[phi(sqrt(q) z) h_n(z)] for the orthonormal Hermite polynomials, (..., terms), and E[phi^2], (...,)."""
    z, weight = normal_grid(q.dtype, q.device)
    values = phi(torch.sqrt(q)[..., None] * z)
    before, h = torch.zeros_like(z), torch.sqrt(weight)  # h_n times sqrt(weight): bounded at any order
    half = values * torch.sqrt(weight)
    a = []
    for n in range(terms):
        a.append((half * h).sum(-1))
        before, h = h, (z * h - math.sqrt(n) * before) / math.sqrt(n + 1)
    return torch.stack(a, -1), half.square().sum(-1)


def normal_grid(
    dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu", reach: float = 24.0, points: int = 1201
) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the standard normal: the trapezoid rule, geometrically accurate for smooth integrands.

    The reach covers Hermite functions up to order 96 (turning point 2 sqrt(n) < 20).
    """
    z = torch.linspace(-reach, reach, points, dtype=dtype, device=device)
    return z, torch.exp(-z.square() / 2) * (2 * reach / (points - 1)) / math.sqrt(2 * math.pi)


def _polar(Sigma: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(q_i q_j) and the cosine, clamped to [-1, 1]; 0 where a token is zero."""
    q = torch.sqrt(Sigma.diagonal(dim1=-2, dim2=-1))
    size = q[..., :, None] * q[..., None, :]
    return size, torch.where(size > 0, Sigma / torch.where(size > 0, size, 1.0), 0.0).clamp(-1, 1)
