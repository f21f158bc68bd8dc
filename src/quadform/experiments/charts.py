"""What the figures of the experiments are made of: panels of lines, of bars, of cells, in the house style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ..report.figure import Figure, Rows, Table
from ..report.style import LIGHT
from ..report.texts import EN
from .extent import BELOW, Extent, end_labels, guide_lines, peak_labels

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
    guides: Mapping[str, float] | None = None,
    size: tuple[int, int] = (300, 230),
    points: bool = True,
    legend: str | None = "",
    peaks: bool = False,
) -> Any:
    """Lines of `rows` with entries x, y, series: one line a series, with its own colour and dash, named at its end.

    Rows with entries `low` and `high` have a band. On a log axis values that are not positive are left out, and
    a band that reaches zero goes down to the axis. `rules` are horizontal lines; `guides` are grey lines of a given
    slope beside the start of a series; `domain` fixes the axes;
    `order` names all series, also those that only another panel shows, so that each has one colour everywhere. With
    `legend=None` series are not named here; with `peaks` they are named at their highest points, as histograms are.
    """
    from ..report.packages import alt

    kept = [r for r in rows if _shown(r["x"], log[0]) and _shown(r["y"], log[1])]
    names = list(order) if order else list(dict.fromkeys(r["series"] for r in kept))
    chosen = colours or dict(zip(names, COLOURS * 4, strict=False))
    scales = [
        Extent.of([v for r in kept for v in _seen(r, letter, is_log)], is_log, wanted, pixels)
        for letter, is_log, wanted, pixels in zip("xy", log, domain, size, strict=True)
    ]
    if guides:
        scales[1] = scales[1].lowered(2 * BELOW)
    ends = [] if legend is None else peak_labels(kept, scales[0]) if peaks else end_labels(kept, *scales)
    crowded = legend is not None and len(names) > 1 and not ends
    key: dict[str, Any] = {
        "sort": names,
        "title": None,
        "legend": alt.Legend(symbolType="stroke", symbolSize=300, labelLimit=260) if crowded else None,
    }
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=[chosen[n] for n in names]), **key)
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=names, range=[DASHES[i % len(DASHES)] for i in range(len(names))]), **key
    )
    X, Y = alt.X("x:Q", **scales[0].settings(x)), alt.Y("y:Q", **scales[1].settings(y))
    tip = [alt.Tooltip("series:N", title=" "), alt.Tooltip("x:Q", format=".3g"), alt.Tooltip("y:Q", format=".3g")]
    layers = []
    if rules:
        layers.append(over([{"y": r} for r in rules]).mark_rule(color=LIGHT.muted, strokeDash=[2, 3]).encode(y=Y))
    floor = scales[1].low  # of a band that reaches zero on a log axis
    banded = [
        {**r, "low": r["low"] if _shown(r["low"], log[1]) else floor} for r in kept if _shown(r.get("low"), False)
    ]
    if banded:
        area = over(banded).mark_area(opacity=0.2, clip=True)
        layers.append(area.encode(x=X, y=alt.Y("low:Q", **scales[1].settings(y)), y2="high:Q", color=colour))
    for guide in guide_lines(kept, guides or {}, *scales):
        line = over(guide["line"]).mark_line(color=LIGHT.muted, strokeWidth=1, clip=True)
        words = over(guide["label"]).mark_text(color=LIGHT.muted, align="left", dx=2, dy=7)
        layers += [line.encode(x=X, y=Y), words.encode(x=X, y=Y, text="text:N")]
    layers.append(over(kept).mark_line(strokeWidth=1.8, clip=True).encode(x=X, y=Y, color=colour, strokeDash=dash))
    if points:
        seen = [r for r in kept if scales[0].holds(r["x"]) and scales[1].holds(r["y"])]
        layers.append(over(seen).mark_point(filled=True, size=22).encode(x=X, y=Y, color=colour, tooltip=tip))
    if ends:
        leaders = over([{**e, **at} for e in ends for at in e["leader"]])
        layers.append(leaders.mark_line(strokeWidth=0.7, opacity=0.7).encode(x=X, y=Y, color=colour))
        for align, dx in (("left", 2), ("right", -2)):
            words = over([e for e in ends if e["align"] == align]).mark_text(align=align, dx=dx)
            layers.append(words.encode(x=X, y=Y, color=colour, text="series:N"))
    heading = alt.Title(title, frame="group")  # over the axes, also where the name of a line stands above them
    return alt.layer(*layers).properties(title=heading, width=size[0], height=size[1])


def point_panel(
    over: Rows,
    rows: Iterable[Row],
    *,
    x: str,
    y: str,
    title: str = "",
    order: Sequence[str] | None = None,
    log: tuple[bool, bool] = (True, False),
    size: tuple[int, int] = (300, 230),
) -> Any:
    """Points of `rows` with entries x, y, series: a colour and a shape for each series, named in a legend.

    On a log axis values that are not positive are left out.
    """
    from ..report.packages import alt

    kept = [r for r in rows if _shown(r["x"], log[0]) and _shown(r["y"], log[1])]
    names = list(order) if order else list(dict.fromkeys(r["series"] for r in kept))
    X, Y = (
        Extent.of([r[letter] for r in kept], is_log, None, pixels).settings(words)
        for letter, is_log, words, pixels in zip("xy", log, (x, y), size, strict=True)
    )
    key: dict[str, Any] = {"sort": names, "title": None, "legend": alt.Legend() if len(names) > 1 else None}
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=[*(COLOURS * 4)[: len(names)]]), **key)
    tip = [alt.Tooltip("series:N", title=" "), alt.Tooltip("x:Q", format=".3g"), alt.Tooltip("y:Q", format=".3g")]
    shape = alt.Shape("series:N", scale=alt.Scale(domain=names), **key)
    marks = over(kept).mark_point(filled=True, size=45, opacity=0.85)
    shown = marks.encode(x=alt.X("x:Q", **X), y=alt.Y("y:Q", **Y), color=colour, shape=shape, tooltip=tip)
    return shown.properties(title=title, width=size[0], height=size[1])


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
    """Horizontal bars of `rows` with entries name, value and optionally group, each with its number.

    Rows with entries `low` and `high` have an error bar.
    """
    from ..report.packages import alt

    rows = [{"group": "", **r} for r in rows if _shown(r["value"], log)]
    names = list(order) if order else list(dict.fromkeys(r["name"] for r in rows))
    kinds = list(groups) if groups else list(dict.fromkeys(r["group"] for r in rows))
    ends = [v for r in rows for v in (r["value"], r.get("low"), r.get("high")) if v is not None and _shown(v, log)]
    extent = Extent.of(ends if log else [0.0, *ends], log, domain, width, room=0.25)
    axis, floor = extent.settings(x), extent.low if log else 0.0
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
    layers = [bars]
    if any("low" in r for r in rows):
        spread = over([r for r in rows if "low" in r]).mark_rule(color=LIGHT.ink)
        layers.append(spread.encode(x=alt.X("low:Q", **axis), x2="high:Q", y=Y, **offset))
    words = over([{**r, "end": max(float(r["high"] if "high" in r else r["value"]), floor)} for r in rows]).mark_text(
        align="left", dx=4
    )
    layers.append(words.encode(x=alt.X("end:Q", **axis), y=Y, text=alt.Text("value:Q", format=label), **offset))
    return alt.layer(*layers).properties(title=title, width=width, height=alt.Step(16 if len(kinds) > 1 else 22))


def cell_panel(
    over: Rows,
    matrix: Sequence[Sequence[float]],
    *,
    title: str,
    legend: str,
    size: int = 230,
    scheme: str = "viridis",
    domain: list[float] | None = None,
    blocks: Sequence[tuple[str, float]] = (),
    counted: tuple[str, str] | None = None,
) -> Any:
    """A matrix as coloured cells; entries that are not finite stay blank.

    `blocks` are names and widths in cells, from the first row and column on: lines part them, names stand beside.
    `counted` says in place of names what columns and rows count, from 0.
    """
    from ..report.packages import alt

    n, m = len(matrix), max(map(len, matrix))
    rows = [
        {"x": j, "x2": j + 1, "y": i, "y2": i + 1, "v": v}
        for i, row in enumerate(matrix)
        for j, v in enumerate(row)
        if math.isfinite(v)
    ]
    ends = [sum(width for _, width in blocks[:k]) for k in range(len(blocks) + 1)]
    named = {(a + b) / 2: name for a, b, (name, _) in zip(ends, ends[1:], blocks, strict=False)}
    words = "".join(f"abs(datum.value - {at}) < 1e-6 ? '{name}' : " for at, name in named.items()) + "''"
    how = {"values": list(named), "labelExpr": words, "labels": bool(named)}
    bare: Any = {"ticks": False, "domain": False, "grid": False, "title": None, "labelPadding": 3, **how}
    short = bare | {"labels": bool(named) and all(len(name) <= 4 for name, _ in blocks)}
    axis, beside = alt.Axis(orient="top", **short), alt.Axis(**bare)
    if counted:
        sides: tuple[Literal["bottom", "left"], ...] = ("bottom", "left")
        axis, beside = (
            alt.Axis(orient=side, title=what, ticks=False, domain=False, grid=False, labelExpr="floor(datum.value)",
                     values=[i + 0.5 for i in range(0, many, max(1, many // 6))])
            for side, what, many in zip(sides, counted, (m, n), strict=True)
        )  # fmt: skip
    X = alt.X("x:Q", axis=axis, scale=alt.Scale(domain=[0, m], nice=False))
    Y = alt.Y("y:Q", axis=beside, scale=alt.Scale(domain=[n, 0], nice=False))
    shade: Any = {"scheme": scheme, **({"domain": domain} if domain else {})}
    colour = alt.Color("v:Q", scale=alt.Scale(**shade), legend=alt.Legend(title=legend, gradientLength=120))
    cells = over(rows).mark_rect(strokeWidth=0.8).encode(
        x=X, x2="x2:Q", y=Y, y2="y2:Q", color=colour, stroke=alt.Stroke("v:Q", scale=alt.Scale(**shade), legend=None)
    )  # fmt: skip
    layers = [cells]
    if blocks:
        parts = [{"x": e, "x2": e, "y": 0, "y2": n} for e in ends[1:-1]]
        parts += [{"x": 0, "x2": m, "y": e, "y2": e} for e in ends[1:-1]]
        lines = over(parts).mark_rule(color=LIGHT.paper, strokeWidth=1.6)
        layers.append(lines.encode(x=X, x2="x2:Q", y=Y, y2="y2:Q"))
    return alt.layer(*layers).properties(title=alt.Title(title, frame="group"), width=size, height=size)


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


def side_by_side(over: Rows, *panels: Any, columns: int = 2, colours: str = "independent", below: Any = None) -> Any:
    """Panels in a grid, in the house style; `below` is one more, as wide as it is."""
    from ..report.packages import alt

    how = dict.fromkeys(("color", "strokeDash", "shape"), colours)
    grid: Any = alt.concat(*panels, columns=columns)
    grid = grid if below is None else alt.vconcat(grid, below)
    return over.finish(grid.resolve_scale(**how), LIGHT)


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


def _seen(row: Row, letter: str, log: bool) -> list[float]:
    """What an axis must hold of a row: its value, and of y the ends of its band."""
    keys = ("y", "low", "high") if letter == "y" else ("x",)
    return [row[k] for k in keys if k in row and _shown(row[k], log)]


def _shown(value: Any, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)
