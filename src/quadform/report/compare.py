"""Records of kind `compare`: loss in equal time, rank through depth, and every number of every model."""

from __future__ import annotations

import math
from typing import Any

from ..answers.compare import COLUMNS, Compare, name
from ..answers.numbers import number
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

_NUMBERS = tuple(measure for measure in COLUMNS if measure != "steps")
#: Least distance of two labels, as a share of the axis.
LABEL = 0.06
_DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3])


def title(record: Record, texts: Texts) -> str:
    return texts("record_compare", count=len(Compare(record).cells))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer, setting = Compare(record), texts("group_setting")
    out = [Row(setting, texts("rate_probe"), answer.about), Row(setting, texts("data_row"), answer.data(texts))]
    for cell in answer.cells:
        found = [(measure, answer.get(*cell, measure)) for measure in _NUMBERS]
        out += [Row(name(cell), measure, estimate(measure, e), tag(e)) for measure, e in found if e is not None]
    return tuple(out)


def _look(answer: Compare, style: Style) -> dict[str, str]:
    designs = list(dict.fromkeys(d for d, _ in answer.cells))
    hues = (style.query, style.key, style.value, style.out, style.ink, style.mlp, style.signed(-1), style.signed(1))
    return {d: hues[i % len(hues)] for i, d in enumerate(designs)}


def loss_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Held-out loss after equal time, one bar a model, two standard errors."""
    from .packages import alt

    over, answer = Rows(), Compare(record)
    look = _look(answer, style)
    found = sorted(answer.each("loss").items(), key=lambda pair: pair[1].value)
    bars: list[dict[str, Any]] = [
        {
            "name": name(c), "x": e.value, "colour": look[c[0]], "said": number(e.value),
            "low": e.value - e.reach, "high": e.value + e.reach,
        }
        for c, e in found
    ]  # fmt: skip
    data, order = over(bars), [b["name"] for b in bars]
    x = alt.X("x:Q", axis=alt.Axis(title=texts("compare_loss"), tickCount=6), scale=alt.Scale(zero=True))
    y = alt.Y("name:N", sort=order, axis=alt.Axis(title=None, ticks=False, grid=False, labelLimit=220))
    chart = alt.layer(
        data.mark_bar(height=16).encode(x=x, y=y, color=alt.Color("colour:N", scale=None)),
        data.mark_rule(strokeWidth=1.6, color=style.ink).encode(x=alt.X("low:Q"), x2="high:Q", y=y),
        data.mark_text(align="left", dx=8).encode(x=alt.X("high:Q"), y=y, text="said:N"),
    ).properties(name="fluid", width=560, height=alt.Step(26))
    columns = (texts("compare_design"), texts("compare_depth"), *_NUMBERS)
    table = tuple(
        (*c, *(None if (e := answer.get(*c, m)) is None else e.value for m in _NUMBERS)) for c in answer.cells
    )
    return _figure("loss", "compare_title", over.finish(chart, style, chrome=190), answer, texts, columns, table)


def rank_lines(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Participation ratio of the tokens after each block at initialization, a line a design, a panel a depth."""
    from .packages import alt

    over, answer = Rows(), Compare(record)
    look = _look(answer, style)
    panels, table = [], []
    designs = list(look)
    dashes = alt.Scale(domain=[str(i) for i in range(len(_DASHES))], range=list(_DASHES))
    for depth in sorted({n for _, n in answer.cells}):
        points: list[dict[str, Any]] = []
        for design in designs:
            for layer, value in enumerate(answer.layers((design, depth), "rank")):
                dash = str(designs.index(design) % len(_DASHES))
                points.append({"x": layer, "y": value, "design": design, "colour": look[design], "dash": dash})
                table.append((design, depth, layer, value))
        ends = over(_apart([p for p in points if p["x"] == depth], max((p["y"] for p in points), default=1.0)))
        data = over(points)
        x = alt.X(
            "x:Q",
            scale=alt.Scale(domain=[0, depth], nice=False),
            axis=alt.Axis(title=texts("col_layer"), tickCount=min(depth, 6), format="d", grid=False),
        )
        y = alt.Y("y:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title=texts("compare_rank"), tickCount=5))
        colour = alt.Color("colour:N", scale=None)
        panel = alt.layer(
            data.mark_line(strokeWidth=1.8).encode(
                x=x,
                y=y,
                color=colour,
                detail="design:N",
                strokeDash=alt.StrokeDash("dash:N", scale=dashes, legend=None),
            ),
            data.mark_point(filled=True, size=26, opacity=1).encode(
                x=x, y=y, color=colour, tooltip=[alt.Tooltip("design:N"), alt.Tooltip("y:Q", format=".3g")]
            ),
            ends.mark_text(align="left", dx=6, fontSize=11).encode(x=x, y=alt.Y("at:Q"), color=colour, text="design:N"),
        )
        heading = alt.TitleParams(f"{depth} " + texts("compare_depth"), fontSize=12, fontWeight="normal")
        panels.append(panel.properties(name=f"fluid_{depth}", width=230, height=220, title=heading))
    chart = alt.concat(*panels, columns=2, spacing=90)
    columns = tuple(texts(c) for c in ("compare_design", "compare_depth", "col_layer", "compare_rank"))
    drawn_ = over.finish(chart, style, chrome=140, columns=2, narrow=700)
    return _figure("rank", "compare_rank_title", drawn_, answer, texts, columns, tuple(table))


def _apart(ends: list[dict[str, Any]], top: float) -> list[dict[str, Any]]:
    """Labels at the ends of lines, moved up where they would overlap: `at` in place of `y`."""
    placed, below = [], -math.inf
    for end in sorted(ends, key=lambda e: float(e["y"])):
        below = max(float(end["y"]), below + LABEL * top)
        placed.append({**end, "at": below})
    return placed


def _figure(
    which: str,
    heading: str,
    chart: Any,
    answer: Compare,
    texts: Texts,
    columns: tuple[str, ...],
    table: tuple[Any, ...],
) -> Figure:
    return Figure(
        name=which,
        title=texts(heading),
        chart=chart,
        headline=answer.said(texts.lang),
        reading=texts("compare_reading" if which == "loss" else "compare_rank_reading"),
        not_meaning=texts("compare_not"),
        table=Table(columns, table),
        python=redraw({"loss": "loss_bars", "rank": "rank_lines"}[which]),
        texts=texts,
        tags=("estimate",),
        caption=texts("compare_caption" if which == "loss" else "compare_rank_caption"),
    )


def drawn(record: Record) -> tuple[Draw, ...]:
    answer = Compare(record)
    has_rank = any(answer.layers(cell, "rank") for cell in answer.cells)
    return (*((loss_bars,) if answer.each("loss") else ()), *((rank_lines,) if has_rank else ()))


PAGE = Page(Compare, title, rows, drawn)
