"""What products share and keep between them: as many batches as fit the memory, never older than weights or data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ..core.memory import in_words
from ..core.progress import say

#: Share of the free memory that may be kept between products; the rest is for vectors and for the work of a product,
#: which takes about as much as is kept of one batch (15 GiB and 17 for GPT-2, 8 x 1,024 tokens).
MAY_KEEP = 0.6


class Kept:
    """Values by batch. `free()` is the free memory in bytes; it is told once when a batch does not fit. `again`: there
    is more than one product to come, else nothing is kept that had to be made."""

    def __init__(self, what: str, batches: int, free: Callable[[], float], again: bool = True) -> None:
        self.what, self.batches, self.free, self.again = what, batches, free, again
        self._held: dict[int, tuple[Any, Any, int]] = {}  # batch -> (versions, value, bytes)
        self._told = False

    def at(self, i: int, primal: Any, make: Callable[[], Any], size: int | None = None) -> Any:
        """The value of batch i; made anew when a tensor of `primal`, weights and data, was written to since.

        None where it is of a `size` that does not fit; what has to be made to know its size is given all the same.
        """
        state = [_version(t) for t in tree_flatten(primal)[0]]
        if i in self._held and self._held[i][0] == state:
            return self._held[i][1]
        self._held.pop(i, None)
        value: Any = make() if size is None else None
        if value is not None and not self.again and self.batches > 1:
            return value
        size = value.bytes if size is None else size
        held = sum(bytes for _, _, bytes in self._held.values())
        have = self.room() + (0 if value is None else size)
        if held + size <= min(MAY_KEEP * have, have - size):
            value = make() if value is None else value
            self._held[i] = (state, value, size)
        elif not self._told:
            self._told = True
            fit = f"{len(self)} of {self.batches} batches"
            say(f"{self.what}: {fit} fit the memory ({in_words(size)} each); others are recomputed for each product.")
        return value

    def room(self) -> float:
        """Memory that is free, or would be if nothing were kept."""
        return self.free() + sum(bytes for _, _, bytes in self._held.values())

    def clear(self) -> None:
        self._held.clear()

    def values(self) -> list[Any]:
        return [value for _, value, _ in self._held.values()]

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)


def _version(t: Any) -> Any:
    """Changes whenever a tensor is written to in place."""
    if not isinstance(t, Tensor):
        return t
    place = id(t.untyped_storage()) if t.layout is torch.strided else id(t)  # sparse ones have no storage
    return place, 0 if t.is_inference() else t._version
