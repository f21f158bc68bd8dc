"""How a command is stopped from outside: SIGTERM is answered as Ctrl-C is, so that what is finished is saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from .processes import several

#: Exit codes of a command that was stopped, as shells tell them: 128 and the number of the signal.
INTERRUPTED, TERMINATED = 130, 143


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[threading.Event]:
    """SIGTERM (`kill`, a scheduler, a container) does what Ctrl-C would do now, also where Ctrl-C is ignored.

    A command that a script started in the background ignores Ctrl-C. The event says that SIGTERM came. Processes of
    torchrun keep the default: it ends the others when one has failed.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread() or several():
        yield came
        return

    def stop(number: int, frame: Any) -> None:
        came.set()
        interrupted = signal.getsignal(signal.SIGINT)
        if not callable(interrupted):
            raise KeyboardInterrupt
        interrupted(number, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
