"""Multi-head attention with its output matrix: every block within and between heads, W_O included.

    F = sum_h z_h W_O[h],   z_h = A_h Z W_V[h],   head h owns columns h of W_Q, W_K, W_V and rows h of W_O

Each head sees the loss through g_h = g W_O[h]^T, so its own H_f is that of one head. Between heads H_f vanishes and H_o
couples all of them: Jacobian factors get W_O[h]^T on the left, and dF/dW_O[h] = z_h^T kron I. With W_O,

    H_f(O[h], a[h])[(z, p), .] = sum_n g_p (dz_h/da)[z, .]        H_f(O, O) = 0

With fewer key than query heads (grouped queries) a key or value head is used by several z_h, and its blocks are sums
over them: H_o(K[j], .) = sum over the heads h of group j, and H_f likewise. The output bias has J = I and no H_f.

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
from .layer import Part
from .loss import output_loss
from .softmax import SoftmaxLayer, with_biases
from .terms import Term

if TYPE_CHECKING:
    from jaxtyping import Float


class MultiHeadAttentionLayer(SoftmaxLayer):
    """Softmax attention with several heads and an output matrix; arguments as `AttentionLayer`, and `heads`.

    With `kv_heads` below `heads` (a divisor) neighbouring heads share keys and values. Biases `b_Q`, `b_K`, `b_V`,
    `b_O` that are given are parameters after the weights. Blocks are named by whole weights (`"W_Q"`) or by head
    (`"W_Q[2]"`); norms and token shares come per head.
    """

    def __init__(
        self,
        X: Float[Tensor, "*batch tokens d"],
        W_Q: Float[Tensor, "d h*d_K"],
        W_K: Float[Tensor, "d_Z kv*d_K"],
        W_V: Float[Tensor, "d_Z kv*d_V"],
        W_O: Float[Tensor, "h*d_V d_out"],
        Y: Tensor | None = None,
        *,
        heads: int,
        kv_heads: int | None = None,
        b_Q: Float[Tensor, " h*d_K"] | None = None,
        b_K: Float[Tensor, " kv*d_K"] | None = None,
        b_V: Float[Tensor, " kv*d_V"] | None = None,
        b_O: Float[Tensor, " d_out"] | None = None,
        mask: Literal["causal"] | Tensor | None = None,
        temperature: float = 1.0,
        context: Float[Tensor, "*batch keys d_Z"] | None = None,
        loss: str | tuple[Tensor, Tensor | Operator] = "mse",
        token_weights: Float[Tensor, "*batch tokens"] | None = None,
        prefix: str = "",
    ) -> None:
        X, Z = as_batch("X", X), as_batch("context", X if context is None else context)
        weights = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
        X, Z, self.whole, biases = with_biases(X, Z, weights, {"b_Q": b_Q, "b_K": b_K, "b_V": b_V, "b_O": b_O})
        self.weights, self.prefix = {**weights, **biases}, prefix
        if b_O is not None:
            self.whole["b_O"] = b_O[None]
        kv_heads = heads if kv_heads is None else kv_heads
        if kv_heads < 1 or heads % kv_heads:
            raise InputError(f"{heads} heads cannot share {kv_heads} key heads evenly; kv_heads divides heads.")
        self.groups = list(map(list, torch.arange(heads).reshape(kv_heads, -1).tolist()))
        count = {"Q": heads, "K": kv_heads, "V": kv_heads, "O": heads}
        views: list[View] = []
        for name, w in self.weights.items():
            if name != "b_O":
                axis = 0 if name == "W_O" or w.dim() == 1 else 1
                views += head_views(name, tuple(w.shape), count[name[2]], axis=axis)
        if any(w.dim() != 2 for w in weights.values()) or W_O.shape[0] * kv_heads != W_V.shape[1] * heads:
            raise InputError(
                f"W_O {tuple(W_O.shape)} must have as many rows as the values of {heads} heads have columns: W_V is"
                f" {tuple(W_V.shape)} for {kv_heads}."
            )
        self.space = Space.of(self.weights, views).rename(prefix)
        self._cuts = {v.name: tuple(slice(*c) for c in v.cut) for v in views}
        bias = score_bias(mask, X, Z)
        parts = [{name: self.whole[name][self.at(name, h)] for name in weights} for h in range(heads)]
        self.heads = [Head(X, Z, p["W_Q"], p["W_K"], p["W_V"], bias, temperature=temperature) for p in parts]
        self.W_O = [p["W_O"] for p in parts]
        F = torch.stack([head.F @ W for head, W in zip(self.heads, self.W_O, strict=True)]).sum(0)
        self.output = output_loss(loss, F if b_O is None else F + b_O, Y, token_weights)
        for head, W in zip(self.heads, self.W_O, strict=True):
            head.see(self.output.g @ W.T, self.output.counted())
        self._eye = torch.eye(W_O.shape[1], dtype=W_O.dtype, device=W_O.device)[None]

    # --- pieces -----------------------------------------------------------------------------------------------------
    def at(self, name: str, h: int) -> tuple[slice, slice]:
        if name == "b_O":
            return slice(None), slice(None)
        index = h if name in ("W_Q", "W_O") else next(j for j, group in enumerate(self.groups) if h in group)
        rows, cols = self._cuts[f"{name}[{index}]"]
        return (rows, cols) if name == "W_O" else (slice(None), cols)

    def owners(self, piece: str) -> tuple[str, list[int]]:
        name, _, index = piece.partition("[")
        if not index:
            return name, [0]
        return name, [int(index[:-1])] if name in ("W_Q", "W_O") else self.groups[int(index[:-1])]

    def pieces(self, name: str) -> list[tuple[str, tuple[slice, slice]]]:
        if name not in self.weights or name == "b_O":
            return super().pieces(name)
        cuts = [(piece, cut) for piece, cut in self._cuts.items() if piece.startswith(f"{name}[")]
        return [(piece, (cut[0], cut[1]) if len(cut) == 2 else (slice(None), cut[0])) for piece, cut in cuts]

    def shape_of(self, name: str) -> tuple[int, ...]:
        if name in self.weights:
            return self.matrix_shape(name)
        shape = self.space.shape(self.prefix + name)
        return (1, *shape) if len(shape) == 1 else shape

    @property
    def A(self) -> Tensor:
        """The attention matrices, `(batch, heads, tokens, keys)`."""
        return torch.stack([head.A for head in self.heads], dim=1)

    # --- blocks -----------------------------------------------------------------------------------------------------
    def factor(self, name: str, h: int) -> Factor:
        if name == "b_O":
            return Factor(torch.ones_like(self.output.g[:, :1]), self._eye, True)
        if name == "W_O":
            return Factor(self.heads[h].F, self._eye, True)
        own = self.heads[h].factor(name)
        return Factor(own.l, self.W_O[h].T @ own.R, own.vector_first, own.span)

    def whole_terms(self, part: Part, a: str, b: str) -> list[Term]:
        (name_a, heads_a), (name_b, heads_b) = self.owners(a), self.owners(b)
        out: list[Term] = []
        if part != "functional":
            left = {h: self.factor(name_a, h) for h in heads_a}
            right = left if a == b else {h: self.factor(name_b, h) for h in heads_b}
            out += [outer_term(left[h], right[k], self.output) for h in heads_a for k in heads_b]
        if part == "outer" or name_a == "b_O":
            return out
        for h in (h for h in heads_a if h in heads_b):
            if name_a != "W_O":
                out += self.heads[h].functional_terms(name_a, name_b)
            elif name_b != "W_O":
                own = self.heads[h].factor(name_b)
                out.append(Term(self.output.g, own.l, own.R, False, own.vector_first, None, own.span))
        return out

    # --- products ---------------------------------------------------------------------------------------------------
    def of_head(self, V: Vector, h: int) -> dict[str, Tensor]:
        """Head h's part of vectors over the whole weights."""
        return {name: v[(..., *self.at(name, h))] for name, v in V.items()}

    def whole_products(self, V: Vector, part: Part, *, bend: bool = True) -> dict[str, Tensor]:
        g = self.g
        own = [self.of_head(V, h) for h in range(len(self.heads))]
        tangents = [head.tangents(v) for head, v in zip(self.heads, own, strict=True)]
        out = {name: torch.zeros_like(v) for name, v in V.items()}
        dg = None
        if part != "functional":
            per_head = [
                t[-1] @ W + self.per_token(head.F) @ v["W_O"][:, None]
                for t, W, head, v in zip(tangents, self.W_O, self.heads, own, strict=True)
            ]
            dF = torch.stack(per_head).sum(0)
            dF = dF + V["b_O"][:, None] if "b_O" in V else dF
            dg = self.output.hessian_times(dF.flatten(1, 2).permute(1, 2, 0)).permute(2, 0, 1).unflatten(1, g.shape[:2])
            if "b_O" in V:
                out["b_O"] += dg.sum((1, 2))[:, None]
        for h, (head, W, v, (dV, dA, dz)) in enumerate(zip(self.heads, self.W_O, own, tangents, strict=True)):
            images = []
            if dg is not None:
                images.append({**head.pull_back(dg @ W.T), "W_O": head.F.T @ dg.flatten(1, 2)})
            if part != "outer":
                images.append(head.pull_back(g @ v["W_O"].transpose(-1, -2)[:, None]))  # g_h moves with W_O
                images.append({**head.curve(dV, dA), "W_O": dz.flatten(1, 2).transpose(-1, -2) @ self.output.g})
                images += [head.bend(v)] if bend else []
            for image in images:
                for name, value in image.items():
                    out[name][(..., *self.at(name, h))] += value
        return out

    def whole_gradients(self) -> dict[str, Tensor]:
        out = {name: torch.zeros_like(w) for name, w in self.whole.items()}
        for h, head in enumerate(self.heads):
            for name, value in {**head.gradients(), "W_O": head.F.T @ self.output.g}.items():
                out[name][self.at(name, h)] += value
        if "b_O" in out:
            out["b_O"] += self.output.g.sum(0)
        return out

    def whole_forward(self, whole: Vector) -> Tensor:
        out = torch.zeros_like(self.output.g) + whole.get("b_O", 0)
        for h, head in enumerate(self.heads):
            w = self.of_head(whole, h)
            out = out + head.forward(w["W_Q"], w["W_K"], w["W_V"]) @ w["W_O"]
        return out
