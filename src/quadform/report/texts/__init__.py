"""Every sentence of the report, once in English and once in Korean.

A language is a value: `EN("heat_title")`, `KO("card_negative_title")`. Both have the same keys and the same places to
fill, which a test checks, so that no page is half translated. Names from code (W_Q, H_o, lambda_max) stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import UnknownName, did_you_mean
from . import en, ko, panel, spectral, study, training


@dataclass(frozen=True)
class Texts:
    """The sentences of one language: `texts(key, **values)`."""

    lang: str
    sentences: Mapping[str, str]

    def __call__(self, key: str, **values: Any) -> str:
        return self.sentences[key].format(**values)

    def parameter(self, name: str) -> str:
        """`W_Q` -> query; a name without a label comes back as it is."""
        head, dot, tail = name.rpartition(".")
        stem, bracket, rest = tail.partition("[")
        return head + dot + self.sentences.get(f"parameter_{stem}", stem) + bracket + rest

    def block(self, name: str) -> str:
        """`W_Q,W_K` -> query·key."""
        return "·".join(self.parameter(part) for part in name.split(","))


#: Sentences of single pages, beside those all pages share.
_PAGES = (panel, spectral, study, training)
EN = Texts("en", {k: v for part in (en.SENTENCES, *(p.EN for p in _PAGES)) for k, v in part.items()})
KO = Texts("ko", {k: v for part in (ko.SENTENCES, *(p.KO for p in _PAGES)) for k, v in part.items()})
LANGUAGES = {texts.lang: texts for texts in (EN, KO)}


def language(lang: str) -> Texts:
    """The sentences of a language by its code."""
    try:
        return LANGUAGES[lang]
    except KeyError as error:
        raise UnknownName(
            f"{lang!r} is not a language of the report ({', '.join(LANGUAGES)}).{did_you_mean(lang, LANGUAGES)}"
        ) from error
