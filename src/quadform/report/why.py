"""Records of kind `why`: each part taken out, against the whole model; the blocks of every variant."""

from __future__ import annotations

import math
from typing import Any

from ..answers.measured import data_words
from ..answers.numbers import number, times
from ..core.record import Estimate, Record
from ..core.space import LABELS
from .card import Card, card, grade
from .figure import Figure, Rows, Table, decades, redraw
from .page import Draw, OldPage
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

#: One block is called flatter than another from this ratio of norms on.
FLATTER = 3.0
#: A number is said to change where it does so at least by this factor (shares: by this difference), and by two s.e.
CHANGED = 2.0
CHANGED_SHARE = 0.1
#: Ratio of block norms: green up to the first, red above the second.
UNEVEN = (FLATTER, 10.0)
#: Measures and the sentences that name them.
_RATIOS = {
    "lambda_max": "why_lambda_max",
    "ratio": "why_ratio",
    "ceiling_sgd": "why_ceiling_sgd",
    "ceiling_adamw": "why_ceiling_adamw",
    "negative_curvature": "why_negative_curvature",
    "H_f_share": "why_H_f_share",
}
_BLOCKS = {block: paper for block, paper in LABELS.items() if paper != "W_O"}


def get(record: Record, variant: str, measure: str, step: int | None = None) -> Estimate | None:
    """One number of a record; the first step unless another is named."""
    return record.scalars.get(f"{variant}/{record.inputs['steps'][0] if step is None else step}/{measure}")


def label(variant: str, texts: Texts) -> str:
    return texts("why_full") if variant == "full" else f"− {variant.removeprefix('no ')}"


def title(record: Record, texts: Texts) -> str:
    return texts("record_why", name=record.inputs["name"])


def largest_change(record: Record) -> tuple[str, float] | None:
    """The part whose absence changes lambda_max most, and by which factor; None where none is known."""
    base, found = get(record, "full", "lambda_max"), []
    for variant in record.inputs["variants"][1:]:
        e = get(record, variant, "lambda_max")
        if base is not None and e is not None and base.value > 0 and e.value > 0:
            found.append((variant.removeprefix("no "), e.value / base.value))
    return max(found, key=lambda pair: abs(math.log(pair[1])), default=None)


def beyond_error(e: Estimate) -> bool:
    """Whether a ratio is further from 1 than its error reaches."""
    return abs(math.log(max(e.value, 1e-300))) > e.reach / e.value


def summary(record: Record, texts: Texts) -> str:
    said, found = [], largest_change(record)
    e = get(record, "full", "ratio")
    if e is not None and e.value > 0:
        key = "why_flatter" if e.value >= FLATTER else "why_sharper" if e.value <= 1 / FLATTER else "why_alike"
        key = key if key == "why_alike" or beyond_error(e) else "why_unsure"
        given = {"step": record.inputs["steps"][0], "limit": number(FLATTER)}
        said.append(texts(key, ratio=times(max(e.value, 1 / e.value)), **given))
    if found is not None:
        part, factor = found
        if max(factor, 1 / factor) >= CHANGED:
            said.append(texts("why_head", part=part, factor=times(factor)))
        else:
            said.append(texts("why_head_quiet", limit=number(CHANGED)))
    return " ".join(said)


def cards(record: Record, texts: Texts) -> tuple[Card, ...]:
    e = get(record, "full", "ratio")
    if e is None or not e.value > 0:
        return ()
    limits = [number(v) for v in UNEVEN]
    status = grade(max(e.value, 1 / e.value), UNEVEN)
    return (card("why", f"{times(e.value)} : 1", e, status, summary(record, texts), texts, *limits),)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    given = record.inputs
    setting = texts("group_setting")
    out = [Row(setting, texts("rate_probe"), str(given["probe"]))]
    out.append(Row(setting, texts("data_row"), data_words(given.get("source", given), texts)))
    for variant in given["variants"]:
        for step in given["steps"]:
            group = label(variant, texts) + ", " + texts("why_step") + f" {step}"
            for name in _RATIOS:
                e = get(record, variant, name, step)
                if e is not None:
                    out.append(Row(group, texts(_RATIOS[name]), estimate(name, e), tag(e)))
    return tuple(out)


