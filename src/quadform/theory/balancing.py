"""Balancing: points of the orbit `W_Q S, W_K S^-T` (the same function) with least norm or least curvature.

Source: [own]. What was tried: docs/decisions/0021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from .inputs import one_kind
from .softmax import SoftmaxLayer


def balancing_map(A: Tensor, B: Tensor) -> Tensor:
    """The symmetric positive S with `S A S = S^-1 B S^-1`, for positive definite A and B (r, r).

    With A = W_Q^T W_Q and B = W_K^T W_K, `W_Q -> W_Q S`, `W_K -> W_K S^{-T}` minimises |W_Q|^2 + |W_K|^2 on the orbit:
    the square of S is the geometric mean of A^-1 and B. Other positive A, B minimise tr(S^T A S) + tr(S^-1 B S^-T).
    """
    if A.shape[0] == 0:
        return A
    a, b = torch.linalg.eigvalsh(A), torch.linalg.eigvalsh(B)
    smallest = torch.finfo(A.dtype).eps * A.shape[0]
    if not (float(a[0]) > smallest * float(a[-1]) and float(b[0]) > smallest * float(b[-1])):
        raise InputError(
            "a balancing map needs positive definite Gram matrices; these are singular. `balance` takes any rank."
        )
    other = _root(B)
    _, s, Vh = torch.linalg.svd(_root(A) @ other)
    T = other @ Vh.T / s.sqrt()  # A^(1/2) T = U s^(1/2) and B^(1/2) T^-T = V s^(1/2): nothing is inverted
    X, size, _ = torch.linalg.svd(T)
    return (X * size) @ X.T


def _root(M: Tensor) -> Tensor:
    """The symmetric positive square root of a symmetric positive semi-definite matrix."""
    m, E = torch.linalg.eigh((M + M.T) / 2)
    return (E * m.clamp_min(0).sqrt()) @ E.T


def balance(W_Q: Tensor, W_K: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest pair with the same W_Q W_K^T and W_Q^T W_Q = W_K^T W_K: the least |W_Q|^2 + |W_K|^2, any rank.

    With W_Q W_K^T = U S V^T it is `U S^(1/2) R`, `V S^(1/2) R`, R with orthonormal rows (which leave the spectrum
    of H alone) chosen nearest to the given pair; the least value is twice the nuclear norm of W_Q W_K^T.

    Directions z with W_Q z = 0 or W_K z = 0 alone are not seen by the product. They stay as they are: to shrink them to
    0 would leave the orbit, and weights that start at W_Q = 0 would lose W_K and with it their gradient.
    """
    pair = _Balanced.of(W_Q, W_K)
    return pair.at(pair.left, pair.right)


