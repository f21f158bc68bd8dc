"""Settings of models inside a measurement: attention and experts that can be differentiated twice, restored after."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: Attention without its softmax in the registry of transformers, as `applications.why` enters it.
LINEAR_ATTENTION = "quadform-linear"
#: Ways of Hugging Face models that torch differentiates twice in both modes, and the one taken in place of others.
#: Grouped products of experts have no forward derivative and no float64.
_TWICE = {
    "_attn_implementation": ((None, "eager", "sdpa", "quadform", LINEAR_ATTENTION), "sdpa"),
    "_experts_implementation": ((None, "eager", "batched_mm"), "eager"),
}


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """A scope for plain evaluations: eval mode, stock settings, the caller's autocast and random state left outside."""
    modes = [(m, m.training) for m in model.modules()]
    devices = {t.device for t in model.parameters()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([d for d in devices if d.type == "cuda"]))
        for kind in {"cpu", *(d.type for d in devices if d.type != "meta")}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(stock_settings(model))
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode


@contextlib.contextmanager
def stock_settings(model: nn.Module | None) -> Iterator[None]:
    """Flash and flex attention go through torch's, which the scope around this can replace; experts one by one."""
    with contextlib.ExitStack() as stack:
        for name, (twice, instead) in _TWICE.items():
            for config in _configs(model, name):
                if getattr(config, name) not in twice:
                    stack.enter_context(_set(config, name, instead))
        yield


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
def _set(config: Any, name: str, value: str) -> Iterator[None]:
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)


@contextlib.contextmanager
def watched_attention() -> Iterator[list[int]]:
    """A list that is not empty once torch's fused attention was called."""
    calls: list[int] = []
    F = nn.functional
    before = F.scaled_dot_product_attention

    def watched(*args: Any, **options: Any) -> Tensor:
        calls.append(1)
        return before(*args, **options)

    F.scaled_dot_product_attention = watched
    try:
        yield calls
    finally:
        F.scaled_dot_product_attention = before
