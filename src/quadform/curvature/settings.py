"""Settings of models inside a measurement: attention and experts that can be differentiated twice, restored after."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

from ..kernels.calls import Attention, AttentionBy
from ..kernels.choice import second_order

#: Attention without its softmax in the registry of transformers, as `applications.why` enters it.
LINEAR_ATTENTION = "quadform-linear"
#: Ways of Hugging Face models that torch differentiates twice in both modes, and the one taken in place of others.
#: Grouped products of experts have no forward derivative and no float64.
_TWICE = {
    "_attn_implementation": ((None, "eager", "sdpa", "quadform", LINEAR_ATTENTION), "sdpa"),
    "_experts_implementation": ((None, "eager", "batched_mm"), "eager"),
}
#: Activations of Hugging Face models with a reverse rule of their own and no forward one; the same in plain torch.
_PLAIN = {"BloomGelu": "bloom_gelu_forward"}


@contextlib.contextmanager
def measured(
    model: Any,
    *,
    device: torch.device | None = None,
    train_mode: bool = False,
    attention: Attention = functional.scaled_dot_product_attention,
) -> Iterator[AttentionBy]:
    """A scope for evaluations that leaves a model as it was: evaluation mode unless `train_mode`, experts and attention
    that can be differentiated twice, the caller's autocast and random state left outside.

    `attention` answers torch's fused attention inside, in this thread; torch takes no fused step of whole layers, which
    would call no modules and no hooks. `device` is that of a model without parameters.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [(m, m.training) for m in modules]
    devices = {t.device for m in modules for t in m.parameters(recurse=False)} | ({device} if device else set())
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([d for d in devices if d.type == "cuda"]))
        for kind in {"cpu", *(d.type for d in devices if d.type != "meta")}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(stock_settings(model))
        stack.enter_context(without_checkpointing())
        stack.callback(second_order.reset, second_order.set(attention is not functional.scaled_dot_product_attention))
        try:
            if modules and not train_mode:
                model.eval()
            yield stack.enter_context(AttentionBy(attention))
        finally:
            for module, mode in modes:
                module.training = mode


@contextlib.contextmanager
def without_checkpointing() -> Iterator[None]:
    """`torch.utils.checkpoint` calls its function as it is: what it runs again backwards, outside of this scope, would
    take another attention."""

    def nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    class AsItIs:
        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            return function(*args)

    with contextlib.ExitStack() as stack:
        for name, instead in (("_checkpoint_without_reentrant_generator", nothing), ("CheckpointFunction", AsItIs)):
            if hasattr(checkpoint, name):
                stack.enter_context(_set(checkpoint, name, instead))
        yield


@contextlib.contextmanager
def stock_settings(model: Any) -> Iterator[None]:
    """Flash and flex attention go through torch's, which the scope around this can replace; experts one by one;
    activations in plain torch; no autocast that accelerate has put around the model's forward."""
    with contextlib.ExitStack() as stack:
        for module in model.modules() if isinstance(model, nn.Module) else ():
            if "_original_forward" in module.__dict__:
                stack.enter_context(_set(module, "forward", module._original_forward))
            plain = getattr(sys.modules[type(module).__module__], _PLAIN.get(type(module).__name__, ""), None)
            if plain is not None and "forward" not in module.__dict__:  # not yet, by a scope around this
                module.forward = plain
                stack.callback(module.__dict__.pop, "forward")
        for name, (twice, instead) in _TWICE.items():
            for config in _configs(model, name):
                if getattr(config, name) not in twice:
                    stack.enter_context(_set(config, name, instead))
        yield


@contextlib.contextmanager
def without_cache(model: Any) -> Iterator[None]:
    """Hugging Face models keep no keys for tokens to come, of which a loss has none, and are the same functions: with
    keys they take positions as they are, without they read from them where packed sequences begin."""
    with contextlib.ExitStack() as stack:
        for module in model.modules() if isinstance(model, nn.Module) else ():
            keeps = getattr(getattr(module, "config", None), "use_cache", None)
            if keeps is not None and hasattr(module, "main_input_name"):
                hook = partial(_asked_for_no_keys, keeps)
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for config in _configs(model, "use_cache"):
            stack.enter_context(_set(config, "use_cache", False))
        yield


def _asked_for_no_keys(keeps: bool, module: nn.Module, args: Any, options: dict[str, Any]) -> Any:
    """The arguments of a model with `use_cache` off and, where it would be on, a mask that says one sequence a row."""
    asked = options.get("use_cache")
    if not (keeps if asked is None else asked):
        return None
    changed = {**options, "use_cache": False} if asked else dict(options)
    given = next((t for t in (*args, *map(options.get, ("input_ids", "inputs_embeds"))) if t is not None), None)
    if options.get("position_ids") is not None and options.get("attention_mask") is None and given is not None:
        changed["attention_mask"] = torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
    return args, changed


@contextlib.contextmanager
def traceable_experts(model: Any) -> Iterator[bool]:
    """Experts with a copy of the weights for each token, the one way that no value decides; whether there are any."""
    name = "_experts_implementation"
    with contextlib.ExitStack() as stack:
        configs = [c for c in _configs(model, name) if getattr(c, name) == "eager"]
        for config in configs:
            stack.enter_context(_set(config, name, "batched_mm"))
        yield bool(configs)


def _configs(model: Any, name: str) -> list[Any]:
    """The configurations of Hugging Face modules that have a setting of this name."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    found = {id(c): c for m in modules if (c := getattr(m, "config", None)) is not None}
    return [c for c in found.values() if hasattr(c, name)]


@contextlib.contextmanager
def _set(config: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)
