"""What the figures of the experiments are made of: panels of lines, of bars, of cells, in the house style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..report.figure import Figure, Rows, Table, decades
from ..report.style import LIGHT
from ..report.texts import EN

Row = dict[str, Any]
#: Colours and dashes for series without a colour of their own, in order; told apart without colour by their dashes.
COLOURS = (LIGHT.query, LIGHT.key, LIGHT.value, LIGHT.out, LIGHT.muted, LIGHT.mlp, "#7a5c00", "#8a1538")
DASHES = ([1, 0], [7, 3], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3], [10, 4], [5, 1])


def line_panel(
    over: Rows,
    rows: Iterable[Row],
    *,
    x: str,
    y: str,
    title: str = "",
    order: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
    log: tuple[bool, bool] = (True, True),
    domain: tuple[list[float] | None, list[float] | None] = (None, None),
    rules: Sequence[float] = (),
    size: tuple[int, int] = (300, 230),
    points: bool = True,
    legend: str | None = "",
) -> Any:
    """Lines of `rows` with entries x, y, series: one line a series, with its own colour and dash.

    On a log axis values that are not positive are left out. `rules` are horizontal lines; `domain` fixes the axes;
    `order` names all series, also those that only another panel shows, so that each has one colour everywhere.
    """
    from ..report.packages import alt

    kept = [r for r in rows if _shown(r["x"], log[0]) and _shown(r["y"], log[1])]
    names = list(order) if order else list(dict.fromkeys(r["series"] for r in kept))
    chosen = colours or dict(zip(names, COLOURS * 4, strict=False))
    key: dict[str, Any] = {
        "sort": names,
        "title": legend or None,
        "legend": None if legend is None else alt.Legend(symbolType="stroke", symbolSize=300, labelLimit=260),
    }
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=[chosen[n] for n in names]), **key)
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=names, range=[DASHES[i % len(DASHES)] for i in range(len(names))]), **key
    )
    axes = [
        _axis(name, [r[letter] for r in kept], is_log, wanted)
        for letter, name, is_log, wanted in (("x", x, log[0], domain[0]), ("y", y, log[1], domain[1]))
    ]
    X, Y = alt.X("x:Q", **axes[0]), alt.Y("y:Q", **axes[1])
    tip = [alt.Tooltip("series:N", title=" "), alt.Tooltip("x:Q", format=".3g"), alt.Tooltip("y:Q", format=".3g")]
    layers = (
        [over([{"y": r} for r in rules]).mark_rule(color=LIGHT.muted, strokeDash=[2, 3]).encode(y=Y)] if rules else []
    )
    layers.append(over(kept).mark_line(strokeWidth=1.8, clip=True).encode(x=X, y=Y, color=colour, strokeDash=dash))
    if points:
        layers.append(
            over(kept).mark_point(filled=True, size=22, clip=True).encode(x=X, y=Y, color=colour, tooltip=tip)
        )
    return alt.layer(*layers).properties(title=title, width=size[0], height=size[1])


def bar_panel(
    over: Rows,
    rows: Iterable[Row],
    *,
    x: str,
    title: str = "",
    log: bool = False,
    order: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    domain: list[float] | None = None,
    width: int = 300,
    label: str = ".3g",
) -> Any:
    """Horizontal bars of `rows` with entries name, value and optionally group, each with its number written beside."""
    from ..report.packages import alt

    rows = [{"group": "", **r} for r in rows if _shown(r["value"], log)]
    names = list(order) if order else list(dict.fromkeys(r["name"] for r in rows))
    kinds = list(groups) if groups else list(dict.fromkeys(r["group"] for r in rows))
    axis = _axis(x, [r["value"] for r in rows], log, domain, room=0.25)
    floor = axis["scale"].domain[0] if log else 0
    rows = [{**r, "floor": floor} for r in rows]
    Y = alt.Y("name:N", sort=names, axis=alt.Axis(title=None, domain=False, ticks=False, labelLimit=260))
    offset = {"yOffset": alt.YOffset("group:N", sort=kinds)} if len(kinds) > 1 else {}
    colour = alt.Color(
        "group:N",
        scale=alt.Scale(domain=kinds, range=list(COLOURS[: len(kinds)])),
        legend=alt.Legend(title=None) if len(kinds) > 1 else None,
    )
    base = over(rows)
    bars = base.mark_bar().encode(x=alt.X("value:Q", **axis), x2="floor:Q", y=Y, color=colour, **offset)
    words = base.mark_text(align="left", dx=4, fontSize=11).encode(
        x=alt.X("value:Q", **axis), y=Y, text=alt.Text("value:Q", format=label), **offset
    )
    return alt.layer(bars, words).properties(title=title, width=width, height=alt.Step(16 if len(kinds) > 1 else 22))


def cell_panel(
    over: Rows,
    matrix: Sequence[Sequence[float]],
    *,
    title: str,
    legend: str,
    size: int = 230,
    scheme: str = "viridis",
    domain: list[float] | None = None,
) -> Any:
    """A matrix as coloured cells; entries that are not finite stay blank."""
    from ..report.packages import alt

    rows = [{"i": i, "j": j, "v": v} for i, row in enumerate(matrix) for j, v in enumerate(row) if math.isfinite(v)]
    blank = alt.Axis(labels=False, ticks=False, domain=False, title=None)
    return (
        over(rows)
        .mark_rect()
        .encode(
            x=alt.X("j:O", axis=blank, scale=alt.Scale(paddingInner=0, paddingOuter=0)),
            y=alt.Y("i:O", axis=blank, scale=alt.Scale(paddingInner=0, paddingOuter=0)),
            color=alt.Color(
                "v:Q",
                scale=alt.Scale(scheme=scheme, **({"domain": domain} if domain else {})),  # type: ignore[arg-type]  # settings by name
                legend=alt.Legend(title=legend, gradientLength=120),
            ),
        )
        .properties(title=title, width=size, height=size)
    )


def number_panel(
    over: Rows, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], float], *, title: str = ""
) -> Any:
    """A table of numbers as a picture: darker is larger, a dot where there is no number."""
    from ..report.packages import alt

    data = [
        {"row": r, "column": c, "v": cells.get((r, c)), "text": _short(cells.get((r, c)))}
        for r in rows
        for c in columns
    ]
    X = alt.X("column:N", sort=list(columns), axis=alt.Axis(title=None, orient="top", labelAngle=0, domain=False))
    Y = alt.Y("row:N", sort=list(rows), axis=alt.Axis(title=None, domain=False, ticks=False, labelLimit=220))
    shade = alt.Color("v:Q", scale=alt.Scale(scheme="purples", domainMin=-1, domainMax=9), legend=None)
    base = over(data)
    layers = (
        base.mark_rect(stroke=LIGHT.paper).encode(x=X, y=Y, color=shade),
        base.mark_text().encode(x=X, y=Y, text="text:N"),
    )
    return alt.layer(*layers).properties(title=title, width=alt.Step(58), height=alt.Step(24))


def _short(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "·"
    return f"{value + 0.0:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.005 else "0"


def side_by_side(over: Rows, *panels: Any, columns: int = 2, colours: str = "independent") -> Any:
    """Panels in a grid, in the house style."""
    from ..report.packages import alt

    how = {"color": colours, "strokeDash": colours}
    return over.finish(alt.concat(*panels, columns=columns).resolve_scale(**how), LIGHT)  # type: ignore[arg-type]  # settings by name


def figure_of(
    name: str,
    title: str,
    chart: Any,
    *,
    headline: str,
    reading: str,
    not_meaning: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    tags: tuple[str, ...] = ("exact",),
    caption: str = "",
) -> Figure:
    """The figure of an experiment: its chart, its words, its numbers, and the Python that draws it again."""
    python = (
        f"from quadform import Record\nfrom quadform.experiments.catalog import experiment\n\n"
        f'record = Record.load("RUN")  # the folder it was saved to\nexperiment("{name}").figure(record).chart\n'
    )
    table = Table(tuple(columns), tuple(tuple(r) for r in rows))
    return Figure(name, title, chart, headline, reading, not_meaning, table, python, EN, tags, caption)


def _shown(value: Any, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _axis(
    title: str, values: Sequence[float], log: bool, domain: list[float] | None, room: float = 0.03
) -> dict[str, Any]:
    from ..report.packages import alt

    if not log:
        scale = alt.Scale(domain=domain, nice=False) if domain else alt.Scale(zero=False, nice=False, padding=8)
        return {"scale": scale, "axis": alt.Axis(title=title, labelOverlap="parity", labelSeparation=6)}
    low, high = domain or (min(values, default=0.1), max(values, default=1.0))
    if domain is None:
        stretch = math.log10(high / low) if high > low else 1.0
        low, high = low / 10 ** (0.03 * stretch + 0.05), high * 10 ** (room * stretch + 0.05)
    marks = decades(low, high)
    if len(marks["values"]) < 2:  # less than a decade: plain numbers
        marks = {"tickCount": 4, "format": ".2g"}
    return {
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
        "axis": alt.Axis(title=title, labelOverlap="greedy", labelSeparation=6, **marks),
    }
