"""The processes that share a measurement: how they begin, add up, agree, fail together and end.

Before numbers travel the processes *meet*: each says in one small message whether it is well, which step it is at and,
where that matters, what it was given; a few numbers travel in it. So a process that raises tells all others at their
next step, and they stop with its message; processes that have gone different ways are told so. Neither is left waiting
for the other. What dies without a word (a kill, a machine) is noticed by its closed connection, or after the `timeout`
of the group.

Meetings and small numbers go through gloo on the host, tensors through the backend of their device.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core import progress
from ..core.errors import CheckFailed, InputError, QuadformError
from ..core.interrupts import uninterrupted
from ..core.memory import free_bytes

if TYPE_CHECKING:
    from ..core.space import Space, Vector

#: Seconds after which a process that is not heard of counts as lost: compiling a product takes minutes.
TIMEOUT = 1800.0
#: Numbers of the message of a meeting: its head, and those it has room for.
_HEAD, _FEW = 4, 124
#: Bytes of the message of a process that fails.
_MESSAGE = 2048
#: Sums of a vector that differ by more than this share of its size belong to different vectors; one vector computed on
#: two kinds of processor differs by rounding.
_SAME_VECTOR = 1e-6
#: torch 2.13 has a new name for it.
_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
#: Exit code of an interrupted process.
_INTERRUPTED = 130


class PeerFailed(QuadformError):
    """Another process of the group failed, or was lost; `exit_code` is that of its error."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Group:
    """The processes of one measurement; use as a context. All of them make the same calls in the same order.

    `rank` of `world`, `here` of them on this machine; `first` is the process that prints and writes. With one process
    every method gives back what it was given, at no cost.
    """

    cut = False  # a vector here is a shard of one

    def __init__(self, rank: int = 0, world: int = 1, here: int = 1, timeout: float = TIMEOUT) -> None:
        self.rank, self.world, self.here, self.timeout = rank, world, here, timeout
        self._host: Any = None  # the gloo group of meetings
        self._owned = self._over = self._quiet = False

    def __repr__(self) -> str:
        return f"<process {self.rank} of {self.world}>"

    @property
    def first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    # --- beginning and ending ---------------------------------------------------------------------------------------
    def __enter__(self) -> Group:
        if self.world > 1:
            self._begin()
            self._quiet, progress.quiet = progress.quiet, progress.quiet or not self.first
        _entered.append(self)
        return self

    def _begin(self) -> None:
        if not dist.is_available():
            raise InputError(f"this build of torch has no torch.distributed; {self.world} processes were asked for.")
        wait = timedelta(seconds=self.timeout)
        if not dist.is_initialized():
            backend = "gloo"
            if torch.cuda.is_available() and dist.is_nccl_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count())
                backend = "cpu:gloo,cuda:nccl"
            try:
                dist.init_process_group(backend, timeout=wait)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"the {self.world} processes do not find each other: {_one_line(error)}. Start them with torchrun."
                ) from error
            self._owned = True
        self._host = dist.new_group(backend="gloo", timeout=wait)

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
            self._over = True
            if self._owned:
                dist.destroy_process_group()

    @contextlib.contextmanager
    def parting(self) -> Iterator[None]:
        """A process that fails in here leaves without a word: others wait where it cannot tell them, and torchrun ends
        them.
        """
        try:
            yield
        except BaseException:
            self._over = True
            raise

    # --- meeting ----------------------------------------------------------------------------------------------------
    def together(self, step: str, error: BaseException | None = None) -> bool:
        """Meet at a step, with an error or without: whether this process may go on to do something with the others.

        Without an error: true, or the error of another process is raised. With one: true where all processes come to
        this step with an error (of the same call, as a rule), false where the others have now been told of it.
        """
        if self.world == 1:
            return True
        if error is None:
            self._meet(step)
        elif self._over:
            return False
        else:
            with contextlib.suppress(PeerFailed), uninterrupted():  # its own error is on its way already
                failed, tags = self._tell(step, failed=True)[:, :2].T
                if bool(failed.all()) and bool((tags == tags[0]).all()):
                    return True
                self._over = True
                if not bool(failed.all()):
                    self._exchange(error)
            return False
        return True

    def _meet(self, step: str, numbers: Tensor | None = None, given: tuple[float, float] = (0.0, 0.0)) -> Tensor:
        """The numbers of all processes, a row each. `given`, a sum and a size, must be nearly the same everywhere."""
        if self._over:
            raise PeerFailed("the processes of this group have parted; begin a new group.")
        heard = self._tell(step, numbers=numbers, given=given)
        failed, tags, marks, sizes = heard[:, :_HEAD].T
        if bool(failed.any()):
            self._over = True
            raise self._exchange(None)
        if bool((tags != tags[0]).any()):
            self._over = True
            raise CheckFailed(
                f"the processes have gone different ways: process {self.rank} is at `{step}`, another one is not. All"
                " must make the same calls, with the same model, data, seed and settings."
            )
        if not float(marks.max() - marks.min()) <= _SAME_VECTOR * float(sizes.max()):
            raise InputError(
                "the vector that is multiplied differs between the processes. Give every process the same: draw it from"
                " a generator with one seed, or send it with `g.same(tensor)`."
            )
        return heard[:, _HEAD : _HEAD + (0 if numbers is None else len(numbers))]

    def _tell(
        self,
        step: str,
        *,
        failed: bool = False,
        numbers: Tensor | None = None,
        given: tuple[float, float] = (0.0, 0.0),
    ) -> Tensor:
        """What every process tells: failed or not, a checksum of the step, a sum and a size, and a few numbers."""
        own = torch.zeros(_HEAD + _FEW, dtype=torch.float64)
        own[:_HEAD] = torch.tensor([float(failed), float(zlib.crc32(step.encode())), *given], dtype=torch.float64)
        if numbers is not None:
            own[_HEAD : _HEAD + len(numbers)] = numbers
        every = own.new_empty(self.world * len(own))
        self._carry(_gather, every, own, group=self._host)
        return every.view(self.world, len(own))

    def _exchange(self, error: BaseException | None) -> BaseException:
        """Tell what went wrong here, or hear what went wrong elsewhere: the error of the first process that has one."""
        code, text = 0, ""
        if error is not None:
            code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
            text = str(error) if isinstance(error, QuadformError) else f"{type(error).__name__}: {_one_line(error)}"
        line = f"{code} {text}".encode()[:_MESSAGE]
        own = torch.zeros(_MESSAGE, dtype=torch.uint8)
        own[: len(line)] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        every = own.new_empty(self.world * _MESSAGE)
        self._carry(_gather, every, own, group=self._host)
        lines = [m.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for m in every.view(self.world, _MESSAGE)]
        rank = next(r for r, told in enumerate(lines) if not told.startswith("0 "))
        number, _, text = lines[rank].partition(" ")
        if int(number) == _INTERRUPTED:
            return KeyboardInterrupt()
        return PeerFailed(f"process {rank} of {self.world} stopped: {text}", int(number))

    def _carry(self, collective: Any, *tensors: Tensor, **options: Any) -> None:
        """One collective; a connection that is closed or silent is an error that says so."""
        options.setdefault("group", self._host if tensors[0].device.type == "cpu" else None)
        try:
            collective(*tensors, **options)
        except RuntimeError as error:
            self._over = True
            raise PeerFailed(
                f"process {self.rank} of {self.world} has lost the others ({_one_line(error)[:200]}): one of them was"
                f" killed, or not heard of for {self.timeout:g} s (`qd.group(timeout=...)` waits longer)."
            ) from error

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
    def slices(self) -> int:
        """How many slices make what a process has of a vector that is multiplied."""
        return self.world

    def drawn(self, name: str) -> str:
        """The stream that a random vector is drawn from: shards have their own."""
        return name

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
                self._carry(_gather, row, own)
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
    return x.is_floating_point() and x.numel() <= _FEW


def _numbers(x: Tensor) -> Tensor:
    return x.detach().reshape(-1).to("cpu", torch.float64)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


#: One process by itself.
ALONE = Group()

_entered: list[Group] = []


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


def current() -> Group:
    """The group of the innermost `with`, else one process alone."""
    return _entered[-1] if _entered else ALONE


def group_of(space: Space) -> Group:
    """The processes that share the work with vectors of this space."""
    return ALONE if space.group is None else space.group
