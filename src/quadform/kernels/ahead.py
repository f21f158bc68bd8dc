"""Triton programs compiled before they are launched, several at a time.

A Hessian product launches some thirteen programs, each compiled when it is first met: 13 of the 17 seconds of the first
product on an H200. The compiler works outside Python's lock most of the time, so threads share it. What will be
launched is found by a rehearsal: the code of the operators runs on tensors without storage, and launches are noted. A
program that was not foreseen, or whose compilation failed here, is compiled at its launch as ever.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import torch

Launch = tuple[Any, tuple[int, int, int], tuple, dict[str, Any]]

#: Launches noted in place of being made.
_noted: ContextVar[list[Launch] | None] = ContextVar("quadform_noted_launches", default=None)
_begun: set[Any] = set()
_compiling: dict[Any, list[Future]] = {}
_threads: list[ThreadPoolExecutor] = []
MOST_THREADS = 16


def noted(launch: Launch) -> bool:
    """Whether a launch is only noted, in a rehearsal."""
    launches = _noted.get()
    if launches is not None:
        launches.append(launch)
    return launches is not None


def wait(program: Any, constants: dict[str, Any]) -> None:
    """Wait for what is being compiled of a program with these constants; nobody asks how it went."""
    for job in _compiling.pop(_key(program, constants), ()):
        job.exception()


def begin(key: Any, rehearsal: Callable[[], None], device: torch.device) -> None:
    """Compile what a rehearsal would launch, in threads; once for each key."""
    if key in _begun:
        return
    _begun.add(key)
    with contextlib.suppress(Exception), _noting() as launches:  # whatever happens, launches compile by themselves
        rehearsal()
    for launch in launches:
        program, _, _, constants = launch
        with contextlib.suppress(AttributeError, RuntimeError):
            program.device_caches[device.index or 0]  # made here: two threads would make one each
        job = _pool().submit(_compile, launch, device)
        _compiling.setdefault(_key(program, constants), []).append(job)


def _compile(launch: Launch, device: torch.device) -> None:
    program, grid, args, constants = launch
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel = program.warmup(*args, grid=grid, **constants)
        if device.type == "cuda":
            kernel[grid]  # its launcher, compiled too by some versions of Triton, and loading


def _key(program: Any, constants: dict[str, Any]) -> Any:
    return id(program), tuple(constants.items())


@contextlib.contextmanager
def _noting() -> Iterator[list[Launch]]:
    launches: list[Launch] = []
    token = _noted.set(launches)
    try:
        yield launches
    finally:
        _noted.reset(token)


def _pool() -> ThreadPoolExecutor:
    if not _threads:
        most = min(MOST_THREADS, os.cpu_count() or 1)
        _threads.append(ThreadPoolExecutor(most, thread_name_prefix="quadform-compile"))
    return _threads[0]
