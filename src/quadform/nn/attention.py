"""Multi-head attention of every design: alpha I + beta softmax(Q K^T / sqrt(d_k) + B) - gamma C, times values.

The mixing is linear in the attention matrix, so the whole family is

    alpha V + beta diag(D) attend(Q, K, V; B) - gamma mean(V)

with one attention kernel, no (tokens x tokens) matrix for C or I, and the mean over the keys a token may see. Weights
are stored as the papers write them: Q = X W_Q, (d, heads d_k).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.spec import Mixing, ModelConfig, Projection
from quadform.kernels import attention
from quadform.propagation.mixing import running_mean

from .attend import attend, linear, linear_attend, repeat_heads, rotate, spa_bias
from .frame import Frame, LayerCache, Memory


class Attention(nn.Module):
    """Attention of one block: self-attention of any `Mixing`, or cross-attention when a memory is given.

    Parameters, d = d_model, H heads, G key heads, k = d_k:
    W_Q (d, H k), W_K (d, G k) or W_QK (H, d, d); W_V (d, G k); W_O (H k, d); biases b_Q, b_K, b_V, b_O; alpha, beta,
    gamma (H,). W_V or W_O absent means the identity. Where `Projection.split`, W_V holds dW and the matrix in use is
    V_skip W_init + V_branch dW.
    """

    W_Q: Tensor
    W_K: Tensor
    W_QK: Tensor
    W_O: Tensor
    b_O: Tensor

    def __init__(
        self,
        config: ModelConfig,
        mixing: Mixing,
        value: Projection | None,
        proj: Projection | None,
        *,
        strengths: tuple[float, float] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        d, H, G, k = config.d_model, config.heads, config.key_heads, config.head_width
        self.mixing, self.value, self.proj, self.strengths = mixing, value, proj, strengths
        self.heads, self.key_heads, self.width, self.scale = H, G, k, config.attn_scale or k**-0.5
        self.attend = attend
        self.joined: dict[str, tuple[Tensor, Tensor | None]] = {}
        self.plain = not (mixing.learn or mixing.alpha or mixing.gamma) and mixing.beta == 1

        def weight(name: str, *shape: int) -> None:
            self.register_parameter(name, nn.Parameter(torch.empty(shape, **options)))

        if mixing.scores == "merged":
            weight("W_QK", H, d, d)
        else:
            weight("W_Q", d, H * k)
            weight("W_K", d, G * k)
        for letter, spec, rows, width in (("V", value, d, G * k), ("O", proj, H * k, d)):
            if spec is None:
                continue
            weight(f"W_{letter}", rows, width)
            for scalar in spec.learn:
                weight(f"{letter}_{scalar}")
            if spec.split and spec.init != "identity":
                self.register_buffer(f"W_{letter}_init", torch.empty(rows, width, **options))
        present = {"q": H * k, "k": G * k, "v": G * k if value else 0, "o": d if proj else 0}
        for letter, width in present.items():  # biases of queries and keys of a merged W_QK: the config refuses them
            if letter in config.biases and width:
                weight(f"b_{letter.upper()}", width)
        for name in mixing.learn:
            weight(name, H)

    def extra_repr(self) -> str:
        grouped = f", key_heads={self.key_heads}" if self.key_heads != self.heads else ""
        kind = "" if self.mixing == Mixing() else f", {self.mixing!r}"
        return f"heads={self.heads}, width={self.width}{grouped}{kind}"

    def weight(self, letter: str) -> Tensor | None:
        """W_V or W_O as used: None for the identity, else skip W_init + branch dW."""
        spec = self.value if letter == "V" else self.proj
        if spec is None:
            return None
        W = getattr(self, f"W_{letter}")
        if not spec.split:
            return W
        skip, branch = (getattr(self, f"{letter}_{s}", getattr(spec, s)) for s in ("skip", "branch"))
        W = branch * W
        fixed = getattr(self, f"W_{letter}_init", None)
        return W + skip * (torch.eye(*W.shape, dtype=W.dtype, device=W.device) if fixed is None else fixed)

    def _bias(self, letter: str) -> Tensor | None:
        return self._parameters.get(f"b_{letter}")

    def _split(self, X: Tensor, heads: int) -> Tensor:
        return X.unflatten(-1, (heads, -1)).transpose(-2, -3)

    def queries(self, N: Tensor) -> Tensor:
        """(batch, H, n, width): width is d_k, or d for a merged W_QK."""
        if self.mixing.scores == "merged":
            return N[:, None] @ self.W_QK
        return self._split(linear(N, self.W_Q, self._bias("Q")), self.heads)

    def keys(self, N: Tensor) -> Tensor:
        """(batch, G, n, d_k); for a merged W_QK the input itself for every key head, (batch, G, n, d)."""
        if self.mixing.scores == "merged":
            return N[:, None].expand(-1, self.key_heads, -1, -1)
        return self._split(linear(N, self.W_K, self._bias("K")), self.key_heads)

    def values(self, N: Tensor) -> Tensor:
        """(batch, G, n, d_k); without W_V the column blocks of the input."""
        W = self.weight("V")
        return self._split(N if W is None else linear(N, W, self._bias("V")), self.key_heads)

    def _join(self, letters: str) -> tuple[Tensor, Tensor | None]:
        """[W_Q, W_K, W_V] of these letters side by side, and their biases."""
        Ws: list[Any] = [self.weight("V") if x == "V" else getattr(self, f"W_{x}") for x in letters]
        biases = [self._bias(x) for x in letters]
        if all(b is None for b in biases):
            return torch.cat(Ws, 1), None
        return torch.cat(Ws, 1), torch.cat(
            [W.new_zeros(W.shape[1]) if b is None else b for W, b in zip(Ws, biases, strict=True)]
        )

    def projections(self, N: Tensor, letters: str = "QKV") -> list[Tensor]:
        """`queries`, `keys`, `values` of N, of those asked for; one matrix product where that pays.

        It does in training, where the joined matrix is made anew in every pass, and in decoding (`joined_weights`).
        """
        each = {"Q": self.queries, "K": self.keys, "V": self.values}
        stored = "".join(x for x in letters if x != "V" or self.value is not None)
        if self.mixing.scores == "merged" or len(stored) < 2 or not (stored in self.joined or torch.is_grad_enabled()):
            return [each[x](N) for x in letters]
        W, b = self.joined[stored] if stored in self.joined else self._join(stored)
        heads = {x: self.heads if x == "Q" else self.key_heads for x in letters}
        parts = linear(N, W, b).split([heads[x] * self.width for x in stored], -1)
        found = {x: self._split(part, heads[x]) for x, part in zip(stored, parts, strict=True)}
        return [found[x] if x in found else each[x](N) for x in letters]

    def forward(
        self,
        N: Tensor,
        frame: Frame,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Self-attention of N (batch, n, d) -> (batch, n, d); with a cache, N are the tokens after those it holds.

        With a memory: cross-attention to it (`cross`), from layer `layer`.
        """
        if memory is not None:
            return self.cross(N, memory, layer)
        if cache is not None and cache.kind == "x":
            return self._from_x_cache(N, frame, cache)
        q, k, v = self.projections(N)
        if frame.rotary is not None:
            q, k = rotate(q, *frame.rotary), rotate(k, *frame.rotary)
        if cache is None and self._one_kernel(q, frame):
            return self._project(self._shaped(q, k, v, frame.causal))
        K, V = (k, v) if cache is None else cache.append(k, v)
        causal = frame.causal and frame.start == 0
        if self.mixing.kind == "linear":
            Y = linear_attend(q, K, V, causal=causal, mask=frame.visible, scale=self.scale)
        else:
            B, D = self._spa(frame, V.shape[-2])
            Y = self.attend(q, K, V, causal=causal, mask=frame.visible, bias=B, scale=self.scale)
            Y = Y if D is None else D * Y
        return self._project(self._mix(Y, v, frame, cache))

    def _one_kernel(self, q: Tensor, frame: Frame) -> bool:
        """Whether attention and mixing are one kernel: shaped, on a GPU, no padding, no SPA, no kernel of one's own."""
        usual = (
            self.attend is attend and self.mixing.bias is None and frame.bias is None and self.mixing.kind == "softmax"
        )
        return usual and not self.plain and q.is_cuda and frame.visible is None and frame.start == 0

    def _shaped(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        """alpha v + beta attend - gamma mean(v) by `quadform.kernels`."""
        m = self.mixing
        weights = {w: self._parameters.get(w, getattr(m, w)) for w in ("alpha", "beta", "gamma") if m.uses(w)}
        weights.setdefault("beta", 0.0)
        return attention(q, k, v.to(q.dtype), causal=causal, scale=self.scale, **weights)

    def _mix(self, Y: Tensor, v: Tensor, frame: Frame, cache: LayerCache | None) -> Tensor:
        """alpha v + beta Y - gamma mean(v)."""
        m = self.mixing
        if self.plain:
            return Y
        v = repeat_heads(v, self.heads // self.key_heads)
        if m.uses("beta"):
            Y = Y if m.beta == 1 and "beta" not in m.learn else self._like("beta", Y) * Y
        else:
            Y = torch.zeros_like(Y)
        if m.uses("alpha"):
            Y = Y + self._like("alpha", v) * v
        if m.uses("gamma"):
            if cache is None:
                mask = None if frame.mask is None else frame.mask[:, None]
                mean = running_mean(v, mask, frame.causal)
            else:
                mean = cache.running_total(v) / (frame.positions[:, None] + 1)
            Y = Y - self._like("gamma", mean) * mean
        return Y

    def _scalar(self, name: str) -> Tensor | float:
        learned = self._parameters.get(name)
        return getattr(self.mixing, name) if learned is None else learned[:, None, None]

    def _like(self, name: str, Y: Tensor) -> Tensor | float:
        """The same in Y's type, so that under autocast three scalars do not widen the whole tensor."""
        scalar = self._scalar(name)
        return scalar.to(Y.dtype) if isinstance(scalar, Tensor) else scalar

    def _project(self, Y: Tensor) -> Tensor:
        Y = Y.transpose(-2, -3).flatten(-2)
        W = self.weight("O")
        return Y if W is None else linear(Y, W, self._bias("O"))

    def _spa(self, frame: Frame, keys: int) -> tuple[Tensor | None, Tensor | None]:
        """B, broadcasting to (batch, heads, n, keys), and D (…, n, 1), at the frame's positions; None where absent."""
        return (frame.bias, None) if self.mixing.bias is None else self._spa_tables(frame, keys)

    @torch.compiler.disable
    def _spa_tables(self, frame: Frame, keys: int) -> tuple[Tensor, Tensor]:
        like, bias = next(self.parameters()), self.mixing.bias
        assert bias is not None, "asked of mixing with SPA alone"
        assert self.strengths is not None
        before, after = self.strengths

        def of(tokens: int) -> tuple[Tensor, Tensor]:
            return spa_bias(bias.family, before, after, tokens, frame.causal, like.dtype, like.device)

        p = frame.positions
        if frame.mask is None:
            # row t does not depend on the length when causal: one table serves all lengths up to a power of two
            B, D = of(1 << (keys - 1).bit_length() if frame.causal else keys)
            if frame.static:
                return B[p, :keys], D[p, None]
            new = slice(frame.start, frame.start + frame.tokens)
            return B[new, :keys], D[new, None]
        if frame.causal:
            B, D = of(keys)
            return B[p[:, :, None], p[:, None, :]][:, None], D[p][:, None, :, None]
        B = like.new_zeros(len(p), 1, keys, keys)
        D = like.new_ones(len(p), 1, keys, 1)
        lengths = frame.mask.sum(1).clamp_min(1)
        for n in lengths.unique().tolist():  # the bidirectional matrix is not nested: one for each length
            rows = (lengths == n).nonzero()[:, 0]
            B_n, D_n = of(n)
            P = p[rows]
            B[rows, 0] = B_n[P[:, :, None], P[:, None, :]]
            D[rows, 0] = D_n[P][..., None]
        return B, D

    def matrix(self, N: Tensor, frame: Frame) -> Tensor:
        """The mixing matrix diag(D) (...) itself, alpha I + beta A - gamma C: (batch, heads, n, n); for looking at it.

        `forward` never builds it. Rows of padded tokens mean nothing.
        """
        q, k = self.queries(N), self.keys(N)
        if frame.rotary is not None:
            q, k = rotate(q, *frame.rotary), rotate(k, *frame.rotary)
        S = self.scale * (q @ repeat_heads(k, self.heads // k.shape[1]).mT)
        n = S.shape[-1]
        visible = frame.visible
        if visible is None:
            visible = torch.ones(n, n, dtype=torch.bool, device=S.device)
            visible = visible.tril() if frame.causal else visible
        if self.mixing.kind == "linear":
            A = S.masked_fill(~visible, 0.0)
        else:
            B, D = self._spa(frame, n)
            S = S if B is None else S + B
            A = S.masked_fill(~visible, float("-inf")).softmax(-1)
            A = A if D is None else D * A
        C = visible.to(S.dtype) / visible.sum(-1, keepdim=True)
        alpha, beta, gamma = (self._scalar(name) for name in ("alpha", "beta", "gamma"))
        return alpha * torch.eye(n, dtype=S.dtype, device=S.device) + beta * A - gamma * C

    def _from_x_cache(self, N: Tensor, frame: Frame, cache: LayerCache) -> Tensor:
        """The same layer from a cache of its inputs alone: q . (W_K^T n + b_K) = (W_K q) . n + q . b_K, values = n.

        Exact, also with biases; d numbers a token in place of 2 d. Source: [own].
        """
        (X,) = cache.append(N[:, None])
        X = X[:, 0]
        q = self.queries(N)
        H, n = q.shape[1:3]
        if self.mixing.scores == "factored":
            W_K = self.W_K.unflatten(-1, (H, -1)).permute(1, 2, 0)  # (H, d_k, d)
            folded, offset = q @ W_K, self._bias("K")
        else:
            folded, offset = q, None
        S = (folded.flatten(1, 2) @ X.mT).unflatten(1, (H, n))
        if offset is not None:
            S = S + (q @ offset.view(H, -1, 1))
        S = self.scale * S
        B, D = self._spa(frame, X.shape[1])
        visible = frame.visible
        if visible is None and n > 1:
            visible = torch.ones(n, n, dtype=torch.bool, device=X.device).tril()
        if self.mixing.kind == "linear":
            A = S if visible is None else S.masked_fill(~visible, 0.0)
        else:
            S = S if B is None else S + B
            A = (S if visible is None else S.masked_fill(~visible, float("-inf"))).softmax(-1)
        Y = A @ self._split(X, H)
        Y = Y if D is None else D * Y
        return self._project(self._mix(Y, self._split(N, H), frame, cache))

    def cross(self, N: Tensor, memory: Memory, layer: int) -> Tensor:
        """Cross-attention of N (rows, n, d) to a memory of (sentences, m, d); rows = sentences x beams."""
        kept = memory.keys_values
        if kept is None:
            k, v = self.projections(memory.X, "KV")
        else:
            if layer not in kept:
                k, v = self.projections(memory.X, "KV")
                kept[layer] = k.contiguous(), v.contiguous()
            k, v = kept[layer]
        rows, n, d = N.shape
        q = self.queries(N.reshape(len(k), -1, d))  # beams of a sentence stand side by side as further queries
        Y = self.attend(q, k, v, mask=memory.visible, scale=self.scale)
        return self._project(Y).reshape(rows, n, d)


@contextlib.contextmanager
def joined_weights(model: nn.Module) -> Iterator[None]:
    """Inside, attention layers keep their joined matrices: for many passes over weights that stay as they are."""
    layers = [m for m in model.modules() if isinstance(m, Attention) and m.mixing.scores == "factored"]
    try:
        with torch.no_grad():
            for layer in layers:
                for letters in ("QKV", "KV") if layer.value is not None else ("QK",):
                    layer.joined[letters] = layer._join(letters)
        yield
    finally:
        for layer in layers:
            layer.joined.clear()
