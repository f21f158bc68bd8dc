"""Numbers as the lecture writes them."""

from __future__ import annotations

from collections.abc import Iterable


def say(value: float, digits: int = 2) -> str:
    """A number with so many decimals, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def share(value: float) -> str:
    """A share in per cent; ends that are not exact read as such."""
    percent = 100 * value
    if 0 < percent < 0.5:
        return "<\u00a01\u00a0%"
    if 99.5 <= percent < 100:
        return ">\u00a099\u00a0%"
    return f"{percent:.0f}\u00a0%"


def vector(values: Iterable[float]) -> str:
    """(0.31, −1.20)."""
    return f"({', '.join(say(float(v)) for v in values)})"