@dataclass(frozen=True)
class _Balanced:
    """A balanced pair: `left R` and `right R`, and what the product does not see, in directions orthogonal to R."""

    left: Tensor
    right: Tensor
    R: Tensor
    unseen_Q: Tensor
    unseen_K: Tensor

    @classmethod
    def of(cls, W_Q: Tensor, W_K: Tensor) -> _Balanced:
        one_kind({"W_Q": W_Q, "W_K": W_K})
        if W_Q.dim() != 2 or W_K.dim() != 2 or W_Q.shape[1] != W_K.shape[1]:
            raise InputError(f"W_Q {tuple(W_Q.shape)} and W_K {tuple(W_K.shape)} are matrices of one inner width.")
        meet = _Meeting.of(W_Q, W_K)
        (Q_Q, R_Q), (Q_K, R_K) = (torch.linalg.qr(W @ S) for W, S in ((W_Q, meet.seen_Q), (W_K, meet.seen_K)))
        U, s, Vh = torch.linalg.svd(R_Q * meet.cosines @ R_K.T, full_matrices=False)
        keep = s > s[:1] * torch.finfo(s.dtype).eps * max(W_Q.shape)
        left, right = Q_Q @ U[:, keep] * s[keep].sqrt(), Q_K @ Vh[keep].T * s[keep].sqrt()
        aside = torch.linalg.qr(torch.cat([meet.unseen_Q, meet.unseen_K], 1)).Q
        near = left.T @ W_Q + right.T @ W_K
        u, _, vh = torch.linalg.svd(near - near @ aside @ aside.T, full_matrices=False)
        unseen = (W @ z @ z.T for W, z in ((W_Q, meet.unseen_Q), (W_K, meet.unseen_K)))
        return cls(left, right, u @ vh, *unseen)

    def at(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The pair with other balanced factors."""
        return left @ self.R + self.unseen_Q, right @ self.R + self.unseen_K


@dataclass(frozen=True)
class _Meeting:
    """Orthonormal bases `(r, .)` of the row spaces of W_Q and W_K, cut into the principal directions in which they
    meet, `seen_Q^T seen_K = diag(cosines)`, and those in which one is orthogonal to all of the other."""

    seen_Q: Tensor
    seen_K: Tensor
    cosines: Tensor
    unseen_Q: Tensor
    unseen_K: Tensor

    @classmethod
    def of(cls, W_Q: Tensor, W_K: Tensor) -> _Meeting:
        eps = torch.finfo(W_Q.dtype).eps

        def rows(W: Tensor) -> Tensor:
            _, s, Vh = torch.linalg.svd(W, full_matrices=False)
            return Vh[s > s[0] * eps * max(W.shape)].T

        rows_Q, rows_K = rows(W_Q), rows(W_K)
        U, cosines, Vh = torch.linalg.svd(rows_Q.T @ rows_K)
        met = int((cosines > eps**0.5).sum())
        Q, K = rows_Q @ U, rows_K @ Vh.T
        return cls(Q[:, :met], K[:, :met], cosines[:met], Q[:, met:], K[:, met:])


def flattest(layer: SoftmaxLayer) -> tuple[Tensor, Tensor]:
    """The W_Q, W_K of the orbit (same function) with the least Gauss-Newton trace tr H_o(Q,Q) + tr H_o(K,K).

    tr H_o(Q,Q) = tr(W_K^T C_K W_K) and tr H_o(K,K) = tr(W_Q^T C_Q W_Q), where `C_K = sum |x|^2 B^T Hl B` and
    `C_Q = sum tr(B^T Hl B) x x^T`, B = sc W_V^T M2 (times W_O), do not change along the orbit, so a balancing map in
    these metrics is the minimiser and the least value is twice the nuclear norm of `C_Q^(1/2) W_Q W_K^T C_K^(1/2)`.
    Each head is flattened by itself; heads that share their keys are one pair, their W_Q below each other, with blocks
    `C_Q[h, k] = sum tr(B_h^T Hl B_k) x x^T`. Source: [own].
    """
    if not isinstance(layer, SoftmaxLayer):
        raise InputError(
            f"the flattest point exists for AttentionLayer and MultiHeadAttentionLayer; got {type(layer).__name__}."
        )
    if not layer.output.token_wise:
        raise InputError("the flattest point is known in closed form for token-wise losses; this one couples tokens.")
    if {"b_Q", "b_K"} & layer.weights.keys():
        raise InputError("the flattest point is known without query and key biases: they would have to move as well.")
    out = {name: layer.weights[name].clone() for name in ("W_Q", "W_K")}
    for group in layer.groups:
        P = torch.cat([layer.heads[h].W_Q for h in group])
        Q, C_Q, C_K = layer.heads[group[0]].W_K[: len(out["W_K"])], *_metrics(layer, group)
        pair = _Balanced.of(P, Q)
        S = balancing_map(pair.left.T @ C_Q @ pair.left, pair.right.T @ C_K @ pair.right)
        P, Q = pair.at(pair.left @ S, pair.right @ torch.linalg.inv(S).T)
        for h, W_Q in zip(group, P.chunk(len(group)), strict=True):
            out["W_Q"][layer.at("W_Q", h)] = W_Q
        out["W_K"][layer.at("W_K", group[0])] = Q
    return out["W_Q"], out["W_K"]


def _metrics(layer: SoftmaxLayer, group: list[int]) -> tuple[Tensor, Tensor]:
    """C_Q and C_K of heads that share their keys; the 1 at the end of keys that meets a value bias is left out."""
    x, keys = layer.heads[0].x, layer.weights["W_K"].shape[0]
    R = [layer.factor("W_K", h).R[:, :, :keys] for h in group]
    HlR = [layer.output.hessian_times(r) for r in R]
    squares = x.square().sum(1)
    C_K = torch.stack([torch.einsum("n,noa,nob->ab", squares, r, h) for r, h in zip(R, HlR, strict=True)]).sum(0)
    blocks = [torch.cat([(x * (r * h).sum((1, 2))[:, None]).T @ x for h in HlR], 1) for r in R]
    return torch.cat(blocks), C_K
