"""Every sentence of the lecture, in English and in Korean side by side."""

from __future__ import annotations

from ...answers.texts import Texts as Texts
from . import attention, block, curvature, decoding, page, pupil, seeing, tokens

_PARTS = (page, tokens, attention, seeing, block, pupil, decoding, curvature)
_PAIRS = {key: pair for part in _PARTS for key, pair in part.SENTENCES.items()}
EN = Texts("en", {key: pair[0] for key, pair in _PAIRS.items()})
KO = Texts("ko", {key: pair[1] for key, pair in _PAIRS.items()})
LANGUAGES = {texts.lang: texts for texts in (EN, KO)}
