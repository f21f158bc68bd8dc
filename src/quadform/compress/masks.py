"""Which weights go: scores in, a mask of what is kept out, for any share and any structure.

A mask is a bool tensor of the shape of the weight (out, in); True is kept. The weights with the lowest scores go, ties
in the order of the coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.errors import InputError

Structure = Literal["none", "2:4", "rows", "heads"]


def choose(scores: Mapping[str, Tensor], sparsity: float, structure: Structure = "none") -> dict[str, Tensor]:
    """Masks that drop the share `sparsity` of the lowest scores, counted over all matrices together.

    `rows` drops whole rows (outputs), by their mean score; `2:4` drops two of each four neighbours in a row, and the
    share is then one half. Heads are chosen by `heads.choose_heads`.
    """
    require_share(sparsity)
    if structure == "heads" or structure not in get_args(Structure):
        raise InputError(f"unknown structure {structure!r}; choose from {', '.join(get_args(Structure)[:3])}.")
    for name, score in scores.items():
        if score.dim() != 2:
            raise InputError(f"{name} has shape {tuple(score.shape)}; scores are matrices (out, in).")
        if not torch.isfinite(score).all():
            raise InputError(f"the scores of {name} are not all finite numbers.")
    if structure == "2:4":
        if sparsity != 0.5:
            raise InputError(f"2:4 drops one half of the weights; got sparsity={sparsity:g}. Give sparsity=0.5.")
        return {name: two_of_four(score, name) for name, score in scores.items()}
    if structure == "rows":
        rows = {name: score.mean(1, keepdim=True) for name, score in scores.items()}
        weights = {name: score.shape[1] for name, score in scores.items()}
        return {n: m.expand_as(scores[n]).clone() for n, m in _lowest(rows, sparsity, weights).items()}
    return _lowest(scores, sparsity, {})


def require_share(sparsity: float) -> None:
    """`sparsity` is a share in [0, 1)."""
    if not 0 <= sparsity < 1:
        raise InputError(f"sparsity={sparsity:g}: give the share of weights to remove, at least 0 and below 1.")


def two_of_four(score: Tensor, name: str = "the matrix") -> Tensor:
    """Keep the two highest of each four neighbours in a row."""
    if score.shape[1] % 4:
        raise InputError(f"{name} has {score.shape[1]} columns; 2:4 needs a multiple of 4.")
    groups = score.reshape(-1, 4)
    order = groups.argsort(dim=1, stable=True)
    keep = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, order[:, 2:], True)
    return keep.reshape(score.shape)


def _lowest(scores: Mapping[str, Tensor], sparsity: float, each: Mapping[str, int]) -> dict[str, Tensor]:
    """Drop the lowest entries until the share is reached; an entry of `name` stands for `each[name]` weights."""
    flat = torch.cat([s.reshape(-1).double() for s in scores.values()])
    cost = torch.cat([torch.full((s.numel(),), each.get(n, 1), device=s.device) for n, s in scores.items()])
    order = flat.argsort(stable=True)
    gone = cost[order].cumsum(0) <= round(sparsity * int(cost.sum()))
    keep = torch.ones_like(flat, dtype=torch.bool)
    keep[order[gone]] = False
    parts = keep.split([s.numel() for s in scores.values()])
    return {name: part.reshape(s.shape) for (name, s), part in zip(scores.items(), parts, strict=True)}


# --- what a weight is worth -----------------------------------------------------------------------------------------
def magnitude(W: Tensor) -> Tensor:
    """|w|."""
    return W.abs()


def wanda(W: Tensor, S: Tensor) -> Tensor:
    """|w| times the norm of its input, S the second moment of the inputs [Sun et al. 2024]."""
    return W.abs() * S.diagonal().clamp_min(0).sqrt()


def obd(W: Tensor, diagonal: Tensor) -> Tensor:
    """w^2 H_qq / 2: what the loss rises by if w goes and the Hessian is its diagonal [LeCun et al. 1990]."""
    return W.square() * diagonal / 2


def obs(W: Tensor, inverse: Tensor) -> Tensor:
    """w^2 / (2 [H^-1]_qq): the same where the other weights make up for it [Hassibi, Stork 1993]."""
    return W.square() / inverse / 2
