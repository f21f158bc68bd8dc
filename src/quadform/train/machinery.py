"""Small machinery of the loop: a compiled loss, plain data and where it differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quadform.core import progress as bars


def compiled(loss_of: Callable[..., Tensor], dynamic: bool) -> Callable[..., Tensor]:
    """The loss compiled: for one shape, or once for all shapes (`dynamic`; equal sizes are then not taken for one).

    Where this torch's compiler gives up, training goes on without it and says so.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch.fx.experimental import _config as shapes

    fast = torch.compile(loss_of, dynamic=True if dynamic else None)

    def call(*words: Any, **more: Any) -> Tensor:
        nonlocal fast
        try:
            with shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]  # torch adds it when loaded
                return fast(*words, **more)
        except TorchDynamoException as error:
            if fast is loss_of:
                raise
            bars.say(f"not compiled: torch {torch.__version__} gave up ({type(error).__name__}); going on without it")
            fast = loss_of
            return fast(*words, **more)

    return call


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """The places in which two pieces of plain data differ, by the deepest key that both have."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [k for k in {**before, **now} if before.get(k) != now.get(k)]
        return [d for k in keys for d in differences(before.get(k), now.get(k), f"{where}.{k}".strip("."))]
    return [where]


def plain(value: Any) -> Any:
    """As strict JSON gives it back: tuples are lists, numbers that are not finite are null."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
