"""The door of a page on this machine: loopback only, everything below a secret path, nothing from anywhere else.

    /TOKEN/            the page          /TOKEN/static/NAME   its scripts and style          /TOKEN/live   the socket

Host and Origin are checked on every request: a page of another site, or another name that leads to this machine (DNS
rebinding), gets nothing. The content policy of the page allows no outside connection.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import needing
from ..report.style import FONT, STYLES
from .engine import Worker
from .texts import LANGUAGES

with needing("The live page"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse as JSONResponse
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import BaseRoute, Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .serving import Place

#: Bytes of one message of the page, and pages open at the same time.
LARGEST_MESSAGE = 64_000
MOST_PAGES = 8
_HERE = Path(__file__).parent
_KINDS = {".js": "text/javascript", ".css": "text/css"}


class Answering(Protocol):
    """What stands behind a socket: a message in, an answer out. `busy`: it works beside its answers."""

    @property
    def busy(self) -> bool: ...
    def answer(self, text: str | bytes) -> dict[str, Any]: ...


def behind(
    place: Place,
    engine: Answering,
    render: Callable[[str], str],
    files: Callable[[], dict[str, bytes]],
    more: Sequence[tuple[str, Callable[[Request], Any]]] = (),
) -> Starlette:
    """A page behind the token of a place: `render(lang)`, its `files`, a socket to `engine`; `more` takes POSTs."""
    token, worker = place.token, Worker()
    own = {f"http://{name}:{place.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    open_pages: set[WebSocket] = set()

    async def page(request: Request) -> Response:
        return Response(render(lang_of(request)), media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files():
            return PlainTextResponse("not here", 404)
        return Response(files()[name], media_type=_KINDS[Path(name).suffix])

    async def live(socket: WebSocket) -> None:
        await socket.accept()
        if len(open_pages) >= MOST_PAGES:
            await socket.close(1013, "too many pages are open")
            return
        open_pages.add(socket)
        try:
            await _live(socket, engine, worker)
        finally:
            open_pages.discard(socket)

    below = f"/{token}"
    routes: list[BaseRoute] = [
        Route(f"{below}/", page),
        Route(f"{below}/static/{{name}}", static),
        *(Route(f"{below}/{name}", to, methods=["POST"]) for name, to in more),
        WebSocketRoute(f"{below}/live", live),
    ]
    app = Starlette(routes=routes)
    app.state.busy = lambda: worker.busy or engine.busy
    app.add_middleware(Door, token=token, own=own)
    return app


def lang_of(request: Request) -> str:
    """The language an address asks for; English where it names none we speak."""
    lang = request.query_params.get("lang", "en")
    return lang if lang in LANGUAGES else "en"


def files_of(style: Path, scripts: Iterable[Path]) -> dict[str, bytes]:
    """Scripts as they are; the style sheet after that of all pages, with the colours of the report filled in."""
    from ..report.packages import jinja2

    text = "".join(path.read_text("utf-8") for path in (_HERE / "templates" / "base.css.j2", style))
    sheet = jinja2.Template(text, undefined=jinja2.StrictUndefined)
    written = sheet.render(light=STYLES["light"], dark=STYLES["dark"], font=FONT)
    return {path.name: path.read_bytes() for path in scripts} | {"page.css": written.encode()}


def filled(template: Path, **values: Any) -> str:
    """An HTML template with its values."""
    from ..report.packages import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)


async def _live(socket: WebSocket, engine: Answering, worker: Worker) -> None:
    """Every event is read at once; only the newest is answered when the engine is free."""
    newest: list[str | bytes] = []
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def listen() -> None:
        try:
            while True:
                got = await socket.receive()
                if got["type"] != "websocket.receive":
                    break
                text = got.get("text")
                newest[:] = [text if text is not None else got.get("bytes") or b""]
                arrived.set()
        finally:
            gone.set()
            arrived.set()

    listener = asyncio.create_task(listen())
    try:
        while True:
            await arrived.wait()
            arrived.clear()
            if gone.is_set():
                return
            told = await worker.run(partial(_answer, engine, newest.pop()))
            await (socket.send_text(told) if isinstance(told, str) else socket.send_bytes(told))
    except (WebSocketDisconnect, RuntimeError, asyncio.CancelledError):  # page or server went while it was answered
        return
    finally:
        listener.cancel()


def _answer(engine: Answering, message: str | bytes) -> str | bytes:
    return packed(engine.answer(message))


def packed(answer: dict[str, Any]) -> str | bytes:
    """An answer for the socket: JSON, or where it holds bytes (pictures) one frame of them.

    frame = length of the JSON (4 bytes, little endian), the JSON with {"bytes": [from, to]} for bytes, the bytes
    """
    held = bytearray()

    def place(value: Any) -> dict[str, list[int]]:
        if not isinstance(value, bytes):
            raise TypeError(f"{type(value).__name__} is no part of an answer")
        held.extend(value)
        return {"bytes": [len(held) - len(value), len(held)]}

    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=place)
    if not held:
        return text
    body = text.encode()
    body += b" " * (-len(body) % 4)  # so that the pictures begin where float32 may
    return len(body).to_bytes(4, "little") + body + bytes(held)


class Door:
    """Lets in what names this server as its host and origin and knows the token; sends the page's safety headers."""

    def __init__(self, app: ASGIApp, token: str, own: Iterable[str]) -> None:
        self.app, self.token, self.own = app, token.encode(), set(own)
        sockets = " ".join(sorted(origin.replace("http:", "ws:") for origin in self.own if "[" not in origin))
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
            f" connect-src 'self' {sockets}; base-uri 'none'; form-action 'none';"
            " frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
        )
        self.headers = {
            "content-security-policy": policy,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            "cross-origin-resource-policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if refused := self.refused(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refused})
            else:
                await PlainTextResponse(refused, 403)(scope, receive, send)
            return

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in self.headers.items())]
            await send(message)

        await self.app(scope, receive, sent)

    def refused(self, scope: Scope) -> str:
        """Why a request is turned away; empty where it may come in."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if f"http://{headers.get('host', '')}" not in self.own:
            return "This server answers on 127.0.0.1 only."
        origin = headers.get("origin")
        changes = scope["type"] == "websocket" or scope.get("method") not in ("GET", "HEAD")
        if origin not in self.own and (origin is not None or changes):
            return "Only the page itself may ask."
        path = scope["path"].split("/")
        given = path[1].encode("utf-8", "replace") if len(path) > 2 else b""
        if not secrets.compare_digest(given, self.token):
            return "This page opens with the address that was printed where it was started."
        return ""
