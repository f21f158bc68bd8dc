"""One model at a time: masks for all its linear maps by a method, and the weights that are left on them.

Matrices are (out, in) in here; `LinearMap.matrix` turns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from . import masks
from .heads import choose_heads
from .layerwise import compensate, least_squares, sparsegpt
from .maps import LinearMap
from .masks import Structure


@dataclass(frozen=True)
class Chosen:
    """Masks of what is kept, and the weights where the method changes them itself."""

    keep: dict[str, Tensor]
    weights: dict[str, Tensor] | None = None


def select(
    method: str,
    maps: Mapping[str, LinearMap],
    W: Mapping[str, Tensor],
    sparsity: float,
    structure: Structure,
    *,
    diagonal: Mapping[str, Tensor] | None = None,
    heads: Mapping[str, Mapping[str, Tensor]] | None = None,
    damping: float,
) -> Chosen:
    """Masks by a method. `diagonal` is that of the curvature for `obd`, and of its inverse for `woodfisher`; `heads`
    are there for that structure.

    The share is counted over all matrices, for `wanda` in each row and for `sparsegpt` in each block of columns, as
    published. `hessian` takes the smallest weights: what their removal costs is up to the compensation.
    """
    if method == "sparsegpt":
        both = {n: sparsegpt(W[n], m.S, sparsity, structure, damping=damping) for n, m in maps.items()}
        return Chosen({n: keep for n, (_, keep) in both.items()}, {n: w for n, (w, _) in both.items()})
    if method in ("magnitude", "hessian"):
        scores = {n: masks.magnitude(w) for n, w in W.items()}
    elif method == "wanda":
        scores = {n: masks.wanda(w, maps[n].S) for n, w in W.items()}
        if structure == "none":
            scores = {n: _ranks(s) for n, s in scores.items()}
    elif method == "obd":
        assert diagonal is not None
        scores = {n: masks.obd(w, diagonal[n].clamp_min(0)) for n, w in W.items()}
    elif method == "woodfisher":
        assert diagonal is not None
        scores = {n: masks.obs(w, diagonal[n]) for n, w in W.items()}
    else:
        raise InputError(
            f"unknown method {method!r}; choose from magnitude, wanda, obd, sparsegpt, woodfisher, hessian."
        )
    if structure == "heads":
        assert heads is not None
        return Chosen(choose_heads(scores, sparsity, heads))
    return Chosen(masks.choose(scores, sparsity, structure))


def partly(keep: Mapping[str, Tensor], W: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The masks that drop a share of what `keep` drops, the smallest weights first."""
    top = 1 + max(float(w.abs().max()) for w in W.values())
    scores = {n: torch.where(keep[n], top, w.abs()) for n, w in W.items()}
    gone = sum(int((~k).sum()) for k in keep.values()) / sum(k.numel() for k in keep.values())
    return masks.choose(scores, share * gone)


def _ranks(score: Tensor) -> Tensor:
    """The place of each entry in its row, from 0 to 1: rows lose the same share."""
    return score.argsort(dim=1, stable=True).argsort(1).double() / score.shape[1]


def one_by_one(
    how: str, maps: Mapping[str, LinearMap], W: Mapping[str, Tensor], chosen: Chosen, damping: float
) -> dict[str, Tensor]:
    """The weights on the masks with each matrix by itself: `none`, `sweep` or `least-squares`."""
    keep = chosen.keep
    if how == "none":
        return {n: w * keep[n] for n, w in W.items()}
    if how == "sweep":
        if chosen.weights is not None:
            return chosen.weights
        return {n: compensate(w, maps[n].S, keep[n], damping=damping) for n, w in W.items()}
    return {n: least_squares(w, maps[n].S, keep[n], damping=damping) for n, w in W.items()}


def curvature_of_rows(diagonal: Tensor, S: Tensor) -> Tensor:
    """The diagonal (out, in) as b_i S_jj, b >= 0: that of a Kronecker product, with the noise of a row averaged out."""
    b = diagonal.sum(1).clamp_min(0) / S.diagonal().sum().clamp_min(torch.finfo(S.dtype).tiny)
    return b[:, None] * S.diagonal()
