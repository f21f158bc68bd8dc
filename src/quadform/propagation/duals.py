"""What a wide random layer does to a token kernel: E[phi(u) phi(v)] for jointly Gaussian u, v.

The rows of X W_1 with Gaussian W_1 are, at large width, Gaussian with the kernel Sigma; after the activation the kernel
is the dual K(Sigma)_ij = E[phi(u) phi(v)], (u, v) ~ N(0, [[Sigma_ii, Sigma_ij], [Sigma_ij, Sigma_jj]]). With
q = Sigma_ii, p = Sigma_jj, k = Sigma_ij, c = k / sqrt(q p):

    linear   k
    leaky    sqrt(q p) ((1 + s^2)/2 c + (1 - s)^2/(2 pi) (sqrt(1 - c^2) - c arccos c)); ReLU is s = 0
    gelu     k/4 + k asin(k / sqrt((1+q)(1+p))) / (2 pi)
             + (q p + k^2 (1 - q p)/((1+q)(1+p))) / (2 pi sqrt((1+q)(1+p) - k^2))
    silu, tanh, any smooth phi: sum_n a_n(q) a_n(p) c^n with the Hermite coefficients of z -> phi(sqrt(q) z) (Mehler)
    geglu    K_gelu(Sigma) o Sigma, swiglu K_silu(Sigma) o Sigma: gate and value read independent weights

Source: arc-cosine kernel, Cho and Saul 2009; the GELU form by Stein's identity is [own] (known in the literature).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform.core.errors import UnknownName, did_you_mean

if TYPE_CHECKING:
    from jaxtyping import Float

#: Smooth activations without a closed form here; their duals are summed numerically.
SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "softplus": torch.nn.functional.softplus,
}
ACTIVATIONS: tuple[str, ...] = ("linear", "relu", "leaky", "gelu", *SMOOTH, "geglu", "swiglu")
_TERMS = 96


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
        return smooth_dual(SMOOTH["silu"], Sigma) * Sigma
    if name in SMOOTH:
        return smooth_dual(SMOOTH[name], Sigma)
    raise UnknownName(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}.{did_you_mean(name, ACTIVATIONS)}")


def leaky_dual(Sigma: Float[Tensor, "*batch T T"], slope: float) -> Float[Tensor, "*batch T T"]:
    """Dual of the unscaled leaky ReLU max(x, slope x)."""
    size, c = _polar(Sigma)
    arc = torch.sqrt((1 - c * c).clamp_min(0)) - c * torch.arccos(c)
    return size * ((1 + slope**2) / 2 * c + (1 - slope) ** 2 / (2 * math.pi) * arc)


def gelu_dual(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch T T"]:
    """Dual of x Phi(x)."""
    q = Sigma.diagonal(dim1=-2, dim2=-1)
    product, wide = q[..., :, None] * q[..., None, :], (1 + q[..., :, None]) * (1 + q[..., None, :])
    square = torch.minimum(Sigma.square(), product)
    arc = torch.arcsin((Sigma / torch.sqrt(wide)).clamp(-1, 1))
    rest = (product + square * (1 - product) / wide) / torch.sqrt(wide - square)
    return Sigma / 4 + (Sigma * arc + rest) / (2 * math.pi)


def smooth_dual(phi: Callable[[Tensor], Tensor], Sigma: Tensor, terms: int = _TERMS) -> Tensor:
    """Dual of any smooth phi: Mehler's series, with the tail put into one last term so the diagonal is exact."""
    _, c = _polar(Sigma)
    q = Sigma.diagonal(dim1=-2, dim2=-1)
    a, second = hermite_coefficients(phi, q, terms)
    tail = torch.sqrt((second - a.square().sum(-1)).clamp_min(0))
    a = torch.cat([a, tail[..., None]], dim=-1)
    out, power = torch.zeros_like(c), torch.ones_like(c)
    for n in range(a.shape[-1]):
        out = out + a[..., :, None, n] * a[..., None, :, n] * power
        power = power * c
    return out


def hermite_coefficients(phi: Callable[[Tensor], Tensor], q: Tensor, terms: int = _TERMS) -> tuple[Tensor, Tensor]:
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

    The reach covers Hermite functions of order `_TERMS` (turning point 2 sqrt(n) < 20).
    """
    z = torch.linspace(-reach, reach, points, dtype=dtype, device=device)
    return z, torch.exp(-z.square() / 2) * (2 * reach / (points - 1)) / math.sqrt(2 * math.pi)


def _polar(Sigma: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(q_i q_j) and the cosine, clamped to [-1, 1]; 0 where a token is zero."""
    q = torch.sqrt(Sigma.diagonal(dim1=-2, dim2=-1))
    size = q[..., :, None] * q[..., None, :]
    return size, torch.where(size > 0, Sigma / torch.where(size > 0, size, 1.0), 0.0).clamp(-1, 1)
