"""Records of kind `flat`: every measure here and at its least among equal models."""

from __future__ import annotations

from ..answers.flat import Flat
from ..answers.numbers import number, short_name
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts


def flat_ratios(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """How many times larger each measure is here than at its least among equal models."""
    from .packages import alt

    answer, over = Flat(record), Rows()
    names = {m.name: texts(f"flat_{m.name}") for m in answer.measures}
    bars = [
        {"name": names[m.name], "x": m.ratio, "said": f"{number(m.here.value)} / {number(m.least.value)}"}
        for m in answer.measures
        if m.ratio is not None and m.least is not None
    ]
    x = alt.X("x:Q", axis=alt.Axis(title=texts("flat_axis"), tickCount=6), scale=alt.Scale(zero=True))
    y = alt.Y("name:N", sort=list(names.values()), axis=alt.Axis(title=None, labelLimit=240, grid=False, ticks=False))
    data = over(bars)
    layers = [
        data.mark_bar(height=18, color=style.query).encode(x=x, y=y),
        data.mark_text(align="left", dx=6).encode(x=x, y=y, text="said:N"),
        over([{"x": 1.0}]).mark_rule(strokeDash=[5, 4], color=style.muted).encode(x=x),
    ]
    return Figure(
        name="flat",
        title=texts("flat_title"),
        chart=over.finish(
            alt.layer(*layers).properties(name="fluid", width=520, height=alt.Step(34)), style, chrome=230
        ),
        headline=answer.said(texts.lang),
        reading=texts("flat_reading"),
        not_meaning=texts("flat_not"),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw("flat_ratios"),
        texts=texts,
        tags=("estimate", "bound"),
    )


def title(record: Record, texts: Texts) -> str:
    return texts("record_flat", name=short_name(Flat(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    group, found = texts("flat_title"), []
    for m in Flat(record).measures:
        found.append(Row(group, texts(f"flat_{m.name}"), estimate(m.name, m.here), tag(m.here)))
        if m.least is not None:
            label = f"{texts(f'flat_{m.name}')}, {texts('flat_least')}"
            found.append(Row(group, label, estimate(m.name, m.least), tag(m.least)))
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    return (flat_ratios,) if any(m.ratio is not None for m in Flat(record).measures) else ()


PAGE = Page(Flat, title, rows, figures)
