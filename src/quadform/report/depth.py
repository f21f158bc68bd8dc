"""Figures of a signal record: cosine, rank and norm per layer; entropy and sink of every head.

Predicted is a line, measured are points with the error bars of the record. Colour, dash and symbol tell curves apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..answers.numbers import number, percent
from ..answers.signal import COSINE, Curve, Signal
from ..core.record import Record
from .figure import Figure, Rows, Table, decades, redraw
from .style import LIGHT, Style
from .texts import EN, Texts

#: The panels of the figure: measure, and whether its axis is logarithmic.
PANELS = (("cosine", False), ("participation", False), ("growth", True))
_DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3])
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


# ------------------------------------------------------------------------------------------------ the figure
def through_depth(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Cosine, participation ratio and norm growth per layer: predicted as a line, measured as points."""
    from .packages import alt

    answer, over = Signal(record), Rows()
    found = answer.curves
    panels = [_panel(over, found, measure, log, texts, style) for measure, log in PANELS]
    row = alt.concat(*panels, columns=3, spacing=28)
    chart = alt.vconcat(row, _key(over, found, texts, style, lines=False), spacing=18)
    chart = over.finish(chart, style, chrome=66, columns=3, narrow=760)
    columns = ("col_curve", "col_layer", *(f"signal_{m}" for m in ("cosine", "participation", "growth", "gradient")))
    names = [texts(columns[0]), texts(columns[1])]
    for key in columns[2:]:
        names += [texts(key), texts("col_stderr")] + ([texts("col_predicted")] if key != "signal_gradient" else [])
    return Figure(
        name="signal",
        title=texts("signal_title"),
        chart=chart,
        headline=answer.said(texts.lang),
        reading=texts("signal_reading"),
        not_meaning=texts("signal_not"),
        table=Table(tuple(names), tuple(_table_rows(found))),
        python=redraw("through_depth"),
        texts=texts,
        tags=("estimate",),
        caption=" ".join(_caption(found, texts)),
    )


def look_of(found: list[Curve], i: int, style: Style) -> dict[str, Any]:
    """Colour tells what is measured (the label up to its first comma), dash and symbol which of its curves."""
    groups = list(dict.fromkeys(c.label.split(",")[0] for c in found))
    mine = groups.index(found[i].label.split(",")[0])
    hues = (style.query, style.key, style.value, style.out, style.ink, style.signed(-1), style.mlp, style.signed(1))
    among = [j for j, c in enumerate(found) if c.label.split(",")[0] == groups[mine]].index(i)
    turn = among + mine // len(hues)
    return {
        "colour": hues[mine % len(hues)],
        "dash": str(turn % len(_DASHES)),
        "shape": _SHAPES[(mine + turn) % len(_SHAPES)],
    }


def _panel(over: Rows, found: list[Curve], measure: str, log: bool, texts: Texts, style: Style) -> Any:
    from .packages import alt

    points, lines = [], []
    for i, curve in enumerate(found):
        look, told = look_of(found, i, style), {texts("col_curve"): curve.label}
        pairs = zip(curve.layers(measure), curve.errors(measure), strict=True)
        for l, (y, s) in enumerate(pairs):
            if math.isfinite(y) and (y > 0 or not log):
                s = s if math.isfinite(s) else 0.0
                low = max(y - s, y / 10) if log else y - s
                said = {texts(f"signal_{measure}"): number(y) + (f" ± {number(s, 2)}" if s else "")}
                points.append({"x": l, "y": y, "low": low, "high": y + s, **look, **told, **said})
        lines += [
            {"x": l, "y": y, "curve": i, **look} for l, y in enumerate(curve.predicted(measure)) if y > 0 or not log
        ]
    deepest = max(c.depth for c in found)
    step = max(1, -(-deepest // 6))
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, deepest], nice=False, padding=6),
        axis=alt.Axis(title=texts("col_layer"), grid=False, values=list(range(0, deepest + 1, step)), format="d"),
    )
    scale, axis = _y_scale(measure, log, [p["y"] for p in points + lines])
    up = alt.Y("y:Q", scale=scale, axis=alt.Axis(title=None, **axis))
    colour = alt.Color("colour:N", scale=None)
    dashes = alt.Scale(domain=[str(i) for i in range(len(_DASHES))], range=list(_DASHES))
    data, tips = over(points), [texts("col_curve"), texts(f"signal_{measure}")]
    layers = [
        over(lines).mark_line(strokeWidth=1.8, opacity=0.85, clip=True).encode(
            x=x, y=up, color=colour, detail="curve:N", strokeDash=alt.StrokeDash("dash:N", scale=dashes, legend=None)
        ),
        data.mark_rule(strokeWidth=1.4, clip=True).encode(
            x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour
        ),
        data.mark_point(filled=True, size=30, opacity=1, clip=True).encode(
            x=x, y=up, color=colour, shape=alt.Shape("shape:N", scale=None),
            tooltip=[alt.Tooltip("x:Q", title=texts("col_layer")), *(alt.Tooltip(f"{t}:N") for t in tips)],
        ),
    ]  # fmt: skip
    if measure == "cosine":
        limit = over([{"y": COSINE.green}]).mark_rule(strokeDash=[2, 4], strokeWidth=1, color=style.muted)
        layers.insert(0, limit.encode(y=up))
    title = alt.TitleParams(texts(f"signal_{measure}_title"), fontSize=12, fontWeight="normal")
    return alt.layer(*layers).properties(name=f"fluid_{measure}", width=230, height=250, title=title)


