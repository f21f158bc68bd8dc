"""Activation shaping for networks without skips: DKS and TAT.

A random layer maps the cosine c of two unit tokens to C(c) = E[phi(u) phi(v)] / E[phi^2] (the local C map) and the
square length q to Q(q) = E[phi(sqrt(q) z)^2]. Deep stacks degenerate unless the map stays near the identity. A smooth
activation is replaced by

    phi^(x) = output_scale (phi(input_scale x + input_shift) + output_shift)

with Q(1) = 1, Q'(1) = 1 and, for a chain of `layers` layers, whose slopes C'(1) multiply and curvatures C''(1) add up,

    DKS   C(0) = 0,  C'(1) = zeta^{1/layers}       (zeta = 1.5)
    TAT   C'(1) = 1, C''(1) = tau / layers         (tau = 0.3)
    TAT for Leaky ReLU: slope s with C^{(layers)}(0) = eta (0.9), output scale sqrt(2 / (1 + s^2))

Source: Martens et al. 2021 (DKS), Zhang et al. 2022 (TAT), as used by [HMZ23]; the solver is [own].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.core.errors import CheckFailed, InputError, UnknownName, did_you_mean
from quadform.core.tat import tat_slope

from .duals import hermite_coefficients, normal_grid

Activation = Callable[[Tensor], Tensor]
SMOOTH: dict[str, Activation] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "erf": torch.erf,
}


@dataclass(frozen=True)
class Shaped:
    """A shaped activation: output_scale (phi(input_scale x + input_shift) + output_shift). Callable on tensors."""

    name: str
    method: str
    input_scale: float
    input_shift: float
    output_scale: float
    output_shift: float

    def __call__(self, X: Tensor) -> Tensor:
        return self.output_scale * (SMOOTH[self.name](self.input_scale * X + self.input_shift) + self.output_shift)


@dataclass(frozen=True)
class ShapedLeaky:
    """sqrt(2 / (1 + slope^2)) leaky_relu(x, slope): keeps E[phi^2] of a unit Gaussian."""

    slope: float

    @property
    def output_scale(self) -> float:
        return math.sqrt(2 / (1 + self.slope**2))

    def __call__(self, X: Tensor) -> Tensor:
        return self.output_scale * F.leaky_relu(X, self.slope)


# ------------------------------------------------------------------------------------------------ local maps at q = 1
@dataclass(frozen=True)
class LocalMaps:
    """Moments of an activation on a unit Gaussian: Q(1), Q'(1), C(0), C'(1), C''(1), as numbers."""

    Q: float
    Q_slope: float
    C0: float
    C_slope: float
    C_curvature: float


def local_maps(phi: Activation) -> LocalMaps:
    """The local maps of phi at q = 1: E[phi^2], E[x phi phi'], and E[phi]^2, E[phi'^2], E[phi''^2] over E[phi^2]."""
    z, w = normal_grid(reach=10.0, points=801)
    with torch.enable_grad():
        x = z.clone().requires_grad_()
        y = phi(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        second = torch.autograd.grad(first.sum(), x)[0] if first.requires_grad else torch.zeros_like(z)
    y, first = y.detach(), first.detach()
    Q = max(float((w * y * y).sum()), 1e-300)
    return LocalMaps(
        Q=Q,
        Q_slope=float((w * z * y * first).sum()),
        C0=float((w * y).sum()) ** 2 / Q,
        C_slope=float((w * first * first).sum()) / Q,
        C_curvature=float((w * second * second).sum()) / Q,
    )


def cosine_map(phi: Activation, c: Tensor) -> Tensor:
    """C(c) = E[phi(u) phi(v)] / E[phi^2] for unit u, v of correlation c, any shape, smooth phi.

    The Hermite series of 96 terms; the share of E[phi^2] it leaves out bounds the error, and more than 1e-6 is refused.
    """
    a, second = hermite_coefficients(phi, torch.ones((), dtype=torch.float64))
    energy = torch.cat([a.square(), (second - a.square().sum()).clamp_min(0)[None]]) / second
    if not float(energy[-1]) <= 1e-6:
        raise CheckFailed(
            f"the C map of this activation is known to {float(energy[-1]):.0e}: it is too steep for {len(a)} Hermite"
            " terms. Scale its input down, or use `dual` for a named activation."
        )
    out = torch.zeros_like(c, dtype=torch.float64)
    for coefficient in reversed(energy.tolist()):
        out = out * c + coefficient
    return out


# ------------------------------------------------------------------------------------------------ shaping
def shape(name: str, layers: int, method: str = "tat", target: float | None = None) -> Shaped:
    """The smooth activation `name` shaped for a network of `layers` nonlinear layers by "dks" or "tat".

    `target` is zeta (DKS, default 1.5) or tau (TAT, default 0.3) of the whole network.
    """
    if name not in SMOOTH:
        hint = " Use shape_leaky for a Leaky ReLU." if "relu" in name else did_you_mean(name, SMOOTH)
        raise UnknownName(f"no smooth activation {name!r}; there are {', '.join(SMOOTH)}.{hint}")
    layers = _layers(layers)
    if method == "dks":
        zeta = 1.5 if target is None else float(target)
        if zeta <= 1:
            raise InputError(f"DKS needs zeta > 1 (the slope of the network's C map at 1); got {zeta}.")
        return _solve(name, "dks", {"C_slope": zeta ** (1 / layers), "Q_slope": 1.0})
    if method == "tat":
        tau = 0.3 if target is None else float(target)
        if tau <= 0:
            raise InputError(f"TAT needs tau > 0 (the curvature of the network's C map at 1); got {tau}.")
        return _solve(name, "tat", {"C_slope": 1.0, "C_curvature": tau / layers, "Q_slope": 1.0})
    raise UnknownName(f"no shaping method {method!r}; there are dks, tat.{did_you_mean(method, ('dks', 'tat'))}")


def shape_leaky(
    layers: int, eta: float = 0.9, network: Callable[[Callable[[float], float]], float] | None = None
) -> ShapedLeaky:
    """TAT for Leaky ReLU: `network` (None: `layers` maps in a chain) brings orthogonal tokens to cosine eta."""
    return ShapedLeaky(tat_slope(_layers(layers), eta, network))


def _solve(name: str, method: str, wanted: dict[str, float]) -> Shaped:
    """Find input scale and shift (and output shift, for TAT) by root finding from a fixed list of starts."""
    from scipy.optimize import root

    free_shift = method == "tat"

    def build(p: np.ndarray) -> Shaped:
        raw = Shaped(name, method, float(p[0]), float(p[1]), 1.0, float(p[2]) if free_shift else 0.0)
        z, w = normal_grid(reach=10.0, points=801)
        y = raw(z)
        shift = raw.output_shift if free_shift else -float((w * y).sum())
        spread = float((w * (y - raw.output_shift + shift).square()).sum())
        return Shaped(name, method, raw.input_scale, raw.input_shift, 1 / math.sqrt(max(spread, 1e-300)), shift)

    def gap(p: np.ndarray) -> np.ndarray:
        maps = local_maps(build(p))
        return np.array([getattr(maps, key) - value for key, value in wanted.items()])

    starts = [(a, b, *((d,) if free_shift else ())) for a in (1.0, 0.3, 0.1) for b in (0.0, 1.0, -1.0, 0.3, -0.3)
              for d in ((0.0, -1.0, 1.0) if free_shift else (0.0,))]  # fmt: skip
    for start in starts:
        with np.errstate(all="ignore"):
            found = root(gap, np.array(start), method="hybr")
        candidate = build(found.x)
        # as in the authors' code: steeper TAT solutions have unstable Q maps
        tame = method == "dks" or abs(candidate.input_scale * candidate.output_scale) < 2
        if found.success and tame and float(np.abs(gap(found.x)).max()) < 1e-8:
            return candidate
    raise CheckFailed(
        f"{method.upper()} found no transformation of {name} for {wanted}. Lower the target, or change the activation."
    )


def _layers(layers: int) -> int:
    if int(layers) != layers or layers < 1:
        raise InputError(f"a network has a whole number of nonlinear layers, at least 1; got {layers}.")
    return int(layers)
