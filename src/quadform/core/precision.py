"""Numbers in their own precision: the caller's autocast is left outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def own_precision() -> Iterator[None]:
    """Autocast switched off on every device where the caller has it on; also as a decorator."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
