"""Allocation: how many bits each matrix gets under a budget, from the quadratic model of the loss.

Rounding matrix i to b bits is the step d_i(b). With all matrices rounded, the curvature raises the loss by

    1/2 sum_ij d_i.H d_j:

the terms i != j are those that a rule for each matrix by itself leaves out. The slope g.d_i is not in it: of a trained
model it is mostly noise of the batches it was calibrated on, and choosing by it fits them (docs/decisions/0831).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError


@dataclass(frozen=True)
class Choices:
    """What may be chosen. Choice c is matrix `names[owner[c]]` with `bits[c]`; it takes `size[c]` bits in all.

    `curve[c, e]` is d_c.H d_e; only entries of different matrices, or of one choice, are read.
    """

    names: Sequence[str]
    owner: Tensor
    bits: Tensor
    size: Tensor
    curve: Tensor

    def predicted(self, chosen: Tensor) -> float:
        """What the loss is predicted to rise by, for one choice a matrix."""
        return float(self.curve[chosen][:, chosen].sum() / 2)

    def at_least(self, bits: int) -> Choices:
        """Without those of fewer bits."""
        left = self.bits >= bits
        return Choices(self.names, self.owner[left], self.bits[left], self.size[left], self.curve[left][:, left])


def allocate(choices: Choices, budget: float) -> dict[str, int]:
    """Bits for each matrix with the least predicted rise that fits `budget` bits in all.

    It begins with the best without cross terms (exact but for rounding of the budget) and with the same bits for all,
    and makes single changes and pairs of changes with all cross terms until none helps: never worse than the same bits.
    """
    by_matrix = [torch.nonzero(choices.owner == i)[:, 0] for i in range(len(choices.names))]
    least = sum(int(choices.size[options].min()) for options in by_matrix)
    budget *= 1 + 1e-12  # what was computed from the sizes themselves fits
    if budget < least:
        raise InputError(
            f"the budget of {budget:.4g} bits is below {least:.4g}, the minimum with the fewest bits everywhere."
        )
    same = [torch.nonzero(choices.bits == b)[:, 0] for b in choices.bits.unique()]
    starts = [_alone(choices, by_matrix, budget), torch.stack([o[choices.size[o].argmin()] for o in by_matrix])]
    starts += [c for c in same if len(c) == len(by_matrix) and float(choices.size[c].double().sum()) <= budget]
    best = min((_improve(choices, start, budget) for start in starts), key=choices.predicted)
    return {name: int(choices.bits[c]) for name, c in zip(choices.names, best, strict=True)}


def _alone(choices: Choices, by_matrix: Sequence[Tensor], budget: float, cells: int = 4096) -> Tensor:
    """The best choice without cross terms: a knapsack over `cells` equal parts of the budget, sizes rounded up."""
    cost = choices.curve.diagonal() / 2
    weight = torch.ceil(choices.size.double() * cells / budget).long()
    best = torch.zeros(cells + 1, dtype=torch.double)
    taken = []
    for options in by_matrix:
        rows = torch.full((len(options), cells + 1), torch.inf, dtype=torch.double)
        for row, c in zip(rows, options.tolist(), strict=True):
            w = int(weight[c])
            if w <= cells:
                row[w:] = best[: cells + 1 - w] + float(cost[c])
        best, which = rows.min(0)
        taken.append(which)
    if not torch.isfinite(best[cells]):  # only by rounding up: the smallest of each fit
        return torch.stack([options[choices.size[options].argmin()] for options in by_matrix])
    chosen, at = [], cells
    for options, which in zip(reversed(by_matrix), reversed(taken), strict=True):
        c = options[which[at]]
        chosen.append(c)
        at -= int(weight[c])
    return torch.stack(chosen[::-1])


def _improve(choices: Choices, chosen: Tensor, budget: float) -> Tensor:
    """Change one matrix or two at a time while that lowers the prediction and fits the budget."""
    Q, size, owner = choices.curve, choices.size.double(), choices.owner
    while True:
        old = chosen[owner]  # of each choice: what its matrix has now
        pull = Q[:, chosen].sum(1)
        own = Q.diagonal()
        rise = pull - pull[old] - Q.gather(1, old[:, None])[:, 0] + own / 2 + own[old] / 2
        bits = size - size[old]
        cross = Q - Q[:, old] - Q[old] + Q[old][:, old]
        pairs = rise[:, None] + rise[None, :] + cross
        # The diagonal is a single change; two changes of one matrix are none.
        pairs = torch.where(owner[:, None] == owner[None, :], torch.inf, pairs)
        pairs.diagonal().copy_(rise)
        weight = bits[:, None] + bits[None, :]
        weight.diagonal().copy_(bits)
        pairs = torch.where(weight <= budget - float(size[chosen].sum()), pairs, torch.inf)
        best = int(pairs.argmin())
        i, j = divmod(best, len(owner))
        if float(pairs[i, j]) >= -1e-12 * max(abs(choices.predicted(chosen)), float(own.abs().max())):
            return chosen
        chosen = chosen.clone()
        chosen[owner[i]], chosen[owner[j]] = i, j


def choices_of(sizes: Mapping[str, Mapping[int, float]], curve: Tensor) -> Choices:
    """Choices in the order of `sizes` ({matrix: {bits: bits in all}}), the order of `curve` too."""
    names = list(sizes)
    flat = [(i, b, s) for i, name in enumerate(names) for b, s in sizes[name].items()]
    owner, bits, size = (torch.tensor(column) for column in zip(*flat, strict=True))
    return Choices(names, owner, bits, size, curve)
