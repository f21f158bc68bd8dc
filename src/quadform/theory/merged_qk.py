"""One matrix instead of two: attention in W_QK = W_Q W_K^T, and what the factorisation adds to the Hessian.

The scores see W_Q and W_K only through their product W. Chain rule through `(W_Q, W_K) -> W = W_Q W_K^T`, with
P the Jacobian of that map (`P (U_Q, U_K) = U_Q W_K^T + W_Q U_K^T`) and G = dL/dW:

    H(W_Q, W_K; W_Q, W_K) = P^T H(W, W) P  +  [[0, G kron I], [G^T kron I, 0]]
                            T-outer            T-functional

The first term carries all of H_o and the third-moment part of H_f; the second is the curvature of the product itself.
Its eigenvalues are plus and minus the singular values of G, each d_K-fold. Source: [ODS25]; spectrum [own].
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space, Vector
from .attention import AttentionLayer, outer_term
from .head import Head, as_batch, score_bias
from .inputs import one_kind, score_scale
from .layer import Part, TokenLayer, known_part
from .loss import OutputLoss, output_loss
from .moments import centre
from .terms import Term

#: What the merged layer calls its weights, and what the head underneath calls them.
_INNER = {"W_QK": "W_Q", "W_V": "W_V"}


class MergedLayer(TokenLayer):
    """Softmax attention with scores `X W_QK Z^T / (t sqrt(d_K))`: weights W_QK (d, d_Z) and W_V (d_Z, d_V).

    It is a head with W_Q = W_QK and W_K = I, of which W_K is no parameter, so
    `H_o(W, W) = sum x x^T kron B^T Hl B` with `B = sc W_V^T M2`, `H_f(W, W) = sc^2 sum x x^T kron N`. The width d_K
    enters through the scale alone. Other arguments as `AttentionLayer`.
    """

    def __init__(
        self,
        X: Tensor,
        W_QK: Tensor,
        W_V: Tensor,
        Y: Tensor | None = None,
        *,
        d_K: int,
        mask: Literal["causal"] | Tensor | None = None,
        temperature: float = 1.0,
        context: Tensor | None = None,
        loss: str | tuple[Tensor, Tensor | Operator] = "mse",
        prefix: str = "",
    ) -> None:
        X, Z = as_batch("X", X), as_batch("context", X if context is None else context)
        one_kind({"X": X, "context": Z, "W_QK": W_QK, "W_V": W_V})
        if d_K < 1:
            raise InputError(f"d_K is at least 1; got {d_K}.")
        sc = score_scale(temperature, d_K, X.dtype)
        if W_QK.dim() != 2 or W_QK.shape != (X.shape[2], Z.shape[2]):
            raise InputError(f"W_QK has shape {tuple(W_QK.shape)}; these tokens need {(X.shape[2], Z.shape[2])}.")
        if W_V.dim() != 2 or W_V.shape[0] != Z.shape[2]:
            raise InputError(f"W_V has shape {tuple(W_V.shape)}; these keys need ({Z.shape[2]}, d_V).")
        head = _merged_head(X, Z, W_QK, W_V, score_bias(mask, X, Z), sc)
        self._settle(head, output_loss(loss, head.F, Y), prefix)

    @classmethod
    def of(cls, layer: AttentionLayer) -> MergedLayer:
        """The same function of the same data under the same loss, with W_Q W_K^T as one weight."""
        head, merged = layer.head, cls.__new__(cls)
        inner = _merged_head(head.X, head.Z, head.W_Q @ head.W_K.T, head.W_V, head.bias, head.sc)
        merged._settle(inner, layer.output, layer.prefix)
        return merged

    def _settle(self, head: Head, output: OutputLoss, prefix: str) -> None:
        self.head, self.output, self.prefix = head, output, prefix
        self.weights = {"W_QK": head.W_Q, "W_V": head.W_V}
        self.space = Space.of(self.weights).rename(prefix)
        head.see(output.g)

    @property
    def loss(self) -> Tensor | None:
        """The value of the loss; None for a loss given by (g, Hl)."""
        return self.output.value

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW_QK (the G of the T-functional part) and dL/dW_V."""
        grads = self.head.gradients()
        return {self.prefix + name: grads[inner] for name, inner in _INNER.items()}

    def per_token(self, values: Tensor) -> Tensor:
        return values.unflatten(0, self.head.A.shape[:2])

    def terms(self, part: Part, a: str, b: str) -> list[Term]:
        a, b = _INNER[a], _INNER[b]
        own = self.head.factor(a)
        other = own if a == b else self.head.factor(b)
        out = [] if part == "functional" else [outer_term(own, other, self.output)]
        return out if part == "outer" else out + self.head.functional_terms(a, b)

    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        inner = {_INNER[name]: t for name, t in V.items()}
        inner["W_K"] = torch.zeros_like(self.head.W_K).expand(len(V["W_V"]), -1, -1)
        image = self.head.products(inner, part, self.output)
        return {name: image[_INNER[name]] for name in self.weights}

    def jacobian(self, name: str) -> Tensor:
        return self.head.factor(_INNER[name]).dense()

    def forward(self, weights: Vector) -> Tensor:
        return self.head.forward(weights["W_QK"], self.head.W_K, weights["W_V"])


