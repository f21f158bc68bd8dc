"""Records of kind `why`: each part taken out, against the whole model; the blocks of every variant."""

from __future__ import annotations

import math
from typing import Any

from ..answers.numbers import number, times
from ..answers.why import BLOCKS, CHANGED, Why
from ..core.record import Record
from .figure import Figure, Rows, Table, decades, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

#: Measures that are drawn; the sentence `why_MEASURE` names each.
_DRAWN = ("lambda_max", "ratio", "ceiling_sgd", "ceiling_adamw", "negative_curvature", "H_f_share")


def label(variant: str, texts: Texts) -> str:
    return texts("why_full") if variant == "full" else f"− {variant.removeprefix('no ')}"


def title(record: Record, texts: Texts) -> str:
    return texts("record_why", name=Why(record).name)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    why, setting = Why(record), texts("group_setting")
    out = [Row(setting, texts("rate_probe"), why.probe), Row(setting, texts("data_row"), why.data(texts))]
    for variant in why.variants:
        for step in why.steps:
            group = label(variant, texts) + ", " + texts("why_step") + f" {step}"
            found = [(name, why.get(variant, name, step)) for name in _DRAWN]
            out += [Row(group, texts(f"why_{n}"), estimate(n, e), tag(e)) for n, e in found if e is not None]
    return tuple(out)


