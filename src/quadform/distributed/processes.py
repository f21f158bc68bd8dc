"""The processes that share a measurement: how they begin, add up, agree and end. How they meet and fail: `meeting`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core import progress
from ..core.errors import QuadformError
from ..core.interrupts import uninterrupted
from ..core.memory import free_bytes
from .meeting import FEW, TIMEOUT, Meeting, PeerFailed, gather

if TYPE_CHECKING:
    from ..core.space import Space, Vector


class Group(Meeting):
    """The processes of one measurement; use as a context. All of them make the same calls in the same order.

    `rank` of `world`, `here` of them on this machine; `first` is the process that prints and writes. With one process
    every method gives back what it was given, at no cost.
    """

    cut = False  # a vector here is a shard of one

    def __enter__(self) -> Group:
        if self.world > 1:
            self._begin()
            self._quiet, progress.quiet = progress.quiet, progress.quiet or not self.first
        _entered.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.remove(self)
        if self.world == 1:
            return
        progress.quiet = self._quiet
        try:
            self.together("the end", error)
        finally:
            self._end()

    # --- adding and agreeing ----------------------------------------------------------------------------------------
    def sum(self, x: Tensor) -> Tensor:
        """The sum of `x` over the processes, the same bits in each; half precision is added in float32."""
        return self._sum(x) if self.world > 1 else x

    def _sum(self, x: Tensor, given: tuple[float, float] = (0.0, 0.0)) -> Tensor:
        step = f"sum {tuple(x.shape)} {x.dtype}"
        if _few(x):
            with uninterrupted():
                first, *others = self._meet(step, _numbers(x), given)
            for other in others:  # in one order everywhere
                first = first + other
            return first.view(x.shape).to(x)
        wide = torch.float32 if x.is_floating_point() and x.dtype.itemsize < 4 else x.dtype
        total = x.detach().to(wide, copy=True, memory_format=torch.contiguous_format)
        with uninterrupted():
            self._meet(step, given=given)
            self._carry(dist.all_reduce, total)
        return total.to(x.dtype)

    def over_data(self, x: Tensor) -> Tensor:
        """The sum of what comes from the data of each process."""
        return self.sum(x)

    def add(self, x: Tensor) -> Tensor:
        """The sum of `x` over the processes in its own place: nobody meets, and nothing waits for the device."""
        if self.world > 1:
            self._carry(dist.all_reduce, x)
        return x

    def total(self, parts: Mapping[str, Tensor], given: Vector) -> dict[str, Tensor]:
        """The sum of named tensors over the processes, in one message; `given` is the vector all were asked with."""
        if self.world == 1:
            return dict(parts)
        sums = [
            (t.sum(dtype=torch.float64), torch.linalg.vector_norm(t, 1, dtype=torch.float64)) for t in given.values()
        ]
        mark, size = torch.stack([torch.stack(pair) for pair in sums]).sum(0).tolist()
        flat = torch.cat([t.reshape(-1) for t in parts.values()])
        flat = self._sum(flat, (mark, size) if math.isfinite(size) else (0.0, 0.0))
        pieces = flat.split([t.numel() for t in parts.values()])
        return {name: piece.view(t.shape) for (name, t), piece in zip(parts.items(), pieces, strict=True)}

    def norm(self, slices: Tensor) -> float:
        """The Euclidean norm of a vector whose slices lie in the processes."""
        if self.world == 1:
            return float(slices.norm())
        return math.sqrt(float(self.sum(torch.linalg.vector_norm(slices, dtype=torch.float64).square())))

    def same(self, x: Tensor) -> Tensor:
        """`x` of the first process, in every process; the others give one of the same shape and type."""
        if self.world == 1:
            return x
        step = f"same {tuple(x.shape)} {x.dtype}"
        if _few(x):
            with uninterrupted():
                return self._meet(step, _numbers(x))[0].view(x.shape).to(x)
        x = x.detach().clone(memory_format=torch.contiguous_format)
        with uninterrupted():
            self._meet(step)
            self._carry(dist.broadcast, x, src=0)
        return x

    def every(self, numbers: Tensor) -> Tensor:
        """A few numbers of every process, a row each."""
        if self.world == 1:
            return numbers[None]
        with uninterrupted():
            return self._meet(f"every {len(numbers)}", _numbers(numbers))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.most(float(flag)) > 0

    def most(self, number: float) -> float:
        """The largest of the processes' numbers."""
        if self.world == 1:
            return number
        with uninterrupted():
            return float(self._meet("number", torch.tensor([number], dtype=torch.float64)).max())

    def least(self, number: float) -> float:
        """The smallest of the processes' numbers."""
        return -self.most(-number)

    def text(self, text: str) -> str:
        """The text of the first process, in every process."""
        if self.world == 1:
            return text
        bytes_ = bytearray(text.encode()) if self.first else bytearray()
        with uninterrupted():
            length = self._meet("text", torch.tensor([float(len(bytes_))], dtype=torch.float64)).max()
            told = torch.zeros(int(length), dtype=torch.uint8)
            if bytes_:
                told[:] = torch.frombuffer(bytes_, dtype=torch.uint8)
            self._carry(dist.broadcast, told, src=0)
        return told.numpy().tobytes().decode()

    def by_first(self, work: Callable[[], Any]) -> Any:
        """What `work()` gives in the first process (plain JSON), in every process; so with the errors of ours."""
        if self.world == 1:
            return work()
        told: dict[str, Any] = {}
        error: QuadformError | None = None
        if self.first:
            try:
                told = {"value": work()}
            except QuadformError as raised:
                error, told = raised, {"error": str(raised), "code": raised.exit_code}
        told = json.loads(self.text(json.dumps(told)))
        if error is not None:
            raise error
        if "error" in told:
            raise PeerFailed(told["error"], told["code"])
        return told["value"]

    # --- slices of vectors ------------------------------------------------------------------------------------------
    def slice(self, n: int) -> slice:
        """The coordinates of a vector of n that this process keeps: equal slices, the last ones shorter or empty."""
        each = self.longest(n)
        return slice(min(self.rank * each, n), min((self.rank + 1) * each, n))

    def size(self, n: int) -> int:
        """How many coordinates a vector has that is of length n here."""
        return n

    @property
    def mark(self) -> str:
        """What tells the files of this process from those of others that hold other shards."""
        return ""

    @property
    def writes(self) -> bool:
        """Whether this process writes its shards: of several that hold the same, one does."""
        return self.first

    @property
    def slices(self) -> int:
        """How many slices make what a process has of a vector that is multiplied."""
        return self.world

    def longest(self, n: int) -> int:
        """The length of the longest slice."""
        return -(-n // self.world)

    def whole(self, slices: Tensor, n: int) -> Tensor:
        """Rows of n entries from their slices, `(k, n / world) -> (k, n)`, in every process."""
        if self.world == 1:
            return slices
        k, each = len(slices), self.longest(n)
        out, own = slices.new_empty((k, self.world * each)), slices.new_zeros(each)
        with uninterrupted():
            self._meet(f"whole {k} {n} {slices.dtype}")
            for row, part in zip(out, slices, strict=True):
                own[: len(part)] = part
                self._carry(gather, row, own)
        return out[:, :n]

    def rows(self, slices: Tensor, n: int) -> Iterator[Tensor]:
        """Row after row, whole in every process: no more than one is there at a time."""
        for row in slices:
            yield self.whole(row[None], n)[0]

    # --- memory -----------------------------------------------------------------------------------------------------
    def free_here(self, device: torch.device) -> float:
        """Bytes this process may still allocate: a machine's memory is shared by its processes, a GPU is one's own."""
        return free_bytes(device) / (1 if device.type == "cuda" else self.here)

    def free_bytes(self, device: torch.device) -> float:
        """The least of what the processes may still allocate."""
        return self.least(self.free_here(device))


def _few(x: Tensor) -> bool:
    """Whether a tensor travels inside the message of a meeting."""
    return x.is_floating_point() and x.numel() <= FEW


def _numbers(x: Tensor) -> Tensor:
    return x.detach().reshape(-1).to("cpu", torch.float64)


ALONE = Group()
"""One process by itself: the group outside of torchrun."""

_entered: list[Group] = []
_standing: list[Group] = []


def group(timeout: float = TIMEOUT) -> Group:
    """The processes that torchrun started, or those of `torch.distributed` if it runs already; else one alone.

    `timeout` seconds without a word from a process count as its loss.
    """
    rank, world = 0, 1
    if dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    elif "RANK" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", 1))
    return Group(rank, world, min(int(os.environ.get("LOCAL_WORLD_SIZE", world)), world), timeout)


def standing() -> Group:
    """The group of all processes outside every `with`; it begins once and stays as long as torch's own."""
    if not _standing or _standing[0]._over or not _standing[0].alive:
        found = group()
        if found.world > 1:
            found._begin()
        _standing[:] = [found]
    return _standing[0]


def current() -> Group:
    """The group of the innermost `with`, else one process alone."""
    return _entered[-1] if _entered else ALONE


def group_of(space: Space) -> Group:
    """The processes that share the work with vectors of this space."""
    return ALONE if space.group is None else space.group


def holders(space: Space) -> Group:
    """The processes that hold a vector of this space together, a shard each; one alone where each has it whole."""
    found = group_of(space)
    return found if found.cut else ALONE
