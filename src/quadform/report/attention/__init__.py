"""Records of kind `attention`: the exact Hessian of one layer, entry by entry."""

from ...answers.numbers import number
from ...core.record import Record
from ..page import OldPage
from ..texts import Texts
from .figures import drawn
from .tables import measured
from .verdict import cards, summary


def title(record: Record, texts: Texts) -> str:
    """Which layer it is."""
    given = record.inputs
    kind = f"attention_{given.get('attention')}"
    told = {"tokens": given.get("tokens"), "dim": given.get("dim"), "scale": number(float(given.get("scale", 1)))}
    layer = texts(kind) if kind in texts.sentences else str(given.get("attention"))
    return texts("record_attention", layer=layer, **told)


PAGE = OldPage(title, summary, cards, measured, drawn)
