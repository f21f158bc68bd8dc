"""Taylor: the loss along a line to fourth order, and how far its quadratic model holds. [own]

    L(theta + r v) - L(theta) = q(r) + C r^3 / 6 + D r^4 / 24 + ...,   q(r) = a r + b r^2 / 2,
    a = g.v,   b = v.H v,   C = D3L[v, v, v],   D = D4L[v, v, v, v];

where units switch (ReLU), their kinks are added (`kinks.py`).

The radius is the first r at which the quadratic model is wrong by more than a share (10 %) of its own largest change:
|L - L0 - q(r)| > share max_{s <= r} |q(s)|. It is predicted from C, D and kinks, and measured by evaluating the loss.

Torch's third derivatives through `layer_norm`, and `batch_norm` in training, are silently wrong (22 % and 59 % in
tests/curvature/test_taylor.py): inside a measurement both are written out in operations that are right to every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..core.errors import InputError
from ..core.number import Estimate
from ..core.showing import fields_in_brief
from ..core.space import Vector
from ..distributed.processes import group_of
from .kinks import GRID, kinks_of
from .risk import Risk

#: The quadratic model holds while it is wrong by less than this share of its own largest change.
SHARE = 0.1
#: Steps of the search: the loss is evaluated at radii that grow by this factor, then the place is halved in on.
GROWTH = 2**0.25


@dataclass(frozen=True)
class Line:
    """The loss along one direction v: its value at r = 0, the first four derivatives there, and `kinks` on GRID."""

    value: float
    slope: float
    curve: float
    third: float
    fourth: float = 0.0
    kinks: Tensor | None = field(default=None, repr=False, compare=False)

    __repr__ = fields_in_brief

    def derivatives(self) -> dict[str, float]:
        """Value and derivatives by their names."""
        return {name: getattr(self, name) for name in ("value", "slope", "curve", "third", "fourth")}

    def quadratic(self, r: float) -> float:
        """q(r): the change of the loss to second order."""
        return self.slope * r + self.curve * r * r / 2

    def moved(self, r: float) -> float:
        """max over s <= r of |q(s)|."""
        turn = -self.slope / self.curve if self.curve else math.inf
        return max(abs(self.quadratic(r)), abs(self.quadratic(turn)) if 0 < turn < r else 0.0)

    def rest(self, r: float) -> float:
        """What the quadratic model leaves out: to fourth order, and the kinks."""
        smooth = self.third * r**3 / 6 + self.fourth * r**4 / 24
        return smooth if self.kinks is None else smooth + float(np.interp(r, GRID.numpy(), self.kinks.numpy()))

    def radius(self, share: float = SHARE) -> float:
        """The predicted radius: inf where nothing is left out, 0 where slope and curvature vanish."""
        bent = [] if self.kinks is None else GRID[self.kinks != 0].tolist()
        if self.third == 0 and self.fourth == 0 and not bent:
            return math.inf
        if self.slope == 0 and self.curve == 0:
            return 0.0

        def inside(r: float) -> bool:
            return abs(self.rest(r)) <= share * self.moved(r)

        # The radii that one term on each side would give alone; the search begins well below the least of them.
        pairs = ((self.slope, 1, 1), (self.curve, 2, 2)), ((self.third, 3, 6), (self.fourth, 4, 24))
        alone = [
            abs(share * low / i * n / high) ** (1 / (k - j))
            for low, j, i in pairs[0]
            for high, k, n in pairs[1]
            if low and high
        ]
        r = min([*alone, *bent[:1]]) * 1e-2
        most = 1e6 * max(alone) if alone else bent[-1]
        while inside(r):
            if r > most:  # the terms cancel all along
                return math.inf
            r *= 1.02
        return _halved(inside, r / 1.02, r)


def _halved(inside: Callable[[float], bool], low: float, high: float, steps: int = 30) -> float:
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if inside(middle) else (low, middle)
    return math.sqrt(low * high)


def along(risk: Risk, v: Vector) -> Line:
    """The first four derivatives of the risk along v, exactly: reverse mode four times in the one number r; and kinks.

    Torch's attention runs by its math path here: fused kernels have two derivatives at most.
    """
    risk.space.lead(v)
    plain = risk.plain()
    total = torch.zeros(5 + len(GRID), dtype=torch.double)
    with plain.context(), torch.enable_grad(), WrittenOut():
        for weight, batch in zip(plain.weights, plain.batches, strict=True):
            total += weight * torch.cat([_derivatives(plain, batch, v), kinks_of(plain, batch, v)])
    found = group_of(risk.space).sum(total)
    value, first, second, third, fourth = found[:5].tolist()
    return Line(value, first, second, third, fourth, kinks=found[5:] if found[5:].any() else None)


def _derivatives(risk: Risk, batch: object, v: Vector) -> Tensor:
    r = torch.zeros((), dtype=risk.dtype, device=risk.device, requires_grad=True)
    d = risk.run({n: t + r * v[n] for n, t in risk.params.items()}, batch)[0]
    found = [d.detach()]
    for order in (1, 2, 3, 4):
        if d.requires_grad:
            (d,) = torch.autograd.grad(d, r, create_graph=order < 4, allow_unused=True, materialize_grads=True)
        else:
            d = torch.zeros_like(d)
        found.append(d.detach())
    return torch.stack(found).double().cpu()


class WrittenOut(TorchFunctionMode):
    """Inside it layer and batch norms run as single operations, whose derivatives of every order are right."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = _WRITTEN.get(func)
        return (func if written is None else written)(*args, **(kwargs or {}))


