"""The moments of attention against the input scale: why query curvature dies where attention becomes one-hot."""

from __future__ import annotations

from ...answers.attention import AttentionAnswer
from ...answers.numbers import number, percent
from ...core.record import Record
from ..figure import Figure, Rows, Table, decades, redraw
from ..style import LIGHT, Style
from ..texts import EN, Texts

#: Below this share of its value at the smallest scale M2 is said to have fallen.
FALLEN = 0.5


def moments(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """|M_k| / scale^k of the keys under attention, k = 1, 2, 3, over its value at the smallest scale of the sweep.

    For small inputs attention is even and M_k grows as the k-th power of the scale. Source: [ODS25, Sec. 3].
    """
    from ..packages import alt

    read = AttentionAnswer(record)
    scales = read.tensor("scales").double()
    powers = scales[:, None] ** scales.new_tensor([1.0, 2.0, 3.0])
    sizes = read.tensor("growth_moments").double() / powers
    shares = (sizes / sizes[0]).tolist()
    names = ("M1", "M2", "M3")
    rows = [
        {"x": s, "y": row[k], "moment": name, texts("col_moment"): name, texts("col_value"): number(row[k])}
        for s, row in zip(scales.tolist(), shares, strict=True)
        for k, name in enumerate(names)
    ]
    domain = [float(scales[0]), float(scales[-1])]
    x_axis = alt.Axis(title=texts("input_scale"), grid=False, labelOverlap="greedy", **decades(*domain))
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=x_axis)
    y_axis = alt.Axis(title=texts("moments_axis", scale=number(domain[0])), tickCount=5)
    y = alt.Y("y:Q", scale=alt.Scale(zero=True, nice=True), axis=y_axis)
    look = alt.Scale(domain=list(names), range=[style.ink, style.ink, style.muted])
    dashes = alt.Scale(domain=list(names), range=[[1, 0], [6, 3], [2, 3]])
    legend = alt.Legend(title=None, orient="top", symbolStrokeWidth=3)
    over = Rows()
    lines = (
        over(rows)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=x,
            y=y,
            color=alt.Color("moment:N", scale=look, legend=legend),
            strokeDash=alt.StrokeDash("moment:N", scale=dashes, legend=legend),
            tooltip=[alt.Tooltip(f"{texts(c)}:N") for c in ("col_moment", "col_value")],
        )
    )
    last = shares[-1][1]
    return Figure(
        name="moments",
        title=texts("moments_title"),
        chart=over.finish(lines.properties(name="fluid", width=560, height=240), style, chrome=80),
        headline=texts(
            "moments_head_fall" if last < FALLEN else "moments_head_keep", scale=number(domain[1]), share=percent(last)
        ),
        reading=texts("moments_reading"),
        not_meaning=texts("moments_not"),
        table=Table(
            (texts("input_scale"), *names),
            tuple((s, *row) for s, row in zip(scales.tolist(), sizes.tolist(), strict=True)),
        ),
        python=redraw("moments"),
        texts=texts,
        caption=texts("moments_caption"),
    )
