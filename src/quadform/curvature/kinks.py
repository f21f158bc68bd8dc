"""Kinks: what ReLU adds to the loss along a line, and no derivative at the point sees. [own]

A unit a = relu(z) whose input moves as z + r z' switches at r_u = -z / z'. There the slope of a jumps by |z'|, whether
it switches on or off, and the slope of the loss by |z'| dL/da. To first order in every unit the loss along the line
has, beside its Taylor series,

    kinks(r) = sum over units with r_u > 0 of |z'_u| dL/da_u (r - r_u)_+,

times 1 - s for a leaky ReLU of slope s. It is kept on a grid of radii: sums over batches and processes are sums of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .risk import Risk

#: The radii at which kinks(r) is kept: 1 % apart.
LEAST, MOST, APART = 1e-12, 1e6, 1.01
GRID = torch.logspace(
    math.log10(LEAST), math.log10(MOST), 1 + math.ceil(math.log(MOST / LEAST, APART)), dtype=torch.double
)

_RELU = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
_LEAKY = {F.leaky_relu, F.leaky_relu_}


class Switches(TorchFunctionMode):
    """Inside it every ReLU keeps its input z, its output a and how much of its slope switches."""

    def __init__(self) -> None:
        super().__init__()
        self.units: list[tuple[Tensor, Tensor, float]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _RELU and func not in _LEAKY:
            return func(*args, **kwargs)
        z = args[0] if args else kwargs["input"]
        kept = z.clone()  # the call may be in place
        a = func(*args, **kwargs)
        slope = 0.0 if func in _RELU else float(args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01))
        if not a.requires_grad:
            return a
        self.units.append((kept, a, 1 - slope))
        return a.clone()  # what comes after may be in place


def kinks_of(risk: Risk, batch: object, v: Any) -> Tensor:
    """kinks(r) of one batch along v, at the radii of GRID."""
    r = torch.zeros((), dtype=risk.dtype, device=risk.device, requires_grad=True)
    with Switches() as seen:
        loss = risk.run({n: t + r * v[n] for n, t in risk.params.items()}, batch)[0]
    if not seen.units:
        return torch.zeros_like(GRID)
    z, a, shares = zip(*seen.units, strict=True)
    pulls = torch.autograd.grad(loss, a, retain_graph=True, allow_unused=True, materialize_grads=True)
    u = [torch.zeros_like(t, requires_grad=True) for t in z]
    (speed,) = torch.autograd.grad(z, r, u, create_graph=True, allow_unused=True, materialize_grads=True)
    if not speed.requires_grad:
        return torch.zeros_like(GRID)
    speeds = torch.autograd.grad(speed, u, allow_unused=True, materialize_grads=True)
    total = torch.zeros_like(GRID)
    for t, p, s, share in zip(z, pulls, speeds, shares, strict=True):
        total += _on_grid(t.detach().double().cpu(), share * p.double().cpu(), s.detach().double().cpu())
    return total


def _on_grid(z: Tensor, pull: Tensor, speed: Tensor) -> Tensor:
    """sum_u |z'_u| pull_u (r - r_u)_+ at the radii of GRID."""
    ahead = (z * speed < 0).flatten()
    speed = speed.flatten()[ahead]
    at, order = (-z.flatten()[ahead] / speed).sort()
    jump = (speed.abs() * pull.flatten()[ahead])[order]
    zero = torch.zeros(1, dtype=torch.double)
    jumps, moments = (torch.cat([zero, t.cumsum(0)]) for t in (jump, jump * at))
    before = torch.searchsorted(at, GRID)
    return GRID * jumps[before] - moments[before]
