"""Records of kind `point`: all eigenvalues by their sign."""

from __future__ import annotations

from ..answers.kind import PointKind
from ..answers.numbers import short_name
from ..core.errors import InputError
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts


def point_signs(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """|eigenvalue| by rank, coloured and shaped by sign, with the size below which it counts as zero."""
    import altair as alt

    answer, over = PointKind(record), Rows()
    if answer.zero is None or answer.eigenvalues is None:
        raise InputError("there is no figure of signs: the eigenvalues were not counted.")
    zero, values = answer.zero, sorted(answer.eigenvalues.tolist(), key=abs, reverse=True)
    floor = zero * 1e-3 or 1e-300
    words = [texts(f"point_{key}") for key in ("positive", "none", "negative")]
    rows = [
        {"i": i + 1, "y": max(abs(x), floor), "sign": words[1 if abs(x) <= zero else 0 if x > 0 else 2]}
        for i, x in enumerate(values)
    ]
    X = alt.X("i:Q", axis=alt.Axis(title=texts("point_axis"), tickCount=6, format="~s"))
    Y = alt.Y("y:Q", scale=alt.Scale(type="log"), axis=alt.Axis(title=texts("point_size"), tickCount=6, format="~e"))
    colours = [style.signed(1), style.muted, style.signed(-1)]
    legend = alt.Legend(title=None, orient="bottom")
    marks = (
        over(rows)
        .mark_point(filled=True, size=18)
        .encode(
            x=X,
            y=Y,
            color=alt.Color("sign:N", scale=alt.Scale(domain=words, range=colours), legend=legend),
            shape=alt.Shape("sign:N", scale=alt.Scale(domain=words, range=["circle", "square", "triangle-down"])),
        )
    )
    line = over([{"y": max(zero, floor)}]).mark_rule(color=style.muted, strokeDash=[4, 3]).encode(y=Y)
    return Figure(
        name="point",
        title=texts("point_title"),
        chart=over.finish(alt.layer(line, marks).properties(width=600, height=260), style),
        headline=answer.said(texts.lang),
        reading=texts("point_reading"),
        not_meaning=texts("point_not"),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw("point_signs"),
        texts=texts,
        tags=("exact",),
    )


def title(record: Record, texts: Texts) -> str:
    return texts("record_point", name=short_name(PointKind(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    group = texts("card_point_title")
    return tuple(Row(group, name, estimate(name, e), tag(e)) for name, e in PointKind(record).numbers.items())


def figures(record: Record) -> tuple[Draw, ...]:
    return (point_signs,) if PointKind(record).eigenvalues is not None else ()


PAGE = Page(PointKind, title, rows, figures)
