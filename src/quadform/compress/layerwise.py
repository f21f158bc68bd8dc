"""One matrix at a time: keep W x close on the inputs that were seen, whatever the loss does with it.

    E(W') = tr((W' - W) S (W' - W)^T),   S = mean of x x^T over the tokens: the mean squared error of the output.

Rows share S, so one factorization serves all of them. `sparsegpt` [Frantar, Alistarh 2023] and `gptq` [Frantar et al.
2023] go through the columns once. The columns behind column j make up for what it loses:

    W[:, j:] -= err U[j, j:],   err = (W[:, j] - W'[:, j]) / U[j, j],   U^T U = (S + delta I)^-1, U upper triangular.

`least_squares` is the best W' on a given mask: each row is solved for by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from .grid import Grid, span, to_codes
from .masks import Structure, choose, require_share

#: Columns of one block; those behind it are updated when it is finished. The result does not depend on it, except that
#: `sparsegpt` chooses its mask one block at a time.
BLOCK = 128
#: Damping as a share of the mean of the diagonal of S.
DAMPING = 0.01


def error(W: Tensor, other: Tensor, S: Tensor) -> float:
    """E: the mean over tokens of |W x - W' x|^2."""
    D = (other - W).double()
    return float(((D @ S.double()) * D).sum())


@dataclass(frozen=True)
class Factor:
    """U of a damped S. Inputs that are always zero have no say: their diagonal is set to one."""

    U: Tensor
    dead: Tensor

    @classmethod
    def of(cls, S: Tensor, damping: float = DAMPING) -> Factor:
        if S.dim() != 2 or S.shape[0] != S.shape[1]:
            raise InputError(f"S has shape {tuple(S.shape)}; it is the second moment of the inputs, (in, in).")
        diagonal = S.diagonal()
        dead = diagonal <= 0
        S = S + torch.diag(dead.to(S.dtype) + damping * diagonal.mean())
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(S))
        return cls(torch.linalg.cholesky(inverse, upper=True), dead)


def _walk(
    W: Tensor,
    U: Tensor,
    block: int,
    column: Callable[[int, Tensor], Tensor],
    begin: Callable[[int, int, Tensor], None] | None = None,
) -> Tensor:
    """Columns from left to right. `column(j, rest)` gives the new column j, where `rest` holds it and those behind it
    in its block; `begin(start, stop, W)` is called when a block begins."""
    W, n = W.clone(), W.shape[1]
    for start in range(0, n, block):
        stop = min(start + block, n)
        if begin is not None:
            begin(start, stop, W)
        part, Ub = W[:, start:stop].clone(), U[start:stop, start:stop]
        errors = torch.zeros_like(part)
        for i in range(stop - start):
            new = column(start + i, part[:, i:])
            errors[:, i] = (part[:, i] - new) / Ub[i, i]
            part[:, i:] -= errors[:, i, None] * Ub[i, None, i:]
            part[:, i] = new
        W[:, start:stop] = part
        W[:, stop:] -= errors @ U[start:stop, stop:]
    return W


def compensate(W: Tensor, S: Tensor, keep: Tensor, *, damping: float = DAMPING, block: int = BLOCK) -> Tensor:
    """The weights kept by the mask, changed to make up for the others, in one walk through the columns."""
    U = Factor.of(S, damping).U
    return _walk(W, U, block, lambda j, rest: torch.where(keep[:, j], rest[:, 0], 0.0)) * keep


