"""Reverse passes alone: what remains where forward derivatives are missing, or see what training does not.

    J v = d/du (J^T u) . v        two reverse passes in place of one forward pass

Operators without a forward rule (weight norm, autograd functions without `jvp` or `setup_context`) raise. A part under
`torch.no_grad` does not: torch's forward derivatives go through it, reverse ones treat it as a constant, as training
does, and jvp(grad) is then neither. It is therefore measured once for a risk whether the two agree, and whether a
second backward pass is symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from ..core.errors import InputError
from ..core.progress import say
from ..core.rng import stream
from ..core.space import Vector
from .retained import Retained, gradients
from .risk import Risk

#: How much both slopes along one direction may differ, relative to the gradient; many models compute their loss in
#: float32 whatever they are given, and TF32 products err by 1e-3.
_SAME = {torch.float64: 1e-5, torch.float32: 1e-2}
_SAME_HALF = 0.2
#: How far from the weights that is seen, relative to their size: what differs at both is no rounding of a flat place.
_DISTANCES = (0.1, 1.0)


def through_output(
    risk: Risk, batch: Any, split: str | None, v: Vector, rows: Sequence[str], curve: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    """J_rows^T curve(F, J v) at the weights of the risk, F the output of the module `split`."""
    with torch.enable_grad():
        at = {n: t.detach().requires_grad_() for n, t in risk.params.items()}
        F = risk.output(at, batch, split)
        dF = torch.zeros_like(F)
        if F.requires_grad:
            u = torch.zeros_like(F, requires_grad=True)
            back = torch.autograd.grad(F, [at[n] for n in v], u, create_graph=True, allow_unused=True)
            used = [(g, t) for g, t in zip(back, v.values(), strict=True) if g is not None]
            if used:
                outs, weights = zip(*used, strict=True)
                (dF,) = torch.autograd.grad(outs, u, list(weights), retain_graph=True)
        return gradients(F, {n: at[n] for n in rows}, curve(F.detach(), dF.detach()))


def output_curvature(risk: Risk, batch: Any, split: str | None, F: Tensor, dF: Tensor) -> Tensor:
    """(d2l/dF2) dF for everything behind the split, by two reverse passes."""
    with torch.enable_grad():
        shift = torch.zeros_like(F, requires_grad=True)
        value = risk.run(risk.params, batch, split, shift)[0]
        (g,) = torch.autograd.grad(value, shift, create_graph=True)
        return gradients(g, {"": shift}, dF)[""]


def forward_agrees(risk: Risk) -> bool:
    """Whether the loss has one slope along a random direction in both modes, near the weights (see `_near`)."""
    if risk.forward is None:
        risk.forward = not risk.batches or _agrees(risk, risk.batches[0])
    return risk.forward


def _agrees(risk: Risk, batch: Any) -> bool:
    v = _direction(risk, "forward")
    for distance in _DISTANCES:
        near = _near(risk, distance)
        try:
            slope = jvp(lambda p: risk.run(p, batch)[0], (near,), (v,))[1]
            with torch.enable_grad():
                at = {n: t.requires_grad_() for n, t in near.items()}
                g = gradients(risk.run(at, batch)[0], at)
        except RuntimeError:  # no forward rule at all: said where it is wanted
            return True
        if not abs(float(slope.detach()) - _inner(g, v)) > _SAME.get(risk.dtype, _SAME_HALF) * _size(g):
            return True  # so where they are not finite, which tells nothing
    return False


def require_symmetric(risk: Risk, batch: Any) -> None:
    """Refuse a model through which torch's second backward pass is wrong: u^T H v is then not v^T H u.

    A rule of torch can be (that of weight norm is, in 2.13), or one of the model's own.
    """
    u, v = (_direction(risk, name) for name in ("left", "right"))
    for distance in _DISTANCES:
        try:
            H = Retained(lambda p: risk.run(p, batch)[0], _near(risk, distance), risk.space.names)
            Hu, Hv = (H(t, risk.space.names) for t in (u, v))
        except RuntimeError:  # no second backward pass: said where it is wanted
            return
        gap, size = abs(_inner(u, Hv) - _inner(v, Hu)), max(_size(Hu), _size(Hv))
        if not gap > _SAME.get(risk.dtype, _SAME_HALF) * size:
            return
    raise InputError(
        f"the second backward pass through this model is not symmetric (by {100 * gap / size:.2g} %): an operator has a"
        " wrong second derivative, as torch's weight norm has. Nothing was measured. Replace that operator"
        " (`torch.nn.utils.parametrize.remove_parametrizations`), or write it in plain torch."
    )


def say_other_ways(risk: Risk) -> None:
    """Once for a risk: tell if the loss sees the parameters not only through the network's output.

    J^T dl/dF is then not the gradient, and H_o + H_f not the Hessian: a second head, a penalty on the weights.
    """
    if risk.through or not risk.batches:
        return
    risk.through = True
    with risk.context(), torch.enable_grad():
        at = {n: t.requires_grad_() for n, t in _near(risk, 0.1).items()}
        value, F = risk.run(at, risk.batches[0])
        if F is None or not F.requires_grad or not value.requires_grad:  # told elsewhere
            return
        try:
            (g,) = torch.autograd.grad(value, F, retain_graph=True)
        except RuntimeError:
            return
        whole = torch.autograd.grad(value, list(at.values()), retain_graph=True, allow_unused=True)
        part = gradients(F, at, g)
    off = {n: part[n] - (0 if w is None else w) for n, w in zip(at, whole, strict=True)}
    if _size(off) > _SAME.get(risk.dtype, _SAME_HALF) * _size(part):
        say(
            "the loss sees the parameters not only through the network's output (another head, a penalty on weights):"
            " H_o and H_f are those of the output and do not add up to H"
        )


def _near(risk: Risk, distance: float) -> dict[str, Tensor]:
    """Weights moved by `distance` of their size at random: where they stand a gradient may vanish but for rounding."""
    off = _direction(risk, "near")
    return {n: t + distance * t.norm() / max(t.numel(), 1) ** 0.5 * off[n] for n, t in risk.params.items()}


def _direction(risk: Risk, name: str) -> dict[str, Tensor]:
    generator = stream(0, f"reverse/{name}", risk.device)
    return risk.space.random(dtype=risk.dtype, device=risk.device, generator=generator)


def _inner(u: Vector, v: Vector) -> float:
    return math.fsum(float((u[n].double() * t.double()).sum()) for n, t in v.items())


def _size(vector: Vector) -> float:
    return math.sqrt(_inner(vector, vector))
