"""The Frobenius norm of a block that is a sum over tokens, in the way that costs less and keeps the digits.

    ||sum_n r_n c_n^T (x) E_n||^2 = sum_{n,m} (r_n . r_m)(c_n . c_m) <E_n, E_m>        token Gram sum
                                  = sum of the squares of its entries                  the block, a few rows at a time

The Gram sum costs N^2 e f and the block N p q e f. The Gram sum squares before it adds: its rounding is
`eps sum_n ||B_n||^2`, B_n the share of one token, so where tokens cancel to less than eps^(1/4) of that sum the block
is added first and squared after. That leaves a rounding of `eps sum_n ||B_n||` in the norm itself; where the norm is
below sqrt(eps) of this sum it is told as a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..core.record import Estimate
from .terms import Term, in_range, merged, squared_norm
from .writing import block

#: Entries of a block that are held at a time.
_SCRATCH = 1 << 22


def block_norm(groups: Sequence[Sequence[Term]]) -> Estimate:
    """The Frobenius norm of blocks side by side, each a sum of terms."""
    groups, exponent = in_range(groups)
    if not groups:
        return Estimate(0.0)
    norm = math.sqrt(sum(_square(terms) for terms in groups))
    eps = torch.finfo(groups[0][0].E.dtype).eps
    rounding = eps * sum(float(t.own_squares().sqrt().sum()) for terms in groups for t in terms)
    if norm * math.sqrt(eps) >= rounding:
        return Estimate(_ldexp(norm, exponent))
    note = "the tokens cancel: what is left is near the rounding of their sum"
    return Estimate(_ldexp(norm + rounding, exponent), kind="bound", side="upper", note=note)


def _square(terms: Sequence[Term]) -> float:
    """`||sum of terms||_F^2` of terms within the range of floating point."""
    terms = [t.compressed() for t in merged(terms)]
    if gram_cost(terms) <= block_cost(terms):
        square = float(squared_norm(terms))
        if square >= torch.finfo(terms[0].E.dtype).eps ** 0.25 * sum(float(t.own_squares().sum()) for t in terms):
            return square
    return squared_norm_by_rows(terms)


def gram_cost(terms: Sequence[Term]) -> int:
    """Multiplications of the token Gram sum."""
    return sum(a.r.shape[0] * b.r.shape[0] * a.width() for i, a in enumerate(terms) for b in terms[i:])


def block_cost(terms: Sequence[Term]) -> int:
    """Multiplications of the block itself."""
    return sum(t.r.shape[0] * t.r.shape[1] * t.c.shape[1] * t.E[0].numel() for t in terms)


def squared_norm_by_rows(terms: Sequence[Term]) -> float:
    """`||sum of terms||_F^2` from the entries of the block, a few rows of it at a time."""
    rows, cols = terms[0].row_shape, terms[0].T.row_shape
    step = max(1, _SCRATCH // (rows[1] * math.prod(cols)))
    total = 0.0
    for start in range(0, rows[0], step):
        at = slice(start, min(start + step, rows[0]))
        part = terms[0].E.new_empty((at.stop - at.start, rows[1], *cols))
        block([t.rows(at) for t in terms], part)
        total += float(part.square().sum())
    return total


def _ldexp(x: float, exponent: int) -> float:
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        return math.inf
