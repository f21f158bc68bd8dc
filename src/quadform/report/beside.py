"""The loss along a line beside its quadratic model: the panel that `taylor` and `landscape` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .figure import Rows
from .style import Style
from .texts import Texts

#: The model is drawn this share of the loss's range beyond it, then cut.
BEYOND = 0.4


def beside_model(
    over: Rows,
    x: Tensor,
    loss: Tensor,
    model: Tensor,
    marks: Mapping[str, float],
    axis: str,
    texts: Texts,
    style: Style,
) -> Any:
    """Loss solid, model dashed, an upright line at each mark with its name; points without a loss are left out."""
    from .packages import alt

    known = loss[loss.isfinite()]
    low, high = float(known.min()), float(known.max())
    room = BEYOND * (high - low)
    names = [texts("landscape_loss"), texts("landscape_quadratic")]
    rows = [
        {"x": a, "y": y, "which": name}
        for a, *values in zip(x.tolist(), loss.tolist(), model.tolist(), strict=True)
        for name, y in zip(names, values, strict=True)
        if low - room <= y <= high + room
    ]
    X = alt.X("x:Q", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(title=axis, tickCount=5, format="~g"))
    Y = alt.Y("y:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title=texts("landscape_loss"), tickCount=4))
    colour = alt.Color(
        "which:N",
        scale=alt.Scale(domain=names, range=[style.ink, style.signed(1)]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    dash = alt.StrokeDash("which:N", scale=alt.Scale(domain=names, range=[[1, 0], [5, 3]]), legend=None)
    places = over([{"x": a, "name": name} for name, a in marks.items()])
    return alt.layer(
        over(rows).mark_line(strokeWidth=1.8).encode(x=X, y=Y, color=colour, strokeDash=dash),
        places.mark_rule(color=style.muted, strokeDash=[2, 2]).encode(x=X),
        places.mark_text(align="left", dx=4, y=10, color=style.ink).encode(x=X, text="name:N"),
    )
