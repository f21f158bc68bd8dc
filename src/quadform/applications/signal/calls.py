"""How a model is called on a batch, what its loss is, which of its tokens are real: ours, Hugging Face, any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError
from ...core.rng import stream
from ...curvature.calling import Loss, called, loss_on
from ...nn.transformer import Transformer
from .observe import Stack
from .profiler import Masks, Profiler

OF_LOSS = "gradient of the loss"
OF_DIRECTION = "no loss: gradient of a random direction after the last block"


class Calls:
    """How a model is called on a batch, what its loss is, and which of its tokens are real."""

    def __init__(self, model: nn.Module, loss: Loss | None, mask: Callable[[Any], Tensor] | None) -> None:
        self.model, self.given, self.mask = model, loss, mask
        self.gradient_of = OF_LOSS

    def __call__(self, batch: Any) -> Any:
        return called(self.model, batch)

    def look(self, batch: Any) -> None:
        """Run once, and see whether there is a loss."""
        if loss_on(self.model, batch, self.given) is None:
            self.gradient_of = OF_DIRECTION

    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        found = loss_on(self.model, batch, self.given)
        if found is None:
            raise InputError("The model returned a loss for the first batch and none for another one.")
        return found

    def backward(self, profiler: Profiler, batch: Any, stacks: tuple[Stack, ...], seed: int) -> None:
        """One pass with derivatives: of the loss, or of a random direction where there is none."""
        masks = self.masks(batch, stacks)
        if self.gradient_of == OF_LOSS:
            profiler.backward(self.model, lambda: self.loss(batch), masks)
        else:
            profiler.backward(self.model, lambda: self(batch), masks, generator=stream(seed, "direction"))

    def masks(self, batch: Any, stacks: tuple[Stack, ...]) -> Masks:
        """The real tokens of each stack, cut to the tokens it sees; None where nothing says."""

        def of(stack: int, X: Tensor) -> Tensor | None:
            found = self._mask(batch, stacks[stack].name)
            if found is None or found.ndim != 2 or found.shape[0] != X.shape[0] or found.shape[1] < X.shape[1]:
                return None
            return found[:, : X.shape[1]].to(X.device)

        return of

    def _mask(self, batch: Any, stack: str) -> Tensor | None:
        if self.mask is not None:
            return self.mask(batch).bool()
        if not isinstance(batch, Mapping):
            return None
        if isinstance(self.model, Transformer):
            config: Any = self.model.config
            pad, both = config.pad, config.kind == "encoder-decoder"
            name, ids = ("source_mask", "source") if stack.startswith("encoder_layers") else ("mask", "tokens")
            seen = batch["target"][:, 1:] if both and ids == "tokens" else batch[ids]  # an end token predicts nothing
            return batch.get(name, None if pad is None else seen != pad)
        both = bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))
        if both and "decoder" in stack.split("."):
            found = batch.get("decoder_attention_mask")
        else:
            found = batch.get("attention_mask", batch.get("mask"))
        hidden = batch.get("src_key_padding_mask")
        if found is None and isinstance(hidden, Tensor):
            return ~hidden.bool()
        return found.bool() if isinstance(found, Tensor) else None
