"""Exact norms of the W_Q and W_V blocks of every layer of the paper's network; no d^2 x d^2 block is built. [own]

W_Q enters its layer through the scores T = N W_Q K^T (K scaled by 1/sqrt d) alone, W_V through F = M W_V, M = A N; both
are linear in the weight. With B = C J, where C^T C = d2l/dlogits2 and J the Jacobian of the logits, and with Psi_s and
Phi_s the second derivatives of <dl/dlogits, logits> in T and in F of sequence s,

    H_o      = B^T B,                                         |H_o|_F = |B B^T|_F: the smaller of the two Grams
    H_f(Q,Q) = sum_s (N_s x K_s)^T Psi_s (N_s x K_s),         |.|_F^2 = sum_ss' tr(Psi_s G_ss' Psi_s' G_s's)
    H_f(V,V) = sum_s (M_s x I)^T Phi_s (M_s x I),             summed a few rows of the block at a time

with x the Kronecker product and G_ss' = (N_s N_s'^T) x (K_s K_s'^T). Behind the last attention tokens do not meet:
there Psi and Phi are one small matrix a token. A token moves only those behind it, so the columns of Phi come in groups
of positions, each with the tokens from its first position on. Everything is on the device of the model, in its dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from ..nn.transformer import IGNORE, Transformer

Weight = Literal["W_Q", "W_V"]
#: Numbers that are held at once where a sum is taken in chunks: 0.25 GiB in float64, on a GPU 2 GiB.
ENTRIES = {"cpu": 2**25, "cuda": 2**28}
#: Groups of positions, by their share of the sequence.
GROUPS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Norms:
    """Frobenius norms of one diagonal block."""

    outer: Tensor
    functional: Tensor
    total: Tensor


class GramNorms:
    """The network in plain tensors. The loss is cross-entropy of the labels that are asked for, or the sum of squares.

    `batch` is {"tokens", "labels"}, or (tokens, targets) with `squared`.
    """

    def __init__(self, model: Transformer, batch: Any, *, squared: bool = False) -> None:
        tokens, wanted = (batch["tokens"], batch["labels"]) if isinstance(batch, dict) else batch
        here = model.W_U.device
        self.most = ENTRIES[here.type]
        tokens, wanted = tokens.to(here), wanted.to(here)
        asked = torch.arange(tokens.shape[1], device=here)
        if not squared:
            asked = asked[(wanted != IGNORE).all(0)]
        n = int(asked[-1]) + 1  # later tokens move nothing
        tokens, self.asked, self.squared = tokens[:, :n], asked, squared
        self.wanted = wanted[:, asked]
        self.blocks: list[Any] = list(model.layers)
        spec = self.blocks[0].spec
        self.post, self.normed = spec.norm_at == "post", spec.norm != "none"
        self.linear, self.skip = spec.mixing is not None and spec.mixing.kind == "linear", float(spec.attn.skip)
        self.eps, self.ends, self.W_U = model.config.eps, model.final_norm is not None, model.W_U.detach()
        self.seen = torch.ones(n, n, dtype=torch.bool, device=here).tril()
        with torch.no_grad():
            X = model.embed.W_E[tokens] + model.embed.W_pos[:n]
            self.streams, self.F = [X], []
            for layer in range(len(self.blocks)):
                self.F.append(self._head(layer, self.scores(layer, X, 0), 0))
                X = self._behind(layer, X, self.F[-1])
                self.streams.append(X)
            self.logits = self._out(X, asked)
        self.C, self.g = self._loss()

    # ------------------------------------------------------------------------------------------------ the network
    def _norm(self, X: Tensor) -> Tensor:
        X = X - X.mean(-1, keepdim=True)
        return X / (X.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def _inner(self, X: Tensor) -> Tensor:
        """What a branch is given."""
        return self._norm(X) if self.normed and not self.post else X

    def _added(self, X: Tensor) -> Tensor:
        """What a sum becomes."""
        return self._norm(X) if self.normed and self.post else X

    def _weights(self, layer: int) -> tuple[Tensor, ...]:
        attn, mlp = self.blocks[layer].attn, self.blocks[layer].mlp
        d = self.W_U.shape[0]
        return tuple(W.detach() for W in (attn.W_Q, attn.W_K / d**0.5, attn.W_V, attn.W_O, mlp.W_1, mlp.W_2))

    def inputs(self, layer: int) -> tuple[Tensor, Tensor]:
        """N (sequences, n, d), what attention is given, and its scaled keys K (sequences, n, d)."""
        N = self._inner(self.streams[layer])
        return N, N @ self._weights(layer)[1]

    def scores(self, layer: int, X: Tensor, start: int) -> Tensor:
        """Scores (sequences, n - start, n) of the tokens from `start` on, whose stream is X; those before stay."""
        W_Q, W_K = self._weights(layer)[:2]
        N = self._inner(torch.cat((self.streams[layer][:, :start], X), 1) if start else X)
        return N[:, start:] @ W_Q @ (N @ W_K).mT

    def _attention(self, T: Tensor, start: int) -> Tensor:
        seen = self.seen[start:]
        return T * seen if self.linear else T.masked_fill(~seen, -torch.inf).softmax(-1)

    def _head(self, layer: int, T: Tensor, start: int, X: Tensor | None = None) -> Tensor:
        past = self.streams[layer]
        past = past if X is None else torch.cat((past[:, :start], X), 1)
        return self._attention(T, start) @ (self._inner(past) @ self._weights(layer)[2])

    def _behind(self, layer: int, X: Tensor, F: Tensor) -> Tensor:
        *_, W_O, W_1, W_2 = self._weights(layer)
        Y = self._added(self.skip * X + F @ W_O)
        return self._added(Y + (self._inner(Y) @ W_1).relu() @ W_2)

    def _out(self, X: Tensor, rows: Tensor) -> Tensor:
        return (self._norm(X) if self.ends else X)[:, rows] @ self.W_U

    def tail(self, layer: int, F: Tensor, start: int = 0) -> Tensor:
        """Logits at the asked positions from `start` on, from F (sequences, n - start, d) of this layer."""
        X = self._behind(layer, self.streams[layer][:, start:], F)
        for m in range(layer + 1, len(self.blocks)):
            X = self._behind(m, X, self._head(m, self.scores(m, X, start), start, X))
        return self._out(X, self.asked[self.asked >= start] - start)

    def _loss(self) -> tuple[Tensor, Tensor]:
        """C (sequences, asked, c, v) with C^T C = d2l/dlogits2, and g = dl/dlogits."""
        Z = self.logits
        if self.squared:
            root = 2.0**0.5 * torch.eye(Z.shape[-1], dtype=Z.dtype, device=Z.device)
            return root.expand(*Z.shape[:2], -1, -1), 2.0 * (Z - self.wanted)
        p, weight = Z.softmax(-1), 1.0 / self.wanted.numel()
        others = p @ (
            1.0 - torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
        )  # 1 - p, not lost where p rounds to 1
        root = p.sqrt()[..., :, None] * (others.diag_embed() - (p[..., None, :] - p.diag_embed()))
        right = torch.nn.functional.one_hot(self.wanted, p.shape[-1]).bool()
        return weight**0.5 * root, weight * torch.where(right, -others, p)

    def _value(self, layer: int, start: int = 0) -> Callable[[Tensor], Tensor]:
        """F -> <g, logits>, g held."""
        g = self.g[:, self.asked >= start]
        return lambda F: (g * self.tail(layer, F, start)).sum()

    # -------------------------------------------------------------------------------------- first and second order
    def jacobians(self, layer: int) -> dict[Weight, Tensor]:
        """B = C J of both weights, (outputs, d, d)."""
        S, asked, c, v = self.C.shape
        cotangents = torch.zeros(asked, c, S, asked, v, dtype=self.C.dtype, device=self.C.device)
        for i in range(asked):
            cotangents[i, :, :, i] = self.C[:, i].movedim(0, 1)
        back = vjp(lambda F: self.tail(layer, F), self.F[layer])[1]
        dF = vmap(lambda u: back(u)[0])(cotangents.flatten(0, 1))  # (asked c, S, n, d)
        N, K = self.inputs(layer)
        T = self.scores(layer, self.streams[layer], 0)
        A = self._attention(T, 0)
        head = vjp(lambda T: self._head(layer, T, 0), T)[1]
        dT = vmap(lambda u: head(u)[0])(dF)
        return {"W_Q": (N.mT @ dT @ K).flatten(0, 1), "W_V": ((A @ N).mT @ dF).flatten(0, 1)}

    def curvature_of_scores(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Psi (units, i j, i j) and what its rows are of: N (units, i, d), K (units, j, d).

        A unit is a sequence; behind the last attention an asked token.
        """
        N, K = self.inputs(layer)
        T = self.scores(layer, self.streams[layer], 0)
        value, n = self._value(layer), T.shape[-1]
        slope = grad(lambda T: value(self._head(layer, T, 0)))
        product = vmap(lambda u: jvp(slope, (T,), (u.expand_as(T),))[1])
        if layer + 1 == len(self.blocks):
            unit = torch.eye(n, dtype=T.dtype, device=T.device)[:, None, :].expand(n, n, n)
            found = product(unit)[:, :, self.asked]  # (j, S, asked, j')
            Psi = found.permute(1, 2, 3, 0).flatten(0, 1)
            many = len(self.asked)
            return Psi, N[:, self.asked].flatten(0, 1)[:, None], K.repeat_interleave(many, 0)
        rows = self.seen.flatten().nonzero()[:, 0]
        unit = torch.eye(n * n, dtype=T.dtype, device=T.device)[rows].unflatten(1, (n, n))
        Psi = torch.zeros(len(N), n * n, n * n, dtype=T.dtype, device=T.device)
        Psi[:, :, rows] = product(unit).flatten(2).permute(1, 2, 0)
        return Psi, N, K

    def curvature_of_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Phi (units, t, d, t, d) and M (units, t, d); units as for the scores."""
        M = self._attention(self.scores(layer, self.streams[layer], 0), 0) @ self.inputs(layer)[0]
        F = self.F[layer]
        S, n, d = F.shape
        eye = torch.eye(d, dtype=F.dtype, device=F.device)
        if layer + 1 == len(self.blocks):
            slope = grad(self._value(layer))
            found = vmap(lambda u: jvp(slope, (F,), (u.expand_as(F),))[1])(eye)[:, :, self.asked]
            return found.permute(1, 2, 3, 0).flatten(0, 1)[:, None, :, None, :], M[:, self.asked].flatten(0, 1)[:, None]
        Phi = torch.zeros(S, n, d, n, d, dtype=F.dtype, device=F.device)
        for a, b in pairwise(dict.fromkeys(round(share * n) for share in GROUPS)):
            slope, at = grad(self._value(layer, a)), F[:, a:]
            unit = torch.zeros(b - a, d, n - a, d, dtype=F.dtype, device=F.device)
            unit[range(b - a), :, range(b - a)] = eye
            found = self._products(slope, at, unit.flatten(0, 1))
            columns = found.unflatten(0, (b - a, d)).permute(2, 3, 4, 0, 1)  # (S, n - a, d, b - a, d)
            Phi[:, a:, :, a:b] = columns
            Phi[:, a:b, :, b:] = columns[:, b - a :].permute(0, 3, 4, 1, 2)
        return Phi, M

    def _products(self, slope: Callable[[Tensor], Tensor], at: Tensor, units: Tensor) -> Tensor:
        hidden = at.numel() * self._weights(0)[4].shape[1] // at.shape[-1]
        return vmap(lambda u: jvp(slope, (at,), (u.expand_as(at),))[1], chunk_size=max(1, self.most // hidden))(units)

    # ------------------------------------------------------------------------------------------------------ norms
    @torch.no_grad()
    def outer(self, layer: int) -> dict[Weight, Tensor]:
        """|H_o(w, w)|_F of both weights."""
        return {w: _gram_norm(B) for w, B in self.jacobians(layer).items()}

    @torch.no_grad()
    def norms(self, layer: int) -> dict[Weight, Norms]:
        """|H_o|, |H_f| and |H| of both diagonal blocks; |H|^2 = |H_o|^2 + 2 <H_o, H_f> + |H_f|^2."""
        found: dict[Weight, Norms] = {}
        parts: dict[Weight, Callable[[int, Tensor], tuple[Tensor, Tensor]]]
        parts = {"W_Q": self._scores_part, "W_V": self._values_part}
        for w, B in self.jacobians(layer).items():
            outer, (square, cross) = _gram_norm(B), parts[w](layer, B)
            found[w] = Norms(outer, square.sqrt(), (outer.square() + 2 * cross + square).clamp_min(0.0).sqrt())
        return found

    def _scores_part(self, layer: int, B: Tensor) -> tuple[Tensor, Tensor]:
        """|H_f(Q, Q)|^2 and <H_o, H_f>, a few units at a time."""
        Psi, N, K = self.curvature_of_scores(layer)
        units, size = Psi.shape[:2]
        square, cross = Psi.new_zeros(()), Psi.new_zeros(())
        step = max(1, self.most // (size * max(units * size, len(B))))
        for a in range(0, units, step):
            n, k, psi = N[a : a + step], K[a : a + step], Psi[a : a + step]
            NN, KK = torch.einsum("cid,nkd->cink", n, N), torch.einsum("cje,nle->cjnl", k, K)
            G = (NN[:, :, None, :, :, None] * KK[:, None, :, :, None, :]).reshape(-1, size, units, size)
            left = torch.einsum("cpq,cqnr->cpnr", psi, G)
            right = torch.einsum("cpnq,nqr->cpnr", G, Psi)
            square += (left * right).sum()
            seen = torch.einsum("cid,rde,cje->cijr", n, B, k).reshape(len(n), size, -1)
            cross += (seen * (psi @ seen)).sum()
        return square.clamp_min(0.0), cross

    def _values_part(self, layer: int, B: Tensor) -> tuple[Tensor, Tensor]:
        """|H_f(V, V)|^2 and <H_o, H_f>, a few rows of W_V at a time."""
        Phi, M = self.curvature_of_values(layer)
        square, cross = Phi.new_zeros(()), Phi.new_zeros(())
        if not Phi.any():
            return square, cross
        d = B.shape[-1]
        step = max(1, self.most // max(d**3, Phi.numel() // Phi.shape[1]))
        for a in range(0, d, step):
            H_f = torch.einsum("nta,ntoup,nub->aopb", M[..., a : a + step], Phi, M)
            H_o = torch.einsum("rao,rbp->aopb", B[:, a : a + step], B)
            square += H_f.square().sum()
            cross += (H_o * H_f).sum()
        return square, cross


def _gram_norm(B: Tensor) -> Tensor:
    """|B^T B|_F, by the smaller of the two Grams; B (outputs, d, d)."""
    B = B.flatten(1)
    return (B @ B.mT if B.shape[0] <= B.shape[1] else B.mT @ B).norm()
