"""What each of several processes takes for a product of a model that is cut over them, from shapes alone.

The product of the first process is run without numbers and without the others (`sharded`), and counted: matrix work,
numbers gathered and added up, bytes alive at one time.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.memory import in_words
from ..core.space import Vector
from ..distributed import ALONE
from ..distributed.shards import Cut, Shards
from .alive import Alive
from .fsdp import Fsdp
from .once import Meter, Once
from .operators import along_output
from .outline import Counted, empty, unmasked
from .risk import Risk
from .sharded import Sharded
from .units import RECORDING, find


@dataclass(frozen=True)
class Share:
    """Of one product over all batches, in each of `world` processes: floating-point operations of matrix products,
    numbers gathered and added up, bytes sent; bytes of its weights, and of all that a product makes, at its peak."""

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


def share_of(risk: Risk, kind: str, world: int, *, once: bool = True) -> Share:
    """The share of each process in the products of a risk whose model would be cut over `world` processes.

    The model is whole here, or without numbers (`Outline`). Whole batches go to the processes, so that the one with
    most decides. `once`: blocks that repeat are counted once.
    """
    held = {**risk.constants(), **risk.params}
    first = Imagined(risk.model, world)
    shards, size = first.shards, risk.dtype.itemsize
    at = {
        n: t.new_empty(shards.cuts[n].piece(0), device="meta") if n in shards.cuts else empty(t)
        for n, t in held.items()
    }
    alone = copy.copy(risk)
    alone._set(params={n: at[n] for n in risk.params}, shards=first, units=first.units)
    run = Once(alone, first) if once else Sharded(alone, first)
    run.frozen = {n: t for n, t in at.items() if n not in risk.params}
    batch, v = empty(unmasked(risk.batches[0])), {n: t.clone() for n, t in alone.params.items()}
    turns = math.ceil(len(risk.batches) / world)
    with risk.context(), _Nothing():  # type: ignore[no-untyped-call]  # torch's
        with torch.no_grad():
            risk.run(empty(held), batch)  # also looks for the output of the network
        known: Any = None
        while known != (known := _learnt(run)):
            shards.gathered = shards.reduced = 0
            with Alive() as alive, Counted() as counted:
                if isinstance(run, Once):
                    run.meter = Meter(alive, counted, shards)
                image = _product(run, kind, batch, v)
    beside = sum(t.numel() for t in image.values()) * size if turns > 1 else 0  # the sum over the batches before
    return Share(
        world=world,
        flops=turns * counted.flops,
        gathered=turns * shards.gathered,
        reduced=turns * shards.reduced,
        sent=turns * (shards.gathered + shards.reduced) * (world - 1) / world * size,
        weights=sum(math.prod(c.shape) for c in shards.cuts.values()) / world * size,
        product=alive.peak + beside,
    )


def _learnt(run: Sharded) -> tuple[bool, ...]:
    """What a product finds out on its way, and begins anew with."""
    return run.fsdp.wide, run.cut is None, run.recording, *(unit in RECORDING for unit in run.units.values())


def _product(run: Sharded, kind: str, batch: Any, v: Vector) -> dict[str, Tensor]:
    risk = run.risk
    if kind == "gauss_newton":
        return run.gauss_newton(batch, v, None)
    if kind == "functional":
        return run.hessian(lambda p: along_output(risk, None, p, batch), risk.params, v)
    return run.hessian(lambda p: risk.run(p, batch)[0], risk.params, v)


class Imagined(Fsdp):
    """The first of `world` processes that a model would be cut over, block by block; the others are not there."""

    def __init__(self, model: Any, world: int) -> None:
        cuts = {n: Cut.of(tuple(t.shape), world) for n, t in model.named_parameters()}
        self._set(model, _Unsent(world, cuts), find(model) or {"": model}, ALONE)

    @contextlib.contextmanager
    def product(self) -> Iterator[None]:
        self.busy = True
        yield


class _Nothing(TorchDispatchMode):
    """Whether a condition holds is answered with yes, where there are no numbers: models of transformers ask whether
    nothing is masked, and whether nothing is packed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype is torch.bool:
            return True
        return func(*args, **(kwargs or {}))


class _Unsent(Shards):
    """Messages that nobody gets."""

    def __init__(self, world: int, cuts: dict[str, Cut]) -> None:
        super().__init__(SimpleNamespace(ndim=1, size=lambda axis=0: world, get_local_rank=lambda axis: 0), cuts)

    def _send(self, collective: Any, *tensors: Tensor, axis: int) -> None:
        self.calls += 1
