"""One attention head at a point: its scores, moments, token Jacobians, second derivatives and tangents.

This is the part that single-head and multi-head layers share. `g` is the gradient of the loss at the head's own output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.space import Vector
from .inputs import one_kind, score_scale
from .loss import OutputLoss
from .moments import centre, less_top, second_and_contracted_third
from .terms import Term


def as_batch(name: str, X: Tensor) -> Tensor:
    """`(tokens, d)` or `(batch, tokens, d)` as the latter."""
    if not isinstance(X, Tensor):
        raise InputError(f"{name} is a {type(X).__name__}; give a tensor (tokens, d) or (batch, tokens, d).")
    if X.dim() not in (2, 3):
        raise InputError(f"{name} has shape {tuple(X.shape)}; expected (tokens, d) or (batch, tokens, d).")
    return X if X.dim() == 3 else X[None]


def known_mask(mask: Literal["causal"] | Tensor | None, X: Tensor, Z: Tensor) -> Tensor | None:
    """A mask as a boolean or floating tensor `(tokens, keys)` or `(batch, tokens, keys)`."""
    if mask is None:
        return None
    L, S = X.shape[1], Z.shape[1]
    if isinstance(mask, str):
        if mask != "causal":
            raise InputError(f"mask {mask!r} is not 'causal', a boolean tensor (True = visible) or a float tensor.")
        if L != S:
            raise InputError(f"a causal mask needs as many keys as queries; got {S} and {L}.")
        mask = torch.ones((L, S), dtype=torch.bool, device=X.device).tril()
    if tuple(mask.shape[-2:]) != (L, S) or mask.dim() > 3 or (mask.dim() == 3 and mask.shape[0] not in (1, X.shape[0])):
        raise InputError(f"mask has shape {tuple(mask.shape)}; expected ({L}, {S}) or ({X.shape[0]}, {L}, {S}).")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise InputError(f"mask is {mask.dtype}; give a boolean one (True = visible), `mask.bool()`, or a float one.")
    return mask


def score_bias(mask: Literal["causal"] | Tensor | None, X: Tensor, Z: Tensor) -> Tensor | None:
    """What is added to the scores `(tokens, keys)`: 0 where a key may be seen, -inf where not, or a given bias."""
    mask = known_mask(mask, X, Z)
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=X.dtype, device=X.device).masked_fill(~mask, -math.inf)
    mask = mask.to(X.dtype)
    if bool(torch.isnan(mask).any() or (mask == math.inf).any()):
        raise InputError("a mask must leave every query one visible key, and hold no NaN or +inf.")
    return mask


def blind(bias: Tensor | None) -> Tensor | None:
    """Queries that see no key, `(..., tokens, 1)`; None where there are none."""
    if bias is None:
        return None
    found = (bias == -math.inf).all(-1, keepdim=True)
    return found if bool(found.any()) else None


def every_query_sees(bias: Tensor | None) -> Tensor | None:
    """`bias`, if it leaves every query one visible key."""
    if blind(bias) is not None:
        raise InputError("a mask must leave every query one visible key, and hold no NaN or +inf.")
    return bias


@dataclass(frozen=True)
class Factor:
    """A token Jacobian `dF_n/dW = l_n (x) R_n`: l `(N, p)`, R `(N or 1, d_out, e)`; `vector_first` orders them in W.

    `span` and `image` are bases of spaces that hold the rows and the columns of R_n, one for each sequence; see `Term`.
    """

    l: Tensor
    R: Tensor
    vector_first: bool
    span: Tensor | None = None
    image: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight."""
        p, e = self.l.shape[1], self.R.shape[2]
        return (p, e) if self.vector_first else (e, p)

    def dense(self) -> Tensor:
        """`(N, d_out, size)`."""
        letters = "pe" if self.vector_first else "ep"
        R = self.R.expand(self.l.shape[0], -1, -1)
        return torch.einsum(f"np,noe->no{letters}", self.l, R).flatten(2)


