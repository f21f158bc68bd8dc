"""The page of a model, behind the door of the live page."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...answers.numbers import short_name
from ...report.html import in_script
from ...report.style import STYLES
from ..door import Starlette, behind, files_of, filled
from ..texts import LANGUAGES
from .engine import ModelEngine

if TYPE_CHECKING:
    from ..serving import Place

LEVELS = 32
_EXPLORER = Path(__file__).parents[1]


def application(place: Place, engine: ModelEngine) -> Starlette:
    """The page of the model of an engine."""
    return behind(place, engine, partial(render, engine=engine), _files)


@cache
def _files() -> dict[str, bytes]:
    return files_of(_EXPLORER / "templates" / "page.css.j2", (_EXPLORER / "static").glob("*.js"))


def render(lang: str, engine: ModelEngine) -> str:
    """The page in one language."""
    t = LANGUAGES[lang]
    ramps = {
        name: {sign: style.ramp(way, LEVELS) for sign, way in (("positive", 1), ("negative", -1))}
        for name, style in STYLES.items()
    }
    panels = [p.panel.name for p in engine.progress]
    words = {status: t(f"status_{status}") for status in ("waiting", "running", "done", "failed")}
    boot = {
        "lang": lang,
        "levels": LEVELS,
        "ramps": ramps,
        "panels": panels,
        "words": words,
        "default": {},
        "start": {},
    }
    return filled(
        _EXPLORER / "templates" / "model.html.j2",
        t=t,
        lang=lang,
        other=next(code for code in LANGUAGES if code != lang),
        boot=in_script(boot),
        name=short_name(engine.subject.name),
        described=f"{engine.subject.parameters:,}",
        notes=engine.subject.notes,
        panels=panels,
        sentence=engine.sentence,
    )
