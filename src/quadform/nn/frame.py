"""What all layers of one pass share (who sees whom, where tokens stand), and what decoding remembers between steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quadform.core.errors import InputError


@dataclass
class Frame:
    """One pass over `n` new tokens at positions start, ..., start + n - 1.

    mask       (batch, n) True for real tokens, or None when all are
    visible    boolean, broadcasts to (batch, heads, n, keys); None: everything, or everything so far if `causal`
    causal     token i sees tokens j <= i
    positions  (n,) or (batch, n): number of real tokens before each one
    rotary     (cos, sin) of shape (n, d_k / 2) or (batch, 1, n, d_k / 2), or None
    bias       relative positions, added to the scores: (1 or batch, heads, n, keys), or None
    static     a decoding step of fixed shape: the positions are known on the device only
    """

    causal: bool
    tokens: int
    mask: Tensor | None
    visible: Tensor | None
    positions: Tensor
    start: int = 0
    rotary: tuple[Tensor, Tensor] | None = None
    bias: Tensor | None = None
    static: bool = False

    def __repr__(self) -> str:
        parts = {"causal": self.causal, "mask": self.mask is not None, "rotary": self.rotary is not None}
        return (
            f"Frame({self.tokens} tokens from {self.start}{''.join(f', {name}' for name, has in parts.items() if has)})"
        )

    @classmethod
    def of(cls, tokens: int, mask: Tensor | None, causal: bool, device: torch.device, start: int = 0) -> Frame:
        """The frame of a pass; padding may stand on either side, a token that sees nothing sees itself."""
        positions = torch.arange(start, start + tokens, device=device)
        if mask is None:
            visible = None
            if causal and start and tokens > 1:
                visible = torch.arange(start + tokens, device=device) <= positions[:, None]
            return cls(causal, tokens, None, visible, positions, start)
        if mask.dtype != torch.bool:
            raise InputError(f"a padding mask is boolean (True = a real token); got {mask.dtype}. Use `tokens != pad`.")
        visible = mask[:, None, None, :]
        if causal:
            see = torch.ones(tokens, tokens, dtype=torch.bool, device=device)
            visible = (visible & see.tril()) | torch.eye(tokens, dtype=torch.bool, device=device)
        else:
            visible = visible | ~mask.any(1)[:, None, None, None]
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        return cls(causal, tokens, mask, visible, positions, start)


@dataclass
class LayerCache:
    """What one attention layer keeps of the tokens so far, for `rows` sequences of at most `capacity` tokens.

    kind "kv" keeps keys and values, 2 d numbers a token; kind "x" keeps the layer's input N instead, d numbers a token
    (layers without W_V, where keys and values are both functions of N). `total` is the running sum of values that
    shaped attention's mean needs.
    """

    capacity: int
    kind: str = "kv"
    length: int = 0
    kept: list[Tensor] = field(default_factory=list)
    total: Tensor | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {self.length} of {self.capacity} tokens, {self.bytes:,} bytes)"

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add tensors (rows, heads, n, width) to those kept; return everything so far, (rows, heads, t, width)."""
        n = new[0].shape[2]
        if self.length + n > self.capacity:
            raise InputError(f"this cache holds {self.capacity} tokens; {self.length + n} were given. Make it larger.")
        if not self.kept:
            self.kept = [x.new_empty(*x.shape[:2], self.capacity, x.shape[3]) for x in new]
        stop = self.length + n
        for store, x in zip(self.kept, new, strict=True):
            store[:, :, self.length : stop] = x
        self.length = stop
        return [store[:, :, :stop] for store in self.kept]

    def running_total(self, v: Tensor) -> Tensor:
        """Sum of the values up to and including each new token, (rows, heads, n, width)."""
        sums = v.cumsum(-2) if v.shape[-2] > 1 else v
        if self.total is not None:
            sums = sums + self.total
        self.total = sums[..., -1:, :]
        return sums

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, in this order (beam search reorders, finished sentences leave)."""
        for i, store in enumerate(self.kept):
            if len(rows) == len(store):
                store[:, :, : self.length] = store[:, :, : self.length].index_select(0, rows)
            else:
                self.kept[i] = store.index_select(0, rows)
        if self.total is not None:
            self.total = self.total.index_select(0, rows)

    @property
    def bytes(self) -> int:
        """Memory of what is kept."""
        return sum(t.numel() * t.element_size() for t in self.kept)


@dataclass
class Memory:
    """The encoder's output X (sentences, tokens, d) with its padding mask, as cross-attention sees it.

    During decoding each layer's keys and values are computed once per sentence and kept here; the beams of a sentence
    read the same copy.
    """

    X: Tensor
    mask: Tensor | None
    keys_values: dict[int, tuple[Tensor, Tensor]] | None = None

    def __repr__(self) -> str:
        masked = "" if self.mask is None else ", masked"
        return f"Memory(X {tuple(self.X.shape)} {self.X.dtype}{masked})"

    @property
    def visible(self) -> Tensor | None:
        return None if self.mask is None else (self.mask | ~self.mask.any(1, keepdim=True))[:, None, None, :]

    def select(self, sentences: Tensor) -> Memory:
        """The given sentences only."""
        kept = self.keys_values
        if kept is not None:
            kept = {i: (k.index_select(0, sentences), v.index_select(0, sentences)) for i, (k, v) in kept.items()}
        mask = None if self.mask is None else self.mask.index_select(0, sentences)
        return Memory(self.X.index_select(0, sentences), mask, kept)
