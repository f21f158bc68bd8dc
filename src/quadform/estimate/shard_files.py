"""Files of the shards of rows, `state-NAME-2-of-4.safetensors`, read by another number of processes than wrote them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.space import Space
from ..distributed.processes import group_of
from ..distributed.shards import Cut

_MARK = re.compile(r"-(\d+)-of-(\d+)$")


class ShardFiles:
    """What processes have saved of the rows of a space. `own` is the file of this process; `of_rows(name)` tells
    whether a tensor is rows, of which a file has its shard."""

    def __init__(self, space: Space, own: Path | None, of_rows: Callable[[str], bool]) -> None:
        self.space, self.own, self.of_rows = space, own, of_rows
        self.group: Any = group_of(space)
        self.pieces = 0  # how many files there are of what was saved
        if not self.group.cut or own is None:
            return
        self.number, self.mine = map(int, _found(own))
        if not self.group.any(not own.exists()):  # each may have a disk of its own
            self.pieces = self.mine
        elif getattr(self.group, "cuts", None):  # no stages
            self.pieces = int(self.group.text(str(max(filter(self._complete, self._known()), default=0))))

    @property
    def saved(self) -> Path | None:
        """The file whose header is that of all."""
        return self._file(self.number if self.pieces == self.mine else 1, self.pieces) if self.pieces else None

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The tensors, of rows what this process holds now."""
        from safetensors import safe_open

        if self.pieces == self.mine:
            own: Any = safe_open(self.own, framework="pt")
            return {name: own.get_tensor(name) for name in names}
        files: list[Any] = [safe_open(self._file(r + 1, self.pieces), framework="pt") for r in range(self.pieces)]
        return {name: self._again(files, name) if self.of_rows(name) else files[0].get_tensor(name) for name in names}

    def _again(self, files: list[Any], name: str) -> Tensor:
        """The rows of this process, from those of others that overlap with them."""
        parts, starts = [], [0] * self.pieces
        for weight in self.space.names:
            now = self.group.cuts[weight]
            then = Cut.of(now.shape, self.pieces, now.axis)
            begin = sum(now.lengths[: self.group.shards.own])
            end, found = begin + now.lengths[self.group.shards.own], []
            for r, f in enumerate(files):
                size, before = math.prod(then.piece(r)), sum(then.lengths[:r])
                first, last = max(begin, before), min(end, before + then.lengths[r])
                if first < last or not r:  # a first one, be it empty
                    old = f.get_slice(name)[:, starts[r] : starts[r] + size].unflatten(1, then.piece(r))
                    found.append(
                        old.narrow(now.axis + 1, min(first - before, max(0, last - before)), max(0, last - first))
                    )
                starts[r] += size
            parts.append(torch.cat(found, dim=now.axis + 1).flatten(1))
        return torch.cat(parts, dim=1)

    def forget_others(self) -> None:
        """Files of other numbers of processes are older than those that were just written."""
        for pieces in set(self._known()) - {self.mine}:
            for r in range(1, pieces + 1):
                self._file(r, pieces).unlink(missing_ok=True)

    # --- which there are --------------------------------------------------------------------------------------------
    def _file(self, r: int, pieces: int) -> Path:
        assert self.own is not None
        return self.own.with_name(f"{_MARK.sub(f'-{r}-of-{pieces}', self.own.stem)}.safetensors")

    def _known(self) -> Iterator[int]:
        """Numbers of files, of which the first is there."""
        assert self.own is not None
        for path in self.own.parent.glob(f"{_MARK.sub('', self.own.stem)}-1-of-*.safetensors"):
            yield int(_found(path)[1])

    def _complete(self, pieces: int) -> bool:
        return all(self._file(r + 1, pieces).exists() for r in range(pieces))


def _found(path: Path) -> tuple[str, str]:
    """Which file of how many."""
    found = _MARK.search(path.stem)
    assert found is not None
    return found[1], found[2]