def ablations(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Every measure of every variant over that of the whole model, on one logarithmic axis a measure."""
    from .packages import alt

    over, step = Rows(), record.inputs["steps"][0]
    variants = record.inputs["variants"][1:]
    names = [label(v, texts) for v in variants]
    points, table = [], []
    for name in _RATIOS:
        base = get(record, "full", name, step)
        for variant in variants:
            e = get(record, variant, name, step)
            if base is None or e is None or not (base.value > 0 and 0 < e.value < math.inf):
                continue
            ratio = e.value / base.value
            table.append((label(variant, texts), texts(_RATIOS[name]), base.value, e.value, ratio))
            about = {"measure": texts(_RATIOS[name]), "said": f"{times(ratio)}×"}
            points.append({"variant": label(variant, texts), "x": ratio, "one": 1.0, **about})
    reach = max([CHANGED * 2, *(max(p["x"], 1 / p["x"]) for p in points)])
    domain = [1 / reach / 1.6, reach * 1.6]
    axis = decades(*domain) if reach > 30 else {"tickCount": 4, "format": "~g"}
    x = alt.X(
        "x:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=alt.Axis(title=texts("why_axis"), **axis)
    )
    y = alt.Y("variant:N", sort=names, axis=alt.Axis(title=None, ticks=False, grid=False))
    panels = []
    for name in _RATIOS:
        mine = [p for p in points if p["measure"] == texts(_RATIOS[name])]
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
        heading = alt.TitleParams(texts(_RATIOS[name]), fontSize=12, fontWeight="normal")
        panels.append(panel.properties(name=f"fluid_{name}", width=190, height=alt.Step(34), title=heading))
    chart = alt.concat(*panels, columns=3, spacing=26)
    columns = ("why_variant", "col_what", "why_full", "col_value", "why_axis")
    return Figure(
        name="ablations",
        title=texts("why_title"),
        chart=over.finish(chart, style, chrome=90, columns=3, narrow=700),
        headline=summary(record, texts),
        reading=texts("why_reading"),
        not_meaning=texts("why_not"),
        table=Table(tuple(texts(c) for c in columns), tuple(table)),
        python=redraw("ablations"),
        texts=texts,
        tags=("estimate",),
        caption=texts("why_caption", step=step, limit=number(CHANGED)),
    )


def block_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Frobenius norms of the query, key and value blocks of every variant."""
    from .packages import alt

    over, step = Rows(), record.inputs["steps"][0]
    bars: list[dict[str, Any]] = []
    for variant in record.inputs["variants"]:
        for block, paper in _BLOCKS.items():
            e = get(record, variant, f"norm/{block}", step)
            if e is not None and e.value > 0:
                about = {"variant": label(variant, texts), "block": texts.parameter(paper), "colour": style.of(paper)}
                spread = {"low": max(e.value - (e.error or 0), e.value / 10), "high": e.value + (e.error or 0)}
                bars.append({**about, **spread, "x": e.value, "said": number(e.value), "error": e.error})
    floor = 10.0 ** math.floor(math.log10(min(b["x"] for b in bars)) - 0.2)
    top = 10.0 ** math.ceil(math.log10(max(b["high"] for b in bars)) + 0.1)
    for bar in bars:
        bar["floor"] = floor
    axis = alt.Axis(title=texts("block_norm"), **decades(floor, top))
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=[floor, top], nice=False), axis=axis)
    order = [texts.parameter(p) for p in _BLOCKS.values()]
    y = alt.Y("block:N", sort=order, axis=alt.Axis(title=None, ticks=False, grid=False))
    panels = []
    for variant in record.inputs["variants"]:
        data = over([b for b in bars if b["variant"] == label(variant, texts)])
        panel = alt.layer(
            data.mark_bar(height=14).encode(x=x, x2="floor:Q", y=y, color=alt.Color("colour:N", scale=None)),
            data.mark_rule(strokeWidth=1.4, color=style.ink).encode(x=alt.X("low:Q"), x2="high:Q", y=y),
            data.mark_text(align="left", dx=6, fontSize=11).encode(x=alt.X("high:Q"), y=y, text="said:N"),
        )
        heading = alt.TitleParams(label(variant, texts), fontSize=12, fontWeight="normal")
        panels.append(panel.properties(name=f"fluid_{len(panels)}", width=190, height=alt.Step(24), title=heading))
    chart = alt.concat(*panels, columns=3, spacing=26)
    table = tuple((b["variant"], b["block"], b["x"], b["error"]) for b in bars)
    return Figure(
        name="blocks",
        title=texts("why_blocks_title"),
        chart=over.finish(chart, style, chrome=100, columns=3, narrow=700),
        headline=_extremes(record, texts) or summary(record, texts),
        reading=texts("why_blocks_reading"),
        not_meaning=texts("why_blocks_not"),
        table=Table(tuple(texts(c) for c in ("why_variant", "col_block", "col_norm", "col_stderr")), table),
        python=redraw("block_bars"),
        texts=texts,
        tags=("estimate",),
        caption=texts("why_blocks_caption", step=step),
    )


def _extremes(record: Record, texts: Texts) -> str:
    """Value over query in the whole model, and the variant in which it lies farthest from that."""
    step = record.inputs["steps"][0]
    ratio = {v: e.value for v in record.inputs["variants"] if (e := get(record, v, "ratio", step)) and e.value > 0}
    base = ratio.pop("full", None)
    if base is None or not ratio:
        return ""
    far = max(ratio, key=lambda v: abs(math.log(ratio[v] / base)))
    return texts("why_blocks_head", whole=number(base), part=label(far, texts), other=number(ratio[far]))


def drawn(record: Record) -> tuple[Draw, ...]:
    given = record.inputs["variants"]
    has_blocks = any(get(record, v, f"norm/{b}") for v in given for b in _BLOCKS)
    whole = get(record, "full", "lambda_max") is not None
    return (*((ablations,) if whole and len(given) > 1 else ()), *((block_bars,) if has_blocks else ()))


PAGE = OldPage(title, summary, cards, rows, drawn)
