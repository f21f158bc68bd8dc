"""How different the blocks of an operator are: distances of their spectral densities, ratio of their sizes.

Blocks of a Transformer's Hessian differ far more than those of a convolutional network, which goes with the need for
an optimizer that scales each of them by itself. Source: [Zhang24], who take the Jensen-Shannon distance of block
spectra. The definition used here, so that numbers can be compared: densities of the raw eigenvalues on one common axis
u = asinh(x / linear), smoothed by a normal kernel of one common width; distance = sqrt of the Jensen-Shannon
divergence in bits, 0 for equal densities, 1 for densities without overlap. It differs from [Zhang24] in the axis: a
linear one sees the outliers of the largest block only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.number import Estimate
from ..core.operator import Operator
from ..core.progress import Report
from ..core.showing import fields_in_brief
from .quadrature import density
from .sampling import jackknife
from .spectral_density import Density


@dataclass(frozen=True)
class Heterogeneity:
    """`distance[a, b]` of the densities of two blocks with standard errors, their mean over pairs, and the size ratio.

    `sizes` is the root mean square eigenvalue |A(b, b)|_F / sqrt(n_b) of each block, `ratio` the largest over the
    smallest of them.
    """

    names: tuple[str, ...]
    distance: Tensor
    stderr: Tensor
    mean: Estimate
    sizes: tuple[Estimate, ...]
    ratio: Estimate
    densities: tuple[Density, ...]

    __repr__ = fields_in_brief


def heterogeneity(
    A: Operator,
    blocks: Sequence[str] | dict[str, Sequence[str]],
    probes: int = 6,
    steps: int = 20,
    *,
    width: float = 0.25,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Heterogeneity:
    """Densities of the diagonal blocks of a symmetric operator and how far they are apart; see the module."""
    named = {b: (b,) for b in blocks} if not isinstance(blocks, dict) else {k: tuple(v) for k, v in blocks.items()}
    names = tuple(named)
    if len(names) < 2:
        raise InputError(f"heterogeneity compares at least 2 blocks; got {len(names)}.")
    found = []
    for i, globs in enumerate(named.values()):
        folder = None if resume is None else Path(resume) / f"block-{i}"
        found.append(density(A.block(globs), probes, steps, seed=seed, memory=memory, resume=folder, progress=progress))
    used = sum(d.products for d in found)
    sizes = tuple(_root(d.moment(2)) for d in found)
    linear = _median_size(found)
    P = len(names)
    distance, stderr = torch.zeros((P, P), dtype=torch.float64), torch.zeros((P, P), dtype=torch.float64)
    for i, j in combinations(range(P), 2):
        e = js_distance(found[i], found[j], linear=linear, width=width)
        distance[i, j] = distance[j, i] = e.value
        stderr[i, j] = stderr[j, i] = e.stderr or 0.0
    pairs = P * (P - 1) / 2
    mean = float(distance.sum()) / 2 / pairs
    # A block enters P - 1 pairs: errors of pairs that share it are taken as fully dependent, which is the larger error.
    spread = float(stderr.sum()) / 2 / pairs
    exact = all(d.exact for d in found)
    high, low = max(sizes, key=float), min(sizes, key=float)
    return Heterogeneity(
        names,
        distance,
        stderr,
        Estimate(mean, None if exact else spread, "exact" if exact else "estimate", used),
        sizes,
        _quotient(high, low, used),
        tuple(found),
    )


def js_distance(a: Density, b: Density, *, linear: float, width: float = 0.25, points: int = 400) -> Estimate:
    """The Jensen-Shannon distance of two smoothed densities; its error is that of the probes, left out in turn, and of
    the rule (half the difference of the two)."""
    low = min(float((d.nodes.min() / d.nodes.new_tensor(linear)).asinh()) for d in (a, b)) - 4 * width
    high = max(float((d.nodes.max() / d.nodes.new_tensor(linear)).asinh()) for d in (a, b)) + 4 * width
    points = max(points, math.ceil(4 * (high - low) / width))
    grid = torch.linspace(low, high, points, dtype=torch.float64)
    p, q = (_each(d.nodes, d.weights, grid, linear, width) for d in (a, b))
    value = _distance(p.mean(0), q.mean(0))
    if a.exact and b.exact:
        return Estimate(value, matvecs=a.products + b.products)
    variance = 0.0
    for own, other in ((p, q), (q, p)):
        k = len(own)
        if k < 2:
            continue
        rest = (own.sum(0) - own) / (k - 1)
        left = [_distance(r, other.mean(0)) for r in rest]
        variance += jackknife(value, torch.tensor(left, dtype=torch.float64)) ** 2
    gauss, anti = (_distance(*(_each(*d.rules[i], grid, linear, width).mean(0) for d in (a, b))) for i in (0, 1))
    return Estimate(value, math.hypot(math.sqrt(variance), (anti - gauss) / 2), "estimate", a.products + b.products)


def _each(nodes: Tensor, weights: Tensor, grid: Tensor, linear: float, width: float) -> Tensor:
    """The smoothed density of every probe on the grid, `(probes, points)`, each summing to 1."""
    u = (nodes.double() / linear).asinh()
    out = torch.zeros((len(u), len(grid)), dtype=torch.float64)
    for row, at, weight in zip(out, u, weights.double(), strict=True):
        for some, share in zip(at.split(1024), weight.split(1024), strict=True):
            row += (share[:, None] * torch.exp(-0.5 * ((grid - some[:, None]) / width) ** 2)).sum(0)
    return out / out.sum(1, keepdim=True)


def _distance(p: Tensor, q: Tensor) -> float:
    middle = (p + q) / 2
    bits = sum(torch.xlogy(x, x / middle.clamp(min=1e-300)).sum() for x in (p, q)) / (2 * math.log(2))
    return math.sqrt(max(float(bits), 0.0))


def _median_size(found: Sequence[Density]) -> float:
    """The median over blocks of the root mean square eigenvalue: the scale at which the axis turns logarithmic."""
    sizes = sorted(math.sqrt(max(d.moment(2).value, 0.0)) for d in found)
    return sizes[len(sizes) // 2] or 1.0


def _root(square: Estimate) -> Estimate:
    value = math.sqrt(max(square.value, 0.0))
    if square.stderr is None:
        return Estimate(value, matvecs=square.matvecs)
    return Estimate(value, square.stderr / (2 * value) if value else 0.0, "estimate", square.matvecs)


def _quotient(high: Estimate, low: Estimate, used: int) -> Estimate:
    if low.value == 0:
        return Estimate(math.inf if high.value else 1.0, matvecs=used, note="a block is zero")
    value = high.value / low.value
    if high.stderr is None and low.stderr is None:
        return Estimate(value, matvecs=used)
    spread = value * math.hypot((high.stderr or 0.0) / high.value, (low.stderr or 0.0) / low.value)
    return Estimate(value, spread, "estimate", used)
