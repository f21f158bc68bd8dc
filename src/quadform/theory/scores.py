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
from functools import reduce
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.record import Estimate
from ..core.space import Space, Vector
from ..core.space import heads as head_views
from .head import as_batch
from .inputs import one_kind
from .layer import Part, known_part
from .loss import output_loss
from .moments import centre, less_top

Scores = Callable[[Vector], Tensor]


class ScoreAttentionLayer:
    """Attention with scores `T(theta)` and values `Z W_V`; closed form in the cumulants of T.

    `scores` is any twice differentiable torch function of `theta`, `(batch, tokens, keys)` or, for several heads,
    `(batch, heads, tokens, keys)` (see `per_head`); its own first and second derivatives come from automatic
    differentiation of T alone, everything behind the softmax is closed form. `W_V` and, where given, the output matrix
    `W_O` are the last parameters; head h owns columns h of W_V and rows h of W_O. Memory is that of k score matrices
    for k vectors.
    """

    def __init__(
        self,
        scores: Scores,
        theta: Vector,
        Z: Tensor,
        W_V: Tensor,
        Y: Tensor | None = None,
        *,
        W_O: Tensor | None = None,
        loss: str | tuple[Tensor, Tensor | Operator] = "mse",
        token_weights: Tensor | None = None,
        prefix: str = "",
    ) -> None:
        if {"W_V", "W_O"} & theta.keys():
            raise InputError("W_V and W_O are given on their own; theta holds the parameters of the scores.")
        self.scores, self.theta, self.Z, self.prefix = scores, dict(theta), as_batch("Z", Z), prefix
        self.weights = {**self.theta, "W_V": W_V} | ({} if W_O is None else {"W_O": W_O})
        one_kind({"Z": self.Z, **self.weights})
        T = scores(self.theta)
        self._many = T.dim() == 4
        heads = T.shape[1] if self._many else 1
        if T.dim() not in (3, 4) or T.shape[0] != self.Z.shape[0] or T.shape[-1] != self.Z.shape[1]:
            raise InputError(
                f"scores have shape {tuple(T.shape)}; expected (batch, tokens, keys), or (batch, heads, tokens, keys),"
                f" for Z {tuple(self.Z.shape)}."
            )
        if W_V.dim() != 2 or W_V.shape[0] != self.Z.shape[2] or W_V.shape[1] % heads:
            raise InputError(
                f"W_V has shape {tuple(W_V.shape)}; these keys and {heads} heads need ({self.Z.shape[2]}, {heads} d_V)."
            )
        if W_O is not None and (W_O.dim() != 2 or W_O.shape[0] != W_V.shape[1]):
            raise InputError(f"W_O {tuple(W_O.shape)} must have as many rows as W_V {tuple(W_V.shape)} has columns.")
        views = [*head_views("W_V", (W_V.shape[0], W_V.shape[1]), heads)] if self._many else []
        if self._many and W_O is not None:
            views += head_views("W_O", (W_O.shape[0], W_O.shape[1]), heads, axis=0)
        self.space = Space.of(self.weights, views).rename(prefix)
        self._A = (T if self._many else T[:, None]).softmax(-1)
        if not bool(self._A.isfinite().all()):
            raise InputError("the scores must leave every query one visible key, and hold no NaN or +inf.")
        self._V = self._by_head(self.Z @ W_V)
        self._z = self._together(self._A @ self._V)
        self.output = output_loss(loss, self._out(self._z, self.weights).flatten(0, 1), Y, token_weights)
        self.g = self.output.g.unflatten(0, self._z.shape[:2])
        self._g = self._by_head(self._through(self.g))
        self._phi = self._g @ self._V.mT
        self._D = centre(self._A, self._phi)

    @property
    def A(self) -> Tensor:
        """The attention, of the shape of the scores."""
        return self._A if self._many else self._A[:, 0]

    @property
    def loss(self) -> Tensor | None:
        """The value of the loss; None for a loss given by (g, Hl)."""
        return self.output.value

    # --- heads: `(..., tokens, h d_V)` and `(..., heads, tokens, d_V)` ----------------------------------------------
    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self._A.shape[1], -1)).transpose(-2, -3)

    def _together(self, x: Tensor) -> Tensor:
        return x.transpose(-2, -3).flatten(-2)

    def _out(self, z: Tensor, weights: Vector) -> Tensor:
        return z @ weights["W_O"] if "W_O" in weights else z

    def _through(self, g: Tensor) -> Tensor:
        return g @ self.weights["W_O"].T if "W_O" in self.weights else g

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.space}, {type(self.output).__name__}>"

    def forward(self, weights: Vector) -> Tensor:
        """F at other weights, `(N, d_out)`."""
        T = self.scores({name: weights[name] for name in self.theta})
        A = (T if self._many else T[:, None]).softmax(-1)
        return self._out(self._together(A @ self._by_head(self.Z @ weights["W_V"])), weights).flatten(0, 1)

    # --- first and second derivatives of the scores alone -----------------------------------------------------------
    def _weigh(self, D: Tensor, theta: Vector) -> Tensor:
        return _weighted(D if self._many else D[:, 0], self.scores(theta))

    def _gather(self, D: Tensor) -> dict[str, Tensor]:
        """`sum D dT/dtheta` for k weightings D of the scores."""
        return dict(torch.func.vmap(lambda d: torch.func.grad(lambda t: self._weigh(d, t))(self.theta))(D))

    def _tangents(self, U: dict[str, Tensor]) -> Tensor:
        """dT for k directions, `(k, batch, heads, tokens, keys)`; masked scores have derivative 0."""
        dT = torch.func.vmap(lambda u: torch.func.jvp(self.scores, (self.theta,), (u,))[1])(U)
        dT = dT if self._many else dT[:, :, None]
        return torch.where(self._A > 0, dT, torch.zeros_like(dT))

    def _bend(self, U: dict[str, Tensor]) -> dict[str, Tensor]:
        """`sum D d2T` along k directions: the curvature of the scores."""
        slope = torch.func.grad(lambda t: self._weigh(self._D, t))
        return dict(torch.func.vmap(lambda u: torch.func.jvp(slope, (self.theta,), (u,))[1])(U))

    # --- products ---------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def products(self, V: Vector, part: Part = "total") -> dict[str, Tensor]:
        """`part` of the Hessian times k vectors, under the names of `weights`."""
        part = known_part(part)
        U = {name: V[name] for name in self.theta}
        dA, dV = centre(self._A, self._tangents(U)), self._by_head(self.Z @ V["W_V"][:, None])
        dz = self._together(dA @ self._V + self._A @ dV)
        images = []
        if part != "functional":
            dF = self._out(dz, self.weights) + (self._z @ V["W_O"][:, None] if "W_O" in V else 0)
            dg = self.output.hessian_times(dF.flatten(1, 2).permute(1, 2, 0)).permute(2, 0, 1)
            dg = dg.unflatten(1, self.g.shape[:2])
            images.append(self._pull_back(self._through(dg)) | {"W_O": _outer_sum(self._z, dg)})
        if part != "outer":
            images += [self._bend(U), self._curve(dV, dA), {"W_O": _outer_sum(dz, self.g)}]
            if "W_O" in V:
                images.append(self._pull_back(self.g @ V["W_O"].mT[:, None]))  # g of each head moves with W_O
        return {n: reduce(torch.add, [image[n] for image in images if n in image]) for n in self.weights}

    def _pull_back(self, dg: Tensor) -> dict[str, Tensor]:
        """J^T dg for k cotangents at the heads' outputs, `(k, batch, tokens, h d_V)`."""
        dg = self._by_head(dg)
        values = self._together(self._A.mT @ dg)
        return {**self._gather(centre(self._A, dg @ self._V.mT)), "W_V": _outer_sum(self.Z, values)}

    def _curve(self, dV: Tensor, dA: Tensor) -> dict[str, Tensor]:
        """The third cumulant and the value cross terms of H_f v."""
        phi, dphi = less_top(self._A, self._phi), less_top(self._A, self._g @ dV.mT)
        mean = (self._A * phi).sum(-1, keepdim=True)
        dmean = (dA * phi + self._A * dphi).sum(-1, keepdim=True)
        dD = dA * (phi - mean) + self._A * (dphi - dmean)
        return {**self._gather(dD), "W_V": _outer_sum(self.Z, self._together(dA.mT @ self._g))}

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dtheta, dL/dW_V and dL/dW_O."""
        g = self._through(self.g)[None]
        out = {**self._pull_back(g), "W_O": _outer_sum(self._z, self.g[None])}
        return {self.prefix + name: out[name][0] for name in self.weights}

    # --- matrices ---------------------------------------------------------------------------------------------------
    def matrix(self, part: Part = "total") -> Tensor:
        """The Hessian, its outer-product or its functional part, over all parameters in the order of the space."""
        return _ScoreLayerOperator(self, known_part(part)).dense()

    def norm(self, a: str, b: str, part: Part = "total") -> Estimate:
        """The Frobenius norm of one block, from its entries."""
        block = _ScoreLayerOperator(self, known_part(part)).block(self.prefix + a, self.prefix + b).dense()
        size = float(block.abs().max())
        return Estimate(size * float((block / size).norm()) if size > 0 else 0.0)  # squares may leave floating point

    def norms(self, part: Part = "total") -> dict[tuple[str, str], Estimate]:
        """The Frobenius norm of every block (a not before b)."""
        names = list(self.weights)
        return {(a, b): self.norm(a, b, part) for i, a in enumerate(names) for b in names[: i + 1]}

    def hessian(self) -> Operator:
        """H as an operator over theta, W_V and W_O."""
        return _ScoreLayerOperator(self, "total")

    def outer_operator(self) -> Operator:
        """H_o as an operator."""
        return _ScoreLayerOperator(self, "outer")

    def functional_operator(self) -> Operator:
        """H_f as an operator."""
        return _ScoreLayerOperator(self, "functional")


@final
class _ScoreLayerOperator(Operator):
    """H, H_o or H_f of a `ScoreAttentionLayer`."""

    def __init__(self, layer: ScoreAttentionLayer, part: Part) -> None:
        psd = part == "outer" and layer.output.convex
        super().__init__(layer.space, dtype=layer.Z.dtype, device=layer.Z.device, symmetric=True, psd=psd)
        self.layer, self.part = layer, part

    def apply(self, V: Vector) -> dict[str, Tensor]:
        prefix = self.layer.prefix
        image = self.layer.products({name: V[prefix + name] for name in self.layer.weights}, self.part)
        return {prefix + name: t for name, t in image.items()}


def _outer_sum(x: Tensor, y: Tensor) -> Tensor:
    """sum over all tokens of x_n y_n^T: `(..., batch, tokens, p)` and `(..., batch, tokens, q)` -> `(..., p, q)`."""
    return x.flatten(-3, -2).mT @ y.flatten(-3, -2)


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
    angle = (torch.arange(tokens, dtype=x.dtype, device=x.device)[:, None] * frequency).repeat(1, 2)
    turned = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], dim=-1)
    return x * angle.cos() + turned * angle.sin()


def rope(X: Tensor) -> Scores:
    """Dot products of rotated queries and keys; theta = W_Q, W_K."""
    X = as_batch("X", X)

    def scores(theta: Vector) -> Tensor:
        Q, K = rotate(X @ theta["W_Q"]), rotate(X @ theta["W_K"])
        return Q @ K.transpose(-1, -2) / math.sqrt(Q.shape[-1])

    return scores


def alibi(tokens: int, slope: float, **options: object) -> Tensor:
    """The linear distance bias -slope |i - j|, `(tokens, tokens)`."""
    at = torch.arange(tokens, **options)  # type: ignore[call-overload]  # dtype and device
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


def per_head(scores: Scores, heads: int, kv_heads: int | None = None) -> Scores:
    """A score function of one head, for every head: head h owns columns h of W_Q and of W_K; with fewer `kv_heads`
    neighbours share their keys. Other parameters are one number for all heads, or have one entry for each."""
    group, rest = divmod(heads, heads if kv_heads is None else kv_heads)
    if rest:
        raise InputError(f"{heads} heads cannot share {kv_heads} key heads evenly; kv_heads divides heads.")

    def of_head(name: str, t: Tensor, h: int) -> Tensor:
        if name in ("W_Q", "W_K"):
            count, at = (heads, h) if name == "W_Q" else (heads // group, h // group)
            if t.shape[1] % count:
                raise InputError(f"{name} of shape {tuple(t.shape)} cannot be cut into {count} heads along axis 1.")
            return t.unflatten(1, (count, -1))[:, at]
        return t[h] if t.dim() else t

    return lambda theta: torch.stack(
        [scores({name: of_head(name, t, h) for name, t in theta.items()}) for h in range(heads)], dim=1
    )
