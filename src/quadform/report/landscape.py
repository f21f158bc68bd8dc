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
        headline=(answer.said_of_plane + answer.cut_short)(texts.lang),
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
        *_paths(answer, over, X, Y, style),
        over([{"x": p[0], "y": p[1], "name": short_name(n)} for n, p in answer.marks.items()])
        .mark_text(fontSize=13, fontWeight="bold", color=style.ink, dy=-9)
        .encode(x=X, y=Y, text="name:N"),
        over([{"x": p[0], "y": p[1]} for p in answer.marks.values()])
        .mark_point(shape="cross", size=90, color=style.ink, strokeWidth=2)
        .encode(x=X, y=Y),
    ]
    return alt.layer(*layers).properties(name="fluid", width=460, height=380)


def _paths(answer: Landscape, over: Rows, X: Any, Y: Any, style: Style) -> list[Any]:
    """The straight line to another checkpoint, dashed, and the curve."""
    return [
        over([{"x": a, "y": b, "i": i} for i, (a, b) in enumerate(path.tolist())])
        .mark_line(color=style.ink, strokeWidth=2, strokeDash=[5, 3] if way == "line" else [1, 0])
        .encode(x=X, y=Y, order="i:Q")
        for way, path in answer.paths.items()
    ]


def loss_ways(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The loss from the model to another checkpoint: on the straight line, and on the curve."""
    from .packages import alt

    answer, over = Landscape(record), Rows()
    called = {"line": texts("landscape_way_line"), "curve": texts("landscape_way_curve")}
    names = {way: called[way] for way in answer.ways}
    rows = [
        {"t": i / (len(loss) - 1), "y": y, "way": names[way]}
        for way, loss in answer.ways.items()
        for i, y in enumerate(loss.tolist())
    ]
    domain, colours = list(names.values()), [style.ink, style.signed(1)]
    chart = (
        over(rows)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("t:Q", axis=alt.Axis(title=texts("landscape_way"), tickCount=5, format="~g")),
            y=alt.Y("y:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title=texts("landscape_loss"), tickCount=5)),
            color=alt.Color(
                "way:N",
                scale=alt.Scale(domain=domain, range=colours[: len(domain)]),
                legend=alt.Legend(title=None, orient="bottom"),
            ),
            strokeDash=alt.StrokeDash("way:N", scale=alt.Scale(domain=domain, range=[[5, 3], [1, 0]]), legend=None),
        )
        .properties(name="fluid", width=560, height=240)
    )
    table = tuple((row["way"], row["t"], row["y"]) for row in rows)
    return Figure(
        name="ways",
        title=texts("landscape_way_title", other=short_name(answer.other)),
        chart=over.finish(chart, style),
        headline=answer.said_of_ways(texts.lang),
        reading=texts("landscape_way_reading"),
        not_meaning=texts("landscape_way_not"),
        table=Table((texts("landscape_way_which"), "t", texts("landscape_loss")), table),
        python=redraw("loss_ways"),
        texts=texts,
        tags=("exact",),
    )


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
    answer = Landscape(record)
    if not answer.loss.isfinite().any():
        return ()
    return (loss_ways, loss_map) if answer.ways else (loss_map,)


PAGE = Page(Landscape, title, rows, figures)
