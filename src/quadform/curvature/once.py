"""Blocks that repeat are counted once, in a product without numbers: one call of each kind is run.

A kind is a class with the shapes of its weights and of what it is given, and the settings of its modules. A call of a
known kind makes the tensors that stay (results, cotangents, its part of the image) and adds what the first one took:
matrix work, numbers gathered and added up, and the bytes that were alive inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from .alive import Alive
from .outline import Counted
from .sharded import Gathered, GatheredCall, Sharded

#: Settings of a module that number it, and do not tell what it does.
_NUMBERS = ("layer_idx", "layer_id", "layer_number", "index")


@dataclass(frozen=True)
class Taken:
    """What one half of a call took: bytes alive inside it beyond those before, and its results."""

    flops: float
    gathered: int
    reduced: int
    peak: int
    results: Any


class Meter:
    """Counts of a product, and what each kind of call took."""

    def __init__(self, alive: Alive, counted: Counted, shards: Any) -> None:
        self.alive, self.counted, self.shards = alive, counted, shards
        self.known: dict[Any, Taken] = {}

    def take(self, key: Any, run: Callable[[], Any], kept: Callable[[Any], Any]) -> Any:
        """What `run` gives; of a kind that is known, tensors like those of the first (`kept`)."""
        alive, counted, shards = self.alive, self.counted, self.shards
        if key in self.known:
            was = self.known[key]
            counted.flops += was.flops
            shards.gathered += was.gathered
            shards.reduced += was.reduced
            alive.peak = max(alive.peak, alive.bytes + was.peak)
            return was.results
        before, peak = alive.bytes, alive.peak
        start = (counted.flops, shards.gathered, shards.reduced)
        alive.peak = before
        found = run()
        spent = (counted.flops - start[0], shards.gathered - start[1], shards.reduced - start[2])
        self.known[key] = Taken(*spent, alive.peak - before, kept(found))
        alive.peak = max(peak, alive.peak)
        return found


class Once(Sharded):
    """A product without numbers whose repeated calls are counted once."""

    meter: Meter

    @property
    def gathered(self) -> Callable[..., Gathered]:
        return partial(RunOnce, self.meter)


class RunOnce(Gathered):
    """Units of which one of each kind is run."""

    def __init__(self, meter: Meter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.meter = meter

    @property
    def call(self) -> type[GatheredCall]:
        return CallOnce


class CallOnce(GatheredCall):
    """One call of a unit, the first of its kind or like it."""

    by: RunOnce

    def _kind(self, half: str, tensors: Sequence[Any]) -> Any:
        unit = self.inside.unit
        tied = sorted(n for n in self.rows.values() if n in self.by.fsdp.outside)
        settings = [(n, type(m), _settings(m)) for n, m in unit.named_modules()]
        weights = [(n, *_like(p.primal)) for n, p in zip(self.weights, self.pairs[self.given :], strict=False)]
        return str((half, self.by.second, tied, settings, weights, str(self.shape), self.moving, [*self.rows], tensors))

    def forward(self) -> tuple[list[Tensor], Any]:
        given = [(_like(p.primal), p.tangent is not None, p.moves) for p in self.pairs]

        def kept(found: tuple[list[Tensor], Any]) -> Any:
            return [_told(t) for t in found[0]], found[1], self.active

        found: Any = self.by.meter.take(self._kind("forward", given), super().forward, kept)
        if len(found) == 2:
            return found
        self.active = found[2]
        return [_made(t) for t in found[0]], found[1]

    def pull(self, cotangents: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        key = self._kind("backward", [None if g is None else _told(g) for g in cotangents])
        names = list(self.rows.values())
        sink, sent = self.by.sink, []

        def run() -> list[Tensor | None]:
            self.by.sink = lambda name, g: sent.append((names.index(name), g))
            try:
                return super(CallOnce, self).pull(cotangents)
            finally:
                self.by.sink = sink

        def kept(found: list[Tensor | None]) -> Any:
            return tuple(None if t is None else _told(t) for t in found), [(i, _told(g)) for i, g in sent]

        found: Any = self.by.meter.take(key, run, kept)
        if isinstance(found, tuple):
            self.pairs = []
            found, told = [None if t is None else _made(t) for t in found[0]], found[1]
            sent = [(i, _made(g)) for i, g in told]
        for i, g in sent:
            sink(names[i], g)
        return found


def _settings(module: nn.Module) -> list[tuple[str, Any]]:
    plain = (bool, int, float, str, type(None))
    return [(n, v) for n, v in vars(module).items() if isinstance(v, plain) and n not in _NUMBERS and n[0] != "_"]


def _like(t: Tensor) -> tuple[Any, ...]:
    return tuple(t.shape), t.stride(), t.dtype


def _told(t: Tensor) -> tuple[Any, ...]:
    """Shape and kind of a tensor, and whether it has a tangent."""
    return *_like(t), forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None


def _made(told: tuple[Any, ...]) -> Tensor:
    shape, stride, dtype, moves = told
    t, tangent = (torch.empty_strided(shape, stride, dtype=dtype, device="meta") for _ in range(2))
    return forward_ad.make_dual(t, tangent) if moves else t