def _merged_head(X: Tensor, Z: Tensor, W_QK: Tensor, W_V: Tensor, bias: Tensor | None, sc: float) -> Head:
    """A head with W_K = I whose score scale is `sc`."""
    width = Z.shape[2]
    eye = torch.eye(width, dtype=Z.dtype, device=Z.device)
    return Head(X, Z, W_QK, eye, W_V, bias, temperature=1.0 / (sc * math.sqrt(width)) if sc else math.inf)


def score_gradient(head: Head) -> Tensor:
    """`G = dL/d(W_Q W_K^T)` (d, d_Z) of a head: `sc X^T (A o (phi - row mean)) Z`, O(L^2 d) and no second moments."""
    return head.sc * (head.X.mT @ centre(head.A, head.phi) @ head.Z).sum(0)


class ScoreSplit:
    """The T-outer / T-functional split of an attention layer's Hessian, matrix-free.

    `H = t_outer() + t_functional()` over W_Q, W_K, W_V; the T-outer part is `P^T H(W_QK, W_V) P` with P extended by the
    identity on W_V. Source: [ODS25].
    """

    def __init__(self, layer: AttentionLayer) -> None:
        self.layer = layer
        self.merged = MergedLayer.of(layer)
        self.G = score_gradient(layer.head)

    def t_outer(self, part: Part = "total") -> Operator:
        """`P^T H P` from the merged layer's H, or from its H_o ("outer") or H_f ("functional")."""
        return _ScoreOperator(self, known_part(part))

    def t_functional(self) -> Operator:
        """`[[0, G kron I], [G^T kron I, 0]]` on (W_Q, W_K), zero on W_V."""
        return _ScoreOperator(self, None)

    def t_functional_spectrum(self) -> Tensor:
        """All (d + d_Z) d_K eigenvalues of the T-functional part on (W_Q, W_K), ascending, never built:

        plus and minus each singular value of G, d_K times; the rest is zero. Source: [own].
        """
        s = torch.linalg.svdvals(self.G)
        rest = s.new_zeros(self.G.shape[0] + self.G.shape[1] - 2 * len(s))
        return torch.cat([s, -s, rest]).repeat_interleave(self.layer.weights["W_Q"].shape[1]).sort().values

    def t_functional_norm(self) -> float:
        """The Frobenius norm of the T-functional part, `sqrt(2 d_K) ||G||_F`."""
        return math.sqrt(2 * self.layer.weights["W_Q"].shape[1]) * float(self.G.norm())


@final
class _ScoreOperator(Operator):
    """T-outer (of one part of the merged Hessian) or, for part None, T-functional, over W_Q, W_K, W_V."""

    def __init__(self, split: ScoreSplit, part: Part | None) -> None:
        layer = split.layer
        psd = part == "outer" and layer.output.convex
        super().__init__(layer.space, dtype=layer.dtype, device=layer.device, symmetric=True, psd=psd)
        self.split, self.part = split, part

    def apply(self, V: Vector) -> dict[str, Tensor]:
        prefix, weights = self.split.layer.prefix, self.split.layer.weights
        W_Q, W_K = weights["W_Q"], weights["W_K"]
        U_Q, U_K, U_V = (V[prefix + name] for name in weights)
        if self.part is None:
            out = (self.split.G @ U_K, self.split.G.T @ U_Q, torch.zeros_like(U_V))
        else:
            U = U_Q @ W_K.T + W_Q @ U_K.mT
            image = self.split.merged.products({"W_QK": U, "W_V": U_V}, self.part)
            out = (image["W_QK"] @ W_K, image["W_QK"].mT @ W_Q, image["W_V"])
        return {prefix + name: t for name, t in zip(weights, out, strict=True)}
