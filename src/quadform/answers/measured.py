"""What was measured on, in words: the data, the probe, the step, the number format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.record import Record
from .texts import Texts, spoken

#: Data that has no name of its own, as records hold it.
LIBRARY, RANDOM, OWN = "source of Python's standard library", "random tokens", "the model's own probe"
_KNOWN = {LIBRARY: "data_library", RANDOM: "data_random", OWN: "data_own", "batches": "data_given"}


def data_words(source: Mapping[str, Any], texts: Texts | None = None) -> str:
    """The data a measurement used, in words: a data set with its settings and split, a file, or batches given."""
    data, texts = source.get("data"), texts or spoken()
    if isinstance(data, Mapping):
        told = {k: v for k, v in data.items() if k not in ("class", "digest") and v != "" and type(v) in (int, str)}
        settings = [f"{k} {v}" for k, v in told.items()]
        said = f"{data.get('class', '')} ({', '.join(settings)})" if settings else str(data.get("class", ""))
        return texts("data_split", data=said, split=source["split"]) if "split" in source else said
    if data is None:
        return texts("data_given")
    return texts(_KNOWN[data]) if data in _KNOWN else str(data)


def probe_words(record: Record) -> str:
    """`probe 4 batches of 8 x 9 tokens, step 500, float32`; older records tell less."""
    given, texts = record.inputs, spoken()
    shape, size = given.get("probe"), ""
    if isinstance(shape, list):
        size = " x ".join(map(str, shape))
        size = texts("line_tokens", size=size) if given.get("of") == " tokens" else size + given.get("of", "")
        many = given.get("batches", 1)
        if many > 1 or not size:
            size = texts("line_batches" if size else "line_batch_count", count=many, size=size)
    step = given.get("source", {}).get("step")
    steps = [] if step is None else [texts("line_step", step=step)]
    return ", ".join([texts("line_probe", size=size).strip(), *steps, record.made.dtype])
