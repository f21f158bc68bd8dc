"""Records of kind `taylor`: the loss beside its quadratic model along each direction."""

from __future__ import annotations

from ..answers.numbers import number, short_name
from ..answers.taylor import Taylor
from ..core.record import Record
from .beside import beside_model
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

#: Directions that are drawn; the others are in the table.
DRAWN = 6


def taylor_lines(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """One panel for each direction: the loss, its quadratic model, and the radius up to which the model holds."""
    from .packages import alt

    answer, over, panels = Taylor(record), Rows(), []
    for d in answer.directions[:DRAWN]:
        if d.r is None or d.loss is None or d.model is None or d.measured is None:
            continue
        radius = {"": d.measured.value}
        panel = beside_model(over, d.r, d.loss, d.model, radius, texts("taylor_axis"), texts, style)
        panels.append(panel.properties(width=280, height=170, title=d.name))
    chart = alt.concat(*panels, columns=2).resolve_scale(x="independent", y="independent")
    head = answer.said(texts.lang)
    return Figure(
        name="taylor",
        title=texts("taylor_title"),
        chart=over.finish(chart, style),
        headline=head,
        reading=texts("taylor_reading"),
        not_meaning=texts("taylor_not"),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw("taylor_lines"),
        texts=texts,
        tags=("estimate",),
    )


def title(record: Record, texts: Texts) -> str:
    return texts("record_taylor", name=short_name(Taylor(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer = Taylor(record)
    group = texts("taylor_title")
    found = [Row(group, "|g|", number(answer.gradient_norm), "exact")]
    for d in answer.directions:
        if d.measured is not None:
            found.append(Row(group, texts("taylor_row", name=d.name), estimate("radius", d.measured), tag(d.measured)))
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    return (taylor_lines,) if any(d.r is not None for d in Taylor(record).directions) else ()


PAGE = Page(Taylor, title, rows, figures)
