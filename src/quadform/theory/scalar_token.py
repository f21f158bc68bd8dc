"""The scalar-token model: attention over one-dimensional tokens, whose whole Hessian spectrum is known in closed form.

`f = w_V A x`, `A = softmax_rows(s x x^T + bias)`, `s = <w_Q, w_K> / (t sqrt(d_K))`, loss = mean over tokens of
`(f - y)^2`. The loss sees the query and key vectors only through the number s, so its `2 d_K + 1` eigenvalues are
`+c` and `-c` (each `d_K - 1` times) and the three of a 3 x 3 matrix. Source: [SOH25]; formulas of the outliers, the
balancing theorem and the capture criterion [own].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Dense
from ..core.showing import fields_in_brief
from ..core.space import Space
from .head import every_query_sees, score_bias
from .inputs import one_kind, score_scale


@dataclass(frozen=True)
class Coefficients:
    """Second derivatives of the loss in the two numbers it depends on, (s, w_V), and its slope `L_s`."""

    L_s: Tensor
    L_ss: Tensor
    L_sV: Tensor
    L_VV: Tensor

    __repr__ = fields_in_brief


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues: the bulk `+-c`, each `multiplicity` times, and three `outliers` (ascending)."""

    c: Tensor
    multiplicity: int
    outliers: Tensor

    __repr__ = fields_in_brief

    def eigenvalues(self) -> Tensor:
        """The `2 multiplicity + 3` eigenvalues, ascending."""
        bulk = self.c.repeat(self.multiplicity)
        return torch.cat([bulk, -bulk, self.outliers]).sort().values

    @property
    def condition_number(self) -> float:
        """Largest over smallest absolute eigenvalue; infinite where an eigenvalue is zero."""
        size = self.eigenvalues().abs()
        return float(size.max() / size.min()) if float(size.min()) > 0 else math.inf

    @property
    def outlier_to_bulk(self) -> float:
        """Largest absolute outlier over |c|: how far the outliers stick out of the bulk; infinite where c = 0."""
        return float(self.outliers.abs().max() / self.c.abs()) if float(self.c.abs()) > 0 else math.inf


