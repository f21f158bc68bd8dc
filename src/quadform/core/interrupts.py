"""Ctrl-C: noted so that a step can end and be saved (`gently`), or held back for a moment (`uninterrupted`)."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .progress import say


@dataclass
class Asked:
    """Whether Ctrl-C was pressed: once (finish the step and save), or twice (stop now)."""

    once: bool = False
    twice: bool = False


@contextlib.contextmanager
def gently(what: str = "step") -> Iterator[Asked]:
    """The first Ctrl-C sets `once` and says so, the second raises KeyboardInterrupt.

    Outside the main thread Ctrl-C is left alone.
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        if asked.once:
            asked.twice = True
            raise KeyboardInterrupt
        asked.once = True
        say(f"interrupted: finishing this {what} and saving (Ctrl-C again stops now)")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: a process that left in a message would leave the others waiting in it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *told: caught.append(told))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught and callable(before):
        before(*caught[0])
