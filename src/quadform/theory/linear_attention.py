"""Linear self-attention: the attention layer without its softmax, the comparison that shows what softmax does.

`F = (M o sc X W_Q (Z W_K)^T) Z W_V`, sc = 1/(t sqrt(d_K)), Z = X (or the context of cross-attention), M the mask.
Without a mask `F = sc X W_Q W_K^T (Z^T Z) W_V`: every block of the Hessian is a product of Gram matrices and weights,
and no (L, L) matrix is ever formed. Source: [ODS25]; masks [own].
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.space import Vector
from .factors import FactorLayer, Loss
from .head import Factor, as_batch, known_mask
from .inputs import one_kind, score_scale
from .layer import Part
from .terms import Term


def mix(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None) -> Tensor:
    """`(mask o Q K^T) V`; without a mask the (L, L) matrix is not formed."""
    return Q @ (K.mT @ V) if mask is None else (mask * (Q @ K.mT)) @ V


def multiplier(mask: Literal["causal"] | Tensor | None, X: Tensor, Z: Tensor) -> Tensor | None:
    """What scores without a softmax are multiplied with, `(1 or batch, tokens, keys)`: 1 where a key is seen, 0 where
    not, or any given numbers (the decay of retention). A query may see no key: its output is 0."""
    mask = known_mask(mask, X, Z)
    if mask is None:
        return None
    if not bool(mask.isfinite().all()):
        raise InputError("a mask of linear attention multiplies the scores; give finite numbers, or a boolean one.")
    return as_batch("mask", mask.to(X.dtype))


class LinearAttentionLayer(FactorLayer):
    """One linear attention head over sequences X (L, d) or (B, L, d): W_Q, W_K (d, d_K), W_V (d, d_V).

    `mask` is "causal", a boolean tensor (True = may be seen) or a float tensor the scores are MULTIPLIED with (softmax
    attention adds it), (L, keys) or (B, L, keys).

    The token Jacobians are those of softmax attention with M2 replaced by `G2_n = sum_j M_nj z_j z_j^T` (Z^T Z of the
    sequence where there is no mask) and M1 = A Z:
    `J_Q = x^T kron sc W_V^T G2 W_K`, `J_K[o, (s, v)] = sc (W_V^T G2)[o,s] q_v`, `J_V = m^T kron I`. M3 has no
    counterpart, and with g = dl/dF
    `H_f(K, Q)[(s,w),(a,v)] = sc delta_vw sum (G2 W_V g)_s x_a`,
    `H_f(V, Q)[(a,o),(b,v)] = sc sum (G2 W_K)[a,v] g_o x_b`, `H_f(V, K)[(a,o),(s,v)] = sc sum G2[a,s] g_o q_v` and the
    diagonal blocks are exactly zero ("block-hollow": F is linear in each weight): the diagonal blocks of H are positive
    semi-definite for convex losses, though H is not.

    Powers of the length, mean squared error, one sequence, no mask, Sigma = X^T X / L, Omega = X^T (F - Y) / L:
    `H_o ~ (2 L^2 / (d_V d_K t^2)) Sigma^3`, `H_f ~ (2 L / (d_V sqrt(d_K) t)) Omega Sigma` (A is not normalised, so the
    prefactors grow with L; the paper's O(Sigma^3), O(Omega Sigma) leave them out). We differ from the source in
    independent d, d_K, d_V, temperature, masks, batches, cross-attention and any loss.
    """

    def __init__(
        self,
        X: Tensor,
        W_Q: Tensor,
        W_K: Tensor,
        W_V: Tensor,
        Y: Tensor | None = None,
        *,
        mask: Literal["causal"] | Tensor | None = None,
        temperature: float = 1.0,
        context: Tensor | None = None,
        loss: Loss = "mse",
        prefix: str = "",
    ) -> None:
        Z = X if context is None else context
        one_kind({"X": X, "context": Z, "W_Q": W_Q, "W_K": W_K, "W_V": W_V})
        if any(w.dim() != 2 for w in (W_Q, W_K, W_V)):
            shapes = ", ".join(str(tuple(w.shape)) for w in (W_Q, W_K, W_V))
            raise InputError(f"W_Q, W_K and W_V are matrices (d, d_K), (d, d_K), (d, d_V); got {shapes}.")
        if X.dim() not in (2, 3) or W_Q.shape[0] != X.shape[-1] or W_K.shape[1] != W_Q.shape[1]:
            raise InputError(
                f"linear attention needs X (L, d) or (B, L, d), W_Q (d, d_K) and W_K (d, d_K); got {tuple(X.shape)},"
                f" {tuple(W_Q.shape)} and {tuple(W_K.shape)}."
            )
        if Z.shape[:-2] != X.shape[:-2] or Z.shape[-1] != W_K.shape[0] or W_V.shape[0] != W_K.shape[0]:
            raise InputError(
                f"keys and values {tuple(Z.shape)} do not fit X {tuple(X.shape)}, W_K {tuple(W_K.shape)} and W_V"
                f" {tuple(W_V.shape)}."
            )
        self.sc = score_scale(temperature, W_Q.shape[1], X.dtype)
        self.X, self.Z = as_batch("X", X), as_batch("context", Z)
        self.mask = multiplier(mask, self.X, self.Z)
        weights = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V}
        self._settle(weights, self.forward(weights).unflatten(0, self.X.shape[:2]), Y, loss, prefix)
        self.x, self.q = self.X.flatten(0, 1), (self.X @ W_Q).flatten(0, 1)
        self._fits()

    def forward(self, weights: Vector) -> Tensor:
        p = self.sc * self.X @ (weights["W_Q"] @ weights["W_K"].mT)
        return (self._gram(p) @ weights["W_V"]).flatten(0, 1)

    @property
    def A(self) -> Tensor:
        """The attention (B, L, L), not normalised; without a mask nothing here needs it."""
        A = self.sc * (self.X @ self.weights["W_Q"]) @ (self.Z @ self.weights["W_K"]).mT
        return A if self.mask is None else self.mask * A

    @property
    def Sigma(self) -> Tensor:
        """`X^T X / L` of every sequence, (B, d, d)."""
        return self.X.mT @ self.X / self.X.shape[1]

    @cached_property
    def G2(self) -> Tensor:
        """`sum_j M_nj z_j z_j^T`, one matrix for every token (N, d, d); (1, d, d) for one sequence without a mask."""
        if self.mask is not None:
            pairs = torch.einsum("bjs,bjt->bjst", self.Z, self.Z).flatten(2)
            return (self.mask @ pairs).unflatten(2, (self.Z.shape[2], -1)).flatten(0, 1)
        G2 = self.Z.mT @ self.Z
        return G2 if len(G2) == 1 else G2.repeat_interleave(self.X.shape[1], 0)

    @cached_property
    def m(self) -> Tensor:
        """M1 = A Z, (N, d)."""
        return self._gram(self.sc * self.X @ (self.weights["W_Q"] @ self.weights["W_K"].T)).flatten(0, 1)

    @cached_property
    def u(self) -> Tensor:
        """sc G2 W_V g, (N, d): dL/d(W_Q W_K^T) = sum_n x_n u_n^T."""
        return self._gram(self.sc * self.g @ self.weights["W_V"].T).flatten(0, 1)

    def _gram(self, v: Tensor) -> Tensor:
        """`G2_n v_n` for vectors (..., B, L, d), from the tokens."""
        return mix(v, self.Z, self.Z, self.mask)

    # --- blocks -----------------------------------------------------------------------------------------------------
    def factor(self, name: str) -> Factor:
        W_K, W_V = self.weights["W_K"], self.weights["W_V"]
        if name == "W_Q":
            return Factor(self.x, self.sc * W_V.T @ self.G2 @ W_K, True)
        if name == "W_K":
            return Factor(self.q, self.sc * W_V.T @ self.G2, False)
        return Factor(self.m, torch.eye(W_V.shape[1], dtype=W_V.dtype, device=W_V.device)[None], True)

    def functional_terms(self, a: str, b: str) -> list[Term]:
        W_K, g = self.weights["W_K"], self.output.g
        if a == b:
            return []
        if a == "W_K":
            return [Term(self.u, self.x, torch.eye(W_K.shape[1], dtype=g.dtype, device=g.device)[None])]
        if b == "W_Q":
            return [Term(g, self.x, self.sc * self.G2 @ W_K, rows_vector_first=False)]
        return [Term(g, self.q, self.sc * self.G2, rows_vector_first=False, cols_vector_first=False)]

    # --- products with vectors --------------------------------------------------------------------------------------
    def _pull(self, g: Tensor) -> dict[str, Tensor]:
        """Weight gradients from dl/dF (..., B, L, d_V), summed over tokens."""
        u = self._gram(self.sc * g @ self.weights["W_V"].T).flatten(-3, -2)
        return {
            "W_Q": self.x.T @ (u @ self.weights["W_K"]),
            "W_K": u.mT @ self.q,
            "W_V": self.m.T @ g.flatten(-3, -2),
        }

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW_Q, dL/dW_K, dL/dW_V."""
        return {self.prefix + name: t for name, t in self._pull(self.g).items()}

    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        W_Q, W_K, W_V = self.weights.values()
        U_Q, U_K, U_V = (V[name] for name in self.weights)  # (k, d, .)
        out = {name: torch.zeros_like(t) for name, t in V.items()}
        dp = self.sc * self.X @ (U_Q @ W_K.T + W_Q @ U_K.mT)[:, None]
        dm = self._gram(dp)  # (k, B, L, d)
        if part != "functional":
            dF = dm.flatten(1, 2) @ W_V + self.m @ U_V
            out = self._pull(self.curved(dF).unflatten(1, self.X.shape[:2]))
        if part != "outer":
            du = self._gram(self.sc * self.g @ U_V[:, None].mT).flatten(1, 2)
            curve = {
                "W_Q": self.x.T @ (du @ W_K + self.u @ U_K),
                "W_K": du.mT @ self.q + self.u.T @ (self.x @ U_Q),
                "W_V": dm.flatten(1, 2).mT @ self.output.g,
            }
            out = {name: t + curve[name] for name, t in out.items()}
        return out
