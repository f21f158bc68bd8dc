"""Running the server: a port, a token that outlives a restart, a browser where there is one, an end by a signal."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError, needing
from ..core.progress import say
from ..core.question import Done

PORT = 8765
#: How many ports above the one asked for are tried.
TRIED = 50
_TOKEN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Place:
    """Where the page is: a socket that listens already, and the address that opens it."""

    listening: socket.socket
    port: int
    token: str
    asked: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def url_in(self, lang: str) -> str:
        """The address of the page in a language."""
        return self.url if lang == "en" else f"{self.url}?lang={lang}"

    @property
    def note(self) -> str:
        """What to tell when the port is another than the one asked for."""
        if not self.asked or self.asked == self.port:
            return ""
        return f"Port {self.asked} is in use; opened on {self.port} instead."


#: A page as an ASGI application, made for the place it is served at.
Make = Callable[[Place], Any]


def find_place(port: int = PORT, token: str | None = None) -> Place:
    """The asked port of 127.0.0.1 or the next free one above it (0: any, with a token of its own)."""
    for offset in range(TRIED if port else 1):
        with contextlib.suppress(OSError, OverflowError):
            listening = socket.create_server(("127.0.0.1", port + offset))
            found = int(listening.getsockname()[1])
            return Place(listening, found, token or (kept_token() if port else secrets.token_hex(16)), port)
    raise InputError(f"port={port}: none of the ports {port} to {port + TRIED - 1} is free. Choose another.")


def kept_token() -> str:
    """The secret part of the address: random, in a file only this user can read, the same after a restart so that an
    open page finds its server again. Where no file can be kept, a new one each time."""
    base = os.environ.get("XDG_STATE_HOME") or ("~/.local/state" if sys.platform != "win32" else "~/AppData/Local")
    path = Path(base).expanduser() / "quadform" / "explore-token"
    new = secrets.token_hex(16)
    try:
        if path.is_file() and (sys.platform == "win32" or path.stat().st_mode & 0o077 == 0):
            old = path.read_text("ascii").strip()
            if _TOKEN.fullmatch(old):
                return old
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new)
    except (OSError, ValueError):
        pass
    return new


def server_of(place: Place, make: Make | None = None) -> Any:
    """A uvicorn server for the page that `make` makes of a place (the live page), not started."""
    with needing("The live page"):
        import uvicorn
        import websockets  # noqa: F401  uvicorn's sockets
    from .door import LARGEST_MESSAGE
    from .server import application

    page = (make or application)(place)
    config = uvicorn.Config(
        page,
        log_level="critical",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.page = page  # type: ignore[attr-defined]  # for tests
    return server


class Served(Done):
    """A page that a command serves: its address is told, then it answers until Ctrl-C or SIGTERM, or for so many
    seconds."""

    def __init__(self, place: Place, make: Make, lang: str, seconds: float | None, *, browser: bool) -> None:
        self.place, self.seconds, self.browser = place, seconds, browser
        self.server: Any = None
        self.url = place.url_in(lang)
        with contextlib.ExitStack() as stack:
            stack.enter_context(on_signals(self.end))  # before the address is told
            self.server = server_of(place, make)
            self.signals = stack.pop_all()

    def end(self) -> None:
        if self.server is None:
            raise KeyboardInterrupt
        self.server.should_exit = True

    def plain(self) -> dict[str, Any]:
        return {"url": self.url, "port": self.place.port}

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.place.note, f"live page: {self.url}")))

    def stay(self) -> None:
        sys.stdout.flush()
        with self.signals:
            if self.browser and not open_browser(self.url):
                say("no browser was found here; open the address yourself")
            say("Ctrl-C closes it")
            if self.seconds is not None:
                timer = threading.Timer(self.seconds, self.end)
                timer.daemon = True
                timer.start()
            self.server.run(sockets=[self.place.listening])
        say("closed")
        if self.server.page.state.busy():  # nobody waits for that work; leaving in the usual way would, or tear
            sys.stdout.flush()  # its threads down as they work
            sys.stderr.flush()
            os._exit(0)


@contextlib.contextmanager
def on_signals(end: Callable[[], None]) -> Iterator[None]:
    """`end` is called at Ctrl-C and SIGTERM, also where they were ignored, as SIGINT is in a shell's background jobs.

    uvicorn has handlers of its own while it runs; afterwards it raises again what it got, and that must not end the
    process a second time."""
    ending = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: end()) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def serving(place: Place, make: Make | None = None) -> Iterator[Place]:
    """The page, served by a thread as long as the context lasts."""
    server = start_thread(place, make)
    try:
        yield place
    finally:
        server.should_exit = True
        server.thread.join(10)


def start_thread(place: Place, make: Make | None = None) -> Any:
    """A server that answers in a daemon thread; `server.should_exit = True` ends it."""
    server = server_of(place, make)
    server.thread = threading.Thread(target=lambda: server.run(sockets=[place.listening]), daemon=True)
    server.thread.start()
    return server


def open_browser(url: str) -> bool:
    """Show the page in a graphical browser; False where there is none to be seen."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
