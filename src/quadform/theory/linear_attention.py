"""Linear self-attention: the attention layer without its softmax, the comparison that shows what softmax does.

`F = sc X W_Q W_K^T (Z^T Z) W_V`, sc = 1/(t sqrt(d_K)), Z = X (or the context of cross-attention). Every block of the
Hessian is a product of Gram matrices and weights; no (L, L) matrix is ever formed. Source: [ODS25, Sec. 4].
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.errors import InputError
from .mlp import BlockModel, gathered, token_wise_loss


class LinearAttentionLayer(BlockModel):
    """One linear attention head over sequences X (L, d) or (B, L, d): W_Q, W_K (d, d_K), W_V (d, d_V).

    A perturbation U of a weight moves the output by `X D(U)`, D(U) (d, d_V) being, with G2 = Z^T Z per sequence,
    `D(U_Q) = U_Q (sc W_K^T G2 W_V)`, `D(U_K) = W_Q U_K^T (sc G2 W_V)`, `D(U_V) = (sc W_Q W_K^T G2) U_V`: each is
    `L U R`, so `H_o(a, b) = sum (L_a^T X^T X L_b) kron (R_a Hl R_b^T)`; the rows of W_K are transposed.
    With Gamma = X^T dl/dF, `H_f(Q, K) = sc (Gamma W_V^T G2) kron I`, `H_f(V, Q)[(a,o),(b,v)] = sc (G2 W_K)[a,v]
    Gamma[b,o]`, `H_f(V, K)[(a,o),(s,v)] = sc G2[a,s] (W_Q^T Gamma)[v,o]`; the diagonal blocks are exactly zero
    ("block-hollow": F is linear in each weight), so the diagonal blocks of H are positive semi-definite for convex
    losses, though H is not.

    Powers of the sequence length, mean squared error, one sequence, Sigma = X^T X / L, Omega = X^T (F - Y) / L:
    `H_o ~ (2 L^2 / (d_V d_K t^2)) Sigma^3`, `H_f ~ (2 L / (d_V sqrt(d_K) t)) Omega Sigma` (A is not normalised, so the
    prefactors grow with L; the paper's O(Sigma^3), O(Omega Sigma) leave them out). We differ from the source in
    independent d, d_K, d_V, temperature, batches, cross-attention and any token-wise loss.
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
        loss: str | tuple[Tensor, Tensor] = "mse",
        prefix: str = "",
    ) -> None:
        if X.dim() not in (2, 3) or W_Q.shape[0] != X.shape[-1] or W_K.shape[1] != W_Q.shape[1]:
            raise InputError(
                f"linear attention needs X (L, d) or (B, L, d), W_Q (d, d_K) and W_K (d, d_K); got {tuple(X.shape)},"
                f" {tuple(W_Q.shape)} and {tuple(W_K.shape)}."
            )
        Z = X if context is None else context
        if Z.shape[:-2] != X.shape[:-2] or Z.shape[-1] != W_K.shape[0] or W_V.shape[0] != W_K.shape[0]:
            raise InputError(
                f"keys and values {tuple(Z.shape)} do not fit X {tuple(X.shape)}, W_K {tuple(W_K.shape)} and W_V"
                f" {tuple(W_V.shape)}."
            )
        if not temperature > 0:
            raise InputError(f"the temperature is positive; got {temperature}.")
        self.sc = 1.0 / (temperature * math.sqrt(W_Q.shape[1]))
        self.weights = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V}
        self.prefix = prefix
        self.X, self.Z = X, Z
        X3, Z3 = (t if t.dim() == 3 else t[None] for t in (X, Z))
        self.G2 = Z3.mT @ Z3  # (B, d, d)
        self.F = X @ (self.sc * W_Q @ W_K.T @ (self.G2 if X.dim() == 3 else self.G2[0]) @ W_V)
        self.loss = token_wise_loss(loss, self.F, Y)
        self.g = self.loss.g.reshape(self.F.shape)
        self.Gamma = X3.mT @ self.g.reshape(*X3.shape[:2], -1)  # (B, d, d_V)
        self.X3 = X3
        self.S, self.Hl, self.sequence = gathered(self.loss, X3)

    @property
    def A(self) -> Tensor:
        """The attention (..., L, L), not normalised; the Hessian does not need it."""
        return self.sc * (self.X @ self.weights["W_Q"]) @ (self.Z @ self.weights["W_K"]).mT

    @property
    def Sigma(self) -> Tensor:
        """`X^T X / L` of every sequence, (B, d, d)."""
        return self.X3.mT @ self.X3 / self.X3.shape[1]

    # --- blocks -----------------------------------------------------------------------------------------------------
    def _sides(self, name: str) -> tuple[Tensor, Tensor]:
        """(L, R) of `D(U) = L U R` (`L U^T R` for W_K), one per term of the outer sum."""
        W_Q, W_K, W_V = self.weights.values()
        G2 = self.G2[self.sequence]
        eye = lambda n: torch.eye(n, dtype=G2.dtype, device=G2.device)[None]  # noqa: E731
        if name == "W_Q":
            return eye(W_Q.shape[0]), self.sc * W_K.T @ G2 @ W_V
        if name == "W_K":
            return W_Q[None], self.sc * G2 @ W_V
        return self.sc * W_Q @ W_K.T @ G2, eye(W_V.shape[1])

    def _outer(self, a: str, b: str) -> Tensor:
        (L_a, R_a), (L_b, R_b) = self._sides(a), self._sides(b)
        left, right = L_a.mT @ self.S @ L_b, R_a @ self.Hl @ R_b.mT
        sum_ = torch.tensordot(left, right.expand(len(left), -1, -1), dims=([0], [0]))  # (i, j, k, l)
        rows = (2, 0) if a == "W_K" else (0, 2)
        cols = (3, 1) if b == "W_K" else (1, 3)
        return sum_.permute(*rows, *cols).reshape(self.weights[a].numel(), self.weights[b].numel())

    def _functional(self, a: str, b: str) -> Tensor:
        W_Q, W_K, W_V = self.weights.values()
        G2, Gamma = self.G2, self.sc * self.Gamma
        if a == b:
            block = G2.new_zeros(1)
        elif (a, b) == ("W_Q", "W_K"):
            eye = torch.eye(W_Q.shape[1], dtype=G2.dtype, device=G2.device)
            block = torch.einsum("as,vw->avsw", (Gamma @ W_V.T @ G2).sum(0), eye)
        elif a == "W_Q":
            block = torch.einsum("nbo,nav->bvao", Gamma, G2 @ W_K)
        else:
            block = torch.einsum("nas,nvo->svao", G2, W_Q.T @ Gamma)
        shape = self.weights[a].numel(), self.weights[b].numel()
        return block.expand(shape) if a == b else block.reshape(shape)

    # --- products with vectors --------------------------------------------------------------------------------------
    def _pull(self, Gamma: Tensor) -> dict[str, Tensor]:
        """Weight gradients of `<dl/dF, F>` from Gamma = X^T dl/dF (..., B, d, d_V), summed over sequences."""
        W_Q, W_K, W_V = self.weights.values()
        Gamma = self.sc * Gamma
        return {
            "W_Q": (Gamma @ W_V.T @ self.G2 @ W_K).sum(-3),
            "W_K": (self.G2 @ W_V @ Gamma.mT @ W_Q).sum(-3),
            "W_V": (self.G2 @ W_K @ W_Q.T @ Gamma).sum(-3),
        }

    def gradients(self) -> dict[str, Tensor]:
        return self._pull(self.Gamma)

    def _hvp(self, U: Mapping[str, Tensor], outer: bool, functional: bool) -> dict[str, Tensor]:
        W_Q, W_K, W_V = self.weights.values()
        U_Q, U_K, U_V = (U[name][:, None] for name in self.weights)  # (k, 1, d, .)
        out = {name: torch.zeros_like(t) for name, t in U.items()}
        dM = U_Q @ W_K.T + W_Q @ U_K.mT
        if outer:
            D = self.sc * (dM @ self.G2 @ W_V + W_Q @ W_K.T @ self.G2 @ U_V)  # (k, B, d, d_V)
            dF = (self.X3 @ D).flatten(1, 2)
            dg = self.loss.hessian_times(dF.permute(1, 2, 0)).permute(2, 0, 1)
            pulled = self._pull(self.X3.mT @ dg.unflatten(1, self.X3.shape[:2]))
            out = {name: out[name] + pulled[name] for name in out}
        if functional:
            Gamma = self.sc * self.Gamma
            out["W_Q"] = out["W_Q"] + (Gamma @ (U_V.mT @ self.G2 @ W_K + W_V.T @ self.G2 @ U_K)).sum(1)
            out["W_K"] = out["W_K"] + (self.G2 @ (U_V @ Gamma.mT @ W_Q + W_V @ Gamma.mT @ U_Q)).sum(1)
            out["W_V"] = out["W_V"] + (self.G2 @ dM.mT @ Gamma).sum(1)
        return out
