"""What the graph of a model with repeated blocks will hold, from its first block: before anything of it is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core.memory import in_words
from .retained import TooLarge, counted
from .settings import without_cache
from .structures import filled, taken
from .wide import restore

if TYPE_CHECKING:
    from .risk import Risk


class _Seen(Exception):
    """The first block was run."""


def graph_bytes(risk: Risk) -> tuple[float, float]:
    """Bytes that the graphs of the loss and of its gradient would hold on the first batch: those of the first unit that
    is run, times the number of units. What lies outside the units is not in it."""
    found = [(0.0, 0.0)]

    def look(forward: Callable[..., Any], unit: nn.Module, *args: Any, **options: Any) -> Any:
        try:
            found[0] = _of_unit(forward, unit, args, options)
        except torch.OutOfMemoryError:
            found[0] = math.inf, math.inf
        except RuntimeError:  # no such derivative: told where it is wanted
            pass
        raise _Seen

    before = {unit: unit.__dict__.get("forward") for unit in risk.units.values()}
    theta = {n: t.detach().requires_grad_() for n, t in risk.params.items()}
    try:
        for unit in before:
            unit.forward = partial(look, unit.forward, unit)
        with torch.enable_grad(), without_cache(risk.model):
            risk.run(theta, risk.batches[0])
    except _Seen:
        pass
    finally:
        for unit, own in before.items():
            restore(unit, own)
    loss, gradient = found[0]
    return loss * len(before), gradient * len(before)


def _of_unit(forward: Callable[..., Any], unit: nn.Module, args: Any, options: Any) -> tuple[float, float]:
    given, shape = taken((args, options))
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in given]
    args, options = filled(shape, leaves)
    weights = list(unit.parameters())
    own = {t.untyped_storage()._cdata for t in weights}
    held: dict[int, int] = {}

    def bytes() -> float:
        return float(sum(size for where, size in held.items() if where not in own))

    with counted(held):
        results = [t for t in taken(forward(*args, **options))[0] if t.requires_grad]
        if not results:
            return 0.0, 0.0
        loss, at = bytes(), [t for t in (*leaves, *weights) if t.requires_grad]
        ones = [torch.ones_like(t) for t in results]
        torch.autograd.grad(results, at, ones, create_graph=True, allow_unused=True)
        return loss, bytes()


def require_room(need: float, room: float) -> None:
    """Refuse a graph that would hold more than there is room for."""
    if need > room:
        raise TooLarge(f"the graph would take about {in_words(need)}, and there is room for {in_words(room)}")
