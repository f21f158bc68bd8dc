"""Pages in a real Chromium: opened under watch, and looked at by axe-core."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quadform.explorer.serving import Place

AXE = Path(__file__).parents[1] / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def told(frame: str | bytes) -> dict[str, Any]:
    """What a page reads from its socket: JSON, or the JSON of a frame with its bytes put back."""
    if isinstance(frame, str):
        return json.loads(frame)
    start = 4 + int.from_bytes(frame[:4], "little")

    def filled(value: dict[str, Any]) -> Any:
        return frame[start:][slice(*value["bytes"])] if list(value) == ["bytes"] else value

    return json.loads(frame[4:start], object_hook=filled)


@contextmanager
def served(
    browser, place: Place, where: str = "", *, size: tuple[int, int], may_complain: bool = False, **options
) -> Iterator:
    """The page of a server, drawn; on leaving: nothing was asked of any other server, nothing complained."""
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, reduced_motion="reduce", **options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints, asked = [], []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.on("websocket", lambda s: asked.append(s.url.replace("ws:", "http:")))
    try:
        page.goto(place.url + where)
        page.wait_for_selector("html[data-ready]")
        yield page
    finally:
        context.close()
    assert may_complain or complaints == []
    assert [url for url in asked if not url.startswith((place.url, "data:", "blob:"))] == []


def violations(page, least: int = 20) -> list:
    """What axe-core objects to, level A and AA; more than `least` of its rules must have had something to look at."""
    if not AXE.exists():
        pytest.fail(f"axe-core is not at {AXE}; `make test` installs it (npm install --prefix .cache/axe axe-core).")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("(tags) => axe.run(document, {runOnly: tags})", WCAG)
    assert len(found["passes"]) > least
    return [(v["id"], [node["html"][:200] for node in v["nodes"]]) for v in found["violations"]]
