"""Bytes that are alive: what tensors take at one time, counted on the processor and without numbers alike."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .several import Several


class Alive(TorchDispatchMode):
    """A scope in which the storages that operators make are counted until they are freed: `bytes` now, `peak` at most
    at one time, `largest` the largest one. What an operator takes while it runs is not seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.bytes = self.peak = self.largest = 0
        self._held: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Several in types:  # each of them is counted
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        before = {s._cdata for s in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in before and storage._cdata not in self._held:
                self._count(storage)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def freed(_: Any) -> None:
            del self._held[key]
            self.bytes -= size

        self._held[key] = weakref.ref(storage, freed)
        self.bytes += size
        self.peak, self.largest = max(self.peak, self.bytes), max(self.largest, size)


def _storages(values: Any) -> Iterator[torch.UntypedStorage]:
    for t in tree_leaves(values):
        if isinstance(t, Tensor) and t.layout is torch.strided:
            yield t.untyped_storage()
