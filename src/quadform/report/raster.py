"""Matrices as small pictures: aggregation to at most 256 cells a side, and a PNG writer of thirty lines.

A heat map of 192 x 192 entries is 36,864 rectangles; as a picture it is a few kilobytes, crisp at any zoom, drawn at
once on a phone. Entries are coloured by log10 |entry|, one picture per sign, exact zeros transparent.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np
import torch
from torch import Tensor

from .style import rgb

#: More cells than this along a side are aggregated.
MOST_CELLS = 256
#: The colour scale spans at least and at most this many decades.
DECADES = (3, 8)
LEVELS = 32
#: A picture has at least this many pixels a side, so that viewers that smooth images still show cells.
LEAST_PIXELS = 560


def aggregate(M: Tensor, most: int = MOST_CELLS) -> tuple[Tensor, int]:
    """`M` with each `k x k` tile replaced by its entry of largest size (sign kept), and k (1 when M is small).

    A tile that is all zero stays exactly zero, and no large entry is lost.
    """
    k = -(-max(M.shape) // most)
    if k == 1:
        return M, 1
    rows, cols = (-(-n // k) * k for n in M.shape)
    padded = torch.zeros((rows, cols), dtype=M.dtype)
    padded[: M.shape[0], : M.shape[1]] = M
    tiles = padded.reshape(rows // k, k, cols // k, k).permute(0, 2, 1, 3).flatten(2)
    where = tiles.abs().argmax(-1, keepdim=True)
    return tiles.gather(-1, where)[..., 0], k


def decades(*matrices: Tensor) -> tuple[int, int]:
    """(bottom, top) powers of ten of one colour scale for all the matrices.

    The top holds the largest entry; the bottom the weakest tenth of those that are not zero, within DECADES of the top.
    """
    sizes = torch.cat([M.abs().double().flatten() for M in matrices])
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return -DECADES[0], 0
    top = math.ceil(math.log10(float(sizes.max())))
    weak = math.floor(math.log10(float(sizes.kthvalue(len(sizes) // 10 + 1).values)))
    return max(min(weak, top - DECADES[0]), top - DECADES[1]), top


def levels(M: Tensor, bottom: float, top: float) -> np.ndarray:
    """0 for an exact zero, else 1 .. LEVELS: log10 |entry| from `bottom` or less up to `top`."""
    size = M.abs().double()
    log = torch.where(size > 0, size, torch.ones_like(size)).log10()
    step = ((log - bottom) / (top - bottom)).clamp(0, 1)
    code = 1 + (step * (LEVELS - 1)).round()
    return torch.where(size > 0, code, torch.zeros_like(code)).to(torch.uint8).numpy()


def png(codes: np.ndarray, palette: list[str]) -> bytes:
    """A palette PNG of `codes`; code 0 is transparent, code i has colour `palette[i - 1]`."""
    grow = max(1, -(-LEAST_PIXELS // max(codes.shape)))
    codes = np.ascontiguousarray(codes.repeat(grow, 0).repeat(grow, 1))
    height, width = codes.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    lines = b"".join(b"\0" + row.tobytes() for row in codes)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", bytes([0, 0, 0, *(c for colour in palette for c in rgb(colour))])),
            chunk(b"tRNS", b"\0" + b"\xff" * len(palette)),
            chunk(b"IDAT", zlib.compress(lines, 9)),
            chunk(b"IEND", b""),
        )
    )


def data_uri(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()
