"""Transformer: encoder, decoder or encoder-decoder of any block design, its losses, and its files.

Token ids in, logits out; masks are boolean, True for a real token, padding on either side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadform.core.errors import FileError, InputError, pass_on_memory
from quadform.core.packed import PACKED, from_bytes
from quadform.core.record import strict_json, write_atomically
from quadform.core.spec import BlockSpec, ModelConfig, design

from .attend import linear
from .attention import Attention
from .block import Block, activate, make_norm
from .frame import Frame, LayerCache, Memory
from .init import initialise
from .relative import RelativePositions

_FORMAT, _SCHEMA = "quadform-model", 1
IGNORE = -100
"""Label of a position that carries no loss."""


class Embedding(nn.Module):
    """embed_scale W_E[token] + position, then an optional norm. W_E (vocab, d), W_pos (seq_len, d)."""

    def __init__(self, config: ModelConfig, vocab: int, **options: Any) -> None:
        super().__init__()
        d = config.d_model
        self.vocab, self.seq_len, self.scale, self.dropout = vocab, config.seq_len, config.embed_scale, config.dropout
        self.positions = config.positions
        self.W_E = nn.Parameter(torch.empty(vocab, d, **options))
        if config.positions == "learned":
            self.W_pos = nn.Parameter(torch.empty(config.seq_len, d, **options))
        if config.positions == "scaled-sinusoidal":
            self.pos_scale = nn.Parameter(torch.empty((), **options))
        self.norm = make_norm(config.embed_norm, d, config.eps, **options)

    def extra_repr(self) -> str:
        return f"vocab={self.vocab}, d={self.W_E.shape[1]}, positions={self.positions}"

    def forward(self, tokens: Tensor, frame: Frame) -> Tensor:
        try:
            X = F.embedding(tokens, self.W_E)
        except IndexError as error:
            worst = int(tokens.max()) if int(tokens.min()) >= 0 else int(tokens.min())
            raise InputError(
                f"token {worst} is not in this vocabulary of {self.vocab} (0 to {self.vocab - 1})."
            ) from error
        X = X if self.scale == 1 else self.scale * X
        if self.positions == "learned":
            if frame.start + frame.tokens > self.seq_len:
                raise InputError(
                    f"{frame.start + frame.tokens} tokens, but this model has learned {self.seq_len} positions "
                    f"(seq_len). Shorten the input, or use sinusoidal or rotary positions."
                )
            X = X + F.embedding(frame.positions, self.W_pos)
        elif self.positions in ("sinusoidal", "scaled-sinusoidal"):
            wave = sinusoid(frame.positions, X.shape[-1]).to(X.dtype)
            X = X + (self.pos_scale * wave if self.positions == "scaled-sinusoidal" else wave)
        X = X if self.norm is None else self.norm(X)
        return F.dropout(X, self.dropout, self.training) if self.dropout else X


class Transform(nn.Module):
    """LayerNorm(act(X W_T + b_T)), W_T (d, d): what BERT puts in front of its token output."""

    def __init__(self, activation: str, d: int, eps: float, **options: Any) -> None:
        super().__init__()
        self.activation = activation
        self.W_T = nn.Parameter(torch.empty(d, d, **options))
        self.b_T = nn.Parameter(torch.empty(d, **options))
        self.norm = nn.LayerNorm(d, eps=eps, **options)

    def forward(self, X: Tensor) -> Tensor:
        return self.norm(activate(linear(X, self.W_T, self.b_T), self.activation))


def angles(positions: Tensor, d: int, base: float = 10_000.0) -> Tensor:
    """p / base^{2i/d} for i = 0, ..., ceil(d/2) - 1: (..., ceil(d/2)), in double precision."""
    rates = base ** (-2 * torch.arange((d + 1) // 2, dtype=torch.float64, device=positions.device) / d)
    return positions[..., None] * rates


def sinusoid(positions: Tensor, d: int) -> Tensor:
    """PE[p, 2i] = sin(p / 10000^{2i/d}), PE[p, 2i+1] = cos(same): (..., d). Source: [VSP17, Sec. 3.5]."""
    turns = angles(positions, d)
    return torch.stack((turns.sin(), turns.cos()), dim=-1).flatten(-2)[..., :d]


def _described(config: ModelConfig | BlockSpec | str | None, description: dict[str, Any]) -> ModelConfig:
    """The config itself, or that of a design with its settings."""
    if not isinstance(config, ModelConfig):
        name: Any = config or description.pop("design", "pre-ln")
        return design(name, **description)
    if description:
        raise InputError(f"give a config or a design with its settings, not both; got {', '.join(description)} too.")
    return config


class Transformer(nn.Module):
    """A model of one `ModelConfig`.

    `layers` is the main stack, `encoder_layers` the encoder of an encoder-decoder.
    Parameter names: `layers.3.attn.W_Q`, `layers.3.mlp.W_1`, `embed.W_E`, ...

    Args:
        config: A `ModelConfig`; or a design by name or as a `BlockSpec`, from which it is built.
        seed: Of the initial weights.
        dtype, device: Of the weights.
        description: With a design: `depth`, `d_model`, `heads`, `vocab`, and all other fields of `ModelConfig`.

    >>> model = qf.Transformer("pre-ln", depth=2, d_model=8, heads=2, vocab=16)
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 16])
    """

    def __init__(
        self,
        config: ModelConfig | BlockSpec | str | None = None,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **description: Any,
    ) -> None:
        super().__init__()
        spec = self.config = _described(config, description)
        options: dict[str, Any] = {"dtype": dtype or torch.get_default_dtype(), "device": device}
        d = spec.d_model
        self.embed = Embedding(spec, spec.vocab, **options)
        if spec.source_vocab is not None:
            self.source_embed = Embedding(spec, spec.source_vocab, **options)

        def stack(blocks: tuple[BlockSpec, ...]) -> nn.ModuleList:
            return nn.ModuleList(Block(spec, b, i, len(blocks), **options) for i, b in enumerate(blocks))

        self.encoder_layers = stack(spec.encoder_blocks)
        self.layers = stack(spec.blocks)
        both = spec.kind == "encoder-decoder"
        self.encoder_norm = make_norm(spec.final_norm, d, spec.eps, **options) if both else None
        self.relative: RelativePositions | None = None
        self.encoder_relative: RelativePositions | None = None
        if spec.positions == "relative":
            self.relative = RelativePositions(spec, **options)
            self.encoder_relative = RelativePositions(spec, **options) if both else None
        self.final_norm = make_norm(spec.final_norm, d, spec.eps, **options)
        self.transform = Transform(spec.transform, d, spec.eps, **options) if spec.transform else None
        if spec.classes:
            self.W_C = nn.Parameter(torch.empty(d, spec.classes, **options))
            self.b_C = nn.Parameter(torch.empty(spec.classes, **options))
        elif not spec.tied:
            self.W_U = nn.Parameter(torch.empty(d, spec.vocab, **options))
        if "out" in spec.biases and not spec.classes:
            self.b_U = nn.Parameter(torch.empty(spec.vocab, **options))
        if self.embed.W_E.device.type != "meta":
            initialise(self, spec, seed)

    @property
    def summary(self) -> str:
        """In words: `pre-ln decoder, 2 blocks, d 128, 4 heads, 411,648 parameters`."""
        return f"{self.config.summary}, {sum(p.numel() for p in self.parameters()):,} parameters"

    def extra_repr(self) -> str:
        return self.summary

    # ---------------------------------------------------------------------------------------------------- passes
    @property
    def attend(self) -> Callable[..., Tensor]:
        """The attention kernel all layers use; assign `quadform.kernels.attention` to differentiate twice."""
        first: Any = self.layers[0]
        return first.attn.attend

    @attend.setter
    def attend(self, kernel: Callable[..., Tensor]) -> None:
        for module in self.modules():
            if isinstance(module, Attention):
                module.attend = kernel

    def _frame(self, tokens: Tensor, mask: Tensor | None, causal: bool, start: int = 0) -> Frame:
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise InputError(
                f"tokens are whole numbers of shape (batch, n); got {tuple(tokens.shape)}, {tokens.dtype}."
            )
        if mask is not None and mask.shape != tokens.shape:
            raise InputError(f"mask {tuple(mask.shape)} and tokens {tuple(tokens.shape)} differ in shape.")
        return self.placed(Frame.of(tokens.shape[1], mask, causal, tokens.device, start))

    def placed(self, frame: Frame) -> Frame:
        """The frame with the rotations of its positions, or the biases of its distances, where the model has them."""
        if self.config.positions == "rotary":
            base, kind = self.config.rotary_base or 10_000.0, self.embed.W_E.dtype
            turns = angles(frame.positions, self.config.head_width, base)
            turns = turns if turns.ndim == 2 else turns[:, None]
            frame.rotary = turns.cos().to(kind), turns.sin().to(kind)
        source = self.config.kind == "encoder-decoder" and not frame.causal
        table = self.encoder_relative if source else self.relative
        frame.bias = None if table is None else table(frame)
        return frame

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        """The encoder's output for source tokens (batch, m); a missing mask is `source != pad` where there is a pad."""
        if self.config.kind != "encoder-decoder":
            raise InputError(f"a {self.config.kind} has no source side; use kind = encoder-decoder.")
        if source_mask is None and self.config.pad is not None:
            source_mask = source != self.config.pad
        frame = self._frame(source, source_mask, causal=False)
        embed = self.embed if self.config.source_vocab is None else self.source_embed
        X = embed(source, frame)
        for layer in self.encoder_layers:
            X = layer(X, frame)
        return Memory(X if self.encoder_norm is None else self.encoder_norm(X), source_mask)

    def streams(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        cache: Sequence[LayerCache] | None = None,
        frame: Frame | None = None,
    ) -> list[Tensor]:
        """The stream X_0 (embedding), X_1, ..., X_L after each block, each (batch, n, d); no final norm."""
        if frame is None:
            frame = self._frame(tokens, mask, self.config.kind != "encoder", cache[0].length if cache else 0)
        stream = [self.embed(tokens, frame)]
        for i, layer in enumerate(self.layers):
            stream.append(layer(stream[-1], frame, memory, cache[i] if cache else None))
        return stream

    def hidden(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        cache: Sequence[LayerCache] | None = None,
        frame: Frame | None = None,
    ) -> Tensor:
        """What the output layer reads: the last stream after the final norm, (batch, n, d)."""
        X = self.streams(tokens, mask, memory, cache, frame)[-1]
        return X if self.final_norm is None else self.final_norm(X)

    def logits(self, X: Tensor) -> Tensor:
        """Scores over the vocabulary of hidden states X (..., d): X W_E^T when tied, else X W_U; `transform` first.

        Times `logit_scale`.
        """
        X = X if self.transform is None else self.transform(X)
        X = X if self.config.logit_scale is None else self.config.logit_scale * X
        W = self.embed.W_E.mT if self.config.tied else self.W_U
        return linear(X, W, getattr(self, "b_U", None))

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (batch, n, vocab), or (batch, classes) of a classifier.

        For an encoder-decoder `tokens` is the target side and `source` the other. A missing mask means no padding for
        a decoder or the target side (padding on the right changes nothing there), `tokens != pad` for an encoder.
        """
        memory = None
        if self.config.kind == "encoder-decoder":
            if source is None:
                raise InputError("an encoder-decoder reads `source` tokens too; got none.")
            memory = self.encode(source, source_mask)
        pooled = self.config.kind == "encoder" or self.config.classes
        if mask is None and pooled and self.config.pad is not None:
            mask = tokens != self.config.pad
        X = self.hidden(tokens, mask, memory)
        if not self.config.classes:
            return self.logits(X)
        weight = torch.ones_like(X[..., :1]) if mask is None else mask[..., None].to(X.dtype)
        return linear((X * weight).sum(1) / weight.sum(1).clamp_min(1), self.W_C, self.b_C)

    def forward_batch(self, batch: Mapping[str, Tensor]) -> Tensor:
        """`forward` on a batch of `loss`: all its tokens, or the target without its end."""
        tokens = batch["target"][:, :-1] if self.config.kind == "encoder-decoder" else batch["tokens"]
        return self(tokens, batch.get("mask"), **{k: batch[k] for k in ("source", "source_mask") if k in batch})

    def loss(self, batch: Mapping[str, Tensor], *, smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
        """Cross-entropy of a batch, a mapping with

        decoder          `tokens` (batch, n): each token predicts the next
        encoder          `tokens`, `labels` (batch, n): the labels, IGNORE where there is none (masked tokens)
        encoder-decoder  `source` (batch, m), `target` (batch, n): target begins with bos, each token predicts the next
        classifier       `tokens`, `labels` (batch,)

        and optionally `mask` (of `tokens`, or of target[:, :-1]), `source_mask`, `labels`. Padding (`config.pad`)
        carries no loss. `reduction` is "mean", "sum", or "none" (one number for each position).
        """
        if self.config.kind == "encoder-decoder":
            tokens, labels = batch["target"][:, :-1], batch.get("labels", batch["target"][:, 1:])
            out = self(tokens, batch.get("mask"), source=batch["source"], source_mask=batch.get("source_mask"))
        elif self.config.kind == "decoder" and "labels" not in batch and not self.config.classes:
            labels, mask = batch["tokens"][:, 1:], batch.get("mask")
            out = self(batch["tokens"][:, :-1], None if mask is None else mask[:, :-1])
            if mask is not None:
                labels = labels.masked_fill(~(mask[:, :-1] & mask[:, 1:]), IGNORE)
        elif "labels" in batch:
            labels, out = batch["labels"], self(batch["tokens"], batch.get("mask"))
        else:
            raise InputError(
                f"the loss of this {self.config.kind} needs `labels` in the batch; got {', '.join(batch)}."
            )
        if self.config.pad is not None and not self.config.classes:
            labels = labels.masked_fill(labels == self.config.pad, IGNORE)
        flat = out.flatten(0, -2), labels.flatten()
        lost = F.cross_entropy(*flat, ignore_index=IGNORE, label_smoothing=smoothing, reduction=reduction)
        return lost.view(labels.shape) if reduction == "none" else lost

    def caches(self, capacity: int, kind: str = "kv") -> list[LayerCache]:
        """Empty caches for decoding, one a layer; "x" takes the X-cache in layers that allow it (no W_V, no rotary)."""

        def of(block: BlockSpec) -> str:
            return "x" if kind == "x" and block.value is None and self.config.positions != "rotary" else "kv"

        return [LayerCache(capacity, of(b)) for b in self.config.blocks]

    # ----------------------------------------------------------------------------------------------------- files
    def save(self, folder: str | Path, packed: bytes | None = None) -> Path:
        """Write weights (safetensors) and description (JSON) to `folder`; a crash leaves the last model readable.

        `packed` is the file of the quantized weights (`core.packed`) and is written in place of them.
        """
        from safetensors.torch import save

        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write a model to {folder}: {error.strerror}. Choose another folder.") from error
        blob = packed or save({name: t.detach().cpu().contiguous() for name, t in self.state_dict().items()})
        digest = hashlib.sha256(blob).hexdigest()
        weights = PACKED if packed else f"weights-{digest[:12]}.safetensors"
        write_atomically(folder / weights, blob)
        body = {"format": _FORMAT, "schema": _SCHEMA, "config": self.config.to_dict()}
        body["weights"] = {"file": weights, "sha256": digest}
        write_atomically(folder / "model.json", strict_json(body).encode())
        for old in folder.glob("weights-*.safetensors"):
            if old.name != weights:
                old.unlink(missing_ok=True)
        return folder

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | str | None = None) -> Transformer:
        """The model saved in `folder`; a damaged, foreign or newer one is an error that says so."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = Path(folder) / "model.json"
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body.get("format") != _FORMAT or not isinstance(body.get("schema"), int):
                raise FileError(f"{path} does not describe a quadform model.")
            if body["schema"] > _SCHEMA:
                raise FileError(f"{path} was written by a newer quadform (schema {body['schema']}). Upgrade.")
            name = str(body["weights"]["file"])
            if Path(name).name != name:
                raise FileError(f"{path} names weights outside its folder ({name!r}); they were not read.")
            blob = (path.parent / name).read_bytes()
            if hashlib.sha256(blob).hexdigest() != body["weights"]["sha256"]:
                raise FileError(f"{path.parent / name} is damaged or truncated (its checksum differs).")
            state = from_bytes(blob, name) if name == PACKED else load(blob)
            model = cls(ModelConfig.from_dict(body["config"]), device="meta", dtype=next(iter(state.values())).dtype)
            model.to_empty(device=device or "cpu")
            model.load_state_dict(state)
        except FileNotFoundError as error:
            raise FileError(f"there is no model at {folder} ({Path(error.filename).name} is missing).") from error
        except FileError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            pass_on_memory(error)
            raise FileError(f"{path} is not a complete quadform model ({error}). Save it again.") from error
        return model
