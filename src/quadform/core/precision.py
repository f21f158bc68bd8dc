"""Numbers in their own precision: the caller's autocast is left outside, and no bfloat16 is multiplied on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def own_precision() -> Iterator[None]:
    """Autocast switched off on every device where the caller has it on; also as a decorator."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class NoHalvesOnCPU(TorchFunctionMode):
    """A scope in which a tensor on a CPU is copied where its bfloat16 is asked for, and keeps its precision.

    torch's Muon multiplies in bfloat16 for speed alone; on some CPUs such a product ends the process.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        asked = func is torch.Tensor.bfloat16 or (
            func is torch.Tensor.to and torch.bfloat16 in (*args[1:], *(kwargs or {}).values())
        )
        if asked and args[0].device.type == "cpu":
            return args[0].clone()
        return func(*args, **(kwargs or {}))