@dataclass(frozen=True)
class ScalarTokenModel:
    """Attention on tokens `x` (L,) or (B, L) with targets `y` of the same shape, `w_Q, w_K` (d_K,) and `w_V` ().

    `bias` is added to the scores (a sink logit, a mask of `-inf` or a boolean one, True = visible), in any shape that
    expands to theirs; the formulas do not change with it. `m, mu2, mu3` are mean and central moments of the attention
    rows, `r = w_V m - y`.
    """

    x: Tensor
    y: Tensor
    w_Q: Tensor
    w_K: Tensor
    w_V: Tensor
    bias: Tensor | None = None
    temperature: float = 1.0

    __repr__ = fields_in_brief

    def __post_init__(self) -> None:
        one_kind({"x": self.x, "y": self.y, "w_Q": self.w_Q, "w_K": self.w_K, "w_V": self.w_V})
        if self.x.dim() not in (1, 2) or self.x.shape != self.y.shape:
            raise InputError(
                f"tokens x and targets y have one shape, (L,) or (B, L); got {tuple(self.x.shape)} and"
                f" {tuple(self.y.shape)}."
            )
        if self.w_Q.dim() != 1 or self.w_Q.shape != self.w_K.shape or self.w_V.dim() != 0:
            raise InputError(
                "w_Q and w_K are vectors of one length d_K and w_V is a number; got shapes"
                f" {tuple(self.w_Q.shape)}, {tuple(self.w_K.shape)} and {tuple(self.w_V.shape)}."
            )
        self._score_bias()
        if not bool(self.scores.isfinite().all()):  # `scale` refuses the temperature
            raise InputError(f"the scores s x x^T exceed the range of {self.x.dtype}; make x, w_Q or w_K smaller.")
        if not bool(self._small("hessian")[1].isfinite().all() and self.loss_value().isfinite()):
            raise InputError(
                f"the loss or its Hessian exceeds the range of {self.x.dtype}; make x, y or the weights smaller."
            )

    # --- forward ----------------------------------------------------------------------------------------------------
    @property
    def d_K(self) -> int:
        return self.w_Q.shape[0]

    @property
    def scale(self) -> float:
        """`ds / d<w_Q, w_K>` = 1 / (t sqrt(d_K))."""
        return score_scale(self.temperature, self.d_K, self.x.dtype)

    @property
    def s(self) -> Tensor:
        return self.scale * (self.w_Q @ self.w_K)

    @property
    def scores(self) -> Tensor:
        """`s x x^T` (..., L, L), before the bias."""
        return self.s * self.x[..., :, None] * self.x[..., None, :]

    @property
    def A(self) -> Tensor:
        """Attention (..., L, L)."""
        bias = self._score_bias()
        return torch.softmax(self.scores if bias is None else self.scores + bias, dim=-1)

    def _score_bias(self) -> Tensor | None:
        """The bias as numbers that are added to the scores."""
        shape = (*self.x.shape, self.x.shape[-1])
        if self.bias is None:
            return None
        if self.bias.dim() > len(shape) or any(
            b not in (1, n) for b, n in zip(self.bias.shape[::-1], shape[::-1], strict=False)
        ):
            raise InputError(f"bias has shape {tuple(self.bias.shape)}; it is added to scores of shape {shape}.")
        tokens = self.x.reshape(-1, self.x.shape[-1], 1)
        return every_query_sees(score_bias(self.bias.expand(shape), tokens, tokens))

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """`m, mu2, mu3`, each of the shape of x: mean, second and third central moment of every attention row."""
        A = self.A
        m = (A * self.x[..., None, :]).sum(-1)
        centred = self.x[..., None, :] - m[..., :, None]
        return m, (A * centred**2).sum(-1), (A * centred**3).sum(-1)

    def loss_value(self) -> Tensor:
        return (self.w_V * self.moments()[0] - self.y).square().mean()

    # --- second order -----------------------------------------------------------------------------------------------
    def coefficients(self, split: str = "hessian") -> Coefficients:
        """Derivatives of the loss in (s, w_V), with E = twice the mean over tokens and batch:

        `L_s = E[w_V r x mu2]`, `L_ss = E[w_V^2 x^2 mu2^2 + w_V r x^2 mu3]`, `L_sV = E[w_V m x mu2 + r x mu2]`,
        `L_VV = E[m^2]`. The Gauss-Newton part drops the terms in r: `split` is "hessian", "outer" or "functional".
        """
        if split not in ("hessian", "outer", "functional"):
            raise InputError(f'split is "hessian", "outer" or "functional"; got {split!r}.')
        m, mu2, mu3 = self.moments()
        r, w_V, x = self.w_V * m - self.y, self.w_V, self.x

        def E(t: Tensor) -> Tensor:
            return 2 * t.mean()

        zero = torch.zeros_like(w_V)
        outer = Coefficients(zero, E((w_V * x * mu2) ** 2), E(w_V * m * x * mu2), E(m**2))
        functional = Coefficients(E(w_V * r * x * mu2), E(w_V * r * x**2 * mu3), E(r * x * mu2), zero)
        if split == "outer":
            return outer
        if split == "functional":
            return functional
        return Coefficients(
            functional.L_s, outer.L_ss + functional.L_ss, outer.L_sV + functional.L_sV, outer.L_VV + functional.L_VV
        )

    def space(self) -> Space:
        return Space.of({"w_Q": self.w_Q, "w_K": self.w_K, "w_V": self.w_V})

    def hessian(self, split: str = "hessian") -> Dense:
        """The `(2 d_K + 1)` square matrix in the order w_Q, w_K, w_V, with e = 1/(t sqrt(d_K)):

        `(w_Q, w_Q): e^2 L_ss k k^T`, `(w_Q, w_K): e^2 L_ss k q^T + e L_s I`, `(w_Q, w_V): e L_sV k`.
        """
        co, e, d_K = self.coefficients(split), self.scale, self.d_K
        ds = e * torch.cat([self.w_K, self.w_Q])
        dV = torch.zeros(2 * d_K + 1, dtype=ds.dtype, device=ds.device)
        dV[-1] = 1
        ds = torch.cat([ds, dV.new_zeros(1)])
        H = co.L_ss * torch.outer(ds, ds) + co.L_sV * (torch.outer(ds, dV) + torch.outer(dV, ds))
        H = H + co.L_VV * torch.outer(dV, dV)
        index = torch.arange(d_K)
        H[index, index + d_K] += e * co.L_s
        H[index + d_K, index] += e * co.L_s
        return Dense(H, self.space(), symmetric=True, psd=split == "outer")

    def spectrum(self, split: str = "hessian") -> Spectrum:
        """All `2 d_K + 1` eigenvalues without the matrix: `+-c`, `c = e L_s`, and those of

        `[[c + L_ss a^2, L_ss a b, L_sV a], [., -c + L_ss b^2, L_sV b], [., ., L_VV]]`,
        `a = e |q + k| / sqrt 2`, `b = e |k - q| / sqrt 2`. Source: [SOH25]; for the Gauss-Newton part c = 0.
        """
        c, small = self._small(split)
        return Spectrum(c, self.d_K - 1, torch.linalg.eigvalsh(small))

    def _small(self, split: str) -> tuple[Tensor, Tensor]:
        """c and the 3 x 3 matrix of the outliers."""
        co, e = self.coefficients(split), self.scale
        a = e * (self.w_Q + self.w_K).norm() / math.sqrt(2)
        b = e * (self.w_K - self.w_Q).norm() / math.sqrt(2)
        c, zero = e * co.L_s, torch.zeros_like(a)
        p = torch.stack([a, b, zero])
        z = torch.stack([zero, zero, torch.ones_like(a)])
        small = torch.diag(torch.stack([c, -c, co.L_VV])) + co.L_ss * torch.outer(p, p)
        return c, small + co.L_sV * (torch.outer(p, z) + torch.outer(z, p))

    # --- balance ----------------------------------------------------------------------------------------------------
    def rescaled(self, alpha: float) -> ScalarTokenModel:
        """The same function at `w_Q -> alpha w_Q`, `w_K -> w_K / alpha`: s, c and every coefficient stay."""
        return replace(self, w_Q=alpha * self.w_Q, w_K=self.w_K / alpha)

    def balanced(self) -> ScalarTokenModel:
        """The same function with `|w_Q| = |w_K|`.

        Theorem [own]: along `rescaled`, only `a^2` and `b^2` change, both by half the change of
        `e^2 (|w_Q|^2 + |w_K|^2)`. The largest eigenvalue of the Gauss-Newton part always, and of the Hessian whenever
        `L_ss >= 0`, does not decrease in them, so it is smallest here.
        """
        q, k = self.w_Q.norm(), self.w_K.norm()
        if float(q) == 0 or float(k) == 0:
            raise InputError("balancing needs w_Q and w_K both different from zero.")
        return self.rescaled(float((k / q).sqrt()))

    # --- sinks ------------------------------------------------------------------------------------------------------
    def with_sink(self, height: float, at: int = 0) -> ScalarTokenModel:
        """The model after `x[at] += height`: an outlier activation that may become an attention sink."""
        x = self.x.clone()
        x[..., at] += height
        return replace(self, x=x)

    def capture(self, at: int = 0) -> Tensor:
        """The share of attention each query gives to token `at`, of the shape of x."""
        return self.A[..., at]

    def capture_margin(self, at: int = 0) -> Tensor:
        """`s x_i b (2 p_i - 1) - 2` per query i: positive where it has decided for the sink (p_i > 1/2) or against it.

        With p_i the attention on the sink and b its height above the attention-weighted mean of the other tokens, the
        row variance is `mu2_i = p (1 - p) b^2` plus the spread of the others. For a query `i != at` it falls as the
        sink grows exactly where the margin is positive (exact when the other tokens are equal), and with it that
        query's share of the bulk c; before, it rises. "A sink shrinks the bulk" therefore holds once the queries have
        decided. Tokens of zero mean never all do: a share ~ 1/b of them has `s x_i b` ~ 1, each adding x r mu2 ~ b^2,
        so the bulk grows as b while the outliers grow as b^2. Source of the claim: [SOH25]; the criterion: [own].
        """
        p = self.capture(at)
        m = (self.A * self.x[..., None, :]).sum(-1)
        sink = self.x[..., at, None]
        others = (m - p * sink) / (1 - p).clamp_min(torch.finfo(p.dtype).tiny)
        return self.s * self.x * (sink - others) * (2 * p - 1) - 2
