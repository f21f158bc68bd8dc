"""Records of kind `quantize`: what few bits cost the loss, and which matrices are sensitive."""

from __future__ import annotations

from ..answers.numbers import number, short_name
from ..answers.quantize import QuantizedModel
from ..core.record import Record
from .figure import Figure
from .page import Draw, Page
from .prune import bars, one_by_one
from .rows import Row
from .style import LIGHT, Style
from .texts import EN, Texts


def quantize_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """For each method how much the loss rises: predicted, measured, and on batches held out."""
    words = ("quantize_title", "quantize_reading", "quantize_not")
    return bars(QuantizedModel(record), "quantize", words, texts, style)


def quantize_each(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Each matrix rounded alone: how much the loss rises, predicted and measured."""
    words = ("quantize_each_title", "quantize_each_reading", "quantize_each_not")
    return one_by_one(QuantizedModel(record), words, texts, style)


def title(record: Record, texts: Texts) -> str:
    return texts("record_quantize", name=short_name(QuantizedModel(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer = QuantizedModel(record)
    group = texts("quantize_title")
    found = [Row(group, texts("quantize_group"), str(answer.group))]
    if answer.budget is not None:
        found.append(Row(group, texts("quantize_budget"), f"{answer.budget:g}"))
    found.append(Row(group, texts("compressed_loss"), number(answer.loss), "exact"))
    if answer.methods:
        found.append(Row(group, texts("quantize_bits"), number(answer.methods[0].size), "exact"))
    for m in answer.methods:
        found.append(Row(group, texts("compressed_row", name=m.name), number(m.measured), "exact"))
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    answer = QuantizedModel(record)
    drawn: list[Draw] = [quantize_bars] if answer.methods else []
    return tuple([*drawn, quantize_each] if answer.each else drawn)


PAGE = Page(QuantizedModel, title, rows, figures)