def _y_scale(measure: str, log: bool, values: list[float]) -> tuple[Any, dict[str, Any]]:
    from .packages import alt

    if measure == "cosine":
        low = min(0.0, math.floor(10 * min(values, default=0.0)) / 10)
        return alt.Scale(domain=[low, 1.0], nice=False), {"tickCount": 5, "format": ".1f"}
    if not log:
        return alt.Scale(domain=[0, 1.08 * max(values, default=1.0)], nice=False), {"tickCount": 5}
    low, high = min(values, default=1.0), max(values, default=1.0)
    if high / low < 30:
        return alt.Scale(type="log", domain=[low / 1.3, high * 1.3], nice=False), {"tickCount": 4, "format": "~g"}
    domain = [10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))]
    return alt.Scale(type="log", domain=domain, nice=False), decades(*domain)


#: Width of the key: it fits a phone.
_KEY = 320


def _key(over: Rows, found: list[Curve], texts: Texts, style: Style, lines: bool = True) -> Any:
    """Which line and symbol belongs to which curve; in two columns from the fifth on."""
    from .packages import alt

    half = -(-len(found) // 2) if len(found) > 4 else len(found)
    rows = []
    for i, curve in enumerate(found):
        at = _KEY // 2 * (i // half)
        rows.append(
            {
                "row": i % half,
                "a": at,
                "b": at + 30,
                "m": at + 15,
                "t": at + 38,
                "text": curve.label,
                **look_of(found, i, style),
            }
        )
    key = over(rows).encode(y=alt.Y("row:Q", axis=None, scale=alt.Scale(domain=[half - 0.5, -0.5], nice=False)))
    at_x = alt.Scale(domain=[0, _KEY], nice=False, zero=False)
    dashes = alt.Scale(domain=[str(i) for i in range(len(_DASHES))], range=list(_DASHES))
    colour, shown = alt.Color("colour:N", scale=None), alt.X("a:Q", axis=None, scale=at_x)
    predicted = lines and any(c.predicted("cosine") for c in found)
    said = texts("signal_key" if predicted else "signal_key_points")
    return alt.layer(
        key.mark_rule(strokeWidth=1.8 if predicted else 0).encode(
            x=shown, x2="b:Q", color=colour, strokeDash=alt.StrokeDash("dash:N", scale=dashes, legend=None)
        ),
        key.mark_point(filled=True, size=36, opacity=1).encode(
            x=alt.X("m:Q", scale=at_x), color=colour, shape=alt.Shape("shape:N", scale=None)
        ),
        key.mark_text(align="left").encode(x=alt.X("t:Q", scale=at_x), text="text:N"),
    ).properties(width=_KEY, height=20 * half, title=alt.TitleParams(said, fontSize=12, fontWeight="normal"))


def _caption(found: list[Curve], texts: Texts) -> Iterator[str]:
    units = {str(c.about["unit"]) for c in found}
    yield texts("signal_bars_networks" if units == {"networks"} else "signal_bars_sequences")
    if any(c.predicted("cosine") for c in found):
        yield texts("signal_line")
        if any(c.predicted("cosine") and not c.about["fresh"] for c in found):
            yield texts("signal_line_start")
    yield texts("signal_limit", limit=number(COSINE.green))


def _table_rows(found: list[Curve]) -> Iterator[tuple[Any, ...]]:
    for curve in found:
        for l in range(curve.depth + 1):
            cells: list[Any] = [curve.label, l]
            for measure in ("cosine", "participation", "growth", "gradient"):
                values, errors = curve.layers(measure), curve.errors(measure)
                cells += [_finite(values[l]), _finite(errors[l])] if values else [None, None]
                if measure != "gradient":
                    line = curve.predicted(measure)
                    cells.append(_finite(line[l]) if line else None)
            yield tuple(cells)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ------------------------------------------------------------------------------------------------ heads
def heads(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Entropy of every head over its maximum, and the weight on the first key, one point a head, per block."""
    from .packages import alt

    found, over = [c for c in Signal(record).curves if any(c.heads("sink"))], Rows()
    panels, rows = [], []
    for measure in ("entropy_share", "sink"):
        points = []
        for i, curve in enumerate(found):
            for l, row in enumerate(curve.heads(measure), start=1):
                for h, value in enumerate(row):
                    if math.isfinite(value):
                        points.append({"x": l, "y": value, "head": h, "curve": curve.label, **look_of(found, i, style)})
        deepest = max(c.depth for c in found)
        axis = alt.Axis(
            title=texts("col_block_number"), grid=False, values=list(range(1, deepest + 1, max(1, deepest // 8)))
        )
        view = over(points).mark_point(filled=True, size=22, opacity=0.7).encode(
            x=alt.X("x:Q", scale=alt.Scale(domain=[0.5, deepest + 0.5], nice=False), axis=axis),
            y=alt.Y("y:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title=None, tickCount=5, format=".1f")),
            color=alt.Color("colour:N", scale=None), shape=alt.Shape("shape:N", scale=None),
            tooltip=[alt.Tooltip("curve:N", title=texts("col_curve")), alt.Tooltip("y:Q", format=".3f"),
                     alt.Tooltip("x:Q", title=texts("col_block_number")),
                     alt.Tooltip("head:Q", title=texts("col_head"))],
        )  # fmt: skip
        title = alt.TitleParams(texts(f"signal_{measure}_title"), fontSize=12, fontWeight="normal")
        panels.append(view.properties(name=f"fluid_{measure}", width=340, height=220, title=title))
    both = alt.concat(*panels, columns=2, spacing=28)
    chart = alt.vconcat(both, _key(over, found, texts, style, lines=False), spacing=18)
    for curve in found:
        for l, (shares, sinks) in enumerate(
            zip(curve.heads("entropy_share"), curve.heads("sink"), strict=True), start=1
        ):
            rows += [
                (curve.label, l, h, _finite(a), _finite(b)) for h, (a, b) in enumerate(zip(shares, sinks, strict=True))
            ]
    keys = ("col_curve", "col_block_number", "col_head", "signal_entropy_share", "signal_sink")
    low, where = _extreme(found, "entropy_share", min, texts)
    high, sink_at = _extreme(found, "sink", max, texts)
    return Figure(
        name="heads",
        title=texts("heads_title"),
        chart=over.finish(chart, style, chrome=66, columns=2, narrow=760),
        headline=texts("heads_head", share=percent(low), at=where, sink=percent(high), sink_at=sink_at),
        reading=texts("heads_reading"),
        not_meaning=texts("heads_not"),
        table=Table(tuple(texts(k) for k in keys), tuple(rows)),
        python=redraw("heads"),
        texts=texts,
        tags=("estimate",),
    )


def _extreme(found: list[Curve], measure: str, pick: Any, texts: Texts) -> tuple[float, str]:
    """The head that `pick` chooses: its value, and its name. Blocks count from 1 and heads from 0, as in the table."""
    every = [
        (value, texts("heads_at", label=c.label, block=l, head=h))
        for c in found
        for l, row in enumerate(c.heads(measure), start=1)
        for h, value in enumerate(row)
        if math.isfinite(value)
    ]
    return pick(every, key=lambda pair: pair[0])
