"""The page of the lecture, behind the same door as the live page."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..explorer.door import Starlette, behind, files_of, filled
from ..report.html import in_script
from ..report.style import STYLES
from .course import STEPS
from .engine import Engine
from .pupil import Pupil
from .texts import LANGUAGES

if TYPE_CHECKING:
    from ..explorer.serving import Place

LEVELS = 32
_HERE = Path(__file__).parent


def application(place: Place, engine: Engine | None = None, seed: int = 0) -> Starlette:
    """The lecture for a server at `place`."""
    return behind(place, engine or Engine(Pupil(seed)), render, _files)


@cache
def _files() -> dict[str, bytes]:
    shared = (_HERE.parent / "explorer" / "static" / name for name in ("live.js", "svg.js", "symbols.js"))
    return files_of(_HERE / "templates" / "lecture.css.j2", [*shared, *(_HERE / "static").glob("*.js")])


@cache
def render(lang: str) -> str:
    """The page in one language."""
    texts = LANGUAGES[lang]
    ramps = {
        name: {sign: style.ramp(way, LEVELS) for sign, way in (("positive", 1), ("negative", -1))}
        for name, style in STYLES.items()
    }
    steps = [{"name": s.name, "title": texts(f"title_{s.name}"), "text": texts(f"text_{s.name}")} for s in STEPS]
    return filled(
        _HERE / "templates" / "lecture.html.j2",
        t=texts,
        lang=lang,
        other=next(code for code in LANGUAGES if code != lang),
        boot=in_script({"lang": lang, "ramps": ramps, "levels": LEVELS, "steps": steps}),
        steps=steps,
    )
