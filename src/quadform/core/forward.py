"""Forward derivatives, by one thread at a time.

Torch counts the levels of forward differentiation for the whole process: while one thread leaves a level, the tangents
of another are gone, without an error (torch 2.13).
"""

from __future__ import annotations

import threading
from typing import Any

import torch

#: Held while a forward derivative is taken, and while a program is traced, which may take some.
alone = threading.RLock()


def jvp(function: Any, primals: Any, tangents: Any) -> Any:
    """`torch.func.jvp` that threads may call at the same time."""
    with alone:
        return torch.func.jvp(function, primals, tangents)
