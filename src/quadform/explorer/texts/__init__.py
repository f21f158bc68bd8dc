"""Every sentence of the page in English and Korean, on top of those of the report."""

from __future__ import annotations

from ...report.texts import EN as REPORT_EN
from ...report.texts import KO as REPORT_KO
from ...report.texts import Texts
from . import en, ko

EN = Texts("en", {**REPORT_EN.sentences, **en.SENTENCES})
KO = Texts("ko", {**REPORT_KO.sentences, **ko.SENTENCES})
LANGUAGES = {texts.lang: texts for texts in (EN, KO)}
