"""Vectors s at a network's output with sum s s^T = d2l/dF2: what is sent back through a model to see its curvature.

    exact       the columns of a square root of d2l/dF2, for each loss term
    sampled     sqrt(w) (softmax(F) - onehot(y)), y drawn from the model, for a cross-entropy; else root times normal
    empirical   sqrt(c) dl/dF at the data's own labels, c the loss terms of the batch

In expectation over the draws `sampled` is `exact`. One vector serves all examples at once, as they do not see each
other; places of one example (tokens) do, so `exact` sends the columns of each place alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..curvature.labels import label_weights

Scores = Literal["exact", "sampled", "empirical"]
Curve = Callable[[Tensor], Tensor]  # d -> (d2l/dF2) d
#: How far d2l/dF2 may reach beyond its blocks, or below 0, relative to its size, by rounding.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Drawing:
    """Which scores are taken: of what kind and, where they are drawn, how many and from what."""

    kind: Scores
    samples: int
    generator: torch.Generator

    def __call__(self, value: Tensor, F: Tensor, terms: float) -> Iterator[Tensor]:
        """The scores of one batch, each of the shape of F; `value` is its loss, with the graph from F."""
        if self.kind == "empirical":
            (g,) = torch.autograd.grad(value, F, retain_graph=True)
            yield terms**0.5 * g
            return
        (g,) = torch.autograd.grad(value, F, create_graph=True)
        curve = partial(_curved, g, F)
        if self.kind == "exact":
            root = _root(F.detach(), curve)
            for place in range(root.shape[1]):
                for column in range(root.shape[-1]):
                    s = torch.zeros_like(root[..., 0])
                    s[:, place] = root[:, place, :, column]
                    if s.any():
                        yield s.view_as(F)
            return
        draw = self._labels(F.detach(), curve) or self._normal(F.detach(), curve)
        for _ in range(self.samples):
            yield draw() / self.samples**0.5

    def _labels(self, F: Tensor, curve: Curve) -> Callable[[], Tensor] | None:
        weight = label_weights(F, curve) if F.dim() > 1 else None
        if weight is None:
            return None
        p, root = F.softmax(-1), weight.sqrt()[..., None]

        def draw() -> Tensor:
            y = torch.multinomial(p.flatten(0, -2), 1, generator=self.generator).view(*p.shape[:-1], 1)
            return (root * p).scatter_add_(-1, y, -root)

        return draw

    def _normal(self, F: Tensor, curve: Curve) -> Callable[[], Tensor]:
        root = _root(F, curve)

        def draw() -> Tensor:
            z = torch.randn(root.shape[:-1], dtype=F.dtype, device=F.device, generator=self.generator)
            return (root @ z[..., None])[..., 0].view_as(F)

        return draw


def _curved(g: Tensor, F: Tensor, d: Tensor) -> Tensor:
    """(d2l/dF2) d from the gradient in F and its graph."""
    if not g.requires_grad:
        return torch.zeros_like(d)
    (h,) = torch.autograd.grad(g, F, d, retain_graph=True, allow_unused=True)
    return torch.zeros_like(d) if h is None else h.detach()


def _root(F: Tensor, curve: Curve) -> Tensor:
    """R with R R^T = d2l/dF2, (examples, places, width, width): a block for each place or, where the loss couples the
    places of an example, one place for each example."""
    by_place = [F.reshape(len(F), -1, F.shape[-1])] if F.dim() > 1 else []
    for rows in (*by_place, F.reshape(len(F), 1, -1)):
        width = rows.shape[-1]
        blocks = rows.new_empty((*rows.shape, width))
        for c in range(width):
            unit = torch.zeros_like(rows)
            unit[..., c] = 1
            blocks[..., c] = curve(unit.view_as(F)).view_as(rows)
        probe = torch.sin(torch.arange(1, F.numel() + 1, dtype=F.dtype, device=F.device)).view_as(rows)
        image, want = curve(probe.view_as(F)).view_as(rows), (blocks @ probe[..., None])[..., 0]
        if float((image - want).abs().max()) <= _ROUNDING * float(blocks.abs().max()):
            s, U = torch.linalg.eigh(0.5 * (blocks + blocks.mT))
            if float(s.min()) < -_ROUNDING * float(s.max()):
                raise InputError(
                    "the loss is not convex in the network's output, so the Gauss-Newton matrix has no square root. Use"
                    " scores='empirical'."
                )
            return U * s.clamp_min(0).sqrt()[..., None, :]
    raise InputError("the loss couples the examples of a batch; K-FAC needs a loss that is a mean over examples.")
