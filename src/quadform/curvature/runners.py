"""How one batch is evaluated: the loss, and the output of the module where a split is asked for."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.errors import InputError, closest
from ..core.space import Vector
from .calling import Loss, loss_on, own_loss
from .output import AtModule, Place, find, head_of
from .units import find as blocks_of
from .wide import Cut, NotCut, whole

T = TypeVar("T")


class Runner(ABC):
    """How one batch is evaluated, for modules and for functions; `ran`: it was, since somebody took that back."""

    ran = False

    @abstractmethod
    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(loss, output of the module `split`); `shift` is added to that output."""

    def cutting(self, work: Callable[[], T]) -> T:
        """What `work` gives without holding large logits, where that can be done."""
        return work()


class FunctionRunner(Runner):
    """Calls a function with its parameters: `function(params, batch)`."""

    def __init__(self, function: Callable[..., Any], loss: Loss) -> None:
        self.function, self.loss = function, loss

    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if split is not None:
            raise InputError("a function model has no modules; its split is at its output (split=None).")
        F = self.function(params, batch)
        self.ran = True
        return self.loss(F if shift is None else F + shift, batch), F


class _Call(nn.Module):
    """A module whose forward is `loss of model on batch`, so that one functional call serves all kinds of model."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        value = loss_on(self.model, batch, self.loss)
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
        self.blocks, self.cuts = list(blocks_of(model).values()), True
        self._output: Place | None = None  # of the network, once it was looked for

    def place(self, split: str | None, batch: Any) -> Place:
        """Where the output of the module `split`, None: of the network, passes."""
        if split is not None:
            modules = dict(self.model.named_modules())
            if split not in modules:
                near = ", ".join(closest(split, modules)) or ", ".join(list(modules)[1:4])
                raise InputError(f"{split!r} is not a module of this model. Closest names: {near}")
            return AtModule(modules[split])
        if self._output is None:
            self._output = self._find(batch)
        return self._output

    def _find(self, batch: Any) -> Place:
        if self.call.loss is None and own_loss(self.model) is not None:
            return AtModule(head_of(self.model) or self.model)

        def run(params: Mapping[str, Tensor]) -> Any:
            with torch.no_grad():
                return self._call(params, batch)

        params = {n: p.detach() for n, p in self.model.named_parameters() if p.is_floating_point()}
        if self.call.loss is None:
            return self.cutting(lambda: find(self.model, run, params))
        places = AtModule(self.model), AtModule(self.model, "last_hidden_state")
        read = (place for place in places if self._read_by_the_loss(place, lambda: self.cutting(lambda: run(params))))
        return next(read, AtModule(head_of(self.model) or self.model))

    @staticmethod
    def _read_by_the_loss(place: AtModule, run: Callable[[], Tensor]) -> bool:
        """Whether one tensor passes; of a mapping's other tensors also whether the loss moves with it."""
        seen: list[Tensor] = []
        with place.watched(seen, None):
            value = run()
        if not seen or place.key == "logits":
            return bool(seen)
        F = whole(seen[0])
        shift = torch.linspace(-1, 1, F.numel(), dtype=F.dtype, device=F.device).view_as(F)
        with place.watched([], shift):
            return not torch.equal(run(), value)

    def run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if torch.is_grad_enabled():
            return self._run(params, batch, split, shift)
        return self.cutting(lambda: self._run(params, batch, split, shift))

    def cutting(self, work: Callable[[], T]) -> T:
        if self.blocks and self.cuts:
            with contextlib.suppress(NotCut), Cut(self.blocks):
                return work()
            self.cuts = False
        return work()

    def _run(self, params: Vector, batch: Any, split: str | None, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
        seen: list[Tensor] = []
        with self.place(split, batch).watched(seen, shift):
            value = self._call(params, batch)
        return value, seen[0] if len(seen) == 1 else None

    def _call(self, params: Mapping[str, Tensor], batch: Any) -> Tensor:
        given = {f"model.{n}": t for n, t in params.items()}
        if self.fresh:
            given |= {f"model.{n}": t.clone() for n, t in self.model.named_buffers()}
        value: Tensor = functional_call(self.call, given, (batch,))
        self.ran = True
        return value
