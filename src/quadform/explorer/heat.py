"""The Hessian as a picture, from coarse to fine: means of blocks first, then rows of weights, then entries.

    blocks    (3, 3): mean |entry| of every block            rows    mean |entry| between two rows of weights
    entries   the entries; above 256 a side the largest of every tile (sign kept)

Values travel as float32; the page colours them over one range of decades, the same for H, H_o and H_f.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..answers.attention import PARTS
from ..answers.live import LiveAnswer
from ..answers.numbers import number, power
from ..report import raster
from ..report.texts import Texts

DETAILS = ("blocks", "rows", "entries")
#: Entries a side that are looked at to place the bottom of the colours.
_SAMPLED = 96


def heat(read: LiveAnswer, part: str, detail: str, t: Texts) -> dict[str, Any]:
    """The picture of one part in one detail, its range of colours, and what it says."""
    matrices = {name: read.matrix(name) for name in PARTS}
    cells, tile = cells_of(matrices[part], read, detail)
    bottom, top = _range(matrices, read, detail)
    size = block_means(matrices[part], read).tolist()
    mean = {b: size[i][j] for b, (i, j) in _places(read).items()}
    zero = [b for b, of in mean.items() if of == 0]
    strongest = max(read.blocks, key=lambda b: read.norm(part, b))
    words = {"blocks": "heat_says_blocks", "rows": "heat_says_rows", "entries": "heat_says_entries"}[detail]
    said = t("heat_says_tiles", tile=tile) if tile > 1 else t(words, side=f"{len(cells):,}")
    return {
        "cells": cells.to(torch.float32).numpy().tobytes(),
        "side": len(cells),
        "tile": tile,
        "edges": [] if detail == "entries" else _edges(read, detail),
        "detail": detail,
        "means": {b: number(of) if of else t("exactly_zero") for b, of in mean.items()},
        "zero": zero,
        "range": [bottom, top],
        "ends": [power(bottom), power(top)],
        "says": " ".join(
            (
                said,
                t("heat_says_strongest", block=t.block(strongest)),
                t("heat_says_zero", zeros=", ".join(map(t.block, zero))) if zero else "",
            )
        ).strip(),
    }


def cells_of(M: Tensor, read: LiveAnswer, detail: str) -> tuple[Tensor, int]:
    """The values of the picture (n, n), and how many entries a side one of them stands for (0: a mean)."""
    if detail == "entries":
        return raster.aggregate(M)
    return (block_means(M, read) if detail == "blocks" else means(M, _edges(read, "rows"))), 0


def sums(M: Tensor, edges: list[int]) -> Tensor:
    """Sum of every tile between the edges, (n, n)."""
    rows = np.add.reduceat(M.numpy(), edges[:-1], axis=0)
    return torch.from_numpy(np.add.reduceat(rows, edges[:-1], axis=1))


def means(M: Tensor, edges: list[int]) -> Tensor:
    """Mean |entry| of every tile between the edges, (n, n)."""
    sizes = torch.tensor([b - a for a, b in pairwise(edges)])
    return sums(M.abs(), edges) / (sizes[:, None] * sizes)


def block_means(M: Tensor, read: LiveAnswer) -> Tensor:
    """Mean |entry| of every block, (3, 3), or (2, 2) with one W_QK."""
    return means(M, _edges(read, "blocks"))


def _edges(read: LiveAnswer, detail: str) -> list[int]:
    """Where cells begin and end along a side: at every weight, or at every row of every weight."""
    edges = [0]
    for name, (rows, *_) in read.space.parts:
        size = read.space.slices()[name].stop - edges[-1]
        steps = 1 if detail == "blocks" else rows
        edges += [edges[-1] + size * (i + 1) // steps for i in range(steps)]
    return edges


def _places(read: LiveAnswer) -> dict[str, tuple[int, int]]:
    names = list(read.space.names)
    return {b: (names.index(b.split(",")[0]), names.index(b.split(",")[1])) for b in read.blocks}


def _range(matrices: dict[str, Tensor], read: LiveAnswer, detail: str) -> tuple[int, int]:
    """(bottom, top) powers of ten of the colours, one range for all three parts."""
    if detail == "blocks":
        return raster.decades(*(block_means(M, read) for M in matrices.values()))
    if detail == "rows":
        return raster.decades(*(cells_of(M, read, detail)[0] for M in matrices.values()))
    step = -(-read.space.size // _SAMPLED)
    bottom, top = raster.decades(*(M[::step, ::step] for M in matrices.values()))
    largest = max(float(M.abs().max()) for M in matrices.values())
    return bottom, max(top, math.ceil(math.log10(largest))) if largest else top
