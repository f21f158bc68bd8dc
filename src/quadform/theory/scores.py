"""The master formula: the Hessian of softmax attention for ANY score function T_ij(theta).

With values v_j = z_j W_V, g = dl/dF, phi_ij = g_i . v_j, and Cov_i, k3_i the covariance and third joint cumulant under
attention row i,

    dF_i = Cov_i(v, dT_i)
    H_f(theta, theta) = sum_i [ k3_i(phi, dT, dT') + Cov_i(phi, d2T) ]
    H_f(V, theta) = sum_i Cov_i(z, dT) kron g_i

The first term is the curvature of attention (a third cumulant), the second the curvature of the scores; for dot-product
scores it is the T-functional part. Rotary positions, ALiBi, sink logits, soft caps and normalised queries and keys are
score functions: each below is a function of named parameters. Source: [own], generalising [ODS25, Thm 3.2].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Dense, Operator
from ..core.space import Space, Vector
from .head import as_batch
from .inputs import one_kind
from .layer import Part, autodiff_hessian, known_part
from .loss import output_loss
from .moments import centre, less_top

Scores = Callable[[Vector], Tensor]


class ScoreAttentionLayer:
    """Attention with scores `T(theta)` `(batch, tokens, keys)` and values `Z W_V`; closed form in the cumulants of T.

    `scores` is any twice differentiable torch function of `theta`; its own first and second derivatives come from
    automatic differentiation of T alone, everything behind the softmax is closed form. `W_V` is the last parameter. The
    memory is that of dT, `(N, keys, size of theta)`.
    """

    def __init__(
        self,
        scores: Scores,
        theta: Vector,
        Z: Tensor,
        W_V: Tensor,
        Y: Tensor | None = None,
        *,
        loss: str | tuple[Tensor, Tensor | Operator] = "mse",
        prefix: str = "",
    ) -> None:
        if "W_V" in theta:
            raise InputError("W_V is given on its own; theta holds the parameters of the scores.")
        self.scores, self.theta, self.Z, self.W_V = scores, dict(theta), as_batch("Z", Z), W_V
        self.weights = {**self.theta, "W_V": W_V}
        one_kind({"Z": self.Z, **self.weights})
        if W_V.dim() != 2 or W_V.shape[0] != self.Z.shape[2]:
            raise InputError(f"W_V has shape {tuple(W_V.shape)}; these keys need ({self.Z.shape[2]}, d_V).")
        self.space = Space.of(self.weights).rename(prefix)
        T = scores(self.theta)
        if T.dim() != 3 or T.shape[0] != self.Z.shape[0] or T.shape[2] != self.Z.shape[1]:
            raise InputError(
                f"scores have shape {tuple(T.shape)}; expected (batch, tokens, keys) for Z {tuple(self.Z.shape)}."
            )
        self.A = T.softmax(-1)
        if not bool(self.A.isfinite().all()):
            raise InputError("the scores must leave every query one visible key, and hold no NaN or +inf.")
        self.output = output_loss(loss, (self.A @ (self.Z @ W_V)).flatten(0, 1), Y)
        self.g = self.output.g.unflatten(0, self.A.shape[:2])
        self._flat = Space.of(self.theta)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.space}, {type(self.output).__name__}>"

    def forward(self, weights: Vector) -> Tensor:
        """F at other weights, `(N, d_V)`."""
        theta = {name: weights[name] for name in self.theta}
        return (self.scores(theta).softmax(-1) @ (self.Z @ weights["W_V"])).flatten(0, 1)

    def _centred_dT(self) -> Tensor:
        """dT_ij/dtheta minus its mean under row i, `(b, i, j, P)`; masked scores have derivative 0."""
        flat = self._flat.flatten(self.theta)
        dT = torch.func.jacfwd(lambda w: self.scores(self._flat.unflatten(w)))(flat)
        dT = less_top(self.A, torch.where(self.A[..., None] > 0, dT, torch.zeros_like(dT)).movedim(-1, 0))
        return (dT - (self.A * dT).sum(-1, keepdim=True)).movedim(0, -1)

    def matrix(self, part: Part = "total") -> Tensor:
        """The Hessian, its outer-product or its functional part, over theta and W_V in the order of the space."""
        part = known_part(part)
        c = self._centred_dT()
        V = self.Z @ self.W_V
        M1 = self.A @ self.Z
        size, d_V = c.shape[-1], self.W_V.shape[1]
        total = size + self.W_V.numel()
        out = torch.zeros((total, total), dtype=c.dtype, device=c.device)
        if part != "functional":
            J_theta = torch.einsum("bij,bjo,bijp->biop", self.A, V, c).flatten(0, 1)
            eye = torch.eye(d_V, dtype=c.dtype, device=c.device)
            J_V = torch.einsum("na,op->noap", M1.flatten(0, 1), eye).flatten(2)
            J = torch.cat([J_theta, J_V], dim=2)
            out += J.flatten(0, 1).T @ self.output.hessian_times(J).flatten(0, 1)
        if part != "outer":
            phi = self.g @ V.transpose(-1, -2)
            D = centre(self.A, phi)
            third_cumulant = torch.einsum("bij,bijp,bijq->pq", D, c, c)
            seen = torch.where(self.A > 0, D, torch.zeros_like(D))
            score_curvature = autodiff_hessian(lambda w: _weighted(seen, self.scores(w)), self.theta)
            out[:size, :size] += third_cumulant + score_curvature
            cross = torch.einsum("bij,bja,bijp,bio->aop", self.A, self.Z, c, self.g).flatten(0, 1)
            out[size:, :size] += cross
            out[:size, size:] += cross.T
        return out

    def hessian(self) -> Operator:
        """H as an operator over theta and W_V."""
        return Dense(self.matrix(), self.space, symmetric=True)

    def outer_operator(self) -> Operator:
        """H_o as an operator."""
        return Dense(self.matrix("outer"), self.space, symmetric=True, psd=self.output.convex)

    def functional_operator(self) -> Operator:
        """H_f as an operator."""
        return Dense(self.matrix("functional"), self.space, symmetric=True)


def _weighted(D: Tensor, T: Tensor) -> Tensor:
    """<D, T> over visible scores: a masked score is -inf with weight 0."""
    return (D * torch.where(D != 0, T, torch.zeros_like(T))).sum()


# --- score functions: each takes what is fixed and returns T(theta) ----------------------------------------------
def dot_product(X: Tensor, Z: Tensor | None = None, bias: Tensor | None = None) -> Scores:
    """T = X W_Q (Z W_K)^T / sqrt(d_K) + bias; theta = W_Q, W_K. ALiBi is `bias=alibi(...)`."""
    X = as_batch("X", X)
    Z = X if Z is None else as_batch("Z", Z)

    def scores(theta: Vector) -> Tensor:
        T = (X @ theta["W_Q"]) @ (Z @ theta["W_K"]).transpose(-1, -2) / math.sqrt(theta["W_Q"].shape[1])
        return T if bias is None else T + bias

    return scores


def rotate(x: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions: pairs (x_k, x_{k+d/2}) of token i turn by i base^(-2k/d). `(..., tokens, d)`, d even."""
    tokens, d = x.shape[-2:]
    if d % 2:
        raise InputError(f"rotary positions need an even width; got {d}.")
    frequency = base ** (-torch.arange(d // 2, dtype=x.dtype, device=x.device) * 2 / d)
    angle = torch.arange(tokens, dtype=x.dtype, device=x.device)[:, None] * frequency
    first, second = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1)


def rope(X: Tensor) -> Scores:
    """Dot products of rotated queries and keys; theta = W_Q, W_K."""
    X = as_batch("X", X)

    def scores(theta: Vector) -> Tensor:
        Q, K = rotate(X @ theta["W_Q"]), rotate(X @ theta["W_K"])
        return Q @ K.transpose(-1, -2) / math.sqrt(Q.shape[-1])

    return scores


def alibi(tokens: int, slope: float, **options: object) -> Tensor:
    """The linear distance bias -slope |i - j|, `(tokens, tokens)`."""
    at = torch.arange(tokens, **options)  # type: ignore[call-overload]
    return -slope * (at[:, None] - at[None, :]).abs()


def qk_norm(X: Tensor, eps: float = 1e-6) -> Scores:
    """RMS-normalised queries and keys with a learned scale; theta = W_Q, W_K, scale (a scalar)."""
    X = as_batch("X", X)

    def normal(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

    def scores(theta: Vector) -> Tensor:
        Q, K = normal(X @ theta["W_Q"]), normal(X @ theta["W_K"])
        return theta["scale"] * (Q @ K.transpose(-1, -2)) / math.sqrt(Q.shape[-1])

    return scores


def soft_cap(scores: Scores, cap: float) -> Scores:
    """cap tanh(T / cap) of another score function."""
    return lambda theta: cap * torch.tanh(scores(theta) / cap)


def with_sink(scores: Scores) -> Scores:
    """One more key whose score is the learned number theta["sink"]; a zero row of Z gives it no value."""

    def with_one_more(theta: Vector) -> Tensor:
        T = scores({name: t for name, t in theta.items() if name != "sink"})
        return torch.cat([T, theta["sink"].expand(*T.shape[:2], 1)], dim=-1)

    return with_one_more


def masked(scores: Scores, visible: Tensor) -> Scores:
    """Another score function with -inf where a key may not be seen."""
    return lambda theta: scores(theta).masked_fill(~visible, -math.inf)
