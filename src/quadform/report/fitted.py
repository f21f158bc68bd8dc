"""A figure for a column of a paper: so wide, letters of one size, its panels below each other where they must be."""

from __future__ import annotations

import copy
import re
import textwrap
from typing import Any

from .figure import svg
from .style import LIGHT, Style

#: Of an inch.
PIXELS, POINTS = 96.0, 72.0
#: The size of letters for which figures are written, in pixels, and the width a panel needs, in letters.
LETTERS, LEAST = 12.0, 22.0
_VIEW = ("layer", "mark", "encoding", "title", "width", "height")


def fitted(spec: dict[str, Any], width: float, points: float, style: Style = LIGHT) -> str:
    """The specification as SVG, `width` inches wide, with letters of `points` points.

    Each panel is drawn on its own and made wider or narrower until it fills its place; lines are as thick as before.
    """
    wanted, size = width * PIXELS, points * PIXELS / POINTS
    panels = spec.get("concat") or [{k: v for k, v in spec.items() if k in _VIEW}]
    columns = max(1, min(spec.get("columns", len(panels)), len(panels), int(wanted / (LEAST * size))))
    gap = round(size)
    each = (wanted - gap * (columns - 1)) / columns
    outer: dict[str, Any] = {k: spec[k] for k in ("$schema", "datasets") if k in spec}
    room = {"left": 0, "right": 0, "top": 0, "bottom": 4}  # for what hangs below the line
    outer |= {"config": _small(style.config(), size), "padding": room, "background": None}
    drawn = [_panel(panel, outer, each, size) for panel in panels]
    inner, below = "", 0.0
    for first in range(0, len(drawn), columns):
        row = drawn[first : first + columns]
        for column, picture in enumerate(row):
            inner += f'<g transform="translate({round(column * (each + gap))},{below:g})">{picture}</g>'
        below += max(_side(picture, "height") for picture in row) + gap
    size_of = f'width="{wanted:g}" height="{below - gap:g}" viewBox="0 0 {wanted:g} {below - gap:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size_of}>{inner}</svg>'


def _small(config: dict[str, Any], size: float) -> dict[str, Any]:
    """The house style with letters of this size and less room between things; keys below what they explain."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            out[key] = _small(value, size)
        else:
            out[key] = size if key.endswith(("FontSize", "fontSize")) else value
    if "legend" in out:
        out["legend"] |= {"orient": "bottom", "direction": "horizontal", "columns": 3, "symbolSize": 60}
        out["axis"] |= {"labelPadding": 2, "titlePadding": 3, "tickSize": 3}
        out["title"] |= {"offset": 4}
    return out


def _panel(panel: dict[str, Any], outer: dict[str, Any], wanted: float, size: float) -> str:
    out = copy.deepcopy(panel)
    for side in ("width", "height"):
        if isinstance(out.get(side), dict):  # so much for each bar or cell
            out[side] = {"step": out[side]["step"] * size / LETTERS}
        elif side in out:
            out[side] = out[side] * size / LETTERS
    _wrap(out, int(wanted / (0.56 * size)))
    for _ in range(3):
        picture = svg(outer | out)
        _widen(out, wanted - _side(picture, "width"), size)
    return svg(outer | out)


def _side(picture: str, side: str) -> float:
    """Pixels of the drawn picture."""
    return float(re.search(rf'{side}="([\d.]+)"', picture)[1])  # type: ignore[index]  # an SVG has it


def _widen(panel: dict[str, Any], more: float, size: float) -> None:
    """A panel so many pixels wider; squares stay squares, and cells of fixed width only shrink."""
    width = panel.get("width")
    if isinstance(width, dict):
        panel["width"] = {"step": max(width["step"] + min(more, 0.0) / 6, size)}
    elif width is not None:
        square = width == panel.get("height")
        panel["width"] = max(width + more, 4 * size)
        panel["height"] = panel["width"] if square else panel.get("height")


def _wrap(view: Any, letters: int) -> None:
    """Titles of panels and axes in lines of so many letters."""
    if isinstance(view, dict):
        for key, value in view.items():
            if key == "title" and isinstance(value, str) and len(value) > letters:
                view[key] = textwrap.wrap(value, letters)
            else:
                _wrap(value, letters)
    elif isinstance(view, list):
        for item in view:
            _wrap(item, letters)
