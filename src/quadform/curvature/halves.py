"""H_o and H_f where the output F is never whole: split inside parts of the rows from head to loss.

A part is x -> F -> L, the losses of some tokens. With c = dl/dL from what lies behind all parts, and g = c dL/dF,

    H_o   backwards goes J^T g', g' the derivative of (c, F) -> g along (c', F')
    H_f   backwards goes J^T g with its derivative along (W', x'), g held fixed

and from x on the units of the model as ever. The loss sees the parameters through F alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .structures import filled, taken
from .units import ROWS, Pair, Recomputed, dual, reverse
from .wide import Step, as_output, stepped


class NotHalved(Exception):
    """A part of the rows takes what another gave, or does not begin before the output."""


@dataclass(frozen=True)
class Half:
    """What goes backwards from F: the derivative of g, or g itself (`curved`); through J alone, or with its derivative
    (`moved`)."""

    curved: bool
    moved: bool


OUTER, FIXED, SLOPE = Half(True, False), Half(False, True), Half(False, False)


class Halved(Recomputed):
    """Units, beside parts of rows whose losses are leaves: what is behind them is differentiated first."""

    def __init__(self, half: Half, *args: Any, **options: Any) -> None:
        super().__init__(*args, second=half.moved, **options)
        self.half = half
        self.parts: list[_Part] = []

    def part(self, run: Callable[..., Tensor], *args: Any) -> Tensor:
        x, whole, cut, steps = args
        if any(t.requires_grad for t in cut) or not any(step is as_output for step, _, _ in steps):
            raise NotHalved
        part = _Part(self.half, x, whole, cut, steps)
        self.parts.append(part)
        return part.leaf

    def cotangents(self, behind: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors before the parts, and what goes backwards from them; parts are forgotten."""
        inputs: dict[int, Tensor] = {}
        sums: dict[int, Tensor] = {}
        for c in behind:
            part = self.parts.pop(0)
            for t, g in zip(part.inputs, part.pull(c), strict=True) if c is not None else ():
                inputs[id(t)] = t
                sums[id(t)] = sums[id(t)] + g if id(t) in sums else g
        return [forward_ad.unpack_dual(t).primal for t in inputs.values()], list(sums.values())


class _Part:
    """Some rows: head and loss, `steps` with a mark where the output passes."""

    def __init__(self, half: Half, x: Tensor, whole: list[Tensor], cut: list[Tensor], steps: Sequence[Step]) -> None:
        at = next(i for i, (step, _, _) in enumerate(steps) if step is as_output)
        self.half, self.head, self.loss = half, steps[: at + 1], steps[at + 1 :]
        given, self.shape = taken((x, whole, cut))
        self.pairs = [Pair(t) for t in given]
        self.moving = [i for i, t in enumerate(given) if t.requires_grad]
        self.inputs = [given[i] for i in self.moving]
        with torch.no_grad():
            L = forward_ad.unpack_dual(self._loss(self._output(self._at(half.curved))))
        leaf = L.primal.detach().requires_grad_()
        self.leaf = leaf if L.tangent is None else forward_ad.make_dual(leaf, L.tangent)

    def _at(self, moved: bool) -> list[Tensor]:
        return [p.tensor() if moved else p.primal for p in self.pairs]

    def _output(self, at: Sequence[Tensor]) -> Tensor:
        x, whole, cut = filled(self.shape, at)
        return stepped(x, whole, cut, self.head)

    def _loss(self, F: Tensor) -> Tensor:
        _, whole, cut = filled(self.shape, self._at(False))
        return stepped(F, whole, cut, self.loss)

    def pull(self, c: Tensor) -> list[Tensor]:
        """What goes backwards from the tensors that move."""
        half, at = self.half, self._at(self.half.moved)

        def output(*moved: Tensor) -> list[Tensor]:
            used = list(at)
            for i, t in zip(self.moving, moved, strict=True):
                used[i] = t
            return [self._output(used)]

        with torch.no_grad():
            F = self._output(self._at(half.curved))
            (g,) = reverse(
                ROWS, lambda F: [self._loss(F)], [F], [c if half.curved else forward_ad.unpack_dual(c).primal]
            )
        pair = forward_ad.unpack_dual(dual(g))
        along = pair.tangent if half.curved else pair.primal
        return reverse(ROWS, output, [at[i] for i in self.moving], [along.detach()])
