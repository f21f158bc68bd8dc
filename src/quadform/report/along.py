"""Ceiling and learning rate along a run, one below the other while the run is stable."""

from __future__ import annotations

import math
from typing import Any

from ..answers.course import EDGE
from ..answers.step_size import StepSize
from ..core.record import Record
from .figure import Figure, Rows, Table, decades, redraw
from .style import LIGHT, Style
from .texts import EN, Texts


def rate_course(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Two lines over the steps, the ceiling and the rate; where the rate comes near the ceiling it is marked."""
    from .packages import alt

    over, course = Rows(), StepSize(record).course
    assert course is not None  # `drawn` asks first
    names = {"ceiling": texts("rate_ceiling"), "rate": texts("course_rate")}
    lines: list[dict[str, Any]] = [
        {"step": s.step, "y": y, "what": names[what]}
        for s in course.stops
        for what, y in (("ceiling", s.ceiling.value), ("rate", s.rate))
        if math.isfinite(y) and y > 0
    ]
    ends = [row["y"] for row in lines]
    domain = [10.0 ** math.floor(math.log10(min(ends))), 10.0 ** math.ceil(math.log10(max(ends)))]
    x = alt.X("step:Q", axis=alt.Axis(title=texts("training_step"), tickCount=8), scale=alt.Scale(nice=False))
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(title=texts("rate_axis"), **decades(*domain)),
    )
    colour = alt.Color(
        "what:N",
        sort=list(names.values()),
        scale=alt.Scale(domain=list(names.values()), range=[style.query, style.key]),
        legend=alt.Legend(title=None, orient="top"),
    )
    data = over(lines)
    layers = [
        data.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        data.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, color=colour),
    ]
    edge = [{"step": s.step, "y": s.rate, "said": f"{s.share.value:.2g}×"} for s in course.stops if s.at_edge]
    if edge:
        marked = over(edge)
        layers += [
            marked.mark_point(size=240, strokeWidth=2, color=style.ink, shape="circle").encode(x=x, y=y),
            marked.mark_text(dy=-16).encode(x=x, y=y, text="said:N"),
        ]
    chart = alt.layer(*layers).properties(name="fluid", width=560, height=260)
    table = [(s.step, s.rate, s.ceiling.value, s.share.value) for s in course.stops]
    return Figure(
        name="rate_course",
        title=texts("course_title"),
        chart=over.finish(chart, style, chrome=90),
        headline=course.verdict().sentence(texts.lang),
        reading=texts("course_reading", edge=f"{EDGE:g}"),
        not_meaning=texts("course_not"),
        table=Table(
            (texts("training_step"), texts("course_rate"), texts("rate_ceiling"), texts("course_share")), tuple(table)
        ),
        python=redraw("rate_course"),
        texts=texts,
        tags=("estimate",),
        caption=texts("course_caption" if not course.short else "course_short_caption"),
    )
