"""Who reads and who writes what in a `Transformer`: places with constants (`Site`), and residual streams (`Stream`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...nn.attention import Attention
from ...nn.block import Block
from ...nn.transformer import Transformer

LOGITS = "logits"


@dataclass(frozen=True)
class Reader:
    """A matrix `value` that reads a site, and what a constant c of its output adds elsewhere: `{place: c effect}`.

    `W` and `b` are the names of the matrix and its bias where they are measured; `factor` multiplies what is read.
    """

    W: str | None
    b: str | None
    value: Tensor
    effect: Mapping[str, Tensor]
    factor: float = 1.0


@dataclass(frozen=True)
class Site:
    """All that reads one norm, or, without a norm, one stream.

    `alone`: nothing but the readers sees the norm. Else the stream `skip` takes it too, times a factor. `written` are
    biases that add to a place: name, place, factor. `whole`: the readers are all there are.
    """

    name: str
    norm: str | None
    readers: tuple[Reader, ...]
    alone: bool = True
    skip: tuple[str, float] | None = None
    written: tuple[tuple[str, str, float], ...] = ()
    whole: bool = True

    @property
    def movable(self) -> bool:
        """Whether every matrix that reads is measured."""
        return self.whole and all(r.W is not None for r in self.readers)


@dataclass
class Stream:
    """A sum that branches write to and that norms alone read. `writers` are tensors whose rows are vectors of it."""

    name: str
    writers: list[str] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    open: bool = False  # something else reads or writes it
    tied: bool = False  # the output reads W_E too


class Wiring:
    """The sites and streams of a Transformer. `params` are the measured tensors, `lead` stands before their names."""

    def __init__(self, model: Transformer, params: Mapping[str, Tensor], lead: str = "") -> None:
        self.model, self.params, self.lead = model, params, lead
        config = model.config
        self.rotary, self.tied = config.positions == "rotary", config.tied and not config.classes
        self.sites: list[Site] = []
        self.streams: list[Stream] = []
        shared = config.source_vocab is None
        entry = self._entry("embed")
        entry.tied = self.tied
        if model.encoder_layers:
            source = entry if shared else self._entry("source_embed")
            end, norm = self._stack("encoder_layers", source, "encoder_norm")
            self._read_memory(end, norm)
        end, norm = self._stack("layers", entry, "final_norm")
        if model.transform is not None:
            W, b = self.named("transform", "W_T"), self.named("transform", "b_T")
            value = model.transform.W_T.detach() if W is None else self.params[W]
            self._site(end, Site(norm or "transform", norm, (Reader(W, b, value, _own("transform", value)),)))
            end, norm = Stream("transform", open=True), "transform.norm"
        self._site(end, Site(norm or "output", norm, (self._logits(),)))

    # --- names ------------------------------------------------------------------------------------------------------
    def named(self, path: str, *tensors: str) -> str | None:
        """The name of the first of these tensors that is measured."""
        names = [f"{self.lead}{path}.{t}" if path else f"{self.lead}{t}" for t in tensors]
        return next((name for name in names if name in self.params), None)

    def at(self, path: str) -> Any:
        return self.model.get_submodule(path) if path else self.model

    def layered(self, norm: str | None) -> bool:
        """Whether it is a layer norm, which takes the mean away."""
        return norm is not None and isinstance(self.at(norm), nn.LayerNorm)

    def unseen(self, place: str) -> bool:
        """Whether a constant times 1 is not seen there: logits, and streams that layer norms alone read."""
        if place == LOGITS:
            return True
        if not place.endswith(".stream"):
            return False
        block: Block = self.at(place.rsplit(".", 2)[0])
        blocks = [*self.model.layers, *self.model.encoder_layers]
        if block.spec.norm_at == "post":
            return block.spec.norm == "layer"
        ends = [n for n in (self.model.final_norm, self.model.encoder_norm) if n is not None]
        layered = all(isinstance(n, nn.LayerNorm) for n in ends) and bool(ends)
        return layered and all(b.spec.norm == "layer" for b in blocks)

    # --- stacks -----------------------------------------------------------------------------------------------------
    def _entry(self, path: str) -> Stream:
        names = [n for t in ("W_E", "W_pos") if (n := self.named(path, t)) is not None]
        fixed = self.model.config.positions in ("sinusoidal", "scaled-sinusoidal")
        open_ = fixed or self.at(path).norm is not None or self.named(path, "W_E") is None
        return self._stream(Stream(path, names, open=open_))

    def _stream(self, stream: Stream) -> Stream:
        self.streams.append(stream)
        return stream

    def _site(self, stream: Stream, site: Site) -> None:
        self.sites.append(site)
        stream.sites.append(site)
        stream.open |= not site.alone or not site.whole or site.norm is None

    def _stack(self, path: str, stream: Stream, after: str) -> tuple[Stream, str | None]:
        """The stream that leaves a stack, and the norm it is read through."""
        entry = stream.name
        held = f"{entry}.norm" if self.at(entry).norm is not None else None
        for i, block in enumerate(self.at(path)):
            assert isinstance(block, Block)
            here, spec = f"{path}.{i}", block.spec
            parts = [p for p in ("attn", "cross", "mlp") if getattr(block, p) is not None]
            groups = [parts] if spec.layout == "parallel" else [[p] for p in parts]
            for group in groups:
                norm = f"{here}.norm" if spec.layout == "parallel" else f"{here}.norm_{group[0]}"
                norm = "" if spec.norm == "none" else norm
                place = f"{here}.{group[0]}.stream"
                post = spec.norm_at == "post"
                read = (held if post else norm) or None
                factor = self._gain(block, group[0], "skip")
                skip = None if read == norm and norm else (place, factor)
                readers = tuple(r for p in group for r in self._read(here, p, place))
                written = tuple(w for p in group for w in self._written(block, here, p, place))
                whole = all(self._whole(block, p) for p in group)
                name = read or f"{here}.{group[0]}"
                self._site(stream, Site(name, read, readers, skip is None, skip, written, whole))
                if factor == 0:
                    stream = self._stream(Stream(place))
                if post:
                    stream, held = self._stream(Stream(norm, open=True)), norm
                for p in group:
                    self._write(stream, here, p, block)
        end = after if getattr(self.model, after) is not None else held
        return stream, end

    def _read_memory(self, end: Stream, norm: str | None) -> None:
        paths = [f"layers.{i}" for i in range(len(self.model.layers))]
        readers = [r for p in paths for r in self._attention(f"{p}.cross", "KV", f"{p}.cross.stream")]
        written = [w for p in paths for w in self._written(self.at(p), p, "cross", f"{p}.cross.stream")]
        self._site(end, Site(norm or "encoder", norm, tuple(readers), written=tuple(written)))

    def _write(self, stream: Stream, here: str, part: str, block: Block) -> None:
        tensors = ("W_2", "b_2") if part == "mlp" else ("W_O", "b_O")
        names = [n for t in tensors if (n := self.named(f"{here}.{part}", t)) is not None]
        projection = None if part == "mlp" else getattr(block, part).proj
        split = part != "mlp" and (projection is None or projection.split)
        stream.open |= split or not names
        stream.writers += names

    def _written(self, block: Block, here: str, part: str, place: str) -> Iterator[tuple[str, str, float]]:
        b = self.named(f"{here}.{part}", "b_2" if part == "mlp" else "b_O")
        if b is not None:
            yield b, place, self._gain(block, part, "branch")

    def _gain(self, block: Block, part: str, scalar: str) -> float:
        """The weight of a branch, or of what passes it by; a learned one at 0 is no 0 for good."""
        spec = getattr(block.spec, part)
        owner = "attn" if part == "mlp" and block.spec.tie_gains else part
        learned = getattr(block, f"{owner}_{scalar}", None)
        return float(getattr(spec, scalar)) if learned is None else float(learned) or 1e-300

    # --- readers ----------------------------------------------------------------------------------------------------
    def _whole(self, block: Block, part: str) -> bool:
        """Whether every matrix that reads the norm of a branch is measured as it stands."""
        if part == "mlp":
            return True
        attn: Attention = getattr(block, part)
        own = part == "cross" or (attn.value is not None and not attn.value.split)
        return own and attn.mixing.scores == "factored"

    def _read(self, here: str, part: str, place: str) -> Iterator[Reader]:
        if part != "mlp":
            yield from self._attention(f"{here}.{part}", "QKV" if part == "attn" else "Q", place)
            return
        path = f"{here}.mlp"
        W, value = self.named(path, "W_1"), self.at(path).W_1.detach()
        yield Reader(W, self.named(path, "b_1"), value if W is None else self.params[W], _own(path, value))

    def _attention(self, path: str, letters: str, stream: str) -> Iterator[Reader]:
        attn: Attention = self.at(path)
        softmax = attn.mixing.kind == "softmax"
        for x in letters:
            if not hasattr(attn, f"W_{x}") or (x == "V" and attn.value is not None and attn.value.split):
                continue
            W, b = self.named(path, f"W_{x}"), self.named(path, f"b_{x}")
            value = getattr(attn, f"W_{x}").detach() if W is None else self.params[W]
            effect = _own(f"{path}.{x}", value)
            if x == "K" and softmax and not self.rotary:
                effect = {}
            through = self._through(attn, path) if x == "V" and softmax and attn.plain else None
            if through is not None:
                effect = {
                    stream: through * self._gain(self.at(path.rsplit(".", 1)[0]), path.rsplit(".", 1)[1], "branch")
                }
            yield Reader(W, b, value, effect)

    def _through(self, attn: Attention, path: str) -> Tensor | None:
        """What a constant of all values is in the output: rows of attention sum to 1."""
        if attn.mixing.bias is not None or attn.proj is None or attn.proj.split:
            return None
        W_O = self.params.get(f"{self.lead}{path}.W_O", attn.W_O).detach()
        shared = attn.heads // attn.key_heads
        return W_O.reshape(attn.key_heads, shared, attn.width, -1).sum(1).flatten(0, 1)

    def _logits(self) -> Reader:
        model = self.model
        W = self.named("", "W_C", "W_U")
        own: Tensor = model.embed.W_E.mT if self.tied else model.W_C if model.config.classes else model.W_U
        value = own.detach() if W is None else self.params[W]
        scale = 1.0 if model.config.classes else model.config.logit_scale or 1.0
        return Reader(W, self.named("", "b_C", "b_U"), value, _own(LOGITS, value), scale)


def _own(place: str, value: Tensor) -> dict[str, Tensor]:
    return {place: torch.eye(value.shape[1], dtype=value.dtype, device=value.device)}
