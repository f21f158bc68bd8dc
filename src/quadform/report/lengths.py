"""Formats and widths of figures for papers. Free of the figure libraries."""

from __future__ import annotations

import re

from ..core.errors import InputError

FORMATS = ("svg", "png", "pdf")
_UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}


def inches(text: str) -> float:
    """`3.25in`, `8.5cm`, `85mm` or `240pt` in inches."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(in|cm|mm|pt)\s*", text)
    if found is None or not 1 <= (value := float(found[1]) * _UNITS[found[2]]) <= 40:
        raise InputError(f"a width is 1 to 40 inches with its unit, such as 3.25in, 8.5cm or 240pt; got {text!r}.")
    return value
