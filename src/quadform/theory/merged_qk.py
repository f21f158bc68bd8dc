"""One matrix instead of two: attention in W_QK = W_Q W_K^T. `score_split.py` has what the factorisation adds.

Source: [ODS25].
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space, Vector
from .attention import AttentionLayer, outer_term
from .head import Head, as_batch, score_bias
from .inputs import one_kind, score_scale
from .layer import Part, TokenLayer
from .loss import OutputLoss, output_loss
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
