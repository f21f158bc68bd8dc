"""Linear self-attention: the attention layer without its softmax, the comparison that shows what softmax does.

`F = sc X W_Q W_K^T (Z^T Z) W_V`, sc = 1/(t sqrt(d_K)), Z = X (or the context of cross-attention). Every block of the
Hessian is a product of Gram matrices and weights; no (L, L) matrix is ever formed. Source: [ODS25].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.space import Vector
from .head import Factor, as_batch
from .inputs import one_kind
from .layer import Part
from .mlp import FactorLayer, Loss
from .terms import Term


class LinearAttentionLayer(FactorLayer):
    """One linear attention head over sequences X (L, d) or (B, L, d): W_Q, W_K (d, d_K), W_V (d, d_V).

    The token Jacobians are those of softmax attention with M2 replaced by G2 = Z^T Z of the sequence and M1 = A Z:
    `J_Q = x^T kron sc W_V^T G2 W_K`, `J_K[o, (s, v)] = sc (W_V^T G2)[o,s] q_v`, `J_V = m^T kron I`. M3 has no
    counterpart: with Gamma = X^T dl/dF,
    `H_f(Q, K) = sc (Gamma W_V^T G2) kron I`, `H_f(V, Q)[(a,o),(b,v)] = sc (G2 W_K)[a,v] Gamma[b,o]`,
    `H_f(V, K)[(a,o),(s,v)] = sc G2[a,s] (W_Q^T Gamma)[v,o]` and the diagonal blocks are exactly zero ("block-hollow": F
    is linear in each weight): the diagonal blocks of H are positive semi-definite for convex losses, though H is not.

    Powers of the sequence length, mean squared error, one sequence, Sigma = X^T X / L, Omega = X^T (F - Y) / L:
    `H_o ~ (2 L^2 / (d_V d_K t^2)) Sigma^3`, `H_f ~ (2 L / (d_V sqrt(d_K) t)) Omega Sigma` (A is not normalised, so the
    prefactors grow with L; the paper's O(Sigma^3), O(Omega Sigma) leave them out). We differ from the source in
    independent d, d_K, d_V, temperature, batches, cross-attention and any loss.
    """

    def __init__(
        self,
        X: Tensor,
        W_Q: Tensor,
        W_K: Tensor,
        W_V: Tensor,
        Y: Tensor | None = None,
        *,
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
        if not temperature > 0:
            raise InputError(f"the temperature is positive; got {temperature}.")
        self.sc = 1.0 / (temperature * math.sqrt(W_Q.shape[1]))
        self.X, self.Z = as_batch("X", X), as_batch("context", Z)
        self.G2 = self.Z.mT @ self.Z  # (B, d, d)
        weights = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V}
        self._settle(weights, self.forward(weights).unflatten(0, self.X.shape[:2]), Y, loss, prefix)
        self.x, self.q = self.X.flatten(0, 1), (self.X @ W_Q).flatten(0, 1)

    def forward(self, weights: Vector) -> Tensor:
        W_Q, W_K, W_V = (weights[name] for name in ("W_Q", "W_K", "W_V"))
        return (self.X @ (self.sc * W_Q @ W_K.T @ self.G2 @ W_V)).flatten(0, 1)

    @property
    def A(self) -> Tensor:
        """The attention (B, L, L), not normalised; nothing here needs it."""
        return self.sc * (self.X @ self.weights["W_Q"]) @ (self.Z @ self.weights["W_K"]).mT

    @property
    def Sigma(self) -> Tensor:
        """`X^T X / L` of every sequence, (B, d, d)."""
        return self.X.mT @ self.X / self.X.shape[1]

    # --- blocks -----------------------------------------------------------------------------------------------------
    def _per_token(self, M: Tensor) -> Tensor:
        """A matrix per sequence (B, ., .) as one per token; one for all where there is one sequence."""
        return M if len(M) == 1 else M.repeat_interleave(self.X.shape[1], 0)

    def factor(self, name: str) -> Factor:
        W_Q, W_K, W_V = self.weights.values()
        if name == "W_Q":
            return Factor(self.x, self._per_token(self.sc * W_V.T @ self.G2 @ W_K), True)
        if name == "W_K":
            return Factor(self.q, self._per_token(self.sc * W_V.T @ self.G2), False)
        m = (self.X @ (self.sc * W_Q @ W_K.T @ self.G2)).flatten(0, 1)
        return Factor(m, torch.eye(W_V.shape[1], dtype=m.dtype, device=m.device)[None], True)

    def functional_terms(self, a: str, b: str) -> list[Term]:
        W_K, W_V, g = self.weights["W_K"], self.weights["W_V"], self.output.g
        if a == b:
            return []
        if a == "W_K":
            u = (self.g @ (self.sc * W_V.T @ self.G2)).flatten(0, 1)
            return [Term(u, self.x, torch.eye(W_K.shape[1], dtype=u.dtype, device=u.device)[None])]
        if b == "W_Q":
            return [Term(g, self.x, self._per_token(self.sc * self.G2 @ W_K), rows_vector_first=False)]
        E = self._per_token(self.sc * self.G2)
        return [Term(g, self.q, E, rows_vector_first=False, cols_vector_first=False)]

    # --- products with vectors --------------------------------------------------------------------------------------
    def _pull(self, g: Tensor) -> dict[str, Tensor]:
        """Weight gradients from dl/dF (..., B, L, d_V), summed over sequences."""
        W_Q, W_K, W_V = self.weights.values()
        Gamma = self.sc * (self.X.mT @ g)
        return {
            "W_Q": (Gamma @ (W_V.T @ self.G2 @ W_K)).sum(-3),
            "W_K": (self.G2 @ W_V @ (Gamma.mT @ W_Q)).sum(-3),
            "W_V": (self.G2 @ W_K @ (W_Q.T @ Gamma)).sum(-3),
        }

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW_Q, dL/dW_K, dL/dW_V."""
        return {self.prefix + name: t for name, t in self._pull(self.g).items()}

    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        W_Q, W_K, W_V = self.weights.values()
        U_Q, U_K, U_V = (V[name][:, None] for name in self.weights)  # (k, 1, d, .)
        out = {name: torch.zeros_like(t) for name, t in V.items()}
        dM = U_Q @ W_K.T + W_Q @ U_K.mT
        if part != "functional":
            D = self.sc * (dM @ (self.G2 @ W_V) + W_Q @ W_K.T @ self.G2 @ U_V)  # (k, B, d, d_V)
            out = self._pull(self.curved((self.X @ D).flatten(1, 2)).unflatten(1, self.X.shape[:2]))
        if part != "outer":
            Gamma = self.sc * (self.X.mT @ self.g)
            curve = {
                "W_Q": Gamma @ (U_V.mT @ (self.G2 @ W_K) + W_V.T @ self.G2 @ U_K),
                "W_K": self.G2 @ (U_V @ (Gamma.mT @ W_Q) + W_V @ (Gamma.mT @ U_Q)),
                "W_V": self.G2 @ (dM.mT @ Gamma),
            }
            out = {name: t + curve[name].sum(1) for name, t in out.items()}
        return out