class Head:
    """Attention of queries X `(b, i, d)` over keys Z `(b, j, d_Z)`; n = (b, i) counts query tokens."""

    def __init__(
        self, X: Tensor, Z: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, bias: Tensor | None, *, temperature: float
    ) -> None:
        if Z.shape[0] != X.shape[0]:
            raise InputError(f"X has {X.shape[0]} sequences and context {Z.shape[0]}; give one context per sequence.")
        named = {"X": X, "context": Z, "W_Q": W_Q, "W_K": W_K, "W_V": W_V}
        one_kind(named)
        if any(w.dim() != 2 for w in (W_Q, W_K, W_V)):
            shapes = ", ".join(str(tuple(w.shape)) for w in (W_Q, W_K, W_V))
            raise InputError(f"W_Q, W_K and W_V are matrices (d, d_K), (d, d_K), (d, d_V); got {shapes}.")
        if W_Q.shape[0] != X.shape[2] or W_K.shape[0] != Z.shape[2] or W_V.shape[0] != Z.shape[2]:
            raise InputError(
                f"tokens have width {X.shape[2]} (keys {Z.shape[2]}) but W_Q, W_K, W_V have {W_Q.shape[0]},"
                f" {W_K.shape[0]}, {W_V.shape[0]} rows; weights are used as X @ W."
            )
        if W_Q.shape[1] != W_K.shape[1]:
            raise InputError(
                f"W_Q gives queries of width {W_Q.shape[1]}, W_K keys of width {W_K.shape[1]}; they must agree."
            )
        self.X, self.Z, self.W_Q, self.W_K, self.W_V, self.bias = X, Z, W_Q, W_K, W_V, bias
        self._blind = blind(bias)
        self.sc = score_scale(temperature, W_Q.shape[1], X.dtype)
        self.Q, self.K, self.V = X @ W_Q, Z @ W_K, Z @ W_V
        self.A = self._attend(self.Q, self.K)
        self.F = (self.A @ self.V).flatten(0, 1)

    def _attend(self, Q: Tensor, K: Tensor) -> Tensor:
        T = self.sc * (Q @ K.transpose(-1, -2))
        if self.bias is None:
            return T.softmax(-1)
        if self._blind is None:
            return (T + self.bias).softmax(-1)
        return (T + self.bias.masked_fill(self._blind, 0.0)).softmax(-1).masked_fill(self._blind, 0.0)

    def forward(self, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
        """F at other weights, plain differentiable torch, `(N, d_V)`."""
        return (self._attend(self.X @ W_Q, self.Z @ W_K) @ (self.Z @ W_V)).flatten(0, 1)

    def see(self, g: Tensor, counted: Tensor | None = None) -> None:
        """Set g = dl/dF at this head's output, `(N, d_V)`; `counted` `(N,)` are the tokens that the loss counts."""
        if self._blind is not None:
            lost = self._blind[..., 0].expand(self.A.shape[:2]).flatten()
            if counted is None or bool((lost & counted).any()):
                raise InputError(
                    "a mask must leave every query one visible key, or the loss must leave that token out: give it the"
                    " token weight 0 or, under cross-entropy, the class number -100."
                )
        self.g = g

    # --- per-token quantities ---------------------------------------------------------------------------------------
    @cached_property
    def x(self) -> Tensor:
        return self.X.flatten(0, 1)

    @cached_property
    def q(self) -> Tensor:
        return self.Q.flatten(0, 1)

    @cached_property
    def m(self) -> Tensor:
        """M1, `(N, d_Z)`."""
        return (self.A @ self.Z).flatten(0, 1)

    @cached_property
    def phi(self) -> Tensor:
        """phi_ij = g_i . v_j, `(b, i, j)`."""
        return self.g.unflatten(0, self.A.shape[:2]) @ self.V.transpose(-1, -2)

    @cached_property
    def _M2_N(self) -> tuple[Tensor, Tensor]:
        return second_and_contracted_third(self.A, self.Z, self.phi)

    @property
    def M2(self) -> Tensor:
        return self._M2_N[0]

    @property
    def N(self) -> Tensor:
        return self._M2_N[1]

    @cached_property
    def M2K(self) -> Tensor:
        """sc M2 W_K, `(N, d_Z, d_K)`."""
        return self.sc * (self.M2 @ self.W_K)

    @cached_property
    def NK(self) -> Tensor:
        """sc^2 N W_K, `(N, d_Z, d_K)`."""
        return self.sc**2 * (self.N @ self.W_K)

    @cached_property
    def u(self) -> Tensor:
        """sc M2 W_V g, `(N, d_Z)`: dL/d(W_Q W_K^T) = sum_n x_n u_n^T."""
        return self.sc * (self.M2 @ (self.g @ self.W_V.T)[..., None])[..., 0]

    @cached_property
    def span_z(self) -> Tensor | None:
        """An orthonormal basis of the keys z_j of each sequence, `(b, d_Z, keys)`; None unless keys < d_Z."""
        return _basis(self.Z)

    @cached_property
    def span_k(self) -> Tensor | None:
        """The same for the projected keys z_j W_K, `(b, d_K, keys)`."""
        return _basis(self.K)

    @cached_property
    def span_v(self) -> Tensor | None:
        """The same for the values z_j W_V, `(b, d_V, keys)`."""
        return _basis(self.V)

    @cached_property
    def P(self) -> Tensor:
        """sc W_V^T M2 W_K, `(N, d_V, d_K)`: the small matrix of J_Q."""
        return self.W_V.T @ self.M2K

    @cached_property
    def B(self) -> Tensor:
        """sc W_V^T M2, `(N, d_V, d_Z)`: the small matrix of J_K."""
        return self.sc * (self.W_V.T @ self.M2)

    # --- first and second derivatives -------------------------------------------------------------------------------
    def factor(self, name: str) -> Factor:
        """The token Jacobian of the head's output with respect to one weight."""
        if name == "W_Q":
            return Factor(self.x, self.P, True, self.span_k, self.span_v)
        if name == "W_K":
            return Factor(self.q, self.B, False, self.span_z, self.span_v)
        eye = torch.eye(self.W_V.shape[1], dtype=self.g.dtype, device=self.g.device)
        return Factor(self.m, eye[None], True)

    def functional_terms(self, a: str, b: str) -> list[Term]:
        """H_f(a, b) = <g, d2F>, a not before b in the order W_Q, W_K, W_V. Source: [ODS25, Thm 3.2]."""
        x, q, g, k, z = self.x, self.q, self.g, self.span_k, self.span_z
        if (a, b) == ("W_Q", "W_Q"):
            return [Term(x, x, self.W_K.T @ self.NK, True, True, k, k, symmetric=True)]
        if (a, b) == ("W_K", "W_Q"):
            return [Term(q, x, self.NK, False, True, z, k), self.t_functional()]
        if (a, b) == ("W_K", "W_K"):
            return [Term(q, q, self.sc**2 * self.N, False, False, z, z, symmetric=True)]
        if (a, b) == ("W_V", "W_Q"):
            return [Term(g, x, self.M2K, False, True, z, k)]
        if (a, b) == ("W_V", "W_K"):
            return [Term(g, q, self.sc * self.M2, False, False, z, z)]
        return []

    def t_functional(self) -> Term:
        """delta_vw G[a, s] in the block (W_K, W_Q): the curvature of the product W_Q W_K^T itself."""
        eye = torch.eye(self.W_K.shape[1], dtype=self.g.dtype, device=self.g.device)
        return Term(self.u, self.x, eye[None])

    @cached_property
    @torch.no_grad()
    def G(self) -> Tensor:
        """dL/d(W_Q W_K^T) = `sc X^T (A o (phi - row mean)) Z`, `(d, d_Z)`; no second moments."""
        return self.sc * (self.X.mT @ centre(self.A, self.phi) @ self.Z).sum(0)

    def gradients(self) -> dict[str, Tensor]:
        """dL/dW_Q, dL/dW_K, dL/dW_V."""
        D = centre(self.A, self.phi)
        return {
            "W_Q": self.sc * _sum_over_tokens(self.X, D @ self.K),
            "W_K": self.sc * _sum_over_tokens(self.Z, D.transpose(-1, -2) @ self.Q),
            "W_V": self.m_outer(self.g),
        }

    def m_outer(self, g: Tensor) -> Tensor:
        """sum_n m_n g_n^T, `(d_Z, d_V)`."""
        return self.m.T @ g

    # --- products ---------------------------------------------------------------------------------------------------
    def tangents(self, V: Vector) -> tuple[Tensor, Tensor, Tensor]:
        """Directions of V, A and F for k directions of the weights: the forward tangent, O(k L^2 (d_K + d_V))."""
        dQ = self.X @ V["W_Q"][:, None]
        dK = self.Z @ V["W_K"][:, None]
        dV = self.Z @ V["W_V"][:, None]
        dT = self.sc * (dQ @ self.K.transpose(-1, -2) + self.Q @ dK.transpose(-1, -2))
        dA = centre(self.A, dT)
        dF = dA @ self.V + self.A @ dV
        return dV, dA, dF

    def pull_back(self, dg: Tensor) -> dict[str, Tensor]:
        """J^T dg for k cotangents at the output, `(k, b, i, d_V)`."""
        C = centre(self.A, dg @ self.V.transpose(-1, -2))
        return {
            "W_Q": self.sc * _sum_over_tokens(self.X, C @ self.K),
            "W_K": self.sc * _sum_over_tokens(self.Z, C.transpose(-1, -2) @ self.Q),
            "W_V": _sum_over_tokens(self.Z, self.A.transpose(-1, -2) @ dg),
        }

    def curve(self, dV: Tensor, dA: Tensor) -> dict[str, Tensor]:
        """H_f v less its T-functional part, from the forward tangents: the derivative of the gradient with g, W_Q and
        W_K held fixed where they stand beside the scores."""
        g = self.g.unflatten(0, self.A.shape[:2])
        phi, dphi = less_top(self.A, self.phi), less_top(self.A, g @ dV.transpose(-1, -2))
        mean = (self.A * phi).sum(-1, keepdim=True)
        dmean = (dA * phi + self.A * dphi).sum(-1, keepdim=True)
        dD = dA * (phi - mean) + self.A * (dphi - dmean)
        return {
            "W_Q": self.sc * _sum_over_tokens(self.X, dD @ self.K),
            "W_K": self.sc * _sum_over_tokens(self.Z, dD.transpose(-1, -2) @ self.Q),
            "W_V": _sum_over_tokens(self.Z, dA.transpose(-1, -2) @ g),
        }

    def bend(self, V: Vector) -> dict[str, Tensor]:
        """The T-functional part of H_f v, `[[0, G kron I], [G^T kron I, 0]]`: the curvature of W_Q W_K^T itself."""
        return {"W_Q": self.G @ V["W_K"], "W_K": self.G.T @ V["W_Q"]}

    def products(self, V: Vector, part: str, output: OutputLoss, *, bend: bool = True) -> dict[str, Tensor]:
        """H v, H_o v or H_f v for k directions at once, when this head's output is the layer's; without `bend`, less
        the T-functional part."""
        dV, dA, dF = self.tangents(V)
        images = []
        if part != "functional":
            dg = output.hessian_times(dF.flatten(1, 2).permute(1, 2, 0)).permute(2, 0, 1).unflatten(1, self.A.shape[:2])
            images.append(self.pull_back(dg))
        if part != "outer":
            images += [self.curve(dV, dA), self.bend(V)] if bend else [self.curve(dV, dA)]
        return {name: reduce(torch.add, [i[name] for i in images if name in i]) for name in images[0]}


def _sum_over_tokens(X: Tensor, M: Tensor) -> Tensor:
    """sum_{b,i} x_bi M_bi^T: X `(b, i, p)`, M `(..., b, i, r)` -> `(..., p, r)`."""
    return X.flatten(0, 1).T @ M.flatten(-3, -2)


def _basis(features: Tensor) -> Tensor | None:
    """Orthonormal bases of the rows of each `(keys, width)` matrix, `(b, width, keys)`; None unless keys < width."""
    return None if features.shape[1] >= features.shape[2] else torch.linalg.qr(features.mT).Q
