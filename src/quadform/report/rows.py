"""Rows of "What was measured": what, its value as text, its tag, and for a check whether it passed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.record import Estimate
from .card import Status
from .numbers import number, percent
from .texts import EN, Texts

#: Data that has no name of its own, as records hold it.
LIBRARY, RANDOM, OWN = "source of Python's standard library", "random tokens", "the model's own probe"
_KNOWN = {LIBRARY: "data_library", RANDOM: "data_random", OWN: "data_own", "batches": "data_given"}


@dataclass(frozen=True)
class Row:
    """One line: what, its value as text, its tag (`given` for a setting), and for a check whether it passed."""

    group: str
    label: str
    value: str
    tag: str = "given"
    status: Status | None = None
    note: str = ""


def tag(e: Estimate) -> str:
    return e.kind if e.converged else "unconverged"


def estimate(name: str, e: Estimate) -> str:
    """The value with its error, in the unit people read it in."""
    if name in ("negative_share", "negative_curvature", "entropy") and math.isfinite(e.value):
        return percent(e.value) + (f" ± {percent(e.error)}" if e.error else "")
    spread = f" ± {number(e.error, 2)}" if e.error else ""
    return number(e.value, 4) + spread + (" s" if name == "seconds" else "")


def data_words(source: Mapping[str, Any], texts: Texts = EN) -> str:
    """The data a measurement used, in words: a data set with its settings and split, a file, or batches given."""
    data = source.get("data")
    if isinstance(data, Mapping):
        told = {k: v for k, v in data.items() if k not in ("class", "digest") and v != "" and type(v) in (int, str)}
        settings = [f"{k} {v}" for k, v in told.items()]
        said = f"{data.get('class', '')} ({', '.join(settings)})" if settings else str(data.get("class", ""))
        return texts("data_split", data=said, split=source["split"]) if "split" in source else said
    if data is None:
        return texts("data_given")
    return texts(_KNOWN[data]) if data in _KNOWN else str(data)