def sparsegpt(
    W: Tensor,
    S: Tensor,
    sparsity: float,
    structure: Structure = "none",
    *,
    damping: float = DAMPING,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """(W', mask): SparseGPT, which chooses by w^2 / U_jj^2 after all earlier changes, inside each block of columns or,
    for 2:4, inside each four of them."""
    require_share(sparsity)
    if structure == "rows":
        raise InputError("sparsegpt chooses single weights or 2:4; choose rows by a score and compensate for them.")
    factor = Factor.of(S, damping)
    scale, keep = factor.U.diagonal(), torch.ones_like(W, dtype=torch.bool)

    def begin(start: int, stop: int, changed: Tensor) -> None:
        if structure == "none":
            score = (changed[:, start:stop] / scale[start:stop]).square()
            keep[:, start:stop] = choose({"W": score}, sparsity)["W"]

    def column(j: int, rest: Tensor) -> Tensor:
        if structure == "2:4" and j % 4 == 0:
            keep[:, j : j + 4] = choose({"W": (rest[:, :4] / scale[j : j + 4]).square()}, sparsity, "2:4")["W"]
        return torch.where(keep[:, j], rest[:, 0], 0.0)

    W = torch.where(factor.dead, 0.0, W)
    return _walk(W, factor.U, block, column, begin) * keep, keep


def least_squares(W: Tensor, S: Tensor, keep: Tensor, *, damping: float = 0.0, rows: int = 64) -> Tensor:
    """The best weights on a mask: for each row w_F = w S[:, F] S[F, F]^-1, F its kept columns; `rows` at a time.

    Rows without a unique best (S[F, F] singular) take the one of least change.
    """
    S = S + damping * S.diagonal().mean() * torch.eye(len(S), dtype=S.dtype, device=S.device)
    eye = torch.eye(len(S), dtype=S.dtype, device=S.device)
    out = torch.zeros_like(W)
    for start in range(0, len(W), rows):
        w, m = W[start : start + rows], keep[start : start + rows].to(W.dtype)
        both = m[:, :, None] * m[:, None, :]
        A = both * S + (1 - m)[:, :, None] * eye  # the identity where a weight is gone
        change = m * ((w * (1 - m)) @ S)  # S_FS w_S: what the kept weights have to make up for
        solved = torch.linalg.lstsq(A, change[..., None], driver="gelsd" if A.device.type == "cpu" else None).solution
        out[start : start + rows] = m * (w + solved[..., 0])
    return out


@dataclass(frozen=True)
class Quantized:
    """Codes (out, in) in uint8 and the grid they lie on, columns in the order of the weight."""

    codes: Tensor
    grid: Grid

    @property
    def values(self) -> Tensor:
        return self.grid.values(self.codes)


def rtn(W: Tensor, bits: int, group: int | None = None) -> Quantized:
    """Round to nearest."""
    grid = Grid.of(W, bits, group)
    return Quantized(grid.codes(W), grid)


def gptq(
    W: Tensor,
    S: Tensor,
    bits: int,
    group: int | None = None,
    *,
    order: Literal["stored", "activation"] = "stored",
    damping: float = DAMPING,
    block: int = BLOCK,
) -> Quantized:
    """GPTQ: each column is rounded, and the columns behind it make up for its error.

    In the stored order the grid of a group is taken when its first column is reached, all earlier changes included. By
    `activation` the columns with the largest inputs go first, and the grids are those of the weights as they were.
    """
    grid = Grid.of(W, bits, group)
    scale, zero, width = grid.scale.clone(), grid.zero.clone(), grid.group
    factor = Factor.of(S, damping)
    W = torch.where(factor.dead, 0.0, W)
    where = torch.arange(W.shape[1], device=W.device)
    if order == "activation":
        where = S.diagonal().argsort(descending=True, stable=True)
        factor = Factor.of(S[where][:, where], damping)
    elif width < W.shape[1]:
        block = width
    codes = torch.zeros_like(W, dtype=torch.uint8)

    def begin(start: int, stop: int, changed: Tensor) -> None:
        if order == "stored" and start % width == 0:
            g = start // width
            scale[:, g : g + 1], zero[:, g : g + 1] = span(changed[:, start : start + width], bits)

    def column(j: int, rest: Tensor) -> Tensor:
        at = int(where[j])
        s, z = scale[:, at // width], zero[:, at // width]
        codes[:, at] = to_codes(rest[:, 0], s, z, bits)
        return s * (codes[:, at].to(s.dtype) - z)

    _walk(W[:, where], factor.U, block, column, begin)
    return Quantized(codes, Grid(scale, zero, bits, width))
