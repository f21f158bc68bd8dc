"""Records of kind `prune`: what can be taken away, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..answers.compressed import Compressed
from ..answers.numbers import number, percent, short_name
from ..answers.prune import Pruned
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row
from .style import LIGHT, Style
from .texts import EN, Texts


def bars(answer: Compressed, name: str, words: tuple[str, str, str], texts: Texts, style: Style) -> Figure:
    """For each method how much the loss rises; `words` are the keys of title, reading and what it does not mean."""
    import altair as alt

    over, (title, reading, not_meaning) = Rows(), words
    kinds = [texts(key) for key in ("compressed_predicted", "compressed_measured", "compressed_unseen")]
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
            x=alt.X("dL:Q", axis=alt.Axis(title=texts("compressed_axis"), tickCount=6, format="~g")),
            y=alt.Y("which:N", sort=kinds, axis=None),
            row=alt.Row("method:N", sort=[m.name for m in answer.methods], title=None),
            color=alt.Color(
                "which:N",
                scale=alt.Scale(domain=kinds, range=[style.signed(1), style.ink, style.muted]),
                legend=alt.Legend(title=None, orient="bottom", labelLimit=300),
            ),
        )
        .properties(width=420, height=54)
    )
    return Figure(
        name=name,
        title=texts(title),
        chart=over.finish(chart, style),
        headline=answer.said(texts.lang),
        reading=texts(reading),
        not_meaning=texts(not_meaning),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw(f"{name}_bars"),
        texts=texts,
        tags=("exact",),
    )


def one_by_one(answer: Compressed, words: tuple[str, str, str], texts: Texts, style: Style) -> Figure:
    """Each matrix or head changed alone; `words` are the keys of title, reading and what it does not mean."""
    import altair as alt

    over, (title, reading, not_meaning) = Rows(), words
    kinds = [texts("compressed_predicted"), texts("compressed_measured")]
    ranked = sorted(answer.each.items(), key=lambda item: -item[1][1])
    names = [answer.named_alone(n) for n, _ in ranked]
    rows = [
        {"matrix": name, "dL": value, "which": kind}
        for name, (_, pair) in zip(names, ranked, strict=True)
        for kind, value in zip(kinds, pair, strict=True)
    ]
    legend = alt.Legend(title=None, orient="bottom", labelLimit=300)
    linear, ticks = _decades([value for _, pair in ranked for value in pair])
    chart = (
        over(rows)
        .mark_point(filled=True, size=50, opacity=0.9)
        .encode(
            x=alt.X(
                "dL:Q",
                scale=alt.Scale(type="symlog", constant=linear),
                axis=alt.Axis(title=texts("compressed_axis"), values=ticks, format="~g"),
            ),
            y=alt.Y("matrix:N", sort=names, axis=alt.Axis(title=None, labelLimit=320)),
            color=alt.Color(
                "which:N", scale=alt.Scale(domain=kinds, range=[style.signed(1), style.ink]), legend=legend
            ),
            shape=alt.Shape("which:N", scale=alt.Scale(domain=kinds, range=["circle", "diamond"]), legend=legend),
        )
        .properties(width=300, height=alt.Step(16))
    )
    return Figure(
        name=f"{answer.kind}-each",
        title=texts(title),
        chart=over.finish(chart, style),
        headline=answer.ends(texts.lang),
        reading=texts(reading, share=answer.share),
        not_meaning=texts(not_meaning),
        table=Table(
            ("changed alone", "predicted", "measured"),
            tuple((name, *pair) for name, (_, pair) in zip(names, ranked, strict=True)),
        ),
        python=redraw(f"{answer.kind}_each"),
        texts=texts,
        tags=("exact",),
        caption=texts("density_caption", linear=number(linear, 2)),
    )


def _decades(values: Sequence[float]) -> tuple[float, list[float]]:
    """Up to where an axis is linear, three decades below the largest, and its ticks."""
    top = math.floor(math.log10(max((abs(v) for v in values if v), default=1.0)))
    powers = [10.0**k for k in range(top - 2, top + 1)]
    below = [-p for p in reversed(powers) if min(values) <= -p]
    return 10.0 ** (top - 3), [*below, 0.0, *(p for p in powers if max(values) >= p)]


def prune_each(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Each matrix without a share of its weights, each head gone: how much the loss rises, predicted and measured."""
    words = ("prune_each_title", "prune_each_reading", "prune_each_not")
    return one_by_one(Pruned(record), words, texts, style)


def prune_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """For each method how much the loss rises: predicted, measured, and on batches held out."""
    return bars(Pruned(record), "prune", ("prune_title", "prune_reading", "prune_not"), texts, style)


def title(record: Record, texts: Texts) -> str:
    return texts("record_prune", name=short_name(Pruned(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer = Pruned(record)
    group = texts("prune_title")
    found = [
        Row(group, texts("prune_sparsity"), percent(answer.sparsity)),
        Row(group, texts("compressed_loss"), number(answer.loss), "exact"),
    ]
    if answer.methods:
        found.insert(1, Row(group, texts("prune_structure"), answer.structure))
    for m in answer.methods:
        found.append(Row(group, texts("compressed_row", name=m.name), number(m.measured), "exact"))
    best = answer.best
    if best is not None:
        worst = sorted(zip(best.parts.tolist(), answer.matrices, strict=True), reverse=True)[:3]
        found += [Row(group, texts("prune_part", name=name), number(part), "exact") for part, name in worst]
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    answer = Pruned(record)
    drawn: list[Draw] = [prune_bars] if answer.methods else []
    return tuple([*drawn, prune_each] if answer.each else drawn)


PAGE = Page(Pruned, title, rows, figures)
