"""Looking for files under names that people give, and folders that several processes write to. Torch-free."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that no file can have (too long, a null character) is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_dir(path: Path) -> bool:
    """Whether there is a folder; a name that no folder can have is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def checkpoints_in(folder: Path) -> list[Path]:
    """The folders `checkpoint-500`, `checkpoint-1000`, ... that a trainer leaves, in the order of their steps."""
    found = {int(m[1]): p for p in folder.glob("checkpoint-*") if (m := re.search(r"-(\d+)$", p.name)) and is_dir(p)}
    return [found[step] for step in sorted(found)]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that hold `folder`, where the system and the file system have such locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def unless_held(folder: Path) -> Iterator[bool]:
    """Hold `folder` if nobody else does, without waiting: True then. False where it is held, or where no locks are."""
    with contextlib.ExitStack() as stack:
        free = False
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