def layer_norm(
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """`torch.nn.functional.layer_norm` in single operations."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    return _affine(_normal(x, tuple(range(-len(shape), 0)), eps), weight, bias)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """`torch.nn.functional.batch_norm` in single operations; running statistics are read, never written."""
    channels = (1, -1) + (1,) * (x.dim() - 2)
    if training or running_mean is None or running_var is None:
        x = _normal(x, (0, *range(2, x.dim())), eps)
    else:
        x = (x - running_mean.reshape(channels)) * torch.rsqrt(running_var.reshape(channels) + eps)
    return _affine(
        x, None if weight is None else weight.reshape(channels), None if bias is None else bias.reshape(channels)
    )


def _normal(x: Tensor, over: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(over, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


_WRITTEN: dict[Any, Callable[..., Tensor]] = {
    torch.nn.functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    torch.nn.functional.batch_norm: batch_norm,
}


def measured_radius(risk: Risk, v: Vector, line: Line, share: float = SHARE, far: float | None = None) -> Estimate:
    """The radius by evaluating the loss, to 2 %. Radii grow by 19 %, from the least at which rounding is no matter, or
    from 1/64 of the prediction where the quadratic model holds there.

    A bound from above where the least is already outside, from below where the loss stays inside up to `far`, which is
    a thousand times the prediction unless given.
    """
    if line.slope == 0 and line.curve == 0:
        raise InputError("slope and curvature along this direction are zero: there is no quadratic model to test.")
    with torch.no_grad():
        rounding = torch.finfo(
            risk.value().dtype
        ).eps  # many models compute their loss in float32, whatever they are in
    low = first_seen(line, 100 * rounding * max(abs(line.value), 1e-30) / share)

    def gap(r: float) -> float:
        with torch.no_grad():
            value = float(risk.value({n: t + r * v[n] for n, t in risk.params.items()}))
        return abs(value - line.value - line.quadratic(r))

    def inside(r: float) -> bool:
        left = gap(r)
        return math.isfinite(left) and left <= share * line.moved(r)

    # A small loss of large logits rounds like the logits: what is seen below `low` is rounding.
    low = max(low, first_seen(line, 10 * max(gap(low * part) for part in (0.25, 0.5, 0.75)) / share))
    predicted = line.radius(share)
    predicted = predicted if math.isfinite(predicted) else 0.0
    if predicted > 64 * low and inside(predicted / 64):
        low = predicted / 64
    elif not inside(low):
        return Estimate(low, kind="bound", side="upper", note="below this radius rounding hides the loss")
    if far is None:
        far = 1e3 * max(low, predicted)
    high = low * GROWTH
    while inside(high):
        if high >= far:
            return Estimate(high, kind="bound", side="lower", note="the quadratic model holds up to here")
        low, high = high, high * GROWTH
    found = _halved(inside, low, high, steps=3)
    return Estimate(found, kind="estimate", error=0.02 * found, error_kind="residual")


def first_seen(line: Line, change: float) -> float:
    """The least radius at which the quadratic model has moved by `change`."""
    r = min(
        change / abs(line.slope) if line.slope else math.inf,
        math.sqrt(2 * change / abs(line.curve)) if line.curve else math.inf,
    )
    while line.moved(r) < change:
        r *= 1.1
    return r


def unit(v: Vector) -> dict[str, Tensor]:
    """v / |v|."""
    size = math.sqrt(sum(float(t.double().square().sum()) for t in v.values()))
    if not 0 < size < math.inf:
        raise InputError(f"a direction has a finite length above 0; this one has {size:g}.")
    return {n: t / size for n, t in v.items()}
