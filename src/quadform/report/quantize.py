"""Records of kind `quantize`: what few bits cost the loss, and which matrices are sensitive."""

from __future__ import annotations

from ..answers.numbers import number, short_name
from ..answers.quantize import QuantizedModel
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .prune import bars
from .rows import Row
from .style import LIGHT, Style
from .texts import EN, Texts


def quantize_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """For each method how much the loss rises: predicted, measured, and on batches held out."""
    words = ("quantize_title", "quantize_reading", "quantize_not")
    return bars(QuantizedModel(record), "quantize", words, texts, style)


def quantize_each(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Each matrix rounded alone: how much the loss rises, predicted and measured."""
    import altair as alt

    answer, over = QuantizedModel(record), Rows()
    kinds = [texts("compressed_predicted"), texts("compressed_measured")]
    ranked = sorted(answer.each.items(), key=lambda item: -item[1][1])
    names = [f"{n} ({answer.bits[n]})" for n, _ in ranked]
    rows = [
        {"matrix": name, "dL": value, "which": kind}
        for name, (_, pair) in zip(names, ranked, strict=True)
        for kind, value in zip(kinds, pair, strict=True)
    ]
    chart = (
        over(rows)
        .mark_point(filled=True, size=50, opacity=0.9)
        .encode(
            x=alt.X("dL:Q", axis=alt.Axis(title=texts("compressed_axis"), tickCount=6, format="~g")),
            y=alt.Y("matrix:N", sort=names, axis=alt.Axis(title=None, labelLimit=320)),
            color=alt.Color(
                "which:N",
                scale=alt.Scale(domain=kinds, range=[style.signed(1), style.ink]),
                legend=alt.Legend(title=None, orient="bottom", labelLimit=300),
            ),
            shape=alt.Shape("which:N", scale=alt.Scale(domain=kinds, range=["circle", "diamond"]), legend=None),
        )
        .properties(width=420, height=alt.Step(16))
    )
    table = tuple((n, answer.bits[n], *pair) for n, pair in ranked)
    return Figure(
        name="quantize-each",
        title=texts("quantize_each_title"),
        chart=over.finish(chart, style),
        headline=answer.said(texts.lang),
        reading=texts("quantize_each_reading"),
        not_meaning=texts("quantize_each_not"),
        table=Table(("matrix", "bits", "predicted", "measured"), table),
        python=redraw("quantize_each"),
        texts=texts,
        tags=("exact",),
    )


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
