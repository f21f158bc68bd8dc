"""The T-split: what the factorisation of the scores adds to the Hessian of attention.

The scores of a head see W_Q and W_K only through their product W. Chain rule through `(W_Q, W_K) -> W = W_Q W_K^T`,
with P the Jacobian of that map (`P (U_Q, U_K) = U_Q W_K^T + W_Q U_K^T`) and G = dL/dW:

    H(W_Q, W_K; W_Q, W_K) = P^T H(W, W) P  +  [[0, G kron I], [G^T kron I, 0]]
                            T-outer            T-functional

The first term carries all of H_o and the third-moment part of H_f; the second is the curvature of the product itself.
Its eigenvalues are plus and minus the singular values of G, each d_K-fold. With several heads each has its own G; heads
that share their keys have one spectrum, that of their G below each other. Source: [ODS25]; spectrum, heads [own].
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Vector
from .head import Head
from .layer import Part, known_part
from .softmax import SoftmaxLayer


def score_gradient(head: Head) -> Tensor:
    """`G = dL/d(W_Q W_K^T)` (d, d_Z) of a head, O(L^2 d) and no second moments."""
    return head.G


class ScoreSplit:
    """The T-outer / T-functional split of an attention layer's Hessian, matrix-free.

    `H = t_outer() + t_functional()` over all weights of an `AttentionLayer` or a `MultiHeadAttentionLayer`; the T-outer
    part is `P^T H P` with P extended by the identity on all other weights, H the Hessian in W_Q W_K^T of every head.
    With a query bias tokens end in 1 and G has one more row; with a key or value bias, one more column.
    """

    def __init__(self, layer: SoftmaxLayer) -> None:
        if not isinstance(layer, SoftmaxLayer):
            raise InputError(
                f"the T-split is available for AttentionLayer and MultiHeadAttentionLayer; got {type(layer).__name__}."
            )
        self.layer = layer

    def __repr__(self) -> str:
        return f"ScoreSplit({self.layer!r})"

    @property
    def G(self) -> Tensor:
        """dL/d(W_Q W_K^T): `(d, d_Z)` of one head, `(heads, d, d_Z)` of a multi-head layer."""
        each = [head.G for head in self.layer.heads]
        return each[0] if self.layer.single else torch.stack(each)

    def t_outer(self, part: Part = "total") -> Operator:
        """`P^T H P` from H, or from its H_o ("outer") or H_f ("functional")."""
        return _ScoreOperator(self.layer, known_part(part))

    def t_functional(self) -> Operator:
        """`[[0, G kron I], [G^T kron I, 0]]` on (W_Q, W_K) of every head, zero on all other weights."""
        return _ScoreOperator(self.layer, None)

    def stacked(self) -> list[Tensor]:
        """The G of the heads that share their keys, below each other; rows and columns of parameters alone."""
        layer = self.layer
        rows, cols = (layer.parameter_rows(name) for name in ("W_Q", "W_K"))
        return [torch.cat([layer.heads[h].G[:rows, :cols] for h in group]) for group in layer.groups]

    def t_functional_spectrum(self) -> Tensor:
        """All eigenvalues of the T-functional part on the queries and keys, ascending, never built:

        plus and minus each singular value of G, d_K times; the rest is zero. Source: [own].
        """
        found = []
        for G in self.stacked():
            s = torch.linalg.svdvals(G)
            found += [s, -s, s.new_zeros(G.shape[0] + G.shape[1] - 2 * len(s))]
        return torch.cat(found).repeat_interleave(self.layer.heads[0].W_K.shape[1]).sort().values

    def t_functional_norm(self) -> float:
        """The Frobenius norm of the T-functional part, `sqrt(2 d_K) ||G||_F`."""
        total = math.hypot(*(float(G.norm()) for G in self.stacked()))
        return math.sqrt(2 * self.layer.heads[0].W_K.shape[1]) * total


@final
class _ScoreOperator(Operator):
    """T-outer (of one part of the Hessian) or, for part None, T-functional, over the weights of a layer."""

    def __init__(self, layer: SoftmaxLayer, part: Part | None) -> None:
        psd = part == "outer" and layer.output.convex
        super().__init__(layer.space, dtype=layer.dtype, device=layer.device, symmetric=True, psd=psd)
        self.layer, self.part = layer, part

    @torch.no_grad()
    def apply(self, V: Vector) -> dict[str, Tensor]:
        layer = self.layer
        whole = layer.joined({name: V[layer.prefix + name] for name in layer.weights})
        if self.part is None:
            image = {name: torch.zeros_like(v) for name, v in whole.items()}
            for h, head in enumerate(layer.heads):
                own = {name: whole[name][(..., *layer.at(name, h))] for name in ("W_Q", "W_K")}
                for name, value in head.bend(own).items():
                    image[name][(..., *layer.at(name, h))] += value
        else:
            image = layer.whole_products(whole, self.part, bend=False)
        return {layer.prefix + name: t for name, t in layer.parted(image).items()}
