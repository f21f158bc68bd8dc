"""The house style: one set of colours and sizes for every figure, in a light and a dark value.

Query, key and value have the same three hues everywhere (after Okabe and Ito, darkened or lightened until a label in
that colour reaches a contrast of 4.5 : 1); `out` and `mlp` are kept for them. The sign of a curvature has two hues of
its own, purple above zero and gold below, which stay apart for every common form of colour blindness; equal size has
equal lightness in both, so that lightness alone reads as size. Colour is never the only carrier: dashes, outlines,
frames and words say the same.
"""

from __future__ import annotations

import math
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
    """The colours of one theme. `weak` and `strong` are the lightness (OKLab, 0 to 1) of the ends of a ramp."""

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
    shade: str
    weak: float
    strong: float

    def of(self, parameter: str) -> str:
        """The colour of a parameter by its paper name, prefixes and heads ignored; ink for any other."""
        stem = parameter.rsplit(".", 1)[-1].split("[", 1)[0]
        known = {"W_Q": self.query, "W_K": self.key, "W_V": self.value, "W_O": self.out, "W_QK": self.query}
        return known.get(stem, self.ink)

    def ramp(self, sign: int, count: int) -> list[str]:
        """`count` colours from the weakest to the strongest size of that sign."""
        steps = (i / max(count - 1, 1) for i in range(count))
        return [_oklch(self.weak + t * (self.strong - self.weak), 0.04 + 0.11 * t, _HUES[sign > 0]) for t in steps]

    def signed(self, sign: int) -> str:
        """The one colour of a sign, where size is not shown by colour."""
        return self.ramp(sign, 9)[4]

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
    shade="#f6e7bd",
    weak=0.95,
    strong=0.30,
)
"""The colours on white."""

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
    shade="#3d3213",
    weak=0.27,
    strong=0.93,
)
"""The colours on black."""

#: Hue in degrees below and above zero: gold, purple.
_HUES = (80.0, 300.0)

STYLES = {style.name: style for style in (LIGHT, DARK)}


def _oklch(lightness: float, chroma: float, hue: float) -> str:
    """A colour by perceived lightness, chroma and hue in degrees (Ottosson's OKLab), clipped to what screens show."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
        -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
        -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
    )
    parts = (12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in (max(c, 0.0) for c in linear))
    return "#" + "".join(f"{round(255 * min(c, 1.0)):02x}" for c in parts)


def rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def contrast(a: str, b: str) -> float:
    """The WCAG contrast ratio of two colours, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [c / 255 for c in rgb(colour)]
        lin = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def register() -> None:
    """Make the house style available to any Altair chart: `alt.theme.enable("quadform-light")`."""
    from .packages import alt

    for style in STYLES.values():
        alt.theme.register(f"quadform-{style.name}", enable=False)(
            lambda style=style: alt.theme.ThemeConfig(config=style.config())
        )
