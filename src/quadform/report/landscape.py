"""Records of kind `landscape`: the loss on a line or a plane, and where its quadratic model holds."""

from __future__ import annotations

from typing import Any

from ..answers.landscape import Landscape
from ..answers.numbers import number, short_name
from ..core.record import Record
from .beside import beside_model
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row
from .style import LIGHT, Style
from .texts import EN, Texts

#: Colours of the map: levels of equal width, so that their edges are contour lines.
LEVELS = 12


def loss_map(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The plane as a map of levels with the points where the quadratic model holds; a line as a curve beside it."""
    answer = Landscape(record)
    over = Rows()
    chart = _line(answer, over, texts, style) if len(answer.y) == 1 else _plane(answer, over, texts, style)
    flat = "landscape_reading_line" if len(answer.y) == 1 else "landscape_reading"
    return Figure(
        name="landscape",
        title=texts("landscape_title"),
        chart=over.finish(chart, style),
        headline=answer.said(texts.lang),
        reading=texts(flat),
        not_meaning=texts("landscape_not"),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw("loss_map"),
        texts=texts,
        tags=("exact",),
        caption=_scale(answer, texts),
    )


def _ends(answer: Landscape) -> tuple[float, float]:
    """The lowest loss, and the one that nine points of ten stay below, so that high walls leave colours to the rest."""
    known = answer.loss[answer.loss.isfinite()]
    return float(known.min()), float(known.quantile(0.9))


def _scale(answer: Landscape, texts: Texts) -> str:
    low, high = _ends(answer)
    return texts("landscape_scale", low=number(low), high=number(high)) if len(answer.y) > 1 else ""


def _plane(answer: Landscape, over: Rows, texts: Texts, style: Style) -> Any:
    from .packages import alt

    loss, x, y = answer.loss, answer.x.tolist(), answer.y.tolist()
    low, high = _ends(answer)
    ramp, wide, tall = style.ramp(1, LEVELS), x[1] - x[0], y[1] - y[0]
    cells, dots = [], []
    for j, b in enumerate(y):
        for i, a in enumerate(x):
            v = float(loss[j, i])
            if v != v:
                continue
            level = min(LEVELS - 1, max(0, int((v - low) / ((high - low) or 1.0) * LEVELS)))
            cell = {"x": a - wide / 2, "x2": a + wide / 2, "y": b - tall / 2, "y2": b + tall / 2, "fill": ramp[level]}
            cells.append(cell | {texts("landscape_loss"): number(v, 4)})
            if bool(answer.holds[j, i]):
                dots.append({"x": a, "y": b})
    X = alt.X("x:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(title=answer.labels[0], grid=False))
    Y = alt.Y("y:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(title=answer.labels[1], grid=False))
    tip = f"{texts('landscape_loss')}:N"
    layers = [
        over(cells)
        .mark_rect(strokeWidth=0)
        .encode(
            x=X,
            x2="x2:Q",
            y=Y,
            y2="y2:Q",
            color=alt.Color("fill:N", scale=None),
            tooltip=tip,
        ),
        over(dots).mark_circle(size=5, color=style.ink, opacity=0.8).encode(x=X, y=Y),
        over([{"x": p[0], "y": p[1], "name": n} for n, p in answer.marks.items()])
        .mark_text(fontSize=13, fontWeight="bold", color=style.ink, dy=-9)
        .encode(x=X, y=Y, text="name:N"),
        over([{"x": p[0], "y": p[1]} for p in answer.marks.values()])
        .mark_point(shape="cross", size=90, color=style.ink, strokeWidth=2)
        .encode(x=X, y=Y),
    ]
    return alt.layer(*layers).properties(name="fluid", width=460, height=380)


def _line(answer: Landscape, over: Rows, texts: Texts, style: Style) -> Any:
    marks = {name: place[0] for name, place in answer.marks.items()}
    chart = beside_model(over, answer.x, answer.loss[0], answer.quadratic[0], marks, answer.labels[0], texts, style)
    return chart.properties(name="fluid", width=560, height=260)


def title(record: Record, texts: Texts) -> str:
    return texts("record_landscape", name=short_name(Landscape(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer, group = Landscape(record), texts("landscape_title")
    return (
        Row(group, texts("landscape_loss"), number(answer.here.value), "exact"),
        *(Row(group, label, f"{number(float(a[0]))} ... {number(float(a[-1]))}") for label, a in
          zip(answer.labels, (answer.x, answer.y), strict=False)),
    )  # fmt: skip


def figures(record: Record) -> tuple[Draw, ...]:
    return (loss_map,)


PAGE = Page(Landscape, title, rows, figures)
