"""The server of the live page: what lies behind the door, and the page itself in a language.

/TOKEN/upload   tokens from a file, kept in memory; the rest is that of `door`
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.designs import DESIGNS
from ..report.html import in_script
from ..report.style import STYLES
from . import tour
from .data import LARGEST_UPLOAD, read
from .door import JSONResponse, Request, Response, Starlette, behind, files_of, filled, lang_of
from .engine import Engine
from .heat import DETAILS
from .state import ALONE, CHOICES, LOGARITHMIC, RANGES, ControlError, State
from .texts import LANGUAGES

if TYPE_CHECKING:
    from .serving import Place

LEVELS = 32
_HERE = Path(__file__).parent


def application(place: Place, engine: Engine | None = None, start: State | None = None) -> Starlette:
    """The page for a server at `place`; `start` is the state of an address that names none."""
    engine = engine or Engine()

    async def upload(request: Request) -> Response:
        try:
            given = read(await _body(request), request.query_params.get("name", ""))
        except ControlError as error:
            said = error.said(lang_of(request))
            return JSONResponse({"control": error.control, "text": said}, 413 if "large" in error.key else 422)
        return JSONResponse({"upload": engine.uploads.add(given), "shape": given.shape})

    return behind(place, engine, partial(render, start=start or State()), _files, [("upload", upload)])


async def _body(request: Request) -> bytes:
    """The body of an upload, no byte more than may be kept."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > LARGEST_UPLOAD:
            raise ControlError("upload", "upload_large", count=f"> {LARGEST_UPLOAD:,}", most=f"{LARGEST_UPLOAD:,}")
    return bytes(found)


@cache
def _files() -> dict[str, bytes]:
    return files_of(_HERE / "templates" / "page.css.j2", (_HERE / "static").glob("*.js"))


@cache
def render(lang: str, start: State) -> str:
    """The page in one language."""
    texts = LANGUAGES[lang]
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
        "tips": {name: texts(f"tip_{name}") for name in (*DETAILS, "tiles")},
        **tour.as_json(),
    }
    designs = [(ALONE, texts("design_attention")), *((name, name) for name in DESIGNS)]
    return filled(
        _HERE / "templates" / "page.html.j2",
        t=texts,
        lang=lang,
        other=next(code for code in LANGUAGES if code != lang),
        boot=in_script(boot),
        choices=CHOICES,
        ranges=RANGES,
        designs=designs,
        details=DETAILS,
        presets=list(tour.PRESETS),
        steps=tour.as_json()["tour"],
        start=start,
    )
