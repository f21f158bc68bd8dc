"""Where the output F of a network is seen and shifted: where the model returns it.

    loss(theta) = l(F(theta)),   H_o = J^T (d2l/dF2) J,   H_f = <dl/dF, d2F>

Derivatives in F are those in a shift that is added to it. A model that gives its output to a loss outside is shifted
where it returns. Hugging Face models compute their loss inside: F is then their `logits`, shifted at the module that
makes them or, where they change after the last module (soft caps, scales), as the argument of the model's loss.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.progress import say
from .wide import passed, whole

Run = Callable[[Mapping[str, Tensor]], Any]


class Place(Protocol):
    """Where the output F of a model, at which its Hessian is split, passes by."""

    def watched(self, seen: list[Tensor], shift: Tensor | None) -> contextlib.AbstractContextManager[Any]:
        """A scope that appends F to `seen` whenever it passes, and adds `shift` to it."""


class AtModule:
    """What a module returns: a tensor, the first of several, or the `logits` of a mapping (what it has as `key`)."""

    def __init__(self, module: nn.Module, key: str = "logits") -> None:
        self.module, self.key = module, key

    @contextlib.contextmanager
    def watched(self, seen: list[Tensor], shift: Tensor | None) -> Iterator[None]:
        def look(module: nn.Module, args: Any, out: Any) -> Any:
            F = output_of(out, self.key)
            if F is None:
                return None
            seen.append(passed(F))
            return None if shift is None else _with_output(out, F + shift, self.key)

        handle = self.module.register_forward_hook(look)
        try:
            yield
        finally:
            handle.remove()


class AtLoss:
    """An argument of `owner.loss_function`, which Hugging Face models call on their logits."""

    def __init__(self, owner: nn.Module, argument: int | str) -> None:
        self.owner, self.argument = owner, argument

    @contextlib.contextmanager
    def watched(self, seen: list[Tensor], shift: Tensor | None) -> Iterator[None]:
        def given(args: list[Any], options: dict[str, Any]) -> None:
            held: Any = args if isinstance(self.argument, int) else options
            seen.append(passed(held[self.argument]))
            if shift is not None:
                held[self.argument] = held[self.argument] + shift

        with _loss_arguments(self.owner, given):
            yield


def find(model: nn.Module, run: Run, params: Mapping[str, Tensor]) -> Place:
    """Where the output of `model` passes when `run(params)` evaluates it and its own loss."""
    returned: list[Any] = []
    makers: list[tuple[nn.Module, Any, int]] = []
    arguments: list[tuple[nn.Module, int | str, Any]] = []

    def made(module: nn.Module, args: Any, out: Any) -> None:
        if module is model:
            returned.append(out)
        elif isinstance(out, Tensor):
            makers.append((module, weakref.ref(out), out._version))

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(made).remove)
            if isinstance(getattr(type(module), "loss_function", None), property):

                def given(args: list[Any], options: dict[str, Any], owner: nn.Module = module) -> None:
                    held: list[tuple[Any, Any]] = [*enumerate(args), *options.items()]
                    arguments.extend((owner, i, weakref.ref(t)) for i, t in held if isinstance(t, Tensor))

                stack.enter_context(_loss_arguments(module, given))
        run(params)
    F = output_of(returned[0]) if len(returned) == 1 else None
    if F is not None:
        for module, there, version in makers:
            if there() is F and F._version == version:  # not written over since
                return AtModule(module)
        for owner, argument, there in arguments:
            if there() is F:
                return AtLoss(owner, argument)
    head = head_of(model)
    if head is None:
        return AtModule(model)
    place = AtModule(head)
    if F is not None and not _same_up_to_a_constant(model, place, run, params):
        name = next(n for n, m in model.named_modules() if m is head)
        say(
            f"the model changes its logits after `{name}`, in a way that cannot be followed: H_o and H_f are split at"
            f" the output of `{name}`, not at the logits"
        )
    return place


def head_of(model: nn.Module) -> nn.Module | None:
    """The module that makes the logits of a Hugging Face model, as far as its names tell."""
    ask = getattr(model, "get_output_embeddings", None)
    head = ask() if callable(ask) else None
    if head is None and hasattr(model, "config"):  # heads that make no tokens
        head = next((m for n in ("classifier", "score", "qa_outputs") if (m := getattr(model, n, None))), None)
    return head


def output_of(out: Any, key: str = "logits") -> Tensor | None:
    """The one tensor that what a module returned stands for."""
    F = out.get(key) if isinstance(out, Mapping) else out[0] if isinstance(out, tuple) and out else out
    return F if isinstance(F, Tensor) else None


def _with_output(out: Any, F: Tensor, key: str) -> Any:
    if isinstance(out, Mapping):
        return type(out)(**{**out, key: F})
    return (F, *out[1:]) if isinstance(out, tuple) else F


def _same_up_to_a_constant(model: nn.Module, place: Place, run: Run, params: Mapping[str, Tensor]) -> bool:
    """Whether the logits that the model returns are those seen at `place` plus what no parameter moves."""
    shifts, size = [], 0.0
    for scale in (1.0, 1.25):
        here: list[Tensor] = []
        returned: list[Tensor] = []
        with place.watched(here, None), AtModule(model).watched(returned, None):
            run({n: scale * t for n, t in params.items()})
        if len(here) != 1 or here[0].shape != returned[0].shape:
            return False
        F = whole(here[0])
        shifts.append(whole(returned[0]) - F)
        size = float(F.abs().max())
    return float((shifts[0] - shifts[1]).abs().max()) <= 100 * torch.finfo(shifts[0].dtype).eps * size


@contextlib.contextmanager
def _loss_arguments(owner: nn.Module, given: Callable[[list[Any], dict[str, Any]], None]) -> Iterator[None]:
    """A scope in which `given` sees, and may change, the arguments of `owner.loss_function`."""
    before = owner.__dict__.get("_loss_function")
    function: Any = owner.loss_function

    def called(*args: Any, **options: Any) -> Any:
        args_, options_ = list(args), dict(options)
        given(args_, options_)
        return function(*args_, **options_)

    owner._loss_function = called  # type: ignore[assignment]  # of transformers
    try:
        yield
    finally:
        if before is None:
            del owner._loss_function
        else:
            owner._loss_function = before
