"""Progress: a bar on a terminal or in a notebook, a line per 10 % (or per minute) in a log, silence with `--quiet`.

Progress goes to stderr, results to stdout. `progress=` of the Python API takes `True`, `False`, or a callable
`(done, total, seconds_left, text)`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

Report = Callable[[int, int, float, str], None]

#: Set by `--quiet`; everything below obeys it.
quiet = False


class Progress:
    """One counted piece of work: `with Progress(total, "products") as p: ...; p.step(text="lambda_max 1.9")`."""

    def __init__(self, total: int, what: str, *, show: bool | Report = True, stream: TextIO | None = None) -> None:
        self.total, self.what, self.done, self.text = max(int(total), 1), what, 0, ""
        self._skipped = 0
        self._first: tuple[float, int] | None = None  # when the first step was done, and how many it was
        self._callable = show if callable(show) else None
        self._stream = sys.stderr if stream is None else stream
        self._shown = bool(show) and self._callable is None and not quiet
        self._bar: Any = None
        self._told_at = time.monotonic()
        self._told = 0

    def __enter__(self) -> Progress:
        if self._shown and _redraws(self._stream):
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self.total, desc=self.what, file=self._stream, leave=False, dynamic_ncols=True)
        return self

    def skip(self, count: int) -> None:
        """`count` were done before this run: they count, but tell nothing about its speed."""
        self.done += count
        self._skipped += count
        self._told = 10 * self.done // self.total
        if self._bar is not None:
            self._bar.initial += count
            self._bar.update(count)

    def step(self, count: int = 1, text: str = "") -> None:
        """`count` more are done; `text` is the best current value, shown beside the bar."""
        self.done += count
        self.text = text or self.text
        now = time.monotonic()
        to_do = max(self.total - self.done, 0)
        left = self._left(now, to_do)
        if self._callable is not None:
            self._callable(self.done, self.total, left, self.text)
        elif self._bar is not None:
            self._bar.update(count)
            if text:
                self._bar.set_postfix_str(text)
        elif self._shown:
            tenth = 10 * self.done // self.total
            if tenth > self._told or now - self._told_at >= 60:
                self._told, self._told_at = tenth, now
                tail = f"  {self.text}" if self.text else ""
                print(
                    f"{self.what}  {self.done}/{self.total}{tail}  {_countdown(left)} left",
                    file=self._stream,
                    flush=True,
                )

    def _left(self, now: float, to_do: int) -> float:
        """Seconds left, from the rate since the first step: that one may have compiled, or come from disk."""
        here = self.done - self._skipped
        if not to_do:
            return 0.0
        if self._first is None:
            if here:
                self._first = (now, here)
            return float("inf")
        began, before = self._first
        return (now - began) / (here - before) * to_do if here > before else float("inf")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _redraws(stream: TextIO) -> bool:
    """Whether a line can be drawn again in place: a terminal outside CI, or a notebook."""
    return (stream.isatty() and not os.environ.get("CI")) or "ipykernel" in sys.modules


def say(text: str) -> None:
    """One line for the person watching, on stderr; silent with `--quiet`."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def _countdown(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def clock(seconds: float) -> str:
    """How long something takes: `0.4 s`, `12 s`, `8:52`, `1.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}" if seconds < 5970 else f"{seconds / 3600:.1f} h"
