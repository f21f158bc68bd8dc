"""How the blocks of one head's Hessian grow with its input: sweeps, fitted slopes, the paper's exponents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError, did_you_mean
from ...core.record import Estimate
from ..problem import toy_problem
from .question import BLOCKS, MERGED_BLOCKS, Vary

PARTS = ("outer", "functional", "total")

#: Exponents of the block norms in the input scale. Source: [ODS25, Thm 3.1 and 3.2], softmax treated as bounded; for
#: linear attention [own], F homogeneous of degree 3 in X; for the single matrix W_QK the term X^3 of H_f(Q, K), the
#: curvature of the product W_Q W_K^T, is gone. Blocks that are exactly zero have none.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "softmax": {
        "outer": dict(zip(BLOCKS, (6, 6, 6, 4, 4, 2), strict=True)),
        "functional": dict(zip(BLOCKS, (5, 3, 5, 3, 3, 0), strict=True)),
    },
    "linear": {
        "outer": dict.fromkeys(BLOCKS, 6),
        "functional": dict(zip(BLOCKS, (0, 3, 0, 3, 3, 0), strict=True)),
    },
    "single": {
        "outer": dict(zip(MERGED_BLOCKS, (6, 4, 2), strict=True)),
        "functional": dict(zip(MERGED_BLOCKS, (5, 3, 0), strict=True)),
    },
}
_ZERO = "the block is exactly 0"
_MIX = "3 (small inputs) and 5 mix"

#: Slopes are fitted at scales up to this one: above it the softmax saturates and the powers mix.
FIT_UP_TO = 0.1


def toy(tokens: int = 8, d_model: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A seeded toy problem for `attention_hessian`: X, W_Q, W_K, W_V and Y in float64.

    Args:
        tokens, d_model: X and Y ~ N(0, 1) are `(tokens, d_model)`; the weights ~ N(0, 1/d_model) are square.
        seed: Of all five.

    >>> X, W_Q, W_K, W_V, Y = qf.toy(tokens=3, d_model=2)
    >>> tuple(X.shape), tuple(W_Q.shape)
    ((3, 2), (2, 2))
    """
    p = toy_problem(tokens=tokens, d_model=d_model, seed=seed)
    return p.X, p.W_Q, p.W_K, p.W_V, p.Y


def attention_hessian(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, Y: Tensor, **options: Any) -> Any:
    """The exact Hessian of one attention head in closed form, as a `theory.AttentionLayer`.

    Args:
        X: Tokens `(tokens, d)` or `(batch, tokens, d)`.
        W_Q, W_K, W_V: Weights, used as `X @ W_Q`.
        Y: Targets of the loss.
        options: Those of `AttentionLayer`: `mask`, `temperature`, `loss`, biases, ...

    Returns:
        The layer: `layer.block(...)`, `layer.hessian()`, norms and products.

    >>> layer = qf.attention_hessian(*qf.toy(tokens=3, d_model=2))
    >>> layer.block("W_Q", "W_V").shape
    torch.Size([4, 4])
    >>> float(layer.functional("W_V", "W_V").abs().max())  # the output is linear in W_V
    0.0
    """
    from ...theory.attention import AttentionLayer

    return AttentionLayer(X, W_Q, W_K, W_V, Y, **options)


@dataclass(frozen=True)
class Sweep:
    """Block norms along a grid: `norms[part]` (points, blocks) for outer, functional and total."""

    name: str
    blocks: tuple[str, ...]
    values: Tensor
    norms: dict[str, Tensor]

    @classmethod
    def of(cls, name: str, blocks: tuple[str, ...], grid: Sequence[float], rows: Sequence[dict[str, float]]) -> Sweep:
        """From one `block_norms` per grid point."""
        norms = {part: [[row[f"{part}/{block}"] for block in blocks] for row in rows] for part in PARTS}
        return cls(
            name,
            blocks,
            torch.tensor(grid, dtype=torch.float64),
            {part: torch.tensor(table, dtype=torch.float64) for part, table in norms.items()},
        )

    def slopes(self, part: str = "outer", fit: tuple[float, float] | None = None) -> dict[tuple[str, str], float]:
        """Fitted exponent d log ||block|| / d log value of every block that is not exactly zero."""
        return {tuple(b.split(",")): e.value for b, e in self.fits(part, fit).items()}  # type: ignore[misc]  # a pair

    def fits(self, part: str = "outer", fit: tuple[float, float] | None = None) -> dict[str, Estimate]:
        """The exponents with the standard error of the log-log fit."""
        if part not in self.norms:
            raise InputError(f"{part!r} is not a part of the Hessian ({', '.join(PARTS)}).{did_you_mean(part, PARTS)}")
        lo, hi = fit or self.fit_range
        inside = (self.values >= lo) & (self.values <= hi)
        norms = self.norms[part][inside]
        usable = (norms > 0).all(0)
        if len(norms) < 2 or not bool(usable.any()):
            return {}
        fitted = _log_log_slopes(self.values[inside], norms[:, usable])
        return dict(zip((b for b, good in zip(self.blocks, usable.tolist(), strict=True) if good), fitted, strict=True))

    @property
    def fit_range(self) -> tuple[float, float]:
        """The scales up to 0.1, three points at least; the whole sweep where it begins above 0.1."""
        small = int((self.values <= FIT_UP_TO * (1 + 1e-9)).sum())
        used = self.values[: max(small, 3)] if small else self.values
        return float(used[0]), float(used[-1])


