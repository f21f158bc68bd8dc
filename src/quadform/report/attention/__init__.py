"""Records of kind `attention`: the exact Hessian of one layer, entry by entry."""

from ...answers.attention import AttentionAnswer
from ...answers.numbers import number
from ...core.record import Record
from ..page import Page
from ..texts import Texts
from .figures import drawn
from .tables import measured


def title(record: Record, texts: Texts) -> str:
    """Which layer it is."""
    given = AttentionAnswer(record).settings
    kind = f"attention_{given.get('attention')}"
    told = {
        "tokens": given.get("tokens"),
        "dim": given.get("d_model", given.get("dim")),
        "scale": number(float(given.get("scale", 1))),
    }
    layer = texts(kind) if kind in texts.sentences else str(given.get("attention"))
    return texts("record_attention", layer=layer, **told)


PAGE = Page(AttentionAnswer, title, measured, drawn)
