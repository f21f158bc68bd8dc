"""Whole attention heads: what a head has in W_Q, W_K, W_V and W_O goes together."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.space import View
from .maps import LinearMap

_PART = re.compile(r"(.*)\.(W_[QKVO])\[(\d+)\]")


def head_names(views: tuple[View, ...]) -> set[str]:
    """The heads that are known by name: `layers.0.attention[1]`."""
    found = (_PART.fullmatch(view.name) for view in views)
    return {f"{part[1]}[{part[3]}]" for part in found if part}


def heads_of(
    views: tuple[View, ...], maps: Mapping[str, LinearMap], like: Mapping[str, Tensor], parts: str = "QKVO"
) -> dict[str, dict[str, Tensor]]:
    """{head: {matrix: mask (out, in) of what belongs to it}}, from the named parts of the parameters.

    `parts` are those of W_Q, W_K, W_V and W_O that count. Keys and values that several heads share stay: they are no
    head's own. Empty where no heads are known by name.
    """
    found: dict[str, dict[str, dict[int, View]]] = {}
    for view in views:
        part = _PART.fullmatch(view.name)
        if part and part[2][-1] in parts and view.of in maps and view.seen_as == tuple(like[view.of].shape):
            found.setdefault(part[1], {}).setdefault(part[2], {})[int(part[3])] = view
    heads: dict[str, dict[str, Tensor]] = {}
    for layer, kinds in found.items():
        count = max(len(of) for of in kinds.values())
        for of in kinds.values():
            for h, view in of.items() if len(of) == count else ():
                masks = heads.setdefault(f"{layer}[{h}]", {})
                mask = masks.setdefault(view.of, torch.zeros_like(like[view.of], dtype=torch.bool))
                mask[tuple(slice(a, b) for a, b in view.cut)] = True
    return {h: {n: maps[n].matrix(m) for n, m in masks.items()} for h, masks in heads.items()}


def choose_heads(
    scores: Mapping[str, Tensor], sparsity: float, heads: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Masks that drop the share `sparsity` of the heads, those with the lowest mean score; the rest is kept."""
    worth = {h: float(torch.cat([scores[n][m] for n, m in parts.items()]).mean()) for h, parts in heads.items()}
    gone = sorted(worth, key=lambda h: worth[h])[: round(sparsity * len(heads))]
    keep = {n: torch.ones_like(s, dtype=torch.bool) for n, s in scores.items()}
    for h in gone:
        for n, m in heads[h].items():
            keep[n] &= ~m
    return keep
