"""The house style: one set of colours and sizes for every figure, in a light and a dark value.

Query, key and value have the same three hues everywhere (after Okabe and Ito, darkened or lightened until a label in
that colour reaches a contrast of 4.5 : 1); `out` and `mlp` are kept for them. The sign of a curvature has two hues of
its own, purple above zero and gold below, which stay apart for every common form of colour blindness. Colour is never
the only carrier: dashes, outlines, frames and words say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Fonts that systems have without a network. Latin ones that hold raised figures come first, then Hangul ones; a page
#: takes each letter from the first font that has it.
FONT = (
    "'Segoe UI', 'Noto Sans', 'DejaVu Sans', Roboto, 'Helvetica Neue', Arial, 'Apple SD Gothic Neo', 'Malgun Gothic',"
    " 'Noto Sans KR', 'Noto Sans CJK KR', NanumGothic, sans-serif"
)


@dataclass(frozen=True)
class Style:
    """The colours of one theme. `positive` and `negative` are (weakest, middle, strongest) for a ramp of magnitudes."""

    name: str
    ink: str
    muted: str
    paper: str
    panel: str
    grid: str
    query: str
    key: str
    value: str
    out: str
    mlp: str
    positive: tuple[str, str, str]
    negative: tuple[str, str, str]
    shade: str

    def of(self, parameter: str) -> str:
        """The colour of a parameter by its paper name, prefixes and heads ignored; ink for any other."""
        stem = parameter.rsplit(".", 1)[-1].split("[", 1)[0]
        known = {"W_Q": self.query, "W_K": self.key, "W_V": self.value, "W_O": self.out, "W_QK": self.query}
        return known.get(stem, self.ink)

    def ramp(self, sign: int, count: int) -> list[tuple[int, int, int]]:
        """`count` colours from the weakest to the strongest magnitude of that sign, as (r, g, b)."""
        stops = [_rgb(c) for c in (self.positive if sign > 0 else self.negative)]
        out = []
        for i in range(count):
            at = 2 * i / max(count - 1, 1)
            low, part = stops[min(int(at), 1)], at - min(int(at), 1)
            high = stops[min(int(at), 1) + 1]
            out.append(tuple(round(a + part * (b - a)) for a, b in zip(low, high, strict=True)))
        return out

    def config(self) -> dict[str, Any]:
        """This style as a Vega-Lite configuration."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 12, "titleFontSize": 12}
        return {
            "background": self.paper,
            "font": FONT,
            "view": {"stroke": None, "fill": None},
            "axis": {
                **text,
                "titleFontWeight": "normal",
                "domainColor": self.muted,
                "tickColor": self.muted,
                "gridColor": self.grid,
                "labelPadding": 5,
                "titlePadding": 8,
            },
            "legend": {**text, "symbolSize": 120},
            "title": {"color": self.ink, "fontSize": 13, "fontWeight": "bold", "anchor": "start", "offset": 8},
            "text": {"color": self.ink, "fontSize": 12},
            "concat": {"spacing": 24},
        }


LIGHT = Style(
    name="light",
    ink="#1c2530",
    muted="#5a6675",
    paper="#ffffff",
    panel="#f6f7f9",
    grid="#e3e7ec",
    query="#0b62a8",
    key="#b84a00",
    value="#00775a",
    out="#a8437f",
    mlp="#3a6f8f",
    positive=("#e9e3f5", "#8b63c9", "#35106b"),
    negative=("#fbefc9", "#c89410", "#5c3f00"),
    shade="#f6e7bd",
)

DARK = Style(
    name="dark",
    ink="#e8ecf1",
    muted="#a3aebb",
    paper="#161b22",
    panel="#0f1319",
    grid="#2d3540",
    query="#6cb8f0",
    key="#ff9a57",
    value="#3fcfa3",
    out="#ee9cc9",
    mlp="#8fc6e6",
    positive=("#2b2340", "#8a63d2", "#e3d2ff"),
    negative=("#3a300f", "#b98a14", "#ffe9a3"),
    shade="#3d3213",
)

STYLES = {style.name: style for style in (LIGHT, DARK)}


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def contrast(a: str, b: str) -> float:
    """The WCAG contrast ratio of two colours, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [c / 255 for c in _rgb(colour)]
        lin = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def register() -> None:
    """Make the house style available to any Altair chart: `alt.theme.enable("quadform-light")`."""
    import altair as alt

    for style in STYLES.values():
        alt.theme.register(f"quadform-{style.name}", enable=False)(
            lambda style=style: alt.theme.ThemeConfig(config=style.config())
        )
