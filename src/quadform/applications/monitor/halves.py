"""Weights in bfloat16 or float16, measured as float32 numbers of the same value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

_HALVES = (torch.bfloat16, torch.float16)


def widened(tree: Any) -> Any:
    """Tensors of halves as float32; everything else as it is."""
    return tree_map(lambda t: t.float() if isinstance(t, Tensor) and t.dtype in _HALVES else t, tree)


@contextlib.contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """A scope in which parameters and buffers of halves are float32; after it they are the tensors they were.

    Every half is a float32 number, so nothing is rounded. It takes 4 bytes a parameter while it lasts.
    """
    held = {id(t): t for t in (*model.parameters(), *model.buffers()) if t.dtype in _HALVES}
    kept = [(t, t.data) for t in held.values()]
    try:
        for t, own in kept:
            t.data = own.float()
        yield
    finally:
        for t, own in kept:
            t.data = own
