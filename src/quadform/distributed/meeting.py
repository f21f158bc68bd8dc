"""Meeting: what several processes say to each other before numbers travel, and how they fail together.

Each process says in one small message whether it is well, which step it is at and, where that matters, what it was
given; a few numbers travel in it. So a process that raises tells all others at their next step, and they stop with its
message; processes that have gone different ways are told so. Neither is left waiting for the other. What dies without a
word (a kill, a machine) is noticed by its closed connection, or after the `timeout` of the group.

Meetings and small numbers go through gloo on the host, tensors through the backend of their device.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.errors import CheckFailed, InputError, QuadformError, pass_on_memory
from ..core.interrupts import uninterrupted

T = TypeVar("T")

#: Seconds after which a process that is not heard of counts as lost: compiling a product takes minutes.
TIMEOUT = 1800.0
#: Numbers of the message of a meeting: its head, and those it has room for.
_HEAD, FEW = 4, 124
#: Bytes of the message of a process that fails.
_MESSAGE = 2048
#: Sums of a vector that differ by more than this share of its size belong to different vectors; one vector computed on
#: two kinds of processor differs by rounding.
_SAME_VECTOR = 1e-6
#: torch 2.13 has a new name for it.
gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
#: torch 2.13 has a new name for it too.
scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor", None)
#: Exit code of an interrupted process.
_INTERRUPTED = 130
#: How long a message is waited for before this process looks whether another one has rung.
_LOOK = timedelta(milliseconds=200)
#: Where processes that fail come together with those that wait for their part of a message.
_BELL = "the bell"


class PeerFailed(QuadformError):
    """Another process of the group failed, or was lost; `exit_code` is that of its error."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Meeting:
    """The messages of a group of processes: `rank` of `world`."""

    def __init__(self, rank: int = 0, world: int = 1, here: int = 1, timeout: float = TIMEOUT) -> None:
        self.rank, self.world, self.here, self.timeout = rank, world, here, timeout
        self._host: Any = None  # the gloo group of meetings
        self._torch: Any = None  # all processes, as torch has them
        self._owned = self._over = self._quiet = False
        self._rung = 0  # how often all have failed together

    def __repr__(self) -> str:
        return f"<process {self.rank} of {self.world}>"

    @property
    def first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

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
        self._host, self._torch = dist.new_group(backend="gloo", timeout=wait), dist.group.WORLD

    @property
    def alive(self) -> bool:
        """Whether the processes of torch that it began with are there still."""
        return self.world == 1 or (dist.is_initialized() and self._torch is dist.group.WORLD)

    def _end(self) -> None:
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
            raise PeerFailed("an earlier error has stopped this group of processes; start a new group.")
        heard = self._tell(step, numbers=numbers, given=given)
        failed, tags, marks, sizes = heard[:, :_HEAD].T
        if bool(failed.any()):
            self._over = True
            raise self._exchange(None)
        if bool((tags != tags[0]).any()):
            self._over = True
            raise CheckFailed(
                f"the processes are out of step: process {self.rank} is at `{step}`, another one is not. All"
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
        own = torch.zeros(_HEAD + FEW, dtype=torch.float64)
        own[:_HEAD] = torch.tensor([float(failed), float(zlib.crc32(step.encode())), *given], dtype=torch.float64)
        if numbers is not None:
            own[_HEAD : _HEAD + len(numbers)] = numbers
        every = own.new_empty(self.world * len(own))
        self._carry(gather, every, own, group=self._host)
        return every.view(self.world, len(own))

    def _exchange(self, error: BaseException | None) -> BaseException:
        """Tell what went wrong here, or hear what went wrong elsewhere: the error of the first process that has one."""
        code, text = 0, ""
        if error is not None:
            code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
            text = str(error) if isinstance(error, QuadformError) else _named(error)
        line = f"{code} {text}".encode()[:_MESSAGE]
        own = torch.zeros(_MESSAGE, dtype=torch.uint8)
        own[: len(line)] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        every = own.new_empty(self.world * _MESSAGE)
        self._carry(gather, every, own, group=self._host)
        lines = [m.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for m in every.view(self.world, _MESSAGE)]
        rank = next(r for r, told in enumerate(lines) if not told.startswith("0 "))
        number, _, text = lines[rank].partition(" ")
        if int(number) == _INTERRUPTED:
            return KeyboardInterrupt()
        return PeerFailed(f"process {rank} of {self.world} stopped: {text}", int(number))

    # --- failing where others wait for numbers ----------------------------------------------------------------------
    def agreed(self, step: str, work: Callable[[], T]) -> T:
        """What `work` gives, once it has not failed in any process; it does nothing together with others."""
        try:
            found = work()
        except BaseException as error:
            self.together(step, error)
            raise
        self.together(step)
        return found

    @contextlib.contextmanager
    def ringing(self) -> Iterator[None]:
        """Messages without meetings. A process that fails in here rings; the others hear it while they wait for it.

        Errors of torch (no memory, no derivative) are caught by those who can do without: where the others have parted
        nobody can.
        """
        try:
            yield
        except BaseException as error:
            if self.world > 1 and not self._over:
                _store().set(self._bell, "")
                if self.together(_BELL, error):
                    self._rung += 1
                elif isinstance(error, RuntimeError):
                    raise PeerFailed(f"process {self.rank} of {self.world} stopped: {_named(error)}") from error
            raise

    @property
    def _bell(self) -> str:
        return f"quadform/{self._host.group_name}/{self._rung}"

    def carry(self, collective: Any, *tensors: Tensor, **options: Any) -> None:
        """One message without a meeting, inside `ringing`. On a GPU nobody listens: torch's own timeout ends it."""
        if tensors[0].device.type != "cpu" or self.world == 1:
            self._carry(collective, *tensors, **options)
        else:
            self._carry(self._listening, collective, *tensors, **options)

    def _listening(self, collective: Any, *tensors: Tensor, **options: Any) -> None:
        work, begun = collective(*tensors, async_op=True, **options), time.monotonic()
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError:
                if work.is_completed() or time.monotonic() - begun > self.timeout:
                    raise
                if _store().check([self._bell]):
                    self._meet(_BELL)

    def _carry(self, collective: Any, *tensors: Any, **options: Any) -> None:
        """One collective; a connection that is closed or silent is an error that says so."""
        if "group" not in options:
            options["group"] = self._host if tensors[0].device.type == "cpu" else None
        try:
            collective(*tensors, **options)
        except RuntimeError as error:
            self._over = True
            pass_on_memory(error)
            said = re.sub(r"^\[[^]]*\] *", "", _one_line(error)).partition(". ")[0][:120]
            raise PeerFailed(
                f"process {self.rank} of {self.world} has lost the others ({said}): one of them was"
                f" killed, or not heard of for {self.timeout:g} s (`qd.group(timeout=...)` waits longer)."
            ) from error


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _store() -> Any:
    """Where torch's processes leave each other notes."""
    return dist.distributed_c10d._get_default_store()
