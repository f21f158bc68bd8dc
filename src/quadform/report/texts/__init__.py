"""Every sentence of the report, once in English and once in Korean.

A language is a value: `EN("heat_title")`, `KO("card_negative_title")`. Both have the same keys and the same places to
fill, which a test checks, so that no page is half translated. Names from code (W_Q, H_o, lambda_max) stay as they are.
"""

from __future__ import annotations

from ...answers.texts import EN as ANSWERS_EN
from ...answers.texts import KO as ANSWERS_KO
from ...answers.texts import Texts as Texts
from ...core.errors import UnknownName, did_you_mean
from . import (
    en,
    flat,
    ko,
    landscape,
    monitor,
    panel,
    point,
    precond,
    prune,
    quantize,
    spectral,
    study,
    taylor,
    training,
    why_step,
)

#: Sentences of single pages, beside those all pages share.
_PAGES = (flat, landscape, monitor, panel, point, precond, prune, quantize, spectral, study, taylor, training, why_step)
_EN = (ANSWERS_EN.sentences, en.SENTENCES, *(p.EN for p in _PAGES))
_KO = (ANSWERS_KO.sentences, ko.SENTENCES, *(p.KO for p in _PAGES))
EN = Texts("en", {k: v for part in _EN for k, v in part.items()})
KO = Texts("ko", {k: v for part in _KO for k, v in part.items()})
LANGUAGES = {texts.lang: texts for texts in (EN, KO)}


def language(lang: str) -> Texts:
    """The sentences of a language by its code."""
    try:
        return LANGUAGES[lang]
    except KeyError as error:
        raise UnknownName(
            f"{lang!r} is not a language of the report ({', '.join(LANGUAGES)}).{did_you_mean(lang, LANGUAGES)}"
        ) from error
