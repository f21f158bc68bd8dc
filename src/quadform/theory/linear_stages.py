"""What a linear Transformer is made of: branches that are homogeneous in tokens and weights, with their derivatives.

A branch of degree n takes e^c X to e^(n c) times its value, and e^w W to e^w times it, whatever c and w. That is what
lets `DeepLinearTransformer` keep sizes as logarithms, exactly. Source: [ODS25] for the model, derivatives [own].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, final

import torch
from torch import Tensor

from .linear_attention import mix

Weights = Sequence[Tensor]


class Branch(ABC):
    """A map of tokens X (B, n, d) with weights W; `push` and `pull` are its derivative and the adjoint of that."""

    degree: ClassVar[int]

    @abstractmethod
    def value(self, X: Tensor, W: Weights) -> Tensor: ...

    @abstractmethod
    def push(self, X: Tensor, dX: Tensor, W: Weights, U: Weights) -> Tensor:
        """The tangent of the value for k directions dX (k, B, n, d) and U (k, ., .)."""

    @abstractmethod
    def pull(self, X: Tensor, W: Weights, g: Tensor) -> tuple[Tensor, ...]:
        """Gradients of `<g, value>` in X and in each weight."""


@final
@dataclass(frozen=True)
class Attention(Branch):
    """`(M o X P X^T) X W` with P = W_Q W_K^T and W = W_V, or W_V W_O where there is an output matrix.

    With V = X W, A = M o X P X^T and C = M o g V^T, the gradients of <g, A V> are `C X P^T + C^T X P + A^T g W^T` in X,
    `X^T C X` in P and `X^T A^T g` in W.
    """

    mask: Tensor | None
    degree = 3

    def value(self, X: Tensor, W: Weights) -> Tensor:
        return mix(X @ (W[0] @ W[1].mT), X, X @ reduce(torch.matmul, W[2:]), self.mask)

    def push(self, X: Tensor, dX: Tensor, W: Weights, U: Weights) -> Tensor:
        P, W_VO = W[0] @ W[1].mT, reduce(torch.matmul, W[2:])
        dP = U[0] @ W[1].mT + W[0] @ U[1].mT
        dW_VO = U[2] if len(W) == 3 else U[2] @ W[3] + W[2] @ U[3]
        left, V = X @ P, X @ W_VO
        d_left, dV = dX @ P + X @ dP[:, None], dX @ W_VO + X @ dW_VO[:, None]
        return mix(d_left, X, V, self.mask) + mix(left, dX, V, self.mask) + mix(left, X, dV, self.mask)

    def pull(self, X: Tensor, W: Weights, g: Tensor) -> tuple[Tensor, ...]:
        P, W_VO = W[0] @ W[1].mT, reduce(torch.matmul, W[2:])
        left, V, seen_by = X @ P, X @ W_VO, None if self.mask is None else self.mask.mT
        CX, g_V = mix(g, V, X, self.mask), mix(X, left, g, seen_by)
        g_X = CX @ P.mT + mix(V, g, left, seen_by) + g_V @ W_VO.mT
        g_P, g_W = (X.mT @ CX).sum(0), (X.mT @ g_V).sum(0)
        g_VO = (g_W,) if len(W) == 3 else (g_W @ W[3].mT, W[2].mT @ g_W)
        return g_X, g_P @ W[1], g_P.mT @ W[0], *g_VO


@final
@dataclass(frozen=True)
class MLP(Branch):
    """`phi(... phi(X W_1) ...) W_m`, phi(h) = h above 0 and slope h below: linear for slope 1, ReLU for slope 0.

    Both are homogeneous; GELU or tanh are not, so no logarithm could be taken out of them. phi'' is 0, as in autograd.
    """

    slope: float
    degree = 1

    def _gate(self, h: Tensor) -> Tensor:
        return torch.where(h > 0, torch.ones_like(h), self.slope)

    def value(self, X: Tensor, W: Weights) -> Tensor:
        for M in W[:-1]:
            h = X @ M
            X = self._gate(h) * h
        return X @ W[-1]

    def push(self, X: Tensor, dX: Tensor, W: Weights, U: Weights) -> Tensor:
        for M, dM in zip(W[:-1], U[:-1], strict=True):
            h = X @ M
            dX = self._gate(h) * (dX @ M + X @ dM[:, None])
            X = self._gate(h) * h
        return dX @ W[-1] + X @ U[-1][:, None]

    def pull(self, X: Tensor, W: Weights, g: Tensor) -> tuple[Tensor, ...]:
        inputs, gates = [X], []
        for M in W[:-1]:
            h = inputs[-1] @ M
            gates.append(self._gate(h))
            inputs.append(gates[-1] * h)
        grads: list[Tensor] = []
        for l in range(len(W) - 1, -1, -1):
            grads.insert(0, (inputs[l].mT @ g).sum(0))
            g = g @ W[l].mT
            if l:
                g = gates[l - 1] * g
        return g, *grads
