"""K-FAC and EKFAC: a Kronecker product B kron A for every matrix of a model, close to its block of H_o.

With x the inputs of a matrix at (examples n, places s), and g the gradients of scores (`scores`) at its outputs:

    expand   A = mean_ns x x^T                 B = sum_ns g g^T
    reduce   A = mean_n (mean_s x)(.)^T        B = sum_n (sum_s g)(.)^T
    EKFAC    (U_B kron U_A) diag(s) (.)^T,     s = sum_n (U_B^T G_n U_A)^2,   G_n = sum_s g x^T

A bias is a last column of the weight, with input 1; batches carry their weights in the risk. With exact scores EKFAC's
s is the diagonal of (U_B kron U_A)^T H_o (U_B kron U_A). Source: [MG15]; convolutions [GM16]; expand and reduce
[EIT23]; EKFAC [GLB18]. Each loss term is sent back alone; packages that send one column for all terms of an example
differ from this where places see each other (attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.operator import Operator
from ..core.structured import Diagonal, KroneckerDiagonal
from ..curvature.operators import gauss_newton
from ..curvature.risk import Risk
from ..estimate.diagonals import diagonal
from .operators import Blocks, Kronecker, Packed, Piece
from .scores import Scores
from .sweep import Sharing, Sweep
from .uses import Role, Use

#: Entries of the gradients of single examples that EKFAC holds at once (256 MB in float64).
_SCRATCH = 2**25
#: Width of the blocks of a second moment that are multiplied at a time; those above the diagonal are copies.
_TILE = 512


def kfac(
    risk: Risk,
    *,
    sharing: Sharing = "expand",
    scores: Scores = "sampled",
    samples: int = 1,
    seed: int = 0,
    bias_column: bool = True,
    longest: int = 8192,
    products: int = 60,
) -> Blocks:
    """K-FAC of the Gauss-Newton matrix of a risk, an operator over its parameters with closed-form inverse and roots.

    `sharing` is how places that share a weight (tokens, pixels) are joined, `scores` what is sent back (`samples` of
    them where they are drawn), `bias_column` whether a bias is a column of its weight or a block of its own. A factor
    longer than `longest` keeps its diagonal alone. Norms, embeddings that are output layers too, grouped convolutions
    and other parameters without factors get the diagonal of H_o, exact up to `products` entries, else from as many
    products; `notes` of the result name them.
    """
    sweep = Sweep(risk, sharing, scores, samples, seed)
    factors = _factors(sweep, bias_column, longest)
    blocks = [block for f in factors.values() for block in f.blocks(risk, f.kronecker())]
    return _assembled(sweep, blocks, f"K-FAC {sharing}", products)


def ekfac(
    risk: Risk,
    *,
    sharing: Sharing = "expand",
    scores: Scores = "sampled",
    samples: int = 1,
    seed: int = 0,
    bias_column: bool = True,
    longest: int = 8192,
    products: int = 60,
) -> Blocks:
    """EKFAC: the eigenbasis of `kfac` with the second moments of the examples' gradients in it, by a second sweep over
    the same scores. The arguments are those of `kfac`."""
    sweep = Sweep(risk, sharing, scores, samples, seed, alone=True)
    factors = _factors(sweep, bias_column, longest)
    bases = {n: {part: K.rotated for part, K in f.kronecker().items()} for n, f in factors.items()}
    moments = {n: {part: torch.zeros_like(R.s) for part, R in own.items()} for n, own in bases.items()}

    def after(weight: float, examples: int, uses: dict[str, list[Use]]) -> None:
        for name, own in bases.items():
            g = torch.cat([u.gradients(examples) for u in uses[name]], 1)
            for part, R in own.items():
                x = None if part == "bias" else factors[name].inputs(uses[name], examples)
                _add_moments(moments[name][part], weight, R, g, x)

    sweep(None, after)
    blocks = []
    for n, f in factors.items():
        blocks += f.blocks(
            risk, {part: KroneckerDiagonal(R.bases, moments[n][part], R.domain) for part, R in bases[n].items()}
        )
    return _assembled(sweep, blocks, f"EKFAC {sharing}", products)


def _add_moments(total: Tensor, weight: float, R: KroneckerDiagonal, g: Tensor, x: Tensor | None) -> None:
    """total += weight sum_n (U_B^T G_n U_A)^2; x None: a bias, G_n = sum_s g; whole numbers: rows of an embedding."""
    U_B = R.bases[0]
    g = g if U_B is None else g @ U_B
    if x is None:
        total += weight * g.sum(1).square().sum(0)
        return
    U_A = R.bases[1]
    if not x.is_floating_point() and U_A is None:
        for ids, own in zip(x, g, strict=True):
            total += weight * g.new_zeros(total.shape[::-1]).index_add_(0, ids, own).mT.square()
        return
    x = x if U_A is None else x @ U_A if x.is_floating_point() else U_A[x]
    step = max(1, _SCRATCH // total.numel())
    for own, inputs in zip(g.split(step), x.split(step), strict=True):
        total += weight * (own.mT @ inputs).square().sum(0)


# --- factors --------------------------------------------------------------------------------------------------------
@dataclass
class _Factors:
    """A and B of one matrix, and how weight and bias lie in its blocks: `matrix`, and `bias` where that is apart."""

    name: str
    role: Role
    width: int  # of the inputs, without the column of a bias
    column: bool
    A: Tensor
    B: Tensor

    def inputs(self, uses: list[Use], examples: int) -> Tensor:
        """x of all places, with a last 1 where a column is the bias."""
        x = torch.cat([u.rows(examples) for u in uses], 1)
        return torch.cat([x, x.new_ones((*x.shape[:-1], 1))], -1) if self.column else x

    def kronecker(self) -> dict[str, Kronecker]:
        apart = self.role.bias is not None and not self.column
        return {"matrix": Kronecker([self.B, self.A])} | ({"bias": Kronecker([self.B])} if apart else {})

    def blocks(self, risk: Risk, own: Mapping[str, Operator]) -> list[Operator]:
        out, bias = len(self.B), self.role.bias
        pieces = [Piece(self.name, (slice(None), slice(0, self.width)), (out, self.width), self.role.transposed)]
        if bias is not None and self.column:
            pieces.append(Piece(bias, (slice(None), slice(self.width, None)), (out, 1)))
        blocks: list[Operator] = [Packed(own["matrix"], pieces, risk.space.select(*(p.name for p in pieces)))]
        if bias is not None and not self.column:
            blocks.append(Packed(own["bias"], [Piece(bias, (slice(None),), (out,))], risk.space.select(bias)))
        return blocks


def _factors(sweep: Sweep, bias_column: bool, longest: int) -> dict[str, _Factors]:
    found: dict[str, _Factors] = {}
    total = 0

    def before(weight: float, examples: int, uses: dict[str, list[Use]]) -> None:
        nonlocal total
        total += examples
        for name, own in uses.items():
            if name not in found:
                W, role = sweep.risk.params[name], own[0].role
                width, zero = len(W) if role.transposed else W[0].numel(), W.new_zeros(())
                found[name] = _Factors(name, role, width, bias_column and role.bias is not None, zero, zero)
            f = found[name]
            f.A = f.A + examples * _input_factor(f.inputs(own, examples), f.width, sweep.sharing, longest).to(f.A)

    def after(weight: float, examples: int, uses: dict[str, list[Use]]) -> None:
        for name, own in uses.items():
            g = torch.cat([u.gradients(examples) for u in own], 1)
            rows = g.sum(1) if sweep.sharing == "reduce" else g.flatten(0, 1)
            found[name].B = found[name].B + weight * _gram(rows, longest)

    sweep(before, after)
    for f in found.values():
        f.A = f.A / total
    return found


def _input_factor(x: Tensor, width: int, sharing: Sharing, longest: int) -> Tensor:
    """A of one batch, from inputs (examples, places, width) or numbers of rows of an embedding."""
    if x.is_floating_point():
        rows = x.mean(1) if sharing == "reduce" else x.flatten(0, 1)
    elif sharing == "expand":
        return x.flatten().bincount(minlength=width).double() / x.numel()
    else:
        rows = torch.zeros((len(x), width), dtype=torch.float64, device=x.device)
        rows.scatter_add_(1, x, torch.full(x.shape, 1 / x.shape[1], dtype=rows.dtype, device=x.device))
    return _gram(rows, longest) / len(rows)


def _gram(rows: Tensor, longest: int) -> Tensor:
    """sum r r^T over the rows, of a wide one the blocks below the diagonal alone; above `longest` its diagonal."""
    n = rows.shape[-1]
    if n > longest:
        return rows.square().sum(0)
    if n < 2 * _TILE:
        return rows.mT @ rows
    out = rows.new_empty((n, n))
    for a in range(0, n, _TILE):
        out[a : a + _TILE, : a + _TILE] = rows[:, a : a + _TILE].mT @ rows[:, : a + _TILE]
        out[:a, a : a + _TILE] = out[a : a + _TILE, :a].mT
    return out


def _assembled(sweep: Sweep, blocks: list[Operator], what: str, products: int) -> Blocks:
    """The blocks, and the diagonal of H_o for the rest."""
    risk = sweep.risk
    covered = {n for A in blocks for n in A.domain.names}
    rest = [n for n in risk.space.names if n not in covered]
    notes = [f"{what}, {sweep.scores} scores: {len(covered)} of {len(risk.space)} tensors"] * bool(covered)
    if not rest:
        return Blocks(blocks, risk.space, notes)
    space = risk.space.select(*rest)
    found = diagonal(gauss_newton(risk).sub(space, space), products, seed=sweep.seed)
    blocks.append(Diagonal({n: d.clamp_min(0).to(risk.dtype) for n, d in found.value.items()}, space))
    notes.append(f"diagonal of H_o ({found.note}): {', '.join(rest)}")
    return Blocks(blocks, risk.space, notes, {} if found.kind == "exact" else found.stderr)
