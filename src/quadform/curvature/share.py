"""What each of several processes takes for a product of a model that is cut over them, from shapes alone.

A unit gathers W and V forwards and, for the Hessian, again backwards (Gauss-Newton: W alone); weights outside the units
are gathered once with their tangents; one image is added up. In forward passes F of matrix work a pass with tangents
is 3 F, its reverse pass with tangents 6 F, without 2 F, and a unit is run again. Source: [own], counted in the tests.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.memory import in_words
from .outline import Counted, empty, unmasked
from .risk import Risk
from .units import find

#: Forward passes of matrix work in a product, inside the units and outside of them.
FORWARD = {"hessian": (12.0, 9.0), "gauss_newton": (6.0, 5.0), "functional": (13.0, 10.0)}
#: How often W and V of a unit are gathered in a product.
GATHERED = {"hessian": (2, 2), "gauss_newton": (2, 1), "functional": (3, 2)}
#: Bytes at the peak of a product by those of the weights of the largest unit: 6 to 16, and 6 to 10, were seen with few
#: tokens, where weights outweigh activations.
PEAK = {"hessian": 16.0, "gauss_newton": 10.0, "functional": 16.0}


@dataclass(frozen=True)
class Share:
    """Of one product over all batches, in each of `world` processes: floating-point operations of matrix products,
    numbers gathered and added up, bytes sent; bytes of its weights, and at the peak of a product (an estimate)."""

    world: int
    flops: float
    gathered: float
    reduced: float
    sent: float
    weights: float
    product: float

    def __str__(self) -> str:
        """One line of a plan."""
        return (
            f"each of {self.world} processes: {self.flops:.2g} FLOPs and {in_words(self.sent)} sent a product;"
            f" {in_words(self.weights)} of weights, about {in_words(self.product)} for a product"
        )


def share_of(risk: Risk, kind: str, world: int) -> Share:
    """The share of each process in the products of a risk whose model would be cut over `world` processes.

    The model is whole here, or without numbers (`Outline`). Whole batches go to the processes, so that the one with
    most decides.
    """
    assert isinstance(risk.model, nn.Module)
    units = find(risk.model)
    numbers = {n: t.numel() for n, t in risk.model.named_parameters()}
    inside = {n for n in numbers for u in units if n.startswith(f"{u}.")}
    P = sum(numbers.values())
    P_u, n_u = sum(numbers[n] for n in inside), sum(numbers[n] for n in inside if n in risk.params)
    n = sum(numbers[name] for name in risk.params)
    size, turns = risk.dtype.itemsize, math.ceil(len(risk.batches) / world)
    of_W, of_V = GATHERED[kind]
    gathered = of_W * P_u + of_V * n_u + (P - P_u) + (n - n_u)
    within, beyond, kept = _forward(risk, units)
    largest = max((sum(p.numel() for p in m.parameters()) for m in units.values()), default=P)
    passes = FORWARD[kind]
    return Share(
        world=world,
        flops=turns * (passes[0] * within + passes[1] * beyond),
        gathered=turns * gathered,
        reduced=turns * n,
        sent=turns * (gathered + n) * (world - 1) / world * size,
        weights=P / world * size,
        product=(PEAK[kind] * largest + 4 * (P - P_u) + n / world) * size + 2 * kept,
    )


def _forward(risk: Risk, units: Mapping[str, nn.Module]) -> tuple[float, float, float]:
    """Floating-point operations of a forward pass on the first batch inside the units and outside, and the bytes of
    what the units are given."""
    inside = begun = given = 0.0

    def enter(module: nn.Module, args: Any, options: Any) -> None:
        nonlocal begun, given
        begun = counted.flops
        given += sum(t.numel() * t.element_size() for t in (*args, *options.values()) if _activation(t))

    def leave(*_: Any) -> None:
        nonlocal inside
        inside += counted.flops - begun

    theta, batch = empty({**risk.constants(), **risk.params}), empty(unmasked(risk.batches[0]))
    with risk.context(), contextlib.ExitStack() as stack, torch.no_grad(), Counted() as counted:
        risk.run(theta, batch)  # also looks for the output of the network
        counted.taken()
        for unit in units.values():
            stack.callback(unit.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(unit.register_forward_hook(leave).remove)
        risk.run(theta, batch)
        whole = counted.taken().flops
    return inside, whole - inside, given


def _activation(t: Any) -> bool:
    return isinstance(t, Tensor) and t.is_floating_point()