def _log_log_slopes(x: Tensor, y: Tensor) -> list[Estimate]:
    """Least squares of each column of log y (points, blocks) on log x; the standard errors are the residuals' (0 for
    two points, which fit exactly)."""
    u, v = x.log()[:, None], y.log()
    u, v = u - u.mean(), v - v.mean(0)
    slopes = (u * v).sum(0) / u.square().sum()
    rest = (v - slopes * u).square().sum(0)
    errors = (rest / (len(u) - 2) / u.square().sum()).sqrt() if len(u) > 2 else torch.zeros_like(rest)
    note = f"fit over {len(u)} points"
    return [
        Estimate(slope, error=error, kind="estimate", note=note)
        for slope, error in zip(slopes.tolist(), errors.tolist(), strict=True)
    ]


def targets_of(layer: Any, wants: str) -> Tensor:
    """Y of an `AttentionLayer` with loss="mse", from its gradient: F - g / curvature; other layers are refused."""
    from ...theory.attention import AttentionLayer
    from ...theory.loss import MeanSquared

    if not isinstance(layer, AttentionLayer) or not isinstance(layer.output, MeanSquared):
        raise InputError(f"{wants} an AttentionLayer with loss='mse'; got {type(layer).__name__}.")
    if len(layer.weights) > 3 or layer.output.weight is not None:
        raise InputError(f"{wants} an AttentionLayer without biases and token weights.")
    return layer.per_token(layer.head.F - layer.output.g / layer.output.curvature)


def vary(layer: Any, name: str, lo: float, hi: float, points: int = 13) -> Sweep:
    """The block norms of an `AttentionLayer` while its tokens are scaled, with Y fixed.

    Args:
        layer: The layer at scale 1.
        name: `"scale"`.
        lo, hi: The first and the last factor.
        points: Number of factors, evenly spaced in their logarithm.

    Returns:
        The norms; their `slopes()` are the powers with which the blocks grow.

    >>> layer = qf.attention_hessian(*qf.toy())
    >>> round(qf.vary(layer, "scale", 0.01, 0.1).slopes()["W_V", "W_V"], 1)
    2.0
    """
    from ...theory.attention import AttentionLayer

    Y, head = targets_of(layer, "a sweep needs"), layer.head
    grid = Vary(name, lo, hi, points).grid
    layers = (
        AttentionLayer(
            factor * head.X,
            layer.weights["W_Q"],
            layer.weights["W_K"],
            layer.weights["W_V"],
            Y,
            mask=head.bias,
            temperature=layer.temperature,
            context=factor * head.Z,
        )
        for factor in grid
    )
    return Sweep.of(name, BLOCKS, grid, [block_norms(each, BLOCKS) for each in layers])


def block_norms(layer: Any, blocks: Sequence[str]) -> dict[str, float]:
    """`outer/W_Q,W_K` -> exact Frobenius norm: token Gram sums where the layer has them, else the dense block."""
    found = {}
    for part in PARTS:
        for block in blocks:
            a, b = block.split(",")
            if hasattr(layer, "norm"):
                found[f"{part}/{block}"] = layer.norm(a, b, part).value
            else:
                found[f"{part}/{block}"] = float(getattr(layer, "block" if part == "total" else part)(a, b).norm())
    return found


def entropy(A: Tensor) -> float:
    """Mean entropy of the rows of A (L, L) over its largest value log L: 1 is uniform, 0 is one-hot (or one token)."""
    return float(torch.special.entr(A).sum(-1).mean()) / math.log(A.shape[-1]) if A.shape[-1] > 1 else 0.0


def paper_exponents(kind: str) -> dict[str, Estimate]:
    """`"outer/W_Q,W_K"` -> the exponent of `PAPER`: kind is softmax, linear or single."""
    notes = {("functional", "W_Q,W_K"): _MIX} if kind == "softmax" else {}
    return {
        f"{part}/{block}": Estimate(power, note=notes.get((part, block), "" if power else _ZERO))
        for part, table in PAPER[kind].items()
        for block, power in table.items()
    }
