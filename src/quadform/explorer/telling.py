"""What a step of the tour has found, in a sentence: every number is of the record on the page or of the step's start.

The last clause of a step (`told_NAME_so`) is its conclusion. It is said only where the numbers bear it. Before anything
has moved there is nothing to compare with: `told_NAME_first` says what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..answers.attention import SATURATED
from ..answers.live import LiveAnswer
from ..answers.numbers import number, percent, times
from ..answers.signal import COSINE
from ..core.record import Record
from ..report.texts import Texts

#: What is filled in, and whether the conclusion holds.
Found = tuple[dict[str, Any], bool]


def tell(name: str, record: Record, start: Record, t: Texts) -> str:
    """The sentence of a step for what the page shows now."""
    now, then = LiveAnswer(record), LiveAnswer(start)
    found, holds = _STEPS[name](now, then)
    first = f"told_{name}_first"
    if now.state == then.state and first in t.sentences:
        return t(first, **found)
    return " ".join([t(f"told_{name}", **found), *([t(f"told_{name}_so")] if holds else [])])


def _scale(now: LiveAnswer, start: LiveAnswer) -> Found:
    query, bent, value = _slope(now, "outer", 0), _slope(now, "functional", 0), _slope(now, "outer", -1)
    return {"query": _power(query), "bent": _power(bent), "value": _power(value)}, (query or 0) - (value or 0) > 1


def _saturation(now: LiveAnswer, start: LiveAnswer) -> Found:
    share = now.entropy.value if now.entropy else 1.0
    query, value = (_grown(now, start, i) for i in (0, -1))
    return {"entropy": percent(share), "query": times(query), "value": times(value)}, (
        share < SATURATED and query < 1 < value
    )


def _temperature(now: LiveAnswer, start: LiveAnswer) -> Found:
    spread = [read.entropy.value if read.entropy else 1.0 for read in (start, now)]
    high = [read.scalar("lambda_max").value for read in (start, now)]
    found = {
        "entropy": percent(spread[1]),
        "before": percent(spread[0]),
        "high": number(high[1]),
        "was": number(high[0]),
    }
    return found, spread[1] > spread[0] and high[1] < high[0]


def _softmax(now: LiveAnswer, start: LiveAnswer) -> Found:
    sizes = [now.norm("functional", block) for block in now.diagonal]
    powers = [e.value for block in now.blocks if (e := now.slope("outer", block))]
    found = {
        "norms": ", ".join(number(size) for size in sizes),
        "low": _power(min(powers)),
        "high": _power(max(powers)),
    }
    return found, not any(sizes)


def _norm(now: LiveAnswer, start: LiveAnswer) -> Found:
    low, high = _slopes(now)
    was_low, was_high = _slopes(start)
    ratio = now.scalar("lambda_max").value / start.scalar("lambda_max").value
    found = {"ratio": times(ratio), "low": _power(low), "high": _power(high)}
    return found | {"was_low": _power(was_low), "was_high": _power(was_high)}, high < 0 < was_low


def _depth(now: LiveAnswer, start: LiveAnswer) -> Found:
    ratio = now.scalar("lambda_max").value / start.scalar("lambda_max").value
    last = now.cosine[-1]
    found = {"blocks": len(now.cosine) - 1, "first": number(now.cosine[0]), "last": number(last), "ratio": times(ratio)}
    return found, COSINE.of(last) == "red" and ratio < 1


def _sink(now: LiveAnswer, start: LiveAnswer) -> Found:
    spread = now.moments["M2"].value / start.moments["M2"].value
    query, key = (_grown(now, start, i) for i in (0, 1))
    found = {"first": percent(now.first_key.value), "spread": times(spread), "query": times(query), "keys": times(key)}
    return found, now.first_key.value > 0.5 and max(spread, query, key) < 1


def _slope(read: LiveAnswer, part: str, which: int) -> float | None:
    found = read.slope(part, read.diagonal[which])
    return None if found is None else found.value


def _slopes(read: LiveAnswer) -> tuple[float, float]:
    """The smallest and the largest slope of any block of H."""
    found = [e.value for block in read.blocks if (e := read.slope("total", block))]
    return min(found), max(found)


def _grown(now: LiveAnswer, start: LiveAnswer, which: int) -> float:
    """The norm of a diagonal block over what it was."""
    was = start.norm("total", start.diagonal[which])
    return now.norm("total", now.diagonal[which]) / was


def _power(slope: float | None) -> str:
    return "–" if slope is None else f"{slope:.1f}".replace("-", "−")


_STEPS: dict[str, Callable[[LiveAnswer, LiveAnswer], Found]] = {
    "scale": _scale,
    "saturation": _saturation,
    "temperature": _temperature,
    "softmax": _softmax,
    "norm": _norm,
    "depth": _depth,
    "sink": _sink,
}
