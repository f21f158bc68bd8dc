"""Every sentence of the answers, in English and in Korean side by side.

A language is a value: `EN("point_saddle", low="-2", limit="1e-8")`. Names from code (W_Q, H_o, lambda_max) stay as they
are. The report adds the sentences of its figures to these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from . import (
    attention,
    compare,
    flat,
    landscape,
    lines,
    monitor,
    point,
    precond,
    prune,
    shared,
    signal,
    spectrum,
    step_size,
    taylor,
    training,
    why,
    why_step,
)


@dataclass(frozen=True)
class Texts:
    """The sentences of one language: `texts(key, **values)`."""

    lang: str
    sentences: Mapping[str, str]

    def __call__(self, key: str, **values: Any) -> str:
        return self.sentences[key].format(**{n: v(self) if callable(v) else v for n, v in values.items()})

    def parameter(self, name: str) -> str:
        """`W_Q` -> query; a name without a label comes back as it is."""
        head, dot, tail = name.rpartition(".")
        stem, bracket, rest = tail.partition("[")
        return head + dot + self.sentences.get(f"parameter_{stem}", stem) + bracket + rest

    def block(self, name: str) -> str:
        """`W_Q,W_K` -> query·key."""
        return "·".join(self.parameter(part) for part in name.split(","))


_PAIRS = {
    key: pair
    for part in (
        shared,
        lines,
        spectrum,
        point,
        attention,
        signal,
        step_size,
        taylor,
        landscape,
        flat,
        precond,
        prune,
        why,
        why_step,
        compare,
        training,
        monitor,
    )
    for key, pair in part.SENTENCES.items()
}
EN = Texts("en", {key: pair[0] for key, pair in _PAIRS.items()})
KO = Texts("ko", {key: pair[1] for key, pair in _PAIRS.items()})
LANGUAGES = {texts.lang: texts for texts in (EN, KO)}

_SPOKEN = ContextVar("spoken", default=EN)


def spoken() -> Texts:
    """The language a terminal is answered in; English unless `speaking` says otherwise."""
    return _SPOKEN.get()


@contextmanager
def speaking(lang: str) -> Iterator[None]:
    """Sentences without a language of their own are in this one: `with speaking("ko"): print(answer)`."""
    before = _SPOKEN.set(LANGUAGES[lang])
    try:
        yield
    finally:
        _SPOKEN.reset(before)


def line(key: str, **values: Any) -> str:
    """A sentence in the language that is spoken."""
    return spoken()(key, **values)
