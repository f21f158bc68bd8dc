"""Work that can be resumed: inside it nothing is decided by the clock, so a resumed run repeats an unbroken one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_STEADY: ContextVar[bool] = ContextVar("steady", default=False)


@contextmanager
def steady() -> Iterator[None]:
    """A scope in which an operator keeps the route it began with."""
    token = _STEADY.set(True)
    try:
        yield
    finally:
        _STEADY.reset(token)


def is_steady() -> bool:
    """Whether this runs inside such a scope."""
    return _STEADY.get()
