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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.forward import jvp
from ..core.progress import say
from ..core.rng import stream
from ..core.space import Vector
from .retained import Retained, gradients
from .risk import Risk

#: How much derivatives by two ways may differ, relative to their size; many models compute their loss in
#: float32 whatever they are given, and TF32 products err by 1e-3.
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-2}
ROUNDING_HALF = 0.2
#: Where that is measured: what share of the weights is kept, and how far they are moved, relative to their size.
_PLACES = ((1.0, 0.1), (1.0, 1.0), (0.1, 0.1), (0.01, 0.01))


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
    """Whether the loss has one slope along a random direction in both modes."""
    if risk.forward is None:
        risk.forward = not risk.batches or not _differ(risk, partial(_slopes, risk, risk.batches[0]))
    return risk.forward


def _slopes(risk: Risk, batch: Any, near: dict[str, Tensor]) -> tuple[float, float]:
    v = _direction(risk, "forward")
    slope = jvp(lambda p: risk.run(p, batch)[0], (near,), (v,))[1]
    with torch.enable_grad():
        at = {n: t.requires_grad_() for n, t in near.items()}
        g = gradients(risk.run(at, batch)[0], at)
    return float(slope.detach()) - _inner(g, v), length(g)


def require_symmetric(risk: Risk, batch: Any) -> None:
    """Refuse a model through which torch's second backward pass is wrong: u^T H v is then not v^T H u.

    A rule of torch can be (that of weight norm is, in 2.13), or one of the model's own.
    """
    if _differ(risk, partial(_symmetry, risk, batch)):
        gap, size = _symmetry(risk, batch, risk.params)
        raise InputError(
            f"the second backward pass through this model is not symmetric (by {100 * abs(gap) / (size or 1):.2g} %):"
            " an operator has a wrong second derivative, as torch's weight norm has. Nothing was measured. Replace that"
            " operator (`torch.nn.utils.parametrize.remove_parametrizations`), or write it in plain torch."
        )


def _symmetry(risk: Risk, batch: Any, near: Vector) -> tuple[float, float]:
    """u^T H v - v^T H u of the pair, of three random vectors, in which it is largest."""
    V = [_direction(risk, f"symmetry/{i}") for i in range(3)]
    H = Retained(lambda p: risk.run(p, batch)[0], near, risk.space.names)
    HV = [H(v, risk.space.names) for v in V]
    gaps = [_inner(V[i], HV[j]) - _inner(V[j], HV[i]) for i, j in ((0, 1), (0, 2), (1, 2))]
    return max(gaps, key=abs), max(map(length, HV))


def _differ(risk: Risk, measured: Callable[[dict[str, Tensor]], tuple[float, float]]) -> bool:
    """Whether two numbers that should be one differ: `measured` gives the gap and the size of what they come from.

    Where nothing bends (a saturated softmax) both are rounding. What differs near the weights is therefore looked at
    where most of several places bends most, and has to stay as it is when the weights move by rounding.
    """
    allowed = ROUNDING.get(risk.dtype, ROUNDING_HALF)
    try:
        gap, size = measured(_near(risk, _PLACES[0]))
        if not abs(gap) > allowed * size:  # so where it is not finite
            return False
        found = [(size, gap, _PLACES[0])]
        for place in _PLACES[1:]:
            gap, size = measured(_near(risk, place))
            found += [(size, gap, place)] * math.isfinite(gap + size)
        size, gap, place = max(found)
        gaps = [gap, *(measured(_near(risk, place, again))[0] for again in (1, 2))]
    except RuntimeError:  # no such derivative at all: said where it is wanted
        return False
    return min(map(abs, gaps)) > allowed * size and max(gaps) - min(gaps) < 0.1 * max(map(abs, gaps))


def say_other_ways(risk: Risk) -> None:
    """Once for a risk: tell if the loss sees the parameters not only through the network's output.

    J^T dl/dF is then not the gradient, and H_o + H_f not the Hessian: a second head, a penalty on the weights.
    """
    if risk.through or not risk.batches:
        return
    risk.through = True
    with risk.context(), torch.enable_grad():
        at = {n: t.requires_grad_() for n, t in _near(risk).items()}
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
    if length(off) > ROUNDING.get(risk.dtype, ROUNDING_HALF) * length(part):
        say(
            "the loss sees the parameters not only through the network's output (another head, a penalty on weights):"
            " H_o and H_f are those of the output and do not add up to H"
        )


def _near(risk: Risk, place: tuple[float, float] = (1.0, 0.1), again: int = 0) -> dict[str, Tensor]:
    """A share of the weights, moved by a share of their size at random, and `again` by a thousand roundings more."""
    kept, moved = place
    far, more = _direction(risk, "near"), _direction(risk, f"near/{again}")
    by = 1e3 * torch.finfo(risk.dtype).eps if again else 0.0
    sizes = {n: t.norm() / max(t.numel(), 1) ** 0.5 for n, t in risk.params.items()}
    return {n: kept * t + moved * sizes[n] * (far[n] + by * more[n]) for n, t in risk.params.items()}


def _direction(risk: Risk, name: str) -> dict[str, Tensor]:
    generator = stream(0, f"reverse/{name}", risk.device)
    return risk.space.random(dtype=risk.dtype, device=risk.device, generator=generator)


def _inner(u: Vector, v: Vector) -> float:
    return math.fsum(float((u[n].double() * t.double()).sum()) for n, t in v.items())


def length(vector: Vector) -> float:
    return math.sqrt(_inner(vector, vector))