def ablations(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Every measure of every variant over that of the whole model, on one logarithmic axis a measure."""
    from .packages import alt

    over, why = Rows(), Why(record)
    names = [label(v, texts) for v in why.variants[1:]]
    points: list[dict[str, Any]] = []
    table = []
    for name in _DRAWN:
        base = why.get("full", name)
        for variant in why.variants[1:]:
            e = why.get(variant, name)
            if base is None or e is None or not (base.value > 0 and 0 < e.value < math.inf):
                continue
            ratio = e.value / base.value
            table.append((label(variant, texts), texts(f"why_{name}"), base.value, e.value, ratio))
            about: dict[str, Any] = {"measure": name, "said": f"{times(ratio)}×"}
            points.append({"variant": label(variant, texts), "x": ratio, "one": 1.0, **about})
    reach = max([CHANGED * 2, *(max(p["x"], 1 / p["x"]) for p in points)])
    domain = [1 / reach / 1.6, reach * 1.6]
    axis = decades(*domain) if reach > 30 else {"tickCount": 4, "format": "~g"}
    x = alt.X(
        "x:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=alt.Axis(title=texts("why_axis"), **axis)
    )
    y = alt.Y("variant:N", sort=names, axis=alt.Axis(title=None, ticks=False, grid=False))
    panels = []
    for name in _DRAWN:
        mine = [p for p in points if p["measure"] == name]
        if not mine:
            continue
        data = over(mine)
        band = over([{"x": 1 / CHANGED, "x2": CHANGED}])
        colour = alt.condition("datum.x >= 1", alt.value(style.signed(1)), alt.value(style.signed(-1)))
        panel = alt.layer(
            band.mark_rect(color=style.grid, opacity=0.8).encode(x=x, x2="x2:Q"),
            data.mark_rule(strokeWidth=2, color=style.muted).encode(x=x, x2="one:Q", y=y),
            data.mark_point(filled=True, size=80, opacity=1).encode(x=x, y=y, color=colour),
            data.mark_text(dy=-11, fontSize=11).encode(x=x, y=y, text="said:N"),
        )
        heading = alt.TitleParams(texts(f"why_{name}"), fontSize=12, fontWeight="normal")
        panels.append(panel.properties(name=f"fluid_{name}", width=190, height=alt.Step(34), title=heading))
    chart = alt.concat(*panels, columns=3, spacing=26)
    columns = ("why_variant", "col_what", "why_full", "col_value", "why_axis")
    return Figure(
        name="ablations",
        title=texts("why_title"),
        chart=over.finish(chart, style, chrome=90, columns=3, narrow=700),
        headline=why.said(texts.lang),
        reading=texts("why_reading"),
        not_meaning=texts("why_not"),
        table=Table(tuple(texts(c) for c in columns), tuple(table)),
        python=redraw("ablations"),
        texts=texts,
        tags=("estimate",),
        caption=texts("why_caption", step=why.steps[0], limit=number(CHANGED)),
    )


def block_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Frobenius norms of the query, key and value blocks of every variant, with two standard errors.

    Points, not bars: a logarithmic axis has no zero for a bar to begin at.
    """
    from .packages import alt

    over, why = Rows(), Why(record)
    found: list[dict[str, Any]] = []
    for variant in why.variants:
        for block, paper in BLOCKS.items():
            e = why.norm(variant, block)
            if e is not None and e.value > 0:
                about = {"variant": label(variant, texts), "block": texts.parameter(paper), "colour": style.of(paper)}
                spread = {"low": max(e.value - e.reach, e.value / 10), "high": e.value + e.reach}
                found.append({**about, **spread, "x": e.value, "said": number(e.value), "error": e.error})
    domain = [min(p["low"] for p in found) / 1.5, max(p["high"] for p in found) * 2.5]
    axis = decades(*domain) if domain[1] / domain[0] > 100 else {"tickCount": 3, "format": "~g"}
    scale = alt.Scale(type="log", domain=domain, nice=False)
    x = alt.X("x:Q", scale=scale, axis=alt.Axis(title=texts("block_norm"), **axis))
    order = [texts.parameter(p) for p in BLOCKS.values()]
    y = alt.Y("block:N", sort=order, axis=alt.Axis(title=None, ticks=False, grid=True))
    panels: list[Any] = []
    for variant in why.variants:
        data = over([p for p in found if p["variant"] == label(variant, texts)])
        colour = alt.Color("colour:N", scale=None)
        panel = alt.layer(
            data.mark_rule(strokeWidth=1.4).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y, color=colour),
            data.mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, color=colour),
            data.mark_text(dy=-11, fontSize=11).encode(x=x, y=y, text="said:N"),
        )
        heading = alt.TitleParams(label(variant, texts), fontSize=12, fontWeight="normal")
        panels.append(panel.properties(name=f"fluid_{len(panels)}", width=190, height=alt.Step(34), title=heading))
    chart = alt.concat(*panels, columns=3, spacing=26)
    table = tuple((p["variant"], p["block"], p["x"], p["error"]) for p in found)
    return Figure(
        name="blocks",
        title=texts("why_blocks_title"),
        chart=over.finish(chart, style, chrome=100, columns=3, narrow=700),
        headline=_extremes(why, texts) or why.said(texts.lang),
        reading=texts("why_blocks_reading"),
        not_meaning=texts("why_blocks_not"),
        table=Table(tuple(texts(c) for c in ("why_variant", "col_block", "col_norm", "col_stderr")), table),
        python=redraw("block_bars"),
        texts=texts,
        tags=("estimate",),
        caption=texts("why_blocks_caption", step=why.steps[0]),
    )


def _extremes(why: Why, texts: Texts) -> str:
    """Value over query in the whole model, and the variant in which it lies farthest from that."""
    ratio = {v: e.value for v in why.variants if (e := why.get(v, "ratio")) is not None and e.value > 0}
    base = ratio.pop("full", None)
    if base is None or not ratio:
        return ""
    far = max(ratio, key=lambda v: abs(math.log(ratio[v] / base)))
    return texts("why_blocks_head", whole=number(base), part=label(far, texts), other=number(ratio[far]))


def drawn(record: Record) -> tuple[Draw, ...]:
    why = Why(record)
    has_blocks = any(why.norm(v, b) for v in why.variants for b in BLOCKS)
    whole = why.get("full", "lambda_max") is not None
    return (*((ablations,) if whole and why.parts else ()), *((block_bars,) if has_blocks else ()))


PAGE = Page(Why, title, rows, drawn)
