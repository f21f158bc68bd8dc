"""The server of the page: loopback only, everything below a secret path, nothing from anywhere else.

    /TOKEN/            the page          /TOKEN/static/NAME   its scripts and style
    /TOKEN/live        the socket        /TOKEN/upload        tokens from a file, kept in memory

Host and Origin are checked on every request: a page of another site, or another name that leads to this machine (DNS
rebinding), gets nothing. The content policy of the page allows no outside connection.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.designs import DESIGNS
from ..core.errors import needing
from ..report.html import in_script
from ..report.style import FONT, STYLES
from . import tour
from .data import LARGEST_UPLOAD, read
from .engine import Engine, Worker
from .state import ALONE, CHOICES, LOGARITHMIC, RANGES, ControlError, State
from .texts import LANGUAGES

with needing("The live page"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Bytes of one message of the page, and pages open at the same time.
LARGEST_MESSAGE = 64_000
MOST_PAGES = 8
LEVELS = 32
_HERE = Path(__file__).parent
_KINDS = {".js": "text/javascript", ".css": "text/css"}


def application(token: str, port: int, engine: Engine | None = None, start: State | None = None) -> Starlette:
    """The page behind `token`, for a server on `port`; `start` is the state of an address that names none."""
    engine, worker = engine or Engine(), Worker()
    own = {f"http://{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    open_pages: set[WebSocket] = set()

    async def page(request: Request) -> Response:
        lang = request.query_params.get("lang", "en")
        if lang not in LANGUAGES:
            lang = "en"
        return Response(render(lang, start or State()), media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _files():
            return PlainTextResponse("not here", 404)
        return Response(_files()[name], media_type=_KINDS[Path(name).suffix])

    async def upload(request: Request) -> Response:
        lang = request.query_params.get("lang", "en")
        try:
            given = read(await _body(request), request.query_params.get("name", ""))
        except ControlError as error:
            said = error.said(lang if lang in LANGUAGES else "en")
            return JSONResponse({"control": error.control, "text": said}, 413 if "large" in error.key else 422)
        return JSONResponse({"upload": engine.uploads.add(given), "shape": given.shape})

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
    routes = [
        Route(f"{below}/", page),
        Route(f"{below}/static/{{name}}", static),
        Route(f"{below}/upload", upload, methods=["POST"]),
        WebSocketRoute(f"{below}/live", live),
    ]
    app = Starlette(routes=routes)
    app.state.worker = worker
    app.add_middleware(Door, token=token, own=own)
    return app


async def _live(socket: WebSocket, engine: Engine, worker: Worker) -> None:
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
            await socket.send_text(await worker.run(partial(_answer, engine, newest.pop())))
    except (WebSocketDisconnect, RuntimeError, asyncio.CancelledError):  # page or server went while it was answered
        return
    finally:
        listener.cancel()


def _answer(engine: Engine, message: str | bytes) -> str:
    return json.dumps(engine.answer(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


async def _body(request: Request) -> bytes:
    """The body of an upload, no byte more than may be kept."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > LARGEST_UPLOAD:
            raise ControlError("upload", "upload_large", count=f"> {LARGEST_UPLOAD:,}", most=f"{LARGEST_UPLOAD:,}")
    return bytes(found)


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
            return "This page opens with the address that `quadform explore` has printed."
        return ""


@cache
def _files() -> dict[str, bytes]:
    """Scripts as they are, the style with the colours of the report filled in."""
    from ..report.packages import jinja2

    style = jinja2.Template((_HERE / "templates" / "page.css.j2").read_text("utf-8"), undefined=jinja2.StrictUndefined)
    found = {p.name: p.read_bytes() for p in (_HERE / "static").glob("*.js")}
    return found | {"page.css": style.render(light=STYLES["light"], dark=STYLES["dark"], font=FONT).encode()}


@cache
def render(lang: str, start: State) -> str:
    """The page in one language."""
    from ..report.packages import jinja2

    texts = LANGUAGES[lang]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    boot = {
        "lang": lang,
        "start": start.json(),
        "default": State().json(),
        "ranges": RANGES,
        "logarithmic": LOGARITHMIC,
        "levels": LEVELS,
        "ramps": {
            name: {sign: style.ramp(way, LEVELS) for sign, way in (("positive", 1), ("negative", -1))}
            for name, style in STYLES.items()
        },
        "colours": {name: {w: style.of(w) for w in ("W_Q", "W_K", "W_QK", "W_V")} for name, style in STYLES.items()},
        "largest_upload": LARGEST_UPLOAD,
        **tour.as_json(),
    }
    designs = [(ALONE, texts("design_attention")), *((name, name) for name in DESIGNS)]
    return environment.get_template("page.html.j2").render(
        t=texts,
        lang=lang,
        other=next(code for code in LANGUAGES if code != lang),
        boot=in_script(boot),
        choices=CHOICES,
        ranges=RANGES,
        designs=designs,
        presets=list(tour.PRESETS),
        steps=[step.name for step in tour.TOUR],
        start=start,
    )
