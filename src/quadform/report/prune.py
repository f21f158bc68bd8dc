"""Records of kind `prune`: what can be taken away, predicted and measured."""

from __future__ import annotations

from ..answers.numbers import number, percent, short_name
from ..answers.prune import Pruned
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row
from .style import LIGHT, Style
from .texts import EN, Texts


def prune_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """For each method how much the loss rises: predicted, measured, and on batches held out."""
    import altair as alt

    answer, over = Pruned(record), Rows()
    kinds = [texts(key) for key in ("prune_predicted", "prune_measured", "prune_unseen")]
    rows = [
        {"method": m.name, "dL": value, "which": kind}
        for m in answer.methods
        for kind, value in zip(kinds, (m.predicted, m.measured, m.held), strict=True)
        if value is not None
    ]
    chart = (
        over(rows)
        .mark_bar()
        .encode(
            x=alt.X("dL:Q", axis=alt.Axis(title=texts("prune_axis"), tickCount=6, format="~g")),
            y=alt.Y("which:N", sort=kinds, axis=None),
            row=alt.Row("method:N", sort=[m.name for m in answer.methods], title=None),
            color=alt.Color(
                "which:N",
                scale=alt.Scale(domain=kinds, range=[style.signed(1), style.ink, style.muted]),
                legend=alt.Legend(title=None, orient="bottom"),
            ),
        )
        .properties(width=420, height=54)
    )
    return Figure(
        name="prune",
        title=texts("prune_title"),
        chart=over.finish(chart, style),
        headline=answer.said(texts.lang),
        reading=texts("prune_reading"),
        not_meaning=texts("prune_not"),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw("prune_bars"),
        texts=texts,
        tags=("exact",),
    )


def title(record: Record, texts: Texts) -> str:
    return texts("record_prune", name=short_name(Pruned(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer = Pruned(record)
    group = texts("prune_title")
    found = [
        Row(group, texts("prune_sparsity"), percent(answer.sparsity)),
        Row(group, texts("prune_structure"), answer.structure),
        Row(group, texts("prune_loss"), number(answer.loss), "exact"),
    ]
    for m in answer.methods:
        found.append(Row(group, texts("prune_row", name=m.name), number(m.measured), "exact"))
    best = answer.best
    if best is not None:
        worst = sorted(zip(best.parts.tolist(), answer.matrices, strict=True), reverse=True)[:3]
        found += [Row(group, texts("prune_part", name=name), number(part), "exact") for part, name in worst]
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    return (prune_bars,) if Pruned(record).methods else ()


PAGE = Page(Pruned, title, rows, figures)
