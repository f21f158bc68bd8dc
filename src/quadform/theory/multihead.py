"""Multi-head attention with its output matrix: every block within and between heads, W_O included.

    F = sum_h z_h W_O[h],   z_h = A_h Z W_V[h],   head h owns columns h of W_Q, W_K, W_V and rows h of W_O

Each head sees the loss through g_h = g W_O[h]^T, so its own H_f is that of one head. Between heads H_f vanishes and H_o
couples all of them: Jacobian factors get W_O[h]^T on the left, and dF/dW_O[h] = z_h^T kron I. With W_O,

    H_f(O[h], a[h])[(z, p), .] = sum_n g_p (dz_h/da)[z, .]        H_f(O, O) = 0

Source: [own], from [ODS25, Thms 3.1, 3.2].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space, Vector, View
from ..core.space import heads as head_views
from .attention import outer_term
from .head import Factor, Head, as_batch, score_bias
from .inputs import one_kind
from .layer import Part, TokenLayer
from .loss import output_loss
from .terms import Term

if TYPE_CHECKING:
    from jaxtyping import Float


class MultiHeadAttentionLayer(TokenLayer):
    """Softmax attention with several heads and an output matrix; arguments as `AttentionLayer`, and `heads`.

    Blocks are named by whole weights (`"W_Q"`) or by head (`"W_Q[2]"`); norms and token shares come per head.
    """

    def __init__(
        self,
        X: Float[Tensor, "*batch tokens d"],
        W_Q: Float[Tensor, "d h*d_K"],
        W_K: Float[Tensor, "d_Z h*d_K"],
        W_V: Float[Tensor, "d_Z h*d_V"],
        W_O: Float[Tensor, "h*d_V d_out"],
        Y: Tensor | None = None,
        *,
        heads: int,
        mask: Literal["causal"] | Tensor | None = None,
        temperature: float = 1.0,
        context: Float[Tensor, "*batch keys d_Z"] | None = None,
        loss: str | tuple[Tensor, Tensor | Operator] = "mse",
        prefix: str = "",
    ) -> None:
        X, Z = as_batch("X", X), as_batch("context", X if context is None else context)
        self.weights = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
        one_kind({"X": X, "context": Z, **self.weights})
        if any(w.dim() != 2 for w in self.weights.values()) or W_O.shape[0] != W_V.shape[1]:
            raise InputError(f"W_O {tuple(W_O.shape)} must have as many rows as W_V {tuple(W_V.shape)} has columns.")
        views: list[View] = []
        for name, w in self.weights.items():
            views += head_views(name, (w.shape[0], w.shape[1]), heads, axis=0 if name == "W_O" else 1)
        self.prefix = prefix
        self.space = Space.of(self.weights, views).rename(prefix)
        self._cuts = {v.name: (slice(*v.cut[0]), slice(*v.cut[1])) for v in views}
        bias = score_bias(mask, X, Z)
        parts = [{name: w[self._cuts[f"{name}[{h}]"]] for name, w in self.weights.items()} for h in range(heads)]
        self.heads = [Head(X, Z, p["W_Q"], p["W_K"], p["W_V"], bias, temperature=temperature) for p in parts]
        self.W_O = [p["W_O"] for p in parts]
        F = torch.stack([head.F @ W for head, W in zip(self.heads, self.W_O, strict=True)])
        self.output = output_loss(loss, F.sum(0), Y)
        for head, W in zip(self.heads, self.W_O, strict=True):
            head.see(self.output.g @ W.T)
        self._eye = torch.eye(W_O.shape[1], dtype=W_O.dtype, device=W_O.device)[None]

    # --- pieces -----------------------------------------------------------------------------------------------------
    def pieces(self, name: str) -> list[tuple[str, tuple[slice, slice]]]:
        if name not in self.weights:
            return super().pieces(name)
        return [(f"{name}[{h}]", self._cuts[f"{name}[{h}]"]) for h in range(len(self.heads))]

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self.weights[name].shape) if name in self.weights else self.space.shape(self.prefix + name)

    def _split(self, piece: str) -> tuple[str, int]:
        name, _, index = piece.partition("[")
        return name, int(index[:-1])

    def per_token(self, values: Tensor) -> Tensor:
        return values.unflatten(0, self.heads[0].A.shape[:2])

    @property
    def A(self) -> Tensor:
        """The attention matrices, `(batch, heads, tokens, keys)`."""
        return torch.stack([head.A for head in self.heads], dim=1)

    @property
    def F(self) -> Tensor:
        """The output, `(batch, tokens, d_out)`."""
        return self.per_token(self.forward(self.weights))

    @property
    def g(self) -> Tensor:
        """dl/dF, `(batch, tokens, d_out)`."""
        return self.per_token(self.output.g)

    # --- blocks -----------------------------------------------------------------------------------------------------
    def factor(self, piece: str) -> Factor:
        """The token Jacobian of the layer's output with respect to one head's part of a weight."""
        name, h = self._split(piece)
        if name == "W_O":
            return Factor(self.heads[h].F, self._eye, True)
        own = self.heads[h].factor(name)
        return Factor(own.l, self.W_O[h].T @ own.R, own.vector_first, own.span)

    def terms(self, part: Part, a: str, b: str) -> list[Term]:
        out = []
        if part != "functional":
            own = self.factor(a)
            out.append(outer_term(own, own if a == b else self.factor(b), self.output))
        (name_a, h_a), (name_b, h_b) = self._split(a), self._split(b)
        if part == "outer" or h_a != h_b:
            return out
        if name_a != "W_O":
            return out + self.heads[h_a].functional_terms(name_a, name_b)
        if name_b != "W_O":
            own = self.heads[h_b].factor(name_b)
            out.append(Term(self.output.g, own.l, own.R, False, own.vector_first, None, own.span))
        return out

    def jacobian(self, name: str) -> Tensor:
        N, d_out = self.output.g.shape
        out = torch.zeros((N, d_out, *self.shape_of(name)), dtype=self.dtype, device=self.device)
        for piece, at in self.pieces(name):
            out[(slice(None), slice(None), *at)] = self.factor(piece).dense().reshape(N, d_out, *self.shape_of(piece))
        return out.flatten(2)

    # --- products ---------------------------------------------------------------------------------------------------
    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        g = self.per_token(self.output.g)
        count = len(self.heads)
        own = [{name: v[(slice(None), *self._cuts[f"{name}[{h}]"])] for name, v in V.items()} for h in range(count)]
        tangents = [head.tangents(v) for head, v in zip(self.heads, own, strict=True)]
        out = {name: torch.zeros_like(v) for name, v in V.items()}
        dg = None
        if part != "functional":
            per_head = [
                t[-1] @ W + self.per_token(head.F) @ v["W_O"][:, None]
                for t, W, head, v in zip(tangents, self.W_O, self.heads, own, strict=True)
            ]
            dF = torch.stack(per_head).sum(0)
            dg = self.output.hessian_times(dF.flatten(1, 2).permute(1, 2, 0)).permute(2, 0, 1).unflatten(1, g.shape[:2])
        for h, (head, W, v, (dQ, dK, dV, dA, dz)) in enumerate(zip(self.heads, self.W_O, own, tangents, strict=True)):
            images = []
            if dg is not None:
                images.append({**head.pull_back(dg @ W.T), "W_O": head.F.T @ dg.flatten(1, 2)})
            if part != "outer":
                turned = head.pull_back(g @ v["W_O"].transpose(-1, -2)[:, None])  # g_h moves with W_O
                curved = head.curve(dQ, dK, dV, dA)
                images.append({name: turned[name] + curved[name] for name in curved})
                images.append({"W_O": dz.flatten(1, 2).transpose(-1, -2) @ self.output.g})
            for image in images:
                for name, value in image.items():
                    out[name][(slice(None), *self._cuts[f"{name}[{h}]"])] += value
        return out

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW for every weight."""
        out = {name: torch.empty_like(w) for name, w in self.weights.items()}
        for h, head in enumerate(self.heads):
            for name, value in {**head.gradients(), "W_O": head.F.T @ self.output.g}.items():
                out[name][self._cuts[f"{name}[{h}]"]] = value
        return {self.prefix + name: value for name, value in out.items()}

    def forward(self, weights: Vector) -> Tensor:
        out = torch.zeros_like(self.output.g)
        for h, head in enumerate(self.heads):
            W_Q, W_K, W_V, W_O = (w[self._cuts[f"{name}[{h}]"]] for name, w in weights.items())
            out = out + head.forward(W_Q, W_K, W_V) @ W_O
        return out
