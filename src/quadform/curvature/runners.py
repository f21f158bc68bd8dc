"""How one batch is evaluated: the loss, and the output of the module where a split is asked for."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from ..core.errors import InputError, closest
from ..core.space import Vector

Loss = Callable[[Any, Any], Tensor]


class Runner(ABC):
    """How one batch is evaluated, for modules and for functions."""

    @abstractmethod
    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(loss, output of the module `split`); `shift` is added to that output."""


class FunctionRunner(Runner):
    def __init__(self, function: Callable[..., Any], loss: Loss) -> None:
        self.function, self.loss = function, loss

    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if split is not None:
            raise InputError("a function model has no modules; its split is at its output (split=None).")
        F = self.function(params, batch)
        return self.loss(F if shift is None else F + shift, batch), F


def own_loss(model: nn.Module) -> Callable[..., Tensor] | None:
    """The method `model.loss`; None where it has none, or an attribute that is no method (`self.loss = F.mse_loss`)."""
    own = getattr(model, "loss", None)
    return own if inspect.ismethod(own) else None


class _Call(nn.Module):
    """A module whose forward is `loss of model on batch`, so that one functional call serves all kinds of model."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.own_loss = own_loss(model) if loss is None else None

    def forward(self, batch: Any) -> Tensor:
        if self.own_loss is not None:
            return self.own_loss(batch)
        if isinstance(batch, Mapping):
            out = self.model(**batch)
        else:
            out = self.model(batch[0] if isinstance(batch, tuple | list) else batch)
        if self.loss is not None:
            return self.loss(out, batch)
        value = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if value is None:
            raise InputError(
                "The model returned no loss. Pass `labels` in the batch or `loss=` (a function of output and batch);"
                " Hugging Face folders need a model with a head (GPT2LMHeadModel, not GPT2Model)."
            )
        return value


class ModuleRunner(Runner):
    """`fresh` gives every evaluation copies of the buffers: batch norm in training mode writes into them."""

    def __init__(self, model: nn.Module, loss: Loss | None, fresh: bool) -> None:
        self.call = _Call(model, loss)
        self.model, self.fresh = model, fresh

    def _module(self, split: str | None) -> nn.Module:
        if split is not None:
            modules = dict(self.model.named_modules())
            if split not in modules:
                near = ", ".join(closest(split, modules)) or ", ".join(list(modules)[1:4])
                raise InputError(f"{split!r} is no module of this model. Closest names: {near}")
            return modules[split]
        ask = getattr(self.model, "get_output_embeddings", None)
        head = ask() if callable(ask) else None
        if head is None and hasattr(self.model, "config"):  # Hugging Face heads that make no tokens
            head = next((m for n in ("classifier", "score", "qa_outputs") if (m := getattr(self.model, n, None))), None)
        return self.model if head is None else head

    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        seen: list[Tensor] = []

        def look(module: nn.Module, args: Any, out: Any) -> Any:
            F = out[0] if isinstance(out, tuple) else out
            if not isinstance(F, Tensor):
                return None
            seen.append(F)
            if shift is None:
                return None
            return (F + shift, *out[1:]) if isinstance(out, tuple) else F + shift

        handle = self._module(split).register_forward_hook(look)
        given = {f"model.{n}": t for n, t in params.items()}
        if self.fresh:
            given |= {f"model.{n}": t.clone() for n, t in self.model.named_buffers()}
        try:
            value = functional_call(self.call, given, (batch,))
        finally:
            handle.remove()
        return value, seen[0] if len(seen) == 1 else None
